"""Lanes of one append stream whose runs end out of order, late, or behind a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bookie_server.service import append_session, refused_appenders
from bookie_server.service.append_gate import AppendGate
from bookie_server.service.guard.nonsense import Nonsense
from spark_ledger.bookie_api import Done
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire.codec import AddCommand, encode_append_request
from spark_ledger.wire.frame import HEADER, Crc32cDigest
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.frames import seal
from tests.unit.bookie_server.service.test_append_session import Fixture, on_loop, settle

OK = int(BookieStatus.OK)
FENCED = int(BookieStatus.FENCED)
IO_ERROR = int(BookieStatus.IO_ERROR)


class OutOfOrder(ScriptedBookie):
    """Keeps what it is given until the test answers, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Done] = []
        self.confirmed: list[int] = []

    def add(
        self,
        run: EntryRun,
        *,
        access_key: bytes,
        recovery: bool,
        last_add_confirmed: EntryId,
        done: Done,
    ) -> None:
        self.answers.append(done)
        self.confirmed.append(last_add_confirmed)


def out_of_order(f: Fixture) -> OutOfOrder:
    f.bookie = OutOfOrder()
    f.gate = AppendGate(f.bookie, f.gate._bytes_max)
    return f.bookie


@on_loop
async def test_runs_behind_a_reported_refusal_are_dropped(f: Fixture) -> None:
    """The client sends on until it hears of the refusal; nothing of that may be stored."""
    f.bookie.refuse_next = BookieStatus.TOO_MANY_REQUESTS, "busy"
    f.context.send((1, 0))
    await settle()
    assert f.results == [(1, 0, int(BookieStatus.TOO_MANY_REQUESTS))]
    for entry in (1, 2):
        f.context.send((1, entry), (2, entry))
        await settle()
    assert f.results[1:] == [(2, 1, OK), (2, 2, OK)]
    assert list(f.bookie.ledgers[LedgerId(1)].entries) == [1, 2]
    assert f.bookie.adds and len(f.bookie.adds) == 2, "those of the other appender only"


@on_loop
async def test_durable_run_behind_a_refusal_is_not_acknowledged(f: Fixture) -> None:
    """A result means "everything up to here": behind a run that failed it would be a lie."""
    bookie = out_of_order(f)
    f.context.send((1, 0), (1, 1), (1, 2))
    await settle()
    first, second, third = bookie.answers
    second(BookieStatus.IO_ERROR, "no room")
    third(BookieStatus.OK, "")
    await settle()
    assert f.results == []
    first(BookieStatus.OK, "")
    await settle()
    assert f.results == [(1, 0, OK), (1, 1, IO_ERROR)]


@on_loop
async def test_refusal_of_the_earliest_run_is_reported(f: Fixture) -> None:
    bookie = out_of_order(f)
    f.context.send((1, 0), (1, 1), (1, 2), (1, 3))
    await settle()
    first, second, third, fourth = bookie.answers
    third(BookieStatus.FENCED, "fenced")
    second(BookieStatus.IO_ERROR, "no room")
    fourth(BookieStatus.FENCED, "fenced")
    await settle()
    assert f.results == [], "the run before them is not answered yet"
    first(BookieStatus.OK, "")
    await settle()
    assert f.results == [(1, 0, OK), (1, 1, IO_ERROR)]


@on_loop
async def test_acknowledgement_is_reported_once(f: Fixture) -> None:
    bookie = out_of_order(f)
    f.context.send((1, 0), (1, 1), (1, 2))
    await settle()
    for entry, status in ((0, BookieStatus.OK), (1, BookieStatus.OK), (2, BookieStatus.FENCED)):
        bookie.answers[entry](status, "")
        await settle()
    assert f.results == [(1, 0, OK), (1, 1, OK), (1, 2, FENCED)]


@pytest.mark.parametrize(
    ("sizes", "last_add_confirmed"), [([20, 60], -1), ([40, 41], -1), ([80], -2)]
)
def test_malformed_runs_do_not_reach_the_bookie(sizes: list[int], last_add_confirmed: int) -> None:
    """What it kept of them it could not read at its next start."""
    frames = (HEADER.pack(1, 3, last_add_confirmed, 0) + bytes(8)) * 2
    bad = EntryRun(LedgerId(1), EntryId(3), None, sizes, frames)

    @on_loop
    async def run(f: Fixture) -> None:
        f.context.requests.put_nowait(encode_append_request([AddCommand(1, b"", False, bad)]))
        await settle()
        (result,) = f.results
        assert (result[0], result[2]) == (1, int(BookieStatus.BAD_REQUEST))
        assert f.bookie.adds == [] and f.bookie.ledgers == {}

    run()


@on_loop
async def test_appender_goes_on_after_it_was_idle(f: Fixture) -> None:
    for entry in range(3):
        f.context.send((1, entry))
        await settle()
    assert f.results == [(1, 0, OK), (1, 1, OK), (1, 2, OK)]
    assert not f.session._appenders, "a stream may see any number of tags"
    assert f.metrics.add_latency.total < 60 * sum(f.metrics.add_latency.counts)


@on_loop
async def test_a_run_brings_the_last_add_confirmed_of_its_last_frame(f: Fixture) -> None:
    bookie = out_of_order(f)
    frames = [seal(Crc32cDigest(), 1, 10 + n, lac, 0, b"") for n, lac in enumerate((7, 7, 10))]
    run = EntryRun(
        LedgerId(1), EntryId(10), None, [len(frame) for frame in frames], b"".join(frames)
    )
    f.context.requests.put_nowait(encode_append_request([AddCommand(1, b"", False, run)]))
    await settle()
    assert bookie.confirmed == [10]


def gated(test: Callable[[ScriptedBookie, AppendGate], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            bookie = ScriptedBookie()
            async with asyncio.timeout(10):
                await test(bookie, AppendGate(bookie, 100))

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@gated
async def test_stream_that_ends_while_nothing_is_read_leaves_nothing(
    bookie: ScriptedBookie, gate: AppendGate
) -> None:
    """Clients come and go, and a journal that hangs answers nobody."""
    bookie.append_bytes_in_flight = 101
    streams = [asyncio.ensure_future(gate.wait(60)) for _number in range(3)]
    await settle()
    streams.pop(1).cancel()
    await settle()
    assert len(gate._waiting) == 2
    bookie.append_bytes_in_flight = 0
    gate.completed()
    await asyncio.gather(*streams)


@gated
async def test_streams_are_read_again_one_after_the_other_once_there_is_room(
    bookie: ScriptedBookie, gate: AppendGate
) -> None:
    """Together they would read more than there is room for, before the first is counted."""
    bookie.append_bytes_in_flight = 101
    streams = [asyncio.ensure_future(gate.wait(60)) for _number in range(4)]
    await settle()
    gate.completed()
    await settle()
    assert not any(stream.done() for stream in streams), "it is still full"
    bookie.append_bytes_in_flight = 100
    gate.completed()
    streams.pop(0).cancel()  # its client leaves before anybody looks
    await settle()
    assert [stream.done() for stream in streams] == [True, False, False]
    await streams[1]
    assert not streams[2].done(), "the first has read by now, or has nothing to read"
    await streams[2]
    assert not gate._waiting, "those that were let go are forgotten"
    while gate._bytes_expected:
        await asyncio.sleep(0.005)
    await asyncio.wait_for(gate.wait(60), 1)


@on_loop
async def test_reading_goes_on_after_refused_bytes(f: Fixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bookie = out_of_order(f)
        patch.setattr(f.gate, "_bytes_max", 60)
        await settle()  # it waits for a first message
        bookie.append_bytes_in_flight = 61
        f.context.send((1, 0))
        f.context.send((2, 0))
        await settle()
        assert len(bookie.answers) == 1, "the bookie is full"
        bookie.append_bytes_in_flight = 0
        bookie.answers[0](BookieStatus.IO_ERROR, "no room")
        await settle()
        assert len(bookie.answers) == 2, "the stream is read again"


@gated
async def test_less_is_taken_in_while_memory_is_short(
    bookie: ScriptedBookie, gate: AppendGate
) -> None:
    """Appends go on: memory that stays short must not stop a bookie."""
    bookie.append_bytes_in_flight = 50
    await gate.wait(1)
    gate.memory_is_short(True)
    stream = asyncio.ensure_future(gate.wait(1))
    await settle()
    assert not stream.done()
    bookie.append_bytes_in_flight = 0
    gate.completed()
    await stream
    bookie.append_bytes_in_flight = 50
    stream = asyncio.ensure_future(gate.wait(1))
    await settle()
    assert not stream.done()
    gate.memory_is_short(False)
    await settle()
    assert stream.done(), "at once, and not with the next answer"


@on_loop
async def test_appender_counts_once_however_many_of_its_runs_are_refused(f: Fixture) -> None:
    bookie = out_of_order(f)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refused_appenders, "BOOKIE_REFUSED_APPENDERS_MAX", 2)
        f.context.send(*((1, entry) for entry in range(5)))
        await settle()
        for answer in bookie.answers:
            answer(BookieStatus.FENCED, "fenced")
        f.context.send((2, 0))
        await settle()
    assert f.results == [(1, 0, FENCED)] and f.context.aborted is None
    assert len(bookie.answers) == 6


@on_loop
async def test_stall_is_told_once_to_an_appender_with_refused_runs(f: Fixture) -> None:
    bookie = out_of_order(f)
    f.context.send((1, 0), (1, 1))
    await settle()
    f.session.disks_stall("it stalls")
    await settle()
    bookie.answers[1](BookieStatus.IO_ERROR, "no room")
    await settle()
    assert f.results == [(1, -1, int(BookieStatus.STALLED))]


@on_loop
async def test_reading_goes_on_where_all_that_has_changed_waits_for_earlier_runs(
    f: Fixture,
) -> None:
    """There is nothing to send, so nothing that its client could take."""
    f.bookie.hold = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_session, "BOOKIE_UNSENT_RESULTS_MAX", 3)
        f.context.send(*((tag, 0) for tag in range(1, 9)))
        f.context.send(*((tag, 1) for tag in range(1, 9)), ledger_id=2)  # not theirs
        f.context.send((20, 0))
        await settle()
    assert f.results == [] and f.context.reads == 4


@on_loop
async def test_status_that_ends_a_stream_goes_behind_the_answer_that_is_being_sent(
    f: Fixture,
) -> None:
    """Beside it gRPC loses the status, and the client waits until its own deadline."""
    f.context.may_write.clear()
    f.context.send((1, 0))
    await settle()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Nonsense, "pause_s", lambda *_given: 0.0)
        f.context.requests.put_nowait(b"\xff\xff\xff\xff")
        await settle()
        assert f.context.aborted is None
        f.context.may_write.set()
        await settle()
    assert f.results == [(1, 0, OK)] and f.context.aborted is not None
