"""BlockingWriter: the writer for code without a loop; see ``blocking``.

Both sides write only the fields below its lock, and only under that lock. Whoever holds it calls
nothing and makes nothing: a signal handler or a finalizer that came in between may wait for the
loop, and the loop would wait for the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Self

from spark_ledger.client.append_future import AppendFuture
from spark_ledger.client.completions import Completion, batch_completions, fail_all
from spark_ledger.client.payloads import check_batch, check_payload
from spark_ledger.client.portal import BlockingPortal, would_deadlock
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import LedgerError
from spark_ledger.limits.client import WRITER_ENTRY_BYTES
from spark_ledger.types import EntryId, LedgerId, LedgerMetadata


class BlockingWriter:
    """Appends to a ledger. Threads may share it; entries get ids in the order of the calls.

    Appends are left in an inbox, which the loop empties once per turn: waking it for each of them
    would cost more than the append.
    """

    def __init__(self, portal: BlockingPortal, writer: LedgerWriter) -> None:
        self._portal = portal
        self._writer = writer
        """Belongs to the loop. Callers read its properties, never call it."""
        self._delivery = 0
        """How often the loop has begun to empty the inbox. The loop writes it, callers look."""
        self._woken_for = -1
        """The delivery of when the loop was last woken, and not later than it was."""
        self._lock = threading.Lock()
        """Guards the writing of all fields below; their readers need one value, and no lock."""
        self._inbox: list[bytes] = []
        self._inbox_completions: list[Completion] = []
        self._inbox_bytes = 0
        """What these take: payload, and ``WRITER_ENTRY_BYTES`` for each."""
        self._last_add_pushed: int = writer.last_add_pushed
        """The inbox included. The writer's own number lacks what is between inbox and writer."""
        self._length = writer.length
        """Payload bytes up to and with ``_last_add_pushed``."""

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last wrote or read them."""
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that is confirmed; -1 when there is none."""
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry that was appended, confirmed or not."""
        return EntryId(self._last_add_pushed)

    @property
    def length(self) -> int:
        """Payload bytes appended so far."""
        return self._length

    def append(self, payload: bytes) -> EntryId:
        """Append one entry and wait until it is confirmed; its id.

        Raises EntryTooLargeError if the payload is too large, LedgerClosedError if the ledger is
        closed, FencedError if another client took it over, NotEnoughBookiesError if too many
        bookies failed.
        """
        if self._portal.is_current:
            raise would_deadlock()
        return EntryId(self.append_async(payload).result())

    def append_many(self, payloads: Iterable[bytes]) -> range:
        """Append several entries at once and wait until all are confirmed; their ids.

        For small entries: a batch costs little more than one of them. Raises as ``append``, and
        then the first of them may be confirmed; ConfigurationError if the batch has more bytes than
        may be in flight, or too many entries: nothing of it was appended.
        """
        if self._portal.is_current:
            raise would_deadlock()
        return self.append_many_async(payloads).result()

    def append_async(self, payload: bytes) -> Future[int]:
        """Append one entry; a future of its id. Futures complete in entry order.

        Waits while too many bytes are in flight. What is wrong with the payload is raised here,
        what happens to the ledger is raised by the future. Callbacks of the future run on the
        thread that all handles share: they should be short, and must not wait for an append.
        """
        payload = check_payload(payload)
        future: AppendFuture[int] = AppendFuture()
        self._leave((payload,), (future,), len(payload))
        return future

    def append_many_async(self, payloads: Iterable[bytes]) -> Future[range]:
        """Append several entries at once; a future of their ids, in the order of the payloads.

        As ``append_async`` and ``append_many``.
        """
        checked = check_batch(payloads, self._writer.bytes_in_flight_max)
        future: AppendFuture[range] = AppendFuture()
        if checked:
            completions = batch_completions(future, len(checked))
            self._leave(checked, completions, sum(map(len, checked)))
        else:
            future.set_result(range(0))
        return future

    def _leave(
        self, payloads: Sequence[bytes], completions: Sequence[Completion], size_bytes: int
    ) -> None:
        """Leave entries in the inbox, next to each other, once there is room."""
        portal, writer = self._portal, self._writer
        if not portal.is_running:
            portal.check_usable()
        if self._inbox_bytes >= writer.bytes_in_flight_max or not writer.has_room:
            portal.call(self._room())
        count = len(payloads)
        held_bytes = size_bytes + WRITER_ENTRY_BYTES * count
        with self._lock:
            self._inbox += payloads
            self._inbox_completions += completions
            self._inbox_bytes += held_bytes
            self._last_add_pushed += count
            self._length += size_bytes
        # As long as the loop has not begun a delivery since it was woken, it will find the above.
        # Ctrl-C may come with any call: what it left here and woke nobody goes with the next one.
        delivery = self._delivery
        if self._woken_for != delivery:
            portal.loop.call_soon_threadsafe(self._deliver)
            self._woken_for = delivery

    def flush(self) -> None:
        """Wait until everything appended so far is confirmed. Raises what made that fail."""
        self._portal.call(self._flush())

    def close(self) -> None:
        """Wait for what is in flight, then close the ledger. A second call is fine."""
        self._portal.call(self._close())

    async def _room(self) -> None:
        self._deliver()
        await self._writer.wait_for_room()

    async def _flush(self) -> None:
        self._deliver()
        await self._writer.flush()

    async def _close(self) -> None:
        self._deliver()
        await self._writer.close()

    def _deliver(self) -> None:
        """On the loop: hand over everything that callers have left."""
        self._delivery += 1
        payloads: list[bytes] = []
        completions: list[Completion] = []
        with self._lock:
            payloads, self._inbox = self._inbox, payloads
            completions, self._inbox_completions = self._inbox_completions, completions
            self._inbox_bytes = 0
        if not payloads:
            return
        try:
            # Not under the lock: it may complete futures, whose callbacks may append.
            self._writer.submit(payloads, completions)
        except LedgerError as error:
            count, size_bytes = len(payloads), sum(map(len, payloads))
            with self._lock:
                self._last_add_pushed -= count
                self._length -= size_bytes
            fail_all(completions, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: object, _traceback: object) -> None:
        with suppress(*(() if error is None else (LedgerError,))):  # its caller's says more
            self.close()
