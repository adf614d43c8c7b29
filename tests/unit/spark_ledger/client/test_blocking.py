"""The blocking writer's inbox: what callers leave there is told its fate, and counted once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, cast

import pytest

from spark_ledger.client.blocking import LedgerConnection
from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.client.counters import ClientCounters
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import (
    ConfigurationError,
    FencedError,
    LedgerClosedError,
    LedgerError,
    MetadataUnavailableError,
)
from spark_ledger.limits.client import WRITER_ENTRY_BYTES
from spark_ledger.types import BookieId


class Writer:
    """What the blocking writer uses of a writer."""

    ledger_id = 1
    last_add_pushed = -1
    length = 0
    bytes_in_flight_max = 1000
    has_room = True

    def __init__(self) -> None:
        self.refusal: LedgerError | None = None
        self.taken: list[bytes] = []
        self.waited_for_room = 0

    def submit(self, payloads: Sequence[bytes], completions: Sequence[Any]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.taken += payloads
        for completion in completions:
            completion.set_result(len(self.taken))

    async def wait_for_room(self) -> None:
        self.waited_for_room += 1


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def blocking(writer: Writer) -> BlockingWriter:
    return BlockingWriter(BlockingPortal.get(), cast(LedgerWriter, writer))


@pytest.fixture
def pause() -> Iterator[threading.Event]:
    """The loop stands still until the event is set."""
    go_on, stands = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        go_on.wait(10)

    BlockingPortal.get().loop.call_soon_threadsafe(stand)
    assert stands.wait(10)
    yield go_on
    go_on.set()


def test_refused_inbox_is_told_to_each_and_counted_no_more(
    writer: Writer, blocking: BlockingWriter, pause: threading.Event
) -> None:
    writer.refusal = FencedError("taken over")
    futures = [blocking.append_async(bytes(10)) for _ in range(3)]
    assert (blocking.last_add_pushed, blocking.length) == (2, 30)
    pause.set()
    errors = [future.exception(10) for future in futures]
    assert all(isinstance(error, FencedError) for error in errors)
    assert len(set(map(id, errors))) == 3, "each raises its own"
    assert (blocking.last_add_pushed, blocking.length) == (-1, 0)


def test_appended_entry_cannot_be_taken_back(
    writer: Writer, blocking: BlockingWriter, pause: threading.Event
) -> None:
    futures = [blocking.append_async(b"%d" % n) for n in range(3)]
    assert not futures[1].cancel()
    pause.set()
    assert [future.result(10) for future in futures] == [3, 3, 3]
    assert writer.taken == [b"0", b"1", b"2"]


@pytest.mark.parametrize("size", [100, 0])
def test_inbox_is_bounded_while_the_loop_is_busy(
    writer: Writer, blocking: BlockingWriter, pause: threading.Event, size: int
) -> None:
    writer.bytes_in_flight_max = 10 * (size + WRITER_ENTRY_BYTES)
    appended: list[int] = []

    def fill() -> None:
        for number in range(50):
            blocking.append_async(bytes(size))
            appended.append(number)

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and len(appended) == 10
    pause.set()
    thread.join(10)
    assert not thread.is_alive() and len(appended) == 50
    assert writer.waited_for_room


@pytest.mark.parametrize("appended", [1, 3])
def test_writer_that_has_no_room_is_waited_for(
    writer: Writer, blocking: BlockingWriter, appended: int
) -> None:
    """The inbox is empty all the time: what is in flight counts as well."""
    writer.has_room = False
    for number in range(appended):
        assert blocking.append_async(b"x").result(10) == number + 1
    assert writer.waited_for_room == appended


@pytest.mark.parametrize("is_sent_for", [False, True])
def test_append_behind_one_that_was_interrupted_is_delivered(
    writer: Writer, blocking: BlockingWriter, monkeypatch: pytest.MonkeyPatch, is_sent_for: bool
) -> None:
    """Ctrl-C in a notebook, in the middle of an append: the next one must not wait for ever."""
    loop = BlockingPortal.get().loop
    send = loop.call_soon_threadsafe

    def interrupted(callback: Callable[..., object], *args: object) -> object:
        monkeypatch.undo()
        if is_sent_for:
            send(callback, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        blocking.append_async(b"interrupted")
    assert blocking.append_async(b"next").result(10) == len(writer.taken)
    assert writer.taken[-1] == b"next"
    assert blocking.last_add_pushed == len(writer.taken) - 1


def append_beyond_the_room(writer: BlockingWriter) -> object:
    cast(Writer, writer._writer).has_room = False
    return writer.append_async(b"more")


@pytest.mark.parametrize(
    "wait",
    [
        lambda writer: writer.append(b"more"),
        lambda writer: writer.append_many([b"more"]),
        lambda writer: writer.flush(),
        lambda writer: writer.close(),
        append_beyond_the_room,
    ],
    ids=["append", "append_many", "flush", "close", "append_async"],
)
def test_callback_that_waits_for_its_own_thread_is_refused(
    blocking: BlockingWriter, pause: threading.Event, wait: Callable[[BlockingWriter], object]
) -> None:
    told: list[object] = []
    done = threading.Event()

    def callback(_future: object) -> None:
        try:
            wait(blocking)
        except ConfigurationError as error:
            told.append(error)
        done.set()

    blocking.append_async(b"x").add_done_callback(callback)
    pause.set()  # only now: what is done already calls back in this thread
    assert done.wait(10)
    assert len(told) == 1 and "must not wait" in str(told[0])


def test_call_that_is_interrupted_ends_its_work() -> None:
    """Ctrl-C arrives while the main thread waits."""
    main = threading.main_thread().ident
    assert main is not None
    started, handled, cancelled = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def press() -> None:
        assert started.wait(60)
        while not handled.wait(0.05):
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            BlockingPortal.get().call(work())
    finally:
        presser.join()
        signal.signal(signal.SIGINT, before)
    assert cancelled.wait(10)


def test_closed_connection_refuses_every_call_in_one_sentence() -> None:
    class Client:
        async def close(self) -> None:
            pass

        async def list_ledgers(self) -> list[int]:
            raise AssertionError("nothing is asked")

    connection = LedgerConnection(BlockingPortal.get(), cast(LedgerClient, Client()))
    connection.close()
    connection.close()
    with pytest.raises(LedgerClosedError, match="connect again"):
        connection.list_ledgers()


def test_counters_of_a_connection_are_those_of_the_moment() -> None:
    """Whoever takes the difference of two looks holds the first one."""

    class Client:
        counters = ClientCounters()

        async def close(self) -> None:
            pass

    connection = LedgerConnection(BlockingPortal.get(), cast(LedgerClient, Client()))
    before = connection.counters
    Client.counters.read_requests += 1
    assert (before.read_requests, connection.counters.read_requests) == (0, 1)
    connection.close()


class LooksAtItsLock(BlockingWriter):
    """Its inbox is looked at and changed by whoever holds the lock, and by nobody else."""

    GUARDED = ("_inbox", "_inbox_completions")
    COUNTED = (*GUARDED, "_inbox_bytes", "_last_add_pushed", "_length")
    is_made = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in LooksAtItsLock.GUARDED:
            assert self._lock.locked(), f"{name} is looked at without the lock"
        return found

    def __setattr__(self, name: str, value: object) -> None:
        if self.is_made and name in self.COUNTED:
            assert self._lock.locked(), f"{name} is changed without the lock"
        super().__setattr__(name, value)


@pytest.mark.parametrize("is_refused", [False, True])
def test_both_sides_of_the_inbox_hold_its_lock(writer: Writer, is_refused: bool) -> None:
    """Else an entry is stored twice, or waits until the next one: once in a million appends."""
    errors: list[object] = []
    portal = BlockingPortal.get()
    portal.loop.call_soon_threadsafe(
        portal.loop.set_exception_handler, lambda _loop, seen: errors.append(seen)
    )
    blocking = LooksAtItsLock(portal, cast(LedgerWriter, writer))
    blocking.is_made = True
    writer.refusal = FencedError("taken over") if is_refused else None
    futures: list[Any] = [blocking.append_async(b"x"), blocking.append_many_async([b"y", b"z"])]
    found = [future.exception(10) for future in futures]
    portal.loop.call_soon_threadsafe(portal.loop.set_exception_handler, None)
    assert [isinstance(error, FencedError) for error in found] == [is_refused] * 2
    assert errors == []


class _Asked:
    """A client and a reader that write down what they are given."""

    def __init__(self) -> None:
        self.given: list[dict[str, object]] = []

    async def create_ledger(self, **given: object) -> Writer:
        self.given.append(given)
        return Writer()

    async def open_ledger(self, ledger_id: int, **given: object) -> _Asked:
        self.given.append({"ledger_id": ledger_id, **given})
        return self

    def check_range(self, first: int, last: int, *, unconfirmed: bool) -> None:
        self.given.append({"first": first, "last": last, "unconfirmed": unconfirmed})

    async def read_batches(self, first: int, last: int, **given: object) -> Any:
        self.given.append({"first": first, "last": last, **given})
        for batch in list[object]():
            yield batch

    def check_tail(self, start: int, idle_timeout: float | None) -> None:
        self.given.append({"start": start, "idle_timeout": idle_timeout})

    async def tail_batches(self, start: int, **given: object) -> Any:
        self.given.append({"start": start, **given})
        for batch in list[object]():
            yield batch

    async def refresh(self) -> None:
        self.given.append({"refresh": "all"})

    async def refresh_confirmed(self) -> None:
        self.given.append({"refresh": "confirmed"})


def test_blocking_handles_pass_on_all_that_they_are_given() -> None:
    asked = _Asked()
    connection = LedgerConnection(BlockingPortal.get(), cast(LedgerClient, asked))
    creation = {
        "ensemble_size": 5,
        "write_quorum": 4,
        "ack_quorum": 3,
        "password": b"secret",
        "custom_metadata": {"app": "x"},
    }
    connection.create_ledger(**creation)  # type: ignore[arg-type]
    reader = connection.open_ledger(7, recover=True, password=b"secret")
    hint = (BookieId("b1"),)
    for unconfirmed in (True, False):
        assert list(reader.read(1, 2, unconfirmed=unconfirmed, replica_hint=hint)) == []
    wanted = [{"first": 1, "last": 2, "unconfirmed": each} for each in (True, False)]
    assert asked.given == [
        creation,
        {"ledger_id": 7, "recover": True, "password": b"secret"},
        *(one for each in wanted for one in (each, {**each, "replica_hint": hint})),
    ]
    asked.given.clear()
    reader.refresh()
    reader.refresh_confirmed()
    tail = reader.tail(3, idle_timeout=4.0)
    checked = {"start": 3, "idle_timeout": 4.0}
    assert asked.given == [{"refresh": "all"}, {"refresh": "confirmed"}, checked], "and at once"
    assert list(tail) == [] and asked.given[3:] == [checked]


def test_error_of_who_leaves_a_writer_comes_before_that_of_its_close(
    blocking: BlockingWriter, writer: Writer
) -> None:
    async def close() -> None:
        raise MetadataUnavailableError("nothing was changed")

    writer.close = close  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="of the caller"), blocking:
        raise ValueError("of the caller")
    with pytest.raises(MetadataUnavailableError), blocking:
        pass
