"""A sign for bookies that ledgers were deleted: one node for the cluster, which says nothing else.

| node | contents |
|---|---|
| deletions | none: its version says that there was another sign |

Whoever deletes ledgers raises the version, soon after. Bookies look at it now and then and have
their next pass sooner (rule G10). So nothing depends on a sign: it may be lost, come twice, or come
without a deletion.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from spark_ledger.errors import ConflictError, LedgerError, NotFoundError, OutcomeUnknownError
from spark_ledger.limits.metadata import (
    DELETION_SIGN_CLOSE_S,
    DELETION_SIGN_PAUSE_S,
    METADATA_ATTEMPTS,
)
from spark_ledger.metadata.base import Delete, MetadataStore, Operation
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.unsettled import UNNAMED_PATH, id_path
from spark_ledger.tasks import cancel
from spark_ledger.types import LedgerId

logger = logging.getLogger(__name__)

DELETIONS_PATH: Final = "deletions"


async def read_sign(store: MetadataStore) -> int:
    """A number that another sign changes. A server that lags may not know the last one yet.

    Raises what the store raises.
    """
    try:
        return (await store.get(DELETIONS_PATH)).version
    except NotFoundError:
        return -1


async def give_sign(store: MetadataStore) -> None:
    """Have bookies look soon. Raises what the store raises; nobody needs to try again."""
    try:
        node = await store.get(DELETIONS_PATH)
        await store.put(DELETIONS_PATH, b"", node.version)
    except NotFoundError:
        with contextlib.suppress(ConflictError):
            await store.create(DELETIONS_PATH, b"")
    except ConflictError:
        pass  # somebody else has given one since, which comes after our deletions as well


class Deletions:
    """The deletions of one connection: all of a moment share a sign. On the loop of the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._timer: asyncio.TimerHandle | None = None
        self._giving: asyncio.Task[None] | None = None
        self._is_due = False  # one that is being given may have been seen by bookies already
        self._is_closed = False

    async def delete(self, ledger_id: LedgerId, checks: Sequence[Operation] = ()) -> None:
        """Delete a ledger in one transaction with ``checks``, which is sent once. Raises what the
        store raises, also NotFoundError if the ledger is gone."""
        await self._store.transaction([*checks, Delete(ledger_path(ledger_id))])
        self.note()

    async def delete_unnamed(self, ledger_id: LedgerId, incarnation: bytes) -> None:
        """Delete a ledger that was made until it is named, if it is there and nothing has named it
        (rule K4). Over whatever connection: a ledger of another incarnation, to which a restored
        store has given the id, stays. Raises what the store raises; then it may be there still."""
        assert incarnation, "who does not know which ledger is meant deletes none"
        unnamed = id_path(UNNAMED_PATH, ledger_id)
        for _ in range(METADATA_ATTEMPTS):
            connection = self._store.connections
            try:
                found = await self._store.get_latest(unnamed)
            except NotFoundError:
                return  # named, or deleted
            if found.value != incarnation:
                return
            if connection != self._store.connections:
                continue  # what has the id by now may be another ledger
            self.note()  # also if the reply is lost
            try:
                await self._store.transaction(
                    [Delete(unnamed, found.version), Delete(ledger_path(ledger_id))]
                )
            except OutcomeUnknownError:
                continue
            return
        raise OutcomeUnknownError(f"ledger {ledger_id} may or may not have been deleted")

    def note(self) -> None:
        """A ledger was deleted."""
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(DELETION_SIGN_PAUSE_S, self._begin)

    async def close(self) -> None:
        """Give the sign that is due, and wait for it a moment."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._begin()
        if self._giving is not None:
            try:
                await asyncio.wait([self._giving], timeout=DELETION_SIGN_CLOSE_S)
            finally:
                await cancel(self._giving)

    def _begin(self) -> None:
        self._timer, self._is_due = None, True
        if self._giving is None or self._giving.done():
            self._giving = asyncio.get_running_loop().create_task(self._give())

    async def _give(self) -> None:
        while self._is_due:
            self._is_due = False
            try:
                await give_sign(self._store)
            except LedgerError as error:
                logger.info("no sign that ledgers were deleted: %s", error)
