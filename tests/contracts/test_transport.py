"""The contract of ``spark_ledger.transport.base``, kept by gRPC and by memory alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bookie_server.service.grpc_server import GrpcServer
from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.errors import BookieUnavailableError, LedgerClosedError
from spark_ledger.limits import MIB
from spark_ledger.limits.entries import CONFIRMATIONS_PER_MESSAGE, READ_CHUNK_BYTES_TARGET
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult, Appender, ReadChunk, Transport
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import Crc32cDigest
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.frames import seal

BOOKIE = BookieId("bookie-1")
LEDGER = LedgerId(7)
OK = BookieStatus.OK
DESCRIPTION = Description("cluster", "1", "writable", 0, 0, 0, 0, 1.0)


class World:
    """One bookie, reachable over the transport under test; it can be killed and revived."""

    def __init__(self, transport: Transport, bookie: ScriptedBookie) -> None:
        self.transport = transport
        self.bookie = bookie
        self.kill: Callable[[], Awaitable[None]]
        self.revive: Callable[[], Awaitable[None]]
        self.results: list[AddResult] = []

    def open(self, ledger_id: int = 7, *, key: bytes = b"", recovery: bool = False) -> Appender:
        return self.transport.open_appender(
            BOOKIE,
            LedgerId(ledger_id),
            access_key=key,
            recovery=recovery,
            on_result=self.results.append,
        )

    async def read(
        self, first: int, last: int, *, stride: int = 1, max_bytes: int = 0, fence: bool = False,
        key: bytes = b"", timeout_s: float = 5.0,
    ) -> list[ReadChunk]:  # fmt: skip
        chunks = self.transport.read(
            BOOKIE, LEDGER, EntryId(first), EntryId(last), stride=stride, max_bytes=max_bytes,
            fence=fence, access_key=key, timeout_s=timeout_s,
        )  # fmt: skip
        return [chunk async for chunk in chunks]


@asynccontextmanager
async def grpc_world() -> AsyncIterator[World]:
    bookie = ScriptedBookie()
    servers: list[GrpcServer] = []
    ports: list[int] = []

    async def start() -> None:
        metrics = ServiceMetrics()
        service = BookieService(bookie, BOOKIE, describe=lambda: DESCRIPTION, metrics=metrics)
        services.append(service)
        servers.append(GrpcServer(service, metrics))
        ports.append(await servers[-1].start("127.0.0.1", ports[-1] if ports else 0))

    async def stop() -> None:
        await servers.pop().stop(0.0)

    services: list[BookieService] = []
    await start()
    world = World(GrpcTransport(lambda bookie_id: f"127.0.0.1:{ports[-1]}"), bookie)
    world.kill, world.revive = stop, start
    try:
        yield world
    finally:
        await world.transport.close()
        for server in servers:
            await server.stop(0.0)
        for service in services:
            service.close()


@asynccontextmanager
async def memory_world() -> AsyncIterator[World]:
    bookies = {BOOKIE: ScriptedBookie()}
    bookie = bookies[BOOKIE]
    transport = MemoryTransport(bookies)
    world = World(transport, bookie)

    async def kill() -> None:
        del bookies[BOOKIE]
        transport.disconnect(BOOKIE)

    async def revive() -> None:
        bookies[BOOKIE] = bookie

    world.kill, world.revive = kill, revive
    yield world
    await transport.close()


def on_both(test: Callable[[World], Awaitable[None]]) -> Callable[[str], None]:
    """Run an async test once per transport, each in a fresh loop."""

    @pytest.mark.parametrize("kind", ["grpc", "memory"])
    def run(kind: str) -> None:
        async def main() -> None:
            async with grpc_world() if kind == "grpc" else memory_world() as world:
                async with asyncio.timeout(20):
                    await test(world)

        asyncio.run(main())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def make_run(first: int, count: int = 1, *, ledger: int = 7, size: int = 100) -> EntryRun:
    """Entries whose LAC is the entry before them."""
    digest = Crc32cDigest()
    frames = [
        seal(digest, ledger, first + i, first + i - 1, 0, b"%d" % i + b"x" * size)
        for i in range(count)
    ]
    sizes = [len(frame) for frame in frames]
    return EntryRun(LedgerId(ledger), EntryId(first), None, sizes, b"".join(frames))


async def until(condition: Callable[[], object], what: str) -> None:
    """Poll with a deadline."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


def acknowledged(world: World) -> int:
    """The last entry reported durable."""
    return max((r.last_entry for r in world.results if r.status is OK), default=-1)


def ids(chunks: list[ReadChunk]) -> list[int]:
    return [entry for chunk in chunks if chunk.run is not None for entry in chunk.run.ids()]


@on_both
async def test_results_are_ok_cumulative_and_in_order(world: World) -> None:
    appender = world.open()
    for first in range(0, 100, 10):
        appender.send(make_run(first, 10))
    assert world.results == [], "never reported from inside send"
    await until(lambda: acknowledged(world) == 99, "all are acknowledged")
    entries = [result.last_entry for result in world.results]
    assert entries == sorted(set(entries))
    assert all(result.bookie_id == BOOKIE for result in world.results)
    assert [run.first_entry for run in world.bookie.adds] == list(range(0, 100, 10))
    assert sorted(world.bookie.ledgers[LEDGER].entries) == list(range(100))


@on_both
async def test_nothing_is_ok_before_it_is_durable(world: World) -> None:
    world.bookie.hold = True
    appender = world.open()
    appender.send(make_run(0, 3))
    await until(lambda: world.bookie.adds, "the run arrives")
    await asyncio.sleep(0.05)
    assert world.results == []
    world.bookie.release()
    await until(lambda: acknowledged(world) == 2, "the run is acknowledged")


@on_both
async def test_appenders_share_a_bookie_and_do_not_mix(world: World) -> None:
    appenders = [world.open(ledger) for ledger in range(5)]
    for first in range(0, 40, 2):
        for ledger, appender in enumerate(appenders):
            appender.send(make_run(first, 2, ledger=ledger))
    await until(lambda: sum(r.last_entry == 39 for r in world.results) == 5, "all five finish")
    for ledger in range(5):
        assert sorted(world.bookie.ledgers[LedgerId(ledger)].entries) == list(range(40))


@on_both
async def test_a_fenced_ledger_refuses_normal_adds_and_takes_recovery_adds(world: World) -> None:
    writer, recovery = world.open(), world.open(recovery=True)
    writer.send(make_run(0))
    await until(lambda: acknowledged(world) == 0, "the first add")
    end = await world.transport.read_last_confirmed(BOOKIE, LEDGER, fence=True, timeout_s=5)
    assert (end.status, end.fenced, end.last_entry, end.last_add_confirmed) == (OK, True, 0, -1)
    world.results.clear()
    writer.send(make_run(1))
    writer.send(make_run(2))
    await until(lambda: world.results, "the refusal")
    recovery.send(make_run(1))
    await until(lambda: acknowledged(world) == 1, "the recovery add")
    fenced = [result for result in world.results if result.status is BookieStatus.FENCED]
    assert [result.last_entry for result in fenced] == [1], "reported once, for the first run"


@on_both
async def test_a_refusal_ends_its_appender_only(world: World) -> None:
    first, second = world.open(), world.open(8)
    world.bookie.refuse_next = BookieStatus.TOO_MANY_REQUESTS, "busy"
    first.send(make_run(0))
    await until(lambda: world.results, "the refusal")
    assert world.results == [AddResult(BOOKIE, BookieStatus.TOO_MANY_REQUESTS, EntryId(0), "busy")]
    first.send(make_run(1))
    second.send(make_run(0, ledger=8))
    await until(lambda: len(world.results) == 2, "the other ledger's answer")
    assert world.results[1].status is OK
    assert LEDGER not in world.bookie.ledgers, "what is behind a refusal is dropped"


@on_both
async def test_an_earlier_run_is_reported_before_a_later_refusal(world: World) -> None:
    world.bookie.hold = True
    appender = world.open()
    appender.send(make_run(0))
    await until(lambda: world.bookie.adds, "the first run arrives")
    world.bookie.refuse_next = BookieStatus.READ_ONLY, "disk full"
    appender.send(make_run(1))
    await until(lambda: world.bookie.refuse_next is None, "the second run arrives")
    world.bookie.release()
    await until(lambda: len(world.results) == 2, "both results")
    assert [(r.status, r.last_entry) for r in world.results] == [
        (OK, 0),
        (BookieStatus.READ_ONLY, 1),
    ]


@on_both
async def test_a_closed_appender_reports_nothing(world: World) -> None:
    world.bookie.hold = True
    appender = world.open()
    appender.send(make_run(0))
    await until(lambda: world.bookie.adds, "the run arrives")
    appender.close()
    appender.close()
    appender.send(make_run(1))
    world.bookie.release()
    await asyncio.sleep(0.05)
    assert world.results == []


@on_both
async def test_reads_return_the_frames_that_were_written(world: World) -> None:
    run = make_run(0, 50)
    world.open().send(run)
    await until(lambda: acknowledged(world) == 49, "the add")
    chunks = await world.read(0, 49)
    assert ids(chunks) == list(range(50))
    assert b"".join(chunk.run.frames for chunk in chunks if chunk.run) == run.frames
    assert ids(await world.read(10, 12)) == [10, 11, 12]
    assert ids(await world.read(3, 20, stride=5)) == [3, 8, 13, 18]


@on_both
async def test_a_byte_cap_ends_a_read_early_but_never_empty(world: World) -> None:
    world.open().send(make_run(0, 20, size=1000))
    await until(lambda: acknowledged(world) == 19, "the add")
    assert ids(await world.read(0, 19, max_bytes=1)) == [0]
    some = ids(await world.read(0, 19, max_bytes=5000))
    assert some == list(range(len(some))) and 2 <= len(some) <= 5


@on_both
async def test_a_long_read_comes_in_chunks(world: World) -> None:
    appender = world.open()
    for entry in range(12):
        appender.send(make_run(entry, size=READ_CHUNK_BYTES_TARGET // 5))
    await until(lambda: acknowledged(world) == 11, "the adds")
    chunks = await world.read(0, 11)
    assert ids(chunks) == list(range(12))
    assert len(chunks) > 1
    assert all(len(chunk.run.frames) <= READ_CHUNK_BYTES_TARGET for chunk in chunks if chunk.run)


@on_both
async def test_an_entry_of_the_largest_size_travels(world: World) -> None:
    run = make_run(0, size=16 * MIB - 1)
    world.open().send(run)
    await until(lambda: acknowledged(world) == 0, "the add")
    (chunk,) = await world.read(0, 0)
    assert chunk.run is not None and chunk.run.frames == run.frames


@on_both
async def test_a_missing_entry_ends_the_read_and_is_named(world: World) -> None:
    world.open().send(make_run(0, 5))
    await until(lambda: acknowledged(world) == 4, "the add")
    chunks = await world.read(3, 9)
    assert ids(chunks) == [3, 4]
    assert (chunks[-1].status, chunks[-1].entry_id) == (BookieStatus.NO_SUCH_ENTRY, 5)
    assert [c.status for c in await world.read(7, 8)] == [BookieStatus.NO_SUCH_ENTRY]


@on_both
async def test_an_unknown_ledger_is_no_such_ledger(world: World) -> None:
    transport = world.transport
    assert [c.status for c in await world.read(0, 1)] == [BookieStatus.NO_SUCH_LEDGER]
    end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
    assert (end.status, end.last_add_confirmed) == (BookieStatus.NO_SUCH_LEDGER, -1)
    listed = await transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
    assert listed == (BookieStatus.NO_SUCH_LEDGER, [], None)


@on_both
async def test_a_read_can_fence_first(world: World) -> None:
    world.open().send(make_run(0, 2))
    await until(lambda: acknowledged(world) == 1, "the add")
    assert ids(await world.read(0, 1, fence=True)) == [0, 1]
    assert world.bookie.ledgers[LEDGER].fenced


@on_both
async def test_an_idle_writer_tells_its_lac(world: World) -> None:
    world.open().send(make_run(0, 3))
    await until(lambda: acknowledged(world) == 2, "the add")
    transport = world.transport
    end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
    assert (end.last_add_confirmed, end.last_entry) == (1, 2)
    status = await transport.write_last_confirmed(BOOKIE, LEDGER, EntryId(2), timeout_s=5)
    assert status is OK
    end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
    assert end.last_add_confirmed == 2


@on_both
async def test_a_long_poll_wakes_when_the_lac_grows(world: World) -> None:
    appender = world.open()
    appender.send(make_run(0))
    await until(lambda: acknowledged(world) == 0, "the add")
    poll = asyncio.create_task(
        world.transport.read_last_confirmed(
            BOOKIE, LEDGER, wait_above=EntryId(1), wait_s=29, timeout_s=5
        )
    )
    await until(lambda: world.bookie.ledgers[LEDGER].watches, "the poll is held")
    appender.send(make_run(1))
    appender.send(make_run(2))  # it carries that 1 is confirmed, which is not above 1
    await until(lambda: world.bookie.ledgers[LEDGER].last_add_confirmed == 1, "both")
    assert not poll.done()
    appender.send(make_run(3))
    end = await poll
    assert (end.status, end.last_add_confirmed) == (OK, 2)
    await until(lambda: not world.bookie.ledgers[LEDGER].watches, "the watch is cancelled")


@on_both
async def test_a_long_poll_wakes_on_fence_and_waits_for_an_unknown_ledger(world: World) -> None:
    transport = world.transport
    poll = asyncio.create_task(
        transport.read_last_confirmed(BOOKIE, LEDGER, wait_above=EntryId(5), wait_s=29, timeout_s=5)
    )
    await until(lambda: LEDGER in world.bookie.ledgers, "the poll is held")
    await transport.read_last_confirmed(BOOKIE, LEDGER, fence=True, timeout_s=5)
    assert (await poll).fenced
    again = await transport.read_last_confirmed(
        BOOKIE, LEDGER, wait_above=EntryId(5), wait_s=29, timeout_s=5
    )
    assert again.fenced, "a ledger that is fenced already is no longer waited for"


@on_both
async def test_a_long_poll_ends_with_what_is_known(world: World) -> None:
    world.open().send(make_run(0))
    await until(lambda: acknowledged(world) == 0, "the add")
    end = await world.transport.read_last_confirmed(
        BOOKIE, LEDGER, wait_above=EntryId(0), wait_s=0.1, timeout_s=5
    )
    assert (end.status, end.last_add_confirmed) == (OK, -1)


@on_both
async def test_a_dead_bookie_fails_what_is_outstanding_and_what_follows(world: World) -> None:
    world.bookie.hold = True
    used, idle = world.open(), world.open(8)
    used.send(make_run(0))
    used.send(make_run(1))
    await until(lambda: len(world.bookie.adds) == 2, "the runs arrive")
    await world.kill()
    await until(lambda: world.results, "the failure")
    assert [(r.status, r.last_entry) for r in world.results] == [(BookieStatus.UNAVAILABLE, 0)]
    assert "bookie-1" in world.results[0].message
    used.send(make_run(2))
    idle.send(make_run(0, ledger=8))
    assert len(world.results) == 1, "never reported from inside send"
    await until(lambda: len(world.results) == 2, "the idle appender fails when it is used")
    assert world.results[1].status is BookieStatus.UNAVAILABLE
    late = world.open(9)
    late.send(make_run(0, ledger=9))
    await until(lambda: len(world.results) == 3, "a new appender fails too")


@on_both
async def test_idle_writers_of_many_ledgers_are_answered_each(world: World) -> None:
    """More of them than one message has; the key of one is refused."""
    count = CONFIRMATIONS_PER_MESSAGE + 50
    for ledger_id in range(count):
        world.open(ledger_id, key=b"key").send(make_run(0, 3, ledger=ledger_id))
    await until(lambda: len(world.bookie.adds) == count, "the adds")
    told = await asyncio.gather(
        *(
            world.transport.write_last_confirmed(
                BOOKIE,
                LedgerId(ledger_id),
                EntryId(ledger_id % 3),
                access_key=b"wrong" if ledger_id == 33 else b"key",
                timeout_s=5,
            )
            for ledger_id in range(count)
        )
    )
    assert [i for i, status in enumerate(told) if status is not OK] == [33]
    assert told[33] is BookieStatus.UNAUTHORIZED
    ends = [ledger.last_add_confirmed for _, ledger in sorted(world.bookie.ledgers.items())]
    assert ends == [1 if i == 33 else max(1, i % 3) for i in range(count)]


@on_both
async def test_a_dead_bookie_is_unavailable_to_every_call(world: World) -> None:
    await world.kill()
    transport = world.transport
    assert [c.status for c in await world.read(0, 1)] == [BookieStatus.UNAVAILABLE]
    end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
    assert end.status is BookieStatus.UNAVAILABLE
    status = await transport.write_last_confirmed(BOOKIE, LEDGER, EntryId(0), timeout_s=5)
    assert status is BookieStatus.UNAVAILABLE
    status, *_ = await transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
    assert status is BookieStatus.UNAVAILABLE
    assert (await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=5))[0] is status
    with pytest.raises(BookieUnavailableError, match="bookie-1"):
        await transport.describe(BOOKIE, timeout_s=5)


@on_both
async def test_a_revived_bookie_is_used_again(world: World) -> None:
    world.open().send(make_run(0))
    await until(lambda: acknowledged(world) == 0, "the first add")
    await world.kill()
    assert [c.status for c in await world.read(0, 0)] == [BookieStatus.UNAVAILABLE]
    await world.revive()
    deadline = time.monotonic() + 10
    while [c.status for c in await world.read(0, 0)] != [OK]:
        assert time.monotonic() < deadline, "reads work again"
        await asyncio.sleep(0.02)
    world.open().send(make_run(1))
    await until(lambda: acknowledged(world) == 1, "adds work again")


@on_both
async def test_an_answer_that_does_not_come_is_a_timeout(world: World) -> None:
    world.bookie.hold = True
    end = await world.transport.read_last_confirmed(BOOKIE, LEDGER, fence=True, timeout_s=0.1)
    assert end.status is BookieStatus.TIMEOUT
    chunks = await world.read(0, 0, fence=True, timeout_s=0.1)
    assert [chunk.status for chunk in chunks] == [BookieStatus.TIMEOUT]


@on_both
async def test_close_fails_open_appenders_and_refuses_further_use(world: World) -> None:
    world.bookie.hold = True
    used, idle = world.open(), world.open(8)
    used.send(make_run(0))
    await until(lambda: world.bookie.adds, "the run arrives")
    await world.transport.close()
    await world.transport.close()
    assert [r.status for r in world.results] == [BookieStatus.UNAVAILABLE] * 2
    idle.send(make_run(0, ledger=8))
    with pytest.raises(LedgerClosedError):
        world.open()
    with pytest.raises(LedgerClosedError):
        await world.transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=1)


@on_both
async def test_a_bookie_describes_itself(world: World) -> None:
    description = await world.transport.describe(BOOKIE, timeout_s=5)
    assert (description.bookie_id, description.state) == (BOOKIE, "writable")
