"""Looks up the keys of ledgers in the cluster's metadata, for first contacts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookie_server.core.copies import CopyGrant, grant_of
from bookie_server.core.transitions import KnownLedger
from bookie_server.first_contact import Answer, CopyAnswer, not_in_the_metadata
from bookie_server.lookup_turns import LookupTurns
from bookie_server.service.guard.log_bound import LogBound
from spark_ledger.bookie_api import ASKED_BY, Refusal
from spark_ledger.errors import CorruptionError, LedgerError, NoSuchLedgerError
from spark_ledger.limits.bookie import (
    FIRST_CONTACT_LOOKUPS_MAX,
    FIRST_CONTACT_LOOKUPS_WAITING_MAX,
    FIRST_CONTACT_TIMEOUT_S,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.ledgers import read_ledger
from spark_ledger.metadata.repair_locks import RepairLock, lock_path
from spark_ledger.types import BookieStatus, LedgerId

logger = logging.getLogger(__name__)
logger.addFilter(LogBound())  # anybody can ask for ledgers that do not exist


F = TypeVar("F")


class MetadataKeys:
    """Implements ``LedgerKeys``. Everything here belongs to the loop of the metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._turns = LookupTurns(FIRST_CONTACT_LOOKUPS_MAX, FIRST_CONTACT_LOOKUPS_WAITING_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self.found = 0
        """Ledgers that the bookie was allowed to take: it counts up with each."""

    def look_up(self, ledger_id: LedgerId, answer: Answer) -> None:
        """Read the ledger's metadata, or say "busy" when that takes too long: ask again later."""
        self._start(ledger_id, self._key, answer)

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        """Read who holds the ledger's repair lock, as it is now: behind what its holder wrote."""
        self._start(ledger_id, self._grant, answer)

    async def _key(self, ledger_id: LedgerId) -> KnownLedger:
        # No older than this call: a ledger that was closed meanwhile takes no adds (rule P25).
        ledger = (await read_ledger(ledger_id, self._store.get_latest)).value
        return KnownLedger(ledger.access_key_hash, ledger.is_closed)

    async def _grant(self, ledger_id: LedgerId) -> CopyGrant:
        lock = await read_node(self._store, RepairLock, lock_path(ledger_id))
        ledger = await read_ledger(ledger_id, self._store.get_latest)
        return grant_of(ledger.value, b"" if lock is None else lock.value.key_hash)

    def _start(
        self,
        ledger_id: LedgerId,
        read: Callable[[LedgerId], Awaitable[F]],
        answer: Callable[[F | Refusal], None],
    ) -> None:
        who = ASKED_BY.get()
        turn = self._turns.take(who)
        if turn is None:
            answer(_busy(ledger_id, f"{len(self._tasks)} other ledgers are looked up"))
            return
        task = asyncio.get_running_loop().create_task(
            self._look_up(ledger_id, read, answer, who, turn)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_up(
        self,
        ledger_id: LedgerId,
        read: Callable[[LedgerId], Awaitable[F]],
        answer: Callable[[F | Refusal], None],
        who: str,
        turn: asyncio.Future[bool],
    ) -> None:
        found: F | Refusal = _busy(ledger_id, "the look-up was given up")
        is_there: bool | None = None
        try:
            async with asyncio.timeout(FIRST_CONTACT_TIMEOUT_S):
                if await turn:
                    found = await read(ledger_id)
                    self.found += 1
                    is_there = True
                else:
                    found = _busy(ledger_id, "others that ask for less come first")
        except NoSuchLedgerError:
            found, is_there = not_in_the_metadata(ledger_id), False
        except CorruptionError as error:
            found = Refusal(BookieStatus.IO_ERROR, str(error))
        except TimeoutError:
            found = _busy(ledger_id, f"no answer within {FIRST_CONTACT_TIMEOUT_S:g} s")
        except LedgerError as error:
            found = _busy(ledger_id, str(error))
        finally:
            self._turns.leave(who, turn, found=is_there)
            if isinstance(found, Refusal):
                logger.info("refused: %s", found.message)
            answer(found)  # whatever happened: requests wait for it


def _busy(ledger_id: LedgerId, reason: str) -> Refusal:
    return Refusal(
        BookieStatus.TOO_MANY_REQUESTS,
        f"ledger {ledger_id} is not known here, and its metadata cannot be read now: {reason}",
    )
