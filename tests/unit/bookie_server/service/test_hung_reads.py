"""Two ledger directories, and reads of one hang: what a bookie answers, over gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc.aio
import pytest

from bookie_server.service import read_path, read_threads
from bookie_server.service.answer_room import MakesWayError
from bookie_server.service.grpc_server import GrpcServer
from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.metrics import ServiceMetrics
from bookie_server.stall_watch import StallWatch
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.limits.bookie import BOOKIE_READ_THREADS, STALL_LOOK_S
from spark_ledger.types import BookieStatus
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire import bookie_pb2_grpc
from tests.unit.bookie_server.service.test_grpc_service import BOOKIE, HERE
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    formatted,
    frame,
    small_config,
)

HUNG = (2, 4, 6, 8, 10, 12)
"""Ledgers of the first directory that are in its log only; 14 is in its write cache as well."""


class Fixture:
    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.machine = Machine(
            FaultFileSystem(formatted(), self._plan), small_config(block_cache_bytes=0)
        )
        for ledger_id in (*HUNG, 3):
            self.machine.add(ledger_id, [0])
        self.machine.flush()
        self.machine.add(14, [0])
        self.machine.add(5, [0])
        bookie = self.machine.bookie
        self.metrics = ServiceMetrics()
        self.service = BookieService(
            bookie,
            BOOKIE,
            describe=lambda: Description("c", "1", "writable", 0, 0, 0, 0, 0.0),
            metrics=self.metrics,
            disks=bookie.ledger_disks,
        )
        self.watch = StallWatch(lambda: bookie.stall, self.told)
        self.stub: Any = None

    def told(self, reason: str) -> None:
        raise AssertionError(f"no add waits for this disk: {reason}")

    def _plan(self, operation: Operation) -> Fault | None:
        if operation.kind == "pread" and operation.path.parent == LEDGERS[0]:
            assert self.goes_on.wait(20)
        return None

    async def ask(self, ledger_id: int, timeout_s: float = 5.0) -> list[Any]:
        request = pb.ReadRequest(ledger_id=ledger_id)
        return [each async for each in self.stub.Read(request, timeout=timeout_s, metadata=HERE)]

    async def frames(self, ledger_id: int) -> list[bytes]:
        return [each.run.frames for each in await self.ask(ledger_id)]

    async def listed(self, **request: Any) -> list[int]:
        call = self.stub.ListEntries(pb.ListEntriesRequest(**request), timeout=5, metadata=HERE)
        return [each.status async for each in call]

    async def hang(self) -> list[asyncio.Task[list[Any]]]:
        """Its disk hangs under as many reads as it has threads."""
        self.goes_on.clear()
        reads = [asyncio.ensure_future(self.ask(each, 20)) for each in HUNG[:BOOKIE_READ_THREADS]]
        while len(self.service.reads._lanes[0].places) < BOOKIE_READ_THREADS:
            await asyncio.sleep(0.001)
        return reads


def on_loop(test: Callable[[Fixture], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            f = Fixture()
            server = GrpcServer(f.service, f.metrics)
            port = await server.start("127.0.0.1", 0)
            f.watch.start(f.service.reads.look)
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            f.stub = bookie_pb2_grpc.BookieStub(channel)
            try:
                async with asyncio.timeout(20):
                    await test(f)
            finally:
                f.goes_on.set()
                f.watch.stop()
                await channel.close()
                await server.stop(0.0)
                f.service.close()
                await asyncio.to_thread(f.service.wait_for_reads)
                f.machine.bookie.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@pytest.fixture(autouse=True)
def stalls_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(read_threads, "READS_STALLED_S", 2 * STALL_LOOK_S)
    monkeypatch.setattr(read_threads, "BOOKIE_READ_QUICK_S", STALL_LOOK_S / 2)
    yield


@on_loop
async def test_disk_that_answers_no_read_keeps_only_those_from_what_is_on_it(f: Fixture) -> None:
    reads = await f.hang()
    for ledger_id in (3, 5, 14):
        assert await f.frames(ledger_id) == [frame(ledger_id, 0)], ledger_id
    assert await f.listed(ledger_id=3) == [pb.OK]
    assert await f.listed(ledger_id=0, ledgers=True) == [pb.OK]
    f.goes_on.set()
    assert [each[0].run.ledger_id for each in await asyncio.gather(*reads)] == [*HUNG[:4]]


@on_loop
async def test_reads_that_need_a_disk_that_stalls_are_told_to_come_later(f: Fixture) -> None:
    reads = await f.hang()
    (late,) = await f.ask(HUNG[-1])
    assert late.status == int(BookieStatus.TOO_MANY_REQUESTS), "and not that it is not here"
    assert f.metrics.stalled_reads().keys() == {str(LEDGERS[0])}
    assert f.metrics.reads[BookieStatus.TOO_MANY_REQUESTS] == 1
    assert f.metrics.reads_waiting() == 0
    assert await f.listed(ledger_id=HUNG[0]) == [int(BookieStatus.TOO_MANY_REQUESTS)]
    f.goes_on.set()
    await asyncio.gather(*reads)
    assert await f.frames(HUNG[-1]) == [frame(HUNG[-1], 0)]
    while f.metrics.stalled_reads():
        await asyncio.sleep(0.01)


@on_loop
async def test_who_gives_a_read_up_leaves_neither_work_nor_room(f: Fixture) -> None:
    reads = await f.hang()
    for _ in range(20):
        with pytest.raises(grpc.aio.AioRpcError):
            await f.ask(HUNG[-1], 0.01)
    for each in reads:
        each.cancel()
    await asyncio.wait(reads)
    while f.service._limits._of_connection:
        await asyncio.sleep(0.001)
    assert f.service._answers._reading == 0 and f.metrics.reads_waiting() == 0
    assert f.service.reads._lanes[0].pool._work_queue.qsize() == 0


def test_reads_that_are_told_to_come_later_as_many_are_slow_end_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their work runs on, and nothing of it is looked at."""
    monkeypatch.setattr(read_threads, "BOOKIE_READS_LENT_MAX", 2)

    @on_loop
    async def run(f: Fixture) -> None:
        reads = await f.hang()
        done, lent = await asyncio.wait(reads, return_when="FIRST_COMPLETED")
        while len(done) < 2:
            more, lent = await asyncio.wait(lent, return_when="FIRST_COMPLETED")
            done |= more
        for each in done:
            (end,) = each.result()
            assert end.status == int(BookieStatus.TOO_MANY_REQUESTS)
        assert f.service.reads._lanes[0].free == 0 and f.service._answers._reading == 0
        f.goes_on.set()
        for answer in await asyncio.gather(*lent):
            assert [each.status for each in answer] == [pb.OK] and answer[0].run.frames
        while f.service.reads._lanes[0].places or f.service._answers.bytes_held:
            await asyncio.sleep(0.001)
        assert f.service._answers._reading == 0
        assert f.metrics.reads[BookieStatus.TOO_MANY_REQUESTS] == 2

    run()


def test_read_that_makes_way_ends_with_what_it_has_and_a_list_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list that ended early would be taken for all that is held."""
    monkeypatch.setattr(read_path, "READ_CHUNK_BYTES_TARGET", 1)

    @on_loop
    async def run(f: Fixture) -> None:
        f.machine.add(3, [1])
        run, asked = f.service.reads.run, list[int]()

        async def second_makes_way(number: int, *work: Any) -> Any:
            asked.append(number)
            if len(asked) % 2 == 0:
                raise MakesWayError
            return await run(number, *work)

        monkeypatch.setattr(f.service.reads, "run", second_makes_way)
        request = pb.ReadRequest(ledger_id=3, last_entry=1)
        answer = [each async for each in f.stub.Read(request, timeout=5, metadata=HERE)]
        assert [(each.status, each.run.frames) for each in answer] == [(pb.OK, frame(3, 0))]
        assert f.metrics.reads == {BookieStatus.OK: 1} and asked == [1, 1]
        asked.append(1)
        assert await f.listed(ledger_id=3) == [int(BookieStatus.TOO_MANY_REQUESTS)]
        assert f.service._answers._reading == 0

    run()
