"""What only the gRPC transport has: addresses, dead and half-open connections, forks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import grpc
import grpc.aio
import pytest

from bookie_server.service.calls import BOUNDS, Kind
from bookie_server.service.grpc_server import GrpcServer
from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.errors import BookieUnavailableError, ConfigurationError, LedgerClosedError
from spark_ledger.limits.entries import READ_CHUNK_BYTES_TARGET
from spark_ledger.runs import EntryRun
from spark_ledger.transport import grpc_aio
from spark_ledger.transport.base import AddResult, LastConfirmed
from spark_ledger.transport.channel import GrpcOptions, open_channel
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId
from tests.contracts.scripted_bookie import ScriptedBookie

BOOKIE = BookieId("b1")
LEDGER = LedgerId(1)
FAST = GrpcOptions(connect_timeout_s=0.3, keepalive_interval_s=0.2, keepalive_timeout_s=0.3)


class Bookies:
    """Starts gRPC bookies and cleans up."""

    def __init__(self) -> None:
        self._parts: list[tuple[GrpcServer, BookieService]] = []

    async def start(self, bookie: ScriptedBookie, bookie_id: BookieId = BOOKIE) -> int:
        metrics = ServiceMetrics()
        service = BookieService(bookie, bookie_id, describe=describe, metrics=metrics)
        server = GrpcServer(service, metrics)
        self._parts.append((server, service))
        return await server.start("127.0.0.1", 0)

    async def stop_all(self) -> None:
        for server, service in self._parts:
            await server.stop(0.0)
            service.close()
        self._parts.clear()


def describe() -> Description:
    """Each figure another one."""
    return Description("c", "1", "writable", 1, 2, 3, 4, 5.5, 6, 7.5, 8, 9)


class Relay:
    """Forwards bytes between a client and a server until it is told to stop doing so."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.silent = False

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.close()
        await asyncio.sleep(0.05)  # a connection that was accepted just now has its writers by then
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_all(self._writers)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers += [writer, far_writer]
        for source, target in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.get_running_loop().create_task(self._pump(source, target)))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if not self.silent:
                target.write(data)


async def close_all(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
    waits = [writer.wait_closed() for writer in writers]
    await asyncio.gather(*waits, return_exceptions=True)


def on_loop(test: Callable[[Bookies], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            bookies = Bookies()
            try:
                async with asyncio.timeout(20):
                    await test(bookies)
            finally:
                await bookies.stop_all()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def make_run(entry: int) -> EntryRun:
    return EntryRun(LEDGER, EntryId(entry), None, [100], bytes(100))


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@on_loop
async def test_a_bookie_nobody_knows_is_unavailable(_bookies: Bookies) -> None:
    transport = GrpcTransport(lambda _bookie_id: None)
    results: list[AddResult] = []
    appender = transport.open_appender(
        BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
    )
    appender.send(make_run(0))
    await until(lambda: results)
    assert results[0].status is BookieStatus.UNAVAILABLE
    assert "not registered" in results[0].message
    end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=1)
    assert end.status is BookieStatus.UNAVAILABLE
    with pytest.raises(BookieUnavailableError, match="not registered"):
        await transport.describe(BOOKIE, timeout_s=1)
    await transport.close()


@on_loop
async def test_call_to_another_bookie_at_the_address_is_refused(bookies: Bookies) -> None:
    port = await bookies.start(ScriptedBookie(), BookieId("somebody-else"))
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    results: list[AddResult] = []
    appender = transport.open_appender(
        BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
    )
    appender.send(make_run(0))
    await until(lambda: results)
    assert results[0].status is BookieStatus.WRONG_BOOKIE
    assert "somebody-else" in results[0].message
    end = await transport.read_last_confirmed(BOOKIE, LEDGER, fence=True, timeout_s=5)
    assert end.status is BookieStatus.WRONG_BOOKIE
    with pytest.raises(BookieUnavailableError, match="somebody-else"):
        await transport.describe(BOOKIE, timeout_s=5)
    await transport.close()


@on_loop
async def test_a_bookie_that_moved_is_followed(bookies: Bookies) -> None:
    old, new = ScriptedBookie(), ScriptedBookie()
    ports = [await bookies.start(old), await bookies.start(new)]
    at = [0]
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{ports[at[0]]}")
    results: list[AddResult] = []

    def send(entry: int) -> None:
        transport.open_appender(
            BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
        ).send(make_run(entry))

    send(0)
    await until(lambda: len(results) == 1)
    old.hold = True
    send(1)
    await until(lambda: len(old.adds) == 2)
    at[0] = 1
    send(2)
    await until(lambda: len(results) == 3)
    assert sorted((r.status, r.last_entry) for r in results) == [
        (BookieStatus.OK, 0),
        (BookieStatus.OK, 2),
        (BookieStatus.UNAVAILABLE, 1),
    ]
    assert [run.first_entry for run in new.adds] == [2]
    await until(lambda: not transport._closing)  # nothing is kept of the old connection
    await transport.close()


@on_loop
async def test_what_a_bookie_says_of_itself_arrives_under_its_name(bookies: Bookies) -> None:
    port = await bookies.start(ScriptedBookie())
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    arrived, said = await transport.describe(BOOKIE, timeout_s=5), asdict(describe())
    assert arrived._asdict() == {"bookie_id": BOOKIE, **said}
    assert len(set(said.values())) == len(said), "or two that are exchanged look right"
    await transport.close()


@on_loop
async def test_a_bookie_without_registration_keeps_its_connection(bookies: Bookies) -> None:
    port = await bookies.start(ScriptedBookie())
    address: list[str | None] = [f"127.0.0.1:{port}"]
    transport = GrpcTransport(lambda _bookie_id: address[0])
    assert (await transport.describe(BOOKIE, timeout_s=5)).bookie_id == BOOKIE
    address[0] = None
    assert (await transport.describe(BOOKIE, timeout_s=5)).bookie_id == BOOKIE
    await transport.close()


def test_a_refused_connection_is_tried_anew_on_the_next_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def counted(address: str, options: GrpcOptions) -> grpc.aio.Channel:
        made.append(address)
        return open_channel(address, options)

    monkeypatch.setattr(grpc_aio, "open_channel", counted)

    async def main() -> None:
        options = GrpcOptions(reconnect_interval_s=0.05)
        transport = GrpcTransport(lambda _bookie_id: "127.0.0.1:1", options)
        for attempt in range(3):
            end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
            assert end.status is BookieStatus.UNAVAILABLE
            assert len(made) == attempt + 1
            await asyncio.sleep(0.1)
        await transport.close()

    asyncio.run(main())


@pytest.mark.parametrize(("rest_s", "connections"), [(0.0, 3), (60.0, 1)])
def test_refused_connection_rests_before_it_is_tried_anew_where_the_bookie_was_last(
    rest_s: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the bookie has lost its registration meanwhile."""
    made: list[str] = []

    def counted(address: str, options: GrpcOptions) -> grpc.aio.Channel:
        made.append(address)
        return open_channel(address, options)

    monkeypatch.setattr(grpc_aio, "open_channel", counted)
    registered: list[str | None] = ["127.0.0.1:1", None, None]

    async def main() -> None:
        options = GrpcOptions(reconnect_interval_s=rest_s)
        transport = GrpcTransport(lambda _bookie_id: registered.pop(0), options)
        for _ in range(3):
            end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
            assert end.status is BookieStatus.UNAVAILABLE
            assert "not registered" not in end.message
        await transport.close()

    asyncio.run(main())
    assert made == ["127.0.0.1:1"] * connections


@on_loop
async def test_a_connection_that_went_silent_is_found(bookies: Bookies) -> None:
    bookie = ScriptedBookie()
    relay = Relay(await bookies.start(bookie))
    port = await relay.start()
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}", FAST)
    results: list[AddResult] = []
    appender = transport.open_appender(
        BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
    )
    appender.send(make_run(0))
    await until(lambda: results)
    relay.silent = True
    appender.send(make_run(1))
    await until(lambda: len(results) == 2)
    assert results[1].status is BookieStatus.UNAVAILABLE
    await transport.close()
    await relay.stop()


def test_writer_of_a_bookie_without_room_for_its_stream_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has sent comes back as refused, and goes over the next stream."""
    monkeypatch.setitem(BOUNDS, Kind.APPEND, 0)

    @on_loop
    async def run(bookies: Bookies) -> None:
        port = await bookies.start(ScriptedBookie())
        transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}", FAST)
        results: list[AddResult] = []
        for told in range(1, 4):
            appender = transport.open_appender(
                BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
            )
            appender.send(make_run(0))
            while len(results) < told:
                await asyncio.sleep(0.005)
            if told == 2:
                monkeypatch.undo()
        statuses = [result.status for result in results]
        assert statuses == [BookieStatus.TOO_MANY_REQUESTS] * 2 + [BookieStatus.OK]
        assert "0 append streams are served here" in results[0].message
        await transport.close()

    run()


@on_loop
async def test_a_host_that_accepts_and_says_nothing_is_given_up(_bookies: Bookies) -> None:
    writers: list[asyncio.StreamWriter] = []
    mute = await asyncio.start_server(lambda _r, w: writers.append(w), "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}", FAST)
    results: list[AddResult] = []
    appender = transport.open_appender(
        BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
    )
    appender.send(make_run(0))
    end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=0.1)
    assert end.status in (BookieStatus.TIMEOUT, BookieStatus.UNAVAILABLE)
    await until(lambda: results)
    assert results[0].status is BookieStatus.UNAVAILABLE
    await transport.close()
    mute.close()
    await asyncio.sleep(0.05)  # a connection that was accepted just now has its writer by then
    await close_all(writers)


@on_loop
async def test_reading_part_of_a_range_ends_the_call(bookies: Bookies) -> None:
    bookie = ScriptedBookie()
    port = await bookies.start(bookie)
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    results: list[AddResult] = []
    appender = transport.open_appender(
        BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
    )
    for entry in range(20):
        frames = bytes(500_000)
        appender.send(EntryRun(LEDGER, EntryId(entry), None, [len(frames)], frames))
    await until(lambda: results and results[-1].last_entry == 19)
    chunks = transport.read(BOOKIE, LEDGER, EntryId(0), EntryId(19), timeout_s=5)
    async for chunk in chunks:
        assert chunk.run is not None and chunk.run.first_entry == 0
        break
    await chunks.aclose()
    assert (await transport.describe(BOOKIE, timeout_s=5)).bookie_id == BOOKIE
    await transport.close()


@on_loop
async def test_a_child_process_must_not_use_its_parents_transport(bookies: Bookies) -> None:
    port = await bookies.start(ScriptedBookie())
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    await transport.describe(BOOKIE, timeout_s=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(LedgerClosedError, match="do not survive a fork"):
            await transport.describe(BOOKIE, timeout_s=5)
        with pytest.raises(LedgerClosedError, match="do not survive a fork"):
            transport.open_appender(
                BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=lambda _result: None
            )
        with pytest.raises(ConfigurationError, match="spawn"):
            GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
        await transport.close()
        assert transport._connections, "those of its parent, which goes on"
    await transport.close()


@on_loop
async def test_calls_under_way_at_close_are_unavailable_and_not_cancelled(
    bookies: Bookies,
) -> None:
    port = await bookies.start(ScriptedBookie())
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    await transport.describe(BOOKIE, timeout_s=5)

    def long_poll() -> asyncio.Task[LastConfirmed]:
        waiting = transport.read_last_confirmed(
            BOOKIE, LEDGER, wait_above=EntryId(5), wait_s=10, timeout_s=10
        )
        return asyncio.ensure_future(waiting)

    kept, cancelled = long_poll(), long_poll()
    await asyncio.sleep(0.1)
    cancelled.cancel()
    await transport.close()
    assert (await kept).status is BookieStatus.UNAVAILABLE
    with pytest.raises(asyncio.CancelledError):
        await cancelled


FORKS = """
import asyncio, os, time
from spark_ledger.transport.channel import GrpcOptions, open_channel
import grpc.aio
async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = open_channel(f"127.0.0.1:{port}", GrpcOptions())
    await channel.channel_ready()
    for _ in range(20):
        await asyncio.sleep(0.001)
        child = os.fork()
        if child == 0:
            time.sleep(0.02)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "a forked child crashed"
    await channel.close()
    await server.stop(0)
asyncio.run(main())
"""


def test_a_process_with_connections_may_fork_children_that_use_none() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    outcome = subprocess.run(
        [sys.executable, "-c", FORKS], env=environment, capture_output=True, text=True, timeout=60
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "fork()" not in outcome.stderr  # the handlers say that they were skipped


@on_loop
async def test_long_poll_timeout_is_wait_plus_answer_time(bookies: Bookies) -> None:
    bookie = ScriptedBookie()
    port = await bookies.start(bookie)
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    await transport.describe(BOOKIE, timeout_s=5)
    poll = asyncio.create_task(
        transport.read_last_confirmed(
            BOOKIE, LEDGER, wait_above=EntryId(2), wait_s=15, timeout_s=0.3
        )
    )
    await until(lambda: LEDGER in bookie.ledgers and bookie.ledgers[LEDGER].watches)
    await asyncio.sleep(0.4)
    assert not poll.done(), "an answer's time alone has passed"
    for told in (2, 3):
        status = await transport.write_last_confirmed(BOOKIE, LEDGER, EntryId(told), timeout_s=5)
        assert status is BookieStatus.OK
    assert (await poll).last_add_confirmed == 3
    await transport.close()


@on_loop
async def test_a_striped_read_that_breaks_names_the_entry_it_wants_next(bookies: Bookies) -> None:
    bookie = ScriptedBookie()
    port = await bookies.start(bookie)
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    bookie.watch_last_confirmed(LEDGER, NO_ENTRY, lambda: None)()  # makes the ledger
    size = READ_CHUNK_BYTES_TARGET // 3
    bookie.ledgers[LEDGER].entries = {entry: bytes(size) for entry in range(12)}
    read, reads = bookie.read, 0

    def read_once(*values: object, **options: object) -> object:
        nonlocal reads
        reads += 1
        assert reads == 1, "a bug of the bookie"
        return read(*values, **options)  # type: ignore[arg-type]

    bookie.read = read_once  # type: ignore[assignment, method-assign]
    chunks = transport.read(BOOKIE, LEDGER, EntryId(1), EntryId(11), stride=3, timeout_s=5)
    first, last = [chunk async for chunk in chunks]
    assert first.run is not None and first.run.ids()[0] == 1
    assert (last.run, last.entry_id) == (None, first.run.last_entry + 3)
    assert last.status is BookieStatus.IO_ERROR
    await transport.close()


@on_loop
async def test_time_that_the_caller_takes_between_chunks_does_not_count(bookies: Bookies) -> None:
    bookie = ScriptedBookie()
    port = await bookies.start(bookie)
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    bookie.watch_last_confirmed(LEDGER, NO_ENTRY, lambda: None)()  # makes the ledger
    bookie.ledgers[LEDGER].entries = {entry: bytes(600_000) for entry in range(30)}
    found: list[int] = []
    chunks = 0
    async for chunk in transport.read(BOOKIE, LEDGER, EntryId(0), EntryId(29), timeout_s=0.5):
        assert chunk.run is not None, chunk.message
        found += chunk.run.ids()
        chunks += 1
        if chunks == 1:
            await asyncio.sleep(1.0)
        if chunks == 2:
            time.sleep(1.0)  # on the loop: what has come is not looked at
    assert found == list(range(30)) and chunks > 2
    await transport.close()
