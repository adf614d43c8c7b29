"""Looks after a new connection to ZooKeeper whether the ledgers that are written are still there.

Appends need no metadata. A store that was restored from a backup may know nothing of a ledger, or
have it as it once was: its writer went on acknowledging entries that nobody could read. A store is
restored between two connections only, so one look at each writer's ledger behind each new one is
enough. The first look may be at a server that lags; what it lacks is looked for again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from spark_ledger.client.context import OpenHandle
from spark_ledger.errors import (
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from spark_ledger.limits.metadata import METADATA_READS_IN_FLIGHT_MAX, METADATA_RETRY_DELAY_S
from spark_ledger.metadata.base import MetadataStore, Watch
from spark_ledger.metadata.cluster import CLUSTER_PATH
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.tasks import cancel
from spark_ledger.types import LedgerId

logger = logging.getLogger(__name__)

_ROUND_PAUSE_S: Final = METADATA_RETRY_DELAY_S
"""Before those are looked at again of which the store could not tell."""


class WrittenLedgers:
    """The look behind each new connection. Belongs to the loop of the store."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        writers: Collection[OpenHandle],
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._writers = writers
        self._looked_in = 0  # the connection
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def began(self, connection: int) -> None:
        """There is one more writer. Its ledger was made in this connection, or behind it."""
        if self._is_closed:
            return  # whoever closes the connection ends this writer, too
        if self._watch is None:
            self._watch = self._store.watch(CLUSTER_PATH, self._on_change)
            self._looked_in = connection
        self._looked_in = min(self._looked_in, connection)
        self._on_change()

    async def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        if self._task is not None:
            await cancel(self._task)

    def _on_change(self) -> None:
        """A watch is also called after each reconnect."""
        is_new = self._store.connections != self._looked_in
        if is_new and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while (connection := self._store.connections) != self._looked_in:
            left = [writer for writer in list(self._writers) if not writer.is_closed]
            while left and connection == self._store.connections:
                part = left[:METADATA_READS_IN_FLIGHT_MAX]
                told = await asyncio.gather(*map(self._is_told, part))
                again = [writer for writer, is_told in zip(part, told, strict=True) if not is_told]
                left = left[len(part) :] + again
                if again:
                    await asyncio.sleep(_ROUND_PAUSE_S)
            if not left:
                self._looked_in = connection

    async def _is_told(self, writer: OpenHandle) -> bool:
        """Whether the store has told of a writer's ledger, and the writer was ended if it must."""
        ledger_id = writer.ledger_id
        try:
            await self._ledgers.read_newest(ledger_id)
        except NoSuchLedgerError as error:
            await self._end(writer, self._gone(ledger_id, error))
        except MetadataRestoredError as error:
            await self._end(writer, error)
        except MetadataUnavailableError as error:
            logger.debug("ledger %d cannot be looked at yet: %s", ledger_id, error)
            return writer.is_closed
        except LedgerClosedError:
            return True  # the connection is closed, and whoever closes it ends the writers
        except LedgerError as error:  # it would be the same in a moment
            logger.warning("ledger %d is written, and cannot be looked at: %s", ledger_id, error)
        return True

    def _gone(self, ledger_id: LedgerId, error: NoSuchLedgerError) -> LedgerError:
        if not self._store.restored:
            return error  # somebody has deleted it
        return MetadataRestoredError(
            f"ledger {ledger_id}: the metadata do not have it any more: {self._store.restored}, "
            "then write to a new ledger"
        )

    async def _end(self, writer: OpenHandle, error: LedgerError) -> None:
        if not writer.is_closed:
            logger.error("ledger %d is not written any more: %s", writer.ledger_id, error)
            await writer.end(error)
