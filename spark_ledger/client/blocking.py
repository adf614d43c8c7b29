"""LedgerConnection: the same client for code without a loop (Spark workers, scripts, the CLI).

One background thread per process runs one asyncio loop, the *portal*. Handles pass work to it and
wait. A forked child makes its own portal and its own connections.

Who owns what: everything of the async client belongs to the loop's thread. A handle here keeps a
reference that never changes, passes coroutines to the loop, and reads single attributes from the
caller's thread, each of which is one value that the loop replaces. Both sides write only the fields
of ``BlockingWriter`` below its lock, and only under that lock. ``LedgerConnection._closed`` belongs
to its callers. Callbacks of futures run on the loop's thread, so they must not wait for the client.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Self, TypeAlias, TypeVar

from spark_ledger.client.counters import ClientCounters
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.client.writer import LedgerWriter, check_payload, copy_error
from spark_ledger.errors import ConfigurationError, LedgerClosedError, LedgerError
from spark_ledger.limits.client import PORTAL_STOP_TIMEOUT_S
from spark_ledger.types import BookieInfo, Entry, EntryId, LedgerId, LedgerMetadata

T = TypeVar("T")
Work: TypeAlias = Coroutine[object, None, T]
"""What runs on the loop for a caller who waits."""


class BlockingPortal:
    """A loop on a thread of its own. Get the process's one with ``BlockingPortal.get()``.

    Its fields never change once it is made, so any thread may read them.
    """

    _current: BlockingPortal | None = None
    """The portal of this process, or of the parent it was forked from. Under ``_making``."""
    _making = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        """Belongs to ``_thread``; others use only its ``..._threadsafe`` methods."""
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="spark-ledger", daemon=True
        )
        self._thread.start()
        atexit.register(self._stop)

    @classmethod
    def get(cls) -> BlockingPortal:
        """The portal of this process; a child that was forked gets a new one."""
        with cls._making:
            if cls._current is None or cls._current._pid != os.getpid():
                cls._current = cls()
            return cls._current

    @classmethod
    def _after_fork_in_child(cls) -> None:
        """Another thread of the parent may have held the lock, and nobody would release it here."""
        cls._making = threading.Lock()

    def call(self, work: Work[T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises ConfigurationError on the loop's own thread, LedgerClosedError in a forked child and
        at the end of the process, and whatever the work raises.
        """
        try:
            if self.is_current:
                raise _would_deadlock()
            self.check_usable()
        except LedgerError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # KeyboardInterrupt: do not leave the work running behind
            raise

    def _begin_and_wait(self, begin: Callable[[], Work[T]]) -> T:
        """As ``call``, with the coroutine made on the loop's thread. One that is made here is left
        behind if Ctrl-C comes before the loop has it, and Python warns on standard error."""
        if self.is_current:
            raise _would_deadlock()
        self.check_usable()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def settle(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                done.cancel()
            elif (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        self.loop.call_soon_threadsafe(
            lambda: self.loop.create_task(begin()).add_done_callback(settle)
        )
        return done.result()

    def check_usable(self) -> None:
        """Raises LedgerClosedError where the loop does not run, so that nobody waits for ever:
        in a forked child, and in exit handlers that run after the loop was stopped."""
        if self.is_running:
            return
        if self._pid != os.getpid():
            raise LedgerClosedError(
                "this connection was made before the process forked: connect again in the child"
            )
        raise LedgerClosedError("this process is ending, and its connections with it")

    @property
    def is_running(self) -> bool:
        """False in a forked child, and once the process is ending."""
        return self._pid == os.getpid() and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """True on the loop's own thread, as in a callback of a future: it must not wait."""
        return threading.current_thread() is self._thread

    def iterate(self, iterator: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator; it is closed when this one is."""

        reading: asyncio.Task[object] | None = None
        """The task that waits for the next item. Belongs to the loop."""

        async def read_next() -> tuple[T] | None:
            nonlocal reading
            reading = asyncio.current_task()
            try:
                return (await anext(iterator),)
            except StopAsyncIteration:
                return None

        async def close() -> None:
            if reading is not None and not reading.done():  # Ctrl-C came while an item was awaited
                reading.cancel()
                await asyncio.wait([reading])
            if isinstance(iterator, AsyncGenerator):
                await iterator.aclose()

        try:
            while (item := self._begin_and_wait(read_next)) is not None:
                yield item[0]
        finally:
            if self.is_running:
                self.call(close())

    def _stop(self) -> None:
        if self.is_running:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=PORTAL_STOP_TIMEOUT_S)


os.register_at_fork(after_in_child=BlockingPortal._after_fork_in_child)


class BlockingWriter:
    """Appends to a ledger. Threads may share it; entries get ids in the order of the calls.

    Appends are left in an inbox, which the loop empties once per turn: waking it for each of them
    would cost more than the append.
    """

    def __init__(self, portal: BlockingPortal, writer: LedgerWriter) -> None:
        self._portal = portal
        self._writer = writer
        """Belongs to the loop. Callers read its properties, never call it."""
        self._lock = threading.Lock()
        """Guards the writing of all fields below; their readers need one value, and no lock."""
        self._inbox: list[tuple[bytes, concurrent.futures.Future[int]]] = []
        self._inbox_bytes = 0
        self._last_add_pushed = writer.last_add_pushed
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
        return self._last_add_pushed

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
            raise _would_deadlock()
        return EntryId(self.append_async(payload).result())

    def append_async(self, payload: bytes) -> concurrent.futures.Future[int]:
        """Append one entry; a future of its id. Futures complete in entry order.

        Waits while too many bytes are in flight. What is wrong with the payload is raised here,
        what happens to the ledger is raised by the future. Callbacks of the future run on the
        thread that all handles share: they should be short, and must not wait for an append.
        """
        payload = check_payload(payload)
        self._portal.check_usable()
        future: concurrent.futures.Future[int] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # an entry once appended cannot be taken back
        if self._inbox_bytes or not self._writer.has_room:
            self._wait_for_room()
        with self._lock:
            first = not self._inbox
            self._inbox.append((payload, future))
            self._inbox_bytes += len(payload)
            self._count(1, len(payload))
        if first:
            self._portal.loop.call_soon_threadsafe(self._deliver)
        return future

    def flush(self) -> None:
        """Wait until everything appended so far is confirmed. Raises what made that fail."""
        self._portal.call(self._flush())

    def close(self) -> None:
        """Wait for what is in flight, then close the ledger. A second call is fine."""
        self._portal.call(self._close())

    def _wait_for_room(self) -> None:
        limit = self._writer.bytes_in_flight_max
        if self._inbox_bytes >= limit or not self._writer.has_room:
            self._portal.call(self._room())

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
        with self._lock:
            inbox, self._inbox, self._inbox_bytes = self._inbox, [], 0
        if not inbox:
            return
        payloads = [payload for payload, _ in inbox]
        futures = [future for _, future in inbox]
        try:
            # Not under the lock: it may complete futures, whose callbacks may append.
            self._writer.submit(payloads, futures)
        except LedgerError as error:
            with self._lock:
                self._count(-len(inbox), -sum(map(len, payloads)))
            for future in futures:
                future.set_exception(copy_error(error))

    def _count(self, entries: int, size_bytes: int) -> None:
        """Under the lock: so many entries more were appended, or fewer."""
        self._last_add_pushed = EntryId(self._last_add_pushed + entries)
        self._length += size_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class BlockingReader:
    """Reads a ledger up to its last add confirmed. Both fields never change."""

    def __init__(self, portal: BlockingPortal, reader: LedgerReader) -> None:
        self._portal = portal
        self._reader = reader

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this reader last read them."""
        return self._reader.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that its end is final."""
        return self._reader.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read; -1 for an empty ledger."""
        return self._reader.last_add_confirmed

    def refresh(self) -> None:
        """Learn of new fragments, of the close, and of newly confirmed entries."""
        self._portal.call(self._reader.refresh())

    def refresh_confirmed(self) -> None:
        """Learn of newly confirmed entries, without the metadata."""
        self._portal.call(self._reader.refresh_confirmed())

    def read(
        self, first: int, last: int, *, unconfirmed: bool = False, replica_hint: int = 0
    ) -> Iterator[Entry]:
        """The entries from ``first`` to ``last``, both included.

        Raises, in this call, ConfigurationError if it is no range, ReadBeyondConfirmedError if it
        ends above the last add confirmed; while iterating, NoSuchEntryError if no replica has an
        entry, DigestMismatchError if none has an undamaged one, BookieUnavailableError if none
        that may have it answers.
        """
        self._reader.check_range(first, last, unconfirmed=unconfirmed)
        batches = self._reader.read_batches(
            first, last, unconfirmed=unconfirmed, replica_hint=replica_hint
        )
        return _flatten(self._portal.iterate(batches))

    def tail(self, start: int = 0, *, idle_timeout: float | None = None) -> Iterator[Entry]:
        """Entries from ``start`` on as they are confirmed, until the ledger is closed and read.

        ``idle_timeout`` ends it after so many seconds without a new entry.
        """
        self._reader.check_tail(start, idle_timeout)
        batches = self._reader.tail_batches(start, idle_timeout=idle_timeout)
        return _flatten(self._portal.iterate(batches))

    def close(self) -> None:
        """Nothing is held open; here so that a reader can stand in a ``with``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LedgerConnection:
    """A blocking connection to a cluster. Leaving ``with`` closes it."""

    def __init__(self, portal: BlockingPortal, client: LedgerClient) -> None:
        self._portal = portal
        self._client = client
        """Belongs to the loop."""
        self._closed = False
        """Set by whoever closes first. Two threads that both find it unset close twice, which does
        no harm; a call that comes in between fails with the transport's or the store's error."""

    @classmethod
    def connect(cls, uri: str, **options: object) -> Self:
        """Connect to the cluster whose metadata are at ``uri``. See ``LedgerClient.connect``."""
        portal = BlockingPortal.get()
        return cls(portal, portal.call(LedgerClient.connect(uri, **options)))

    @property
    def counters(self) -> ClientCounters:
        """What this connection has done so far: a copy."""
        return replace(self._client.counters)

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        password: bytes = b"",
        custom_metadata: Mapping[str, str] | None = None,
    ) -> BlockingWriter:
        """Create a ledger; its only writer. See ``LedgerClient.create_ledger``."""
        writer = self._call(
            self._client.create_ledger(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=password,
                custom_metadata=custom_metadata,
            )
        )
        return BlockingWriter(self._portal, writer)

    def open_ledger(
        self, ledger_id: int, *, recover: bool = False, password: bytes = b""
    ) -> BlockingReader:
        """Open a ledger for reading. See ``LedgerClient.open_ledger``."""
        reader = self._call(self._client.open_ledger(ledger_id, recover=recover, password=password))
        return BlockingReader(self._portal, reader)

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger. Idempotent."""
        self._call(self._client.delete_ledger(ledger_id))

    def list_ledgers(self) -> list[LedgerId]:
        """The ids of all ledgers, ascending."""
        return self._call(self._client.list_ledgers())

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata, without asking a bookie. Raises NoSuchLedgerError if it is gone."""
        return self._call(self._client.ledger_metadata(ledger_id))

    def list_bookies(self) -> list[BookieInfo]:
        """The bookies that are registered now."""
        return self._call(self._client.list_bookies())

    def close(self) -> None:
        """Close the connection. Writers that were not closed leave their ledgers open."""
        if not self._closed:
            self._closed = True
            self._portal.call(self._client.close())

    def _call(self, work: Work[T]) -> T:
        if self._closed:
            work.close()
            raise LedgerClosedError("this connection is closed: connect again")
        return self._portal.call(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _would_deadlock() -> ConfigurationError:
    return ConfigurationError(
        "a callback of a future runs on the client's own thread and must not wait for it; "
        "append_async waits too when much is in flight: append from another thread"
    )


def _flatten(batches: Iterator[list[Entry]]) -> Iterator[Entry]:
    for batch in batches:
        yield from batch
