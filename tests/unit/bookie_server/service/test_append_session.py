"""One append stream on the bookie, over a scripted context: results, limits, refusals, drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
import pytest

from bookie_server.service import append_session, refused_appenders
from bookie_server.service.append_gate import AppendGate, AppendShares
from bookie_server.service.append_session import AppendSession
from bookie_server.service.append_turns import AppendTurns
from bookie_server.service.context import CallContext
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.nonsense import Nonsense
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.bookie_api import Refusal
from spark_ledger.limits.bookie import ADD_COST_BYTES, BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire.codec import AddCommand, encode_append_request
from tests.contracts.scripted_bookie import ScriptedBookie


class Aborted(Exception):
    pass


class Context:
    """What grpc gives a handler."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.reads = 0
        self.responses: list[list[tuple[int, int, int]]] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.write_error: Exception | None = None
        self.aborted: tuple[grpc.StatusCode, str] | None = None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> Any:
        self.reads += 1
        return await self.requests.get()

    async def write(self, response: Any) -> None:
        await self.may_write.wait()
        if self.write_error is not None:
            raise self.write_error
        self.responses.append([(r.tag, r.last_entry, r.status) for r in response.results])

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self.aborted = code, details
        raise Aborted

    def send(self, *adds: tuple[int, int], ledger_id: int = 1) -> None:
        """Put a request with (tag, entry) runs of one entry."""
        commands = [
            AddCommand(
                tag,
                b"",
                False,
                EntryRun(LedgerId(ledger_id), EntryId(entry), None, [50], bytes(50)),
            )
            for tag, entry in adds
        ]
        self.requests.put_nowait(encode_append_request(commands))


class Fixture:
    def __init__(self, refusal: Refusal | None = None) -> None:
        self.bookie = ScriptedBookie()
        self.context = Context()
        self.metrics = ServiceMetrics()
        self.refusal = refusal
        self.shares = AppendShares()
        self.gate = AppendGate(self.bookie, BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX)
        self.session: AppendSession
        self.task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        self.session = AppendSession(
            self.bookie,
            cast("CallContext", self.context),
            gate=self.gate,
            shares=self.shares,
            turns=AppendTurns(),
            connections=Connections(),
            nonsense=Nonsense(),
            metrics=self.metrics,
            refusal=self.refusal,
        )
        await self.session.run()

    @property
    def results(self) -> list[tuple[int, int, int]]:
        return [result for response in self.context.responses for result in response]

    async def finish(self) -> None:
        self.context.requests.put_nowait(grpc.aio.EOF)
        await self.task


def on_loop(test: Callable[[Fixture], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            fixture = Fixture()
            async with asyncio.timeout(10):
                await test(fixture)
            fixture.task.cancel()
            await asyncio.wait([fixture.task], timeout=1)
            assert fixture.task.done(), "a call that is cancelled ends, whatever it waits for"
            await asyncio.gather(fixture.task, return_exceptions=True)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


OK = int(BookieStatus.OK)


@on_loop
async def test_one_journal_batch_is_one_message_with_one_result_per_tag(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send(*[(1, entry) for entry in range(20)], *[(2, entry) for entry in range(5)])
    f.context.send(*[(1, entry) for entry in range(20, 40)])
    await settle()
    assert f.results == []
    f.bookie.release()
    await settle()
    assert f.context.responses == [[(1, 39, OK), (2, 4, OK)]]
    assert f.metrics.adds[BookieStatus.OK] == 45
    assert f.metrics.entries_added == 45


@on_loop
async def test_adds_that_are_answered_together_are_told_of_together(f: Fixture) -> None:
    """And by message: their latencies differ."""
    told: list[int] = []
    f.shares.ended = lambda connection, cost: told.append(cost)  # type: ignore[method-assign]
    f.bookie.hold = True
    f.context.send(*[(tag, 0) for tag in range(20)])
    await settle()
    f.context.send(*[(tag, 1) for tag in range(5)])
    await settle()
    f.bookie.release()
    await settle()
    assert told == [20 * (ADD_COST_BYTES + 50), 5 * (ADD_COST_BYTES + 50)]
    assert f.metrics.adds[BookieStatus.OK] == f.metrics.entries_added == 25
    assert f.metrics.bytes_added == 25 * 50 and sum(f.metrics.add_latency.counts) == 25


@on_loop
async def test_answer_that_its_client_does_not_take_keeps_no_share(f: Fixture) -> None:
    """What else comes over that connection would wait for it."""
    peer = f.context.peer()
    f.context.may_write.clear()
    for entry in range(3):
        f.bookie.hold = True
        f.context.send((1, entry), (2, entry))
        await settle()
        assert peer in f.shares._in_flight
        f.bookie.release()
        assert entry == 0 or peer not in f.shares._in_flight, (
            "at once: nobody is there to do it later"
        )
        await settle()
        assert peer not in f.shares._in_flight and f.metrics.entries_added == 2 * entry + 2


@on_loop
async def test_adds_answered_after_the_client_left_keep_no_share(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send((1, 0), (1, 1), (2, 0))
    await settle()
    f.task.cancel()
    f.bookie.release()  # the writer wakes to find that it is cancelled
    await asyncio.gather(f.task, return_exceptions=True)
    assert f.context.peer() not in f.shares._in_flight and f.metrics.entries_added == 3
    f.task = asyncio.get_running_loop().create_task(f._serve())
    f.context.send((1, 0))
    await settle()
    f.task.cancel()
    await asyncio.gather(f.task, return_exceptions=True)
    f.bookie.release()
    assert f.context.peer() not in f.shares._in_flight and f.metrics.entries_added == 4


@on_loop
async def test_dropped_and_refused_runs_keep_no_share(f: Fixture) -> None:
    f.bookie.refuse_next = BookieStatus.READ_ONLY, "full"
    f.context.send((1, 0), (1, 1), (2, 0), (1, 2))
    await settle()
    assert f.context.peer() not in f.shares._in_flight
    assert f.metrics.adds == {BookieStatus.READ_ONLY: 1, BookieStatus.OK: 1}


@on_loop
async def test_results_wait_for_a_slow_client_without_piling_up(f: Fixture) -> None:
    f.context.may_write.clear()
    for entry in range(100):
        f.context.send((1, entry))
        await asyncio.sleep(0)
    await settle()
    f.context.may_write.set()
    await settle()
    assert len(f.context.responses) == 2, "the message on its way, and one with all the rest"
    assert f.context.responses[1] == [(1, 99, OK)]


@on_loop
async def test_reading_stops_while_too_many_results_are_unsent(f: Fixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_session, "BOOKIE_UNSENT_RESULTS_MAX", 10)
        f.context.may_write.clear()
        for tag in range(50):
            f.context.send((tag, 0))
            await settle()
        assert f.context.reads < 20
        f.context.may_write.set()
        await settle()
        while len(f.results) < 50:
            await settle()
    assert sorted(tag for tag, _, _ in f.results) == list(range(50))


@on_loop
async def test_reading_stops_while_the_bookie_is_full(f: Fixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f.gate, "_bytes_max", 200)
        f.bookie.hold = True
        for entry in range(20):
            f.context.send((1, entry))
        await settle()
        assert len(f.bookie.adds) == 5, "the limit may be passed by the last message only"
        f.bookie.release()
        while len(f.bookie.adds) < 10:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        assert len(f.bookie.adds) == 10
        f.bookie.hold = False
        f.bookie.release()
        await f.finish()
    assert f.results[-1] == (1, 19, OK)


@on_loop
async def test_runs_behind_a_refusal_are_dropped(f: Fixture) -> None:
    f.bookie.refuse_next = BookieStatus.READ_ONLY, "full"
    f.context.send((1, 0), (1, 1), (2, 0))
    f.context.send((1, 2))
    await settle()
    assert f.results == [(1, 0, int(BookieStatus.READ_ONLY)), (2, 0, OK)]
    assert [run.first_entry for run in f.bookie.adds] == [0]


@on_loop
async def test_the_first_refusal_is_the_one_reported(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send((1, 0))
    await settle()
    f.bookie.refuse_next = BookieStatus.FENCED, "fenced"
    f.context.send((1, 1), (1, 2))
    await settle()
    assert f.results == [], "the run before it is not answered yet"
    f.bookie.release()
    await settle()
    assert f.results == [(1, 0, OK), (1, 1, int(BookieStatus.FENCED))]


@on_loop
async def test_a_malformed_run_is_a_bad_request_and_the_stream_goes_on(f: Fixture) -> None:
    bad = EntryRun(LedgerId(1), EntryId(3), None, [10, 40], bytes(50))
    f.context.requests.put_nowait(encode_append_request([AddCommand(1, b"", False, bad)]))
    f.context.send((2, 0))
    await settle()
    assert f.results == [(1, 3, int(BookieStatus.BAD_REQUEST)), (2, 0, OK)]


@on_loop
async def test_a_tag_belongs_to_one_ledger(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send((1, 0), ledger_id=1)
    f.context.send((1, 1), ledger_id=2)
    await settle()
    f.bookie.release()
    await settle()
    assert f.results == [(1, 0, OK), (1, 1, int(BookieStatus.BAD_REQUEST))]


@on_loop
async def test_bytes_that_are_no_request_end_the_stream(f: Fixture) -> None:
    f.context.requests.put_nowait(b"\xff\xff\xff")
    with pytest.raises(Aborted):
        await f.task
    assert f.context.aborted is not None
    assert f.context.aborted[0] is grpc.StatusCode.INVALID_ARGUMENT


@on_loop
async def test_too_many_refused_tags_end_the_stream(f: Fixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refused_appenders, "BOOKIE_REFUSED_APPENDERS_MAX", 3)
        for tag in range(4):
            f.bookie.refuse_next = BookieStatus.FENCED, "fenced"
            f.context.send((tag, 0))
            await settle()
            assert f.task.done() is (tag == 3), "as many as are allowed end nothing"
        with pytest.raises(Aborted):
            await f.task
    assert f.context.aborted is not None
    assert f.context.aborted[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_runs_for_another_bookie_are_all_refused() -> None:
    async def main() -> None:
        f = Fixture(Refusal(BookieStatus.WRONG_BOOKIE, "this is b1"))
        f.context.send((1, 0), (2, 0))
        await settle()
        assert {status for _, _, status in f.results} == {int(BookieStatus.WRONG_BOOKIE)}
        assert f.bookie.adds == []
        await f.finish()

    asyncio.run(main())


@on_loop
async def test_a_half_closed_stream_is_answered_to_the_end(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send((1, 0))
    f.context.requests.put_nowait(grpc.aio.EOF)
    await settle()
    assert not f.task.done()
    f.bookie.release()
    await f.task
    assert f.results == [(1, 0, OK)]


@on_loop
async def test_drain_answers_what_was_read_and_ends(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send((1, 0))
    await settle()
    f.session.drain()
    f.session.drain()
    await settle()
    f.context.send((1, 1))
    assert not f.task.done()
    f.bookie.release()
    await f.task
    assert f.results == [(1, 0, OK)]
    assert not f.task.cancelled()


@on_loop
async def test_a_cancelled_call_is_cancelled(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send((1, 0))
    await settle()
    f.task.cancel()
    await asyncio.gather(f.task, return_exceptions=True)
    assert f.task.cancelled()
    f.bookie.release()
    await settle()
    assert f.results == []


@on_loop
async def test_results_that_cannot_be_written_end_the_call(f: Fixture) -> None:
    f.context.write_error = ConnectionError("gone")
    f.context.send((1, 0))
    await settle()
    assert f.task.done()


STALLED = int(BookieStatus.STALLED)


@on_loop
async def test_appenders_that_wait_are_told_of_a_stall_once_and_get_their_result_later(
    f: Fixture,
) -> None:
    """STALLED is a note: what was sent may become durable yet (rule S15)."""
    f.context.send((1, 0), (2, 0))
    await settle()
    f.bookie.hold = True
    f.context.send((2, 1))
    await settle()
    del f.context.responses[:]
    f.session.disks_stall("journal /journal has not synced for 2.0 s")
    await settle()
    assert f.results == [(2, -1, STALLED)], "tag 1 waits for nothing"
    f.context.send((2, 2), (3, 7))
    await settle()
    assert f.results[1:] == [(3, -1, STALLED)], "who comes now is told at once"
    f.bookie.release()
    await settle()
    assert sorted(f.results[2:]) == [(2, 2, OK), (3, 7, OK)]


@on_loop
async def test_appender_is_told_again_when_the_journal_stalls_again(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send((1, 0))
    f.context.send((1, 1))
    await settle()
    f.session.disks_stall("it stalls")
    await settle()
    first, *f.bookie._held = f.bookie._held
    first()
    f.session.disks_stall("")
    await settle()
    f.session.disks_stall("it stalls again")
    await settle()
    f.bookie.release()
    await settle()
    assert f.results == [(1, -1, STALLED), (1, 0, OK), (1, -1, STALLED), (1, 1, OK)]


@on_loop
async def test_stall_that_has_ended_before_it_was_written_is_not_told(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.send((1, 0), (1, 1))
    await settle()
    f.session.disks_stall("it stalls")
    f.bookie.release()
    f.session.disks_stall("")
    await settle()
    assert f.results == [(1, 1, OK)]


@on_loop
async def test_appender_that_is_refused_as_busy_while_a_disk_stalls_is_told_why(
    f: Fixture,
) -> None:
    """Busy alone would be asked again and again, where others suffice."""
    await settle()
    f.session.disks_stall("the flush of /ledgers has not moved on for 3.0 s, and adds wait")
    f.bookie.refuse_next = BookieStatus.TOO_MANY_REQUESTS, "later"
    f.context.send((1, 0))
    await settle()
    assert f.results == [(1, -1, STALLED), (1, 0, BookieStatus.TOO_MANY_REQUESTS)]
    f.bookie.refuse_next = BookieStatus.FENCED, "fenced"
    f.context.send((2, 0))
    await settle()
    assert f.results[2:] == [(2, 0, BookieStatus.FENCED)], "that says enough"


class Received(AppendTurns):
    """Notes how many bytes were received for each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    @asynccontextmanager
    async def turn(self, connection: str, received_bytes: int = 0) -> AsyncIterator[None]:
        self.bytes.append(received_bytes)
        async with super().turn(connection, received_bytes):
            yield


@on_loop
async def test_first_turn_of_a_message_counts_what_was_received(f: Fixture) -> None:
    await settle()
    turns = f.session._turns = Received()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_session, "APPEND_TURN_S", 0.0)  # each add has a turn of its own
        f.context.send((1, 0), (1, 1), (1, 2))
        data = f.context.requests.get_nowait()
        f.context.requests.put_nowait(data)
        await settle()
    assert turns.bytes == [len(data), 0, 0, 0], "the last finds no more adds"
