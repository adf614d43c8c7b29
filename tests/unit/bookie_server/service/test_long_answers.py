"""Answers that take long, or are long: what a bookie bounds, whatever it is asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from bookie_server.service import long_polls, read_path
from bookie_server.service.read_path import RangeRead, read_request_error
from spark_ledger.bookie_api import LedgerEnd, ReadOutcome
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import decode_read_response
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.bookie_server.service.test_grpc_service import HERE, Fixture, on_loop

NO_ENTRY = EntryId(-1)


async def poll(f: Fixture, *, above: int, wait_ms: int, key: bytes = b"") -> Any:
    request = pb.ReadLastConfirmedRequest(
        ledger_id=1, wait_above=above, wait_ms=wait_ms, access_key=key
    )
    return await f.stub.ReadLastConfirmed(request, timeout=15, metadata=HERE)


async def confirm(f: Fixture, entry: int) -> None:
    request = pb.WriteLastConfirmedRequest(ledger_id=1, last_add_confirmed=entry)
    answer = await f.stub.WriteLastConfirmed(request, timeout=5, metadata=HERE)
    assert answer.status == pb.OK


@on_loop
async def test_long_poll_is_answered_once_the_lac_is_above_the_known_one(f: Fixture) -> None:
    await f.store(0, 3)
    await confirm(f, 1)
    assert (await poll(f, above=0, wait_ms=10_000)).last_add_confirmed == 1, "at once"
    waiting = asyncio.ensure_future(poll(f, above=1, wait_ms=10_000))
    while not f.metrics.long_polls:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert not waiting.done(), "it knows that already"
    await confirm(f, 2)
    assert (await waiting).last_add_confirmed == 2


@on_loop
async def test_long_poll_ends_at_the_limit(f: Fixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_polls, "LONG_POLL_S_MAX", 0.05)
        await f.store(0, 1)
        answer = await poll(f, above=5, wait_ms=3_600_000)
    assert (answer.status, answer.last_entry) == (pb.OK, 0)


@pytest.mark.parametrize("status", [BookieStatus.UNAUTHORIZED, BookieStatus.IO_ERROR])
def test_long_poll_of_an_end_that_cannot_change_is_answered_at_once(status: BookieStatus) -> None:
    def end(_ledger_id: LedgerId, *, access_key: bytes) -> LedgerEnd:
        return LedgerEnd(status, NO_ENTRY, NO_ENTRY, False, f"no: {access_key!r}")

    @on_loop
    async def run(f: Fixture) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f.bookie, "end_of_ledger", end)
            patch.setattr(long_polls, "LONG_POLL_S_MAX", 60.0)
            for wait_ms in (0, 60_000):
                answer = await poll(f, above=5, wait_ms=wait_ms, key=b"shown")
                assert (answer.status, answer.message) == (int(status), "no: b'shown'")

    run()


@on_loop
async def test_long_poll_of_an_unknown_ledger_waits(f: Fixture) -> None:
    """Its first entry may be on its way, and who was answered at once would ask again at once."""
    ends = [LedgerEnd(BookieStatus.NO_SUCH_LEDGER, NO_ENTRY, NO_ENTRY, False, "")]
    vars(f.bookie)["end_of_ledger"] = lambda _ledger_id, *, access_key: ends[-1]
    waiting = asyncio.ensure_future(poll(f, above=0, wait_ms=10_000))
    while not f.metrics.long_polls:
        await asyncio.sleep(0.005)
    ((_above, changed),) = f.bookie.ledgers[LedgerId(1)].watches
    changed()
    await asyncio.sleep(0.05)
    assert not waiting.done()
    ends.append(LedgerEnd(BookieStatus.OK, EntryId(1), EntryId(2), False, ""))
    changed()
    assert (await waiting).last_add_confirmed == 1
    assert f.metrics.long_polls == 0 and not f.bookie.ledgers[LedgerId(1)].watches


@on_loop
async def test_answer_to_a_client_that_left_does_not_stop_the_others(f: Fixture) -> None:
    """One journal batch answers many calls, one after the other."""
    f.bookie.hold = True
    request = pb.ReadLastConfirmedRequest(ledger_id=1, fence=True)
    gone = f.stub.ReadLastConfirmed(request, timeout=15, metadata=HERE)
    while LedgerId(1) not in f.bookie.ledgers:
        await asyncio.sleep(0.005)
    gone.cancel()
    while any(f.metrics.calls_in_progress.values()):
        await asyncio.sleep(0.005)
    stays = asyncio.ensure_future(f.stub.ReadLastConfirmed(request, timeout=15, metadata=HERE))
    while len(f.bookie._held) < 2:
        await asyncio.sleep(0.005)
    f.bookie.release()
    assert (await stays).fenced


@on_loop
async def test_ledgers_with_negative_ids_are_refused(f: Fixture) -> None:
    """Such a ledger could be taken in, and never be written to an index."""
    for ledger_id, status in ((-1, pb.BAD_REQUEST), (-(2**63), pb.BAD_REQUEST), (0, pb.OK)):
        request = pb.ReadLastConfirmedRequest(ledger_id=ledger_id, fence=True)
        answer = await f.stub.ReadLastConfirmed(request, timeout=15, metadata=HERE)
        assert answer.status == status, answer
        write = pb.WriteLastConfirmedRequest(ledger_id=ledger_id, last_add_confirmed=3)
        answer = await f.stub.WriteLastConfirmed(write, timeout=15, metadata=HERE)
        assert answer.status == status, answer
        listed = f.stub.ListEntries(
            pb.ListEntriesRequest(ledger_id=ledger_id), timeout=15, metadata=HERE
        )
        assert [a.status async for a in listed] == [status]
    assert list(f.bookie.ledgers) == [0]


async def pages(f: Fixture, request: pb.ListEntriesRequest) -> list[tuple[list[int], int]]:
    """First entries of the ranges in each answer, and where the answer says that more begins."""
    call = f.stub.ListEntries(request, timeout=5, metadata=HERE)
    return [([r.first_entry for r in a.ranges], a.next_entry) async for a in call]


@pytest.mark.parametrize("count", [1, 3, 4, 6, 7])
def test_client_that_does_not_know_pages_gets_all_of_them(count: int) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        f.bookie.ranges_per_page = 3
        for entry in range(count):
            await f.store(10 * entry, 2)
        answers = await pages(f, pb.ListEntriesRequest(ledger_id=1))
        assert [each for ranges, _ in answers for each in ranges] == [10 * e for e in range(count)]
        assert all(len(ranges) <= 3 and following == 0 for ranges, following in answers)

    run()


@on_loop
async def test_client_that_asks_for_a_page_gets_one_and_where_the_next_begins(f: Fixture) -> None:
    f.bookie.ranges_per_page = 3
    for entry in range(5):
        await f.store(10 * entry, 2)
    for first, expected in ((0, ([0, 10, 20], 30)), (30, ([30, 40], 0)), (99, ([], 0))):
        request = pb.ListEntriesRequest(ledger_id=1, one_page=True, first_entry=first)
        assert await pages(f, request) == [expected]
    refused = f.stub.ListEntries(
        pb.ListEntriesRequest(ledger_id=1, first_entry=-1), timeout=5, metadata=HERE
    )
    assert [answer.status async for answer in refused] == [pb.BAD_REQUEST]


def read_all(request: pb.ReadRequest, bookie: ScriptedBookie) -> list[int]:
    """The entries that one request gets."""
    found: list[int] = []
    reading = RangeRead(bookie, request)
    while not reading.ended:
        for message in reading.next_messages():
            _response, run = decode_read_response(message)
            assert run is not None
            found += run.ids()
    assert reading.status is BookieStatus.OK
    return found


@pytest.mark.parametrize(
    ("asked", "entries"), [(0, 4), (10**9, 4), (160, 4), (100, 2), (80, 2), (1, 1)]
)
def test_read_returns_no_more_than_the_request_limit(
    asked: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_path, "READ_REQUEST_BYTES_MAX", 160)
    monkeypatch.setattr(read_path, "READ_CHUNK_BYTES_TARGET", 80)
    bookie = ScriptedBookie()
    filled(bookie)
    request = pb.ReadRequest(ledger_id=1, first_entry=0, last_entry=9, max_bytes=asked)
    assert read_all(request, bookie) == list(range(entries))
    request.stride = 2
    assert read_all(request, bookie) == list(range(0, 2 * entries, 2))


def test_read_takes_a_chunk_at_a_time_however_much_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_path, "READ_CHUNK_BYTES_TARGET", 80)
    bookie = ScriptedBookie()
    filled(bookie)
    reading = RangeRead(bookie, pb.ReadRequest(ledger_id=1, last_entry=9))
    chunks = []
    while not reading.ended:
        (message,) = reading.next_messages()
        _response, run = decode_read_response(message)
        assert run is not None
        chunks.append(run.count)
    assert chunks == [2] * 5 and reading.bytes_read == 400


class OfRuns(ScriptedBookie):
    """Answers with runs of several entries, as they lie in logs: three, then two, and so on."""

    def read(self, *of: Any, **how: Any) -> ReadOutcome:
        outcome = super().read(*of, **how)
        left, runs = deque(outcome.runs), list[EntryRun]()
        while left:
            ids, frames = zip(
                *((run.first_entry, run.frames) for run in pop(left, 3 - len(runs) % 2)),
                strict=True,
            )
            listed = None if how["stride"] == 1 else list(ids)
            sizes = [len(frame) for frame in frames]
            runs.append(EntryRun(LedgerId(1), ids[0], listed, sizes, b"".join(frames)))
        return outcome._replace(runs=runs)


def pop(left: deque[EntryRun], count: int) -> list[EntryRun]:
    return [left.popleft() for _number in range(min(count, len(left)))]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("chunk", [80, 120, 200, 10_000])
def test_read_goes_on_behind_the_last_entry_of_each_chunk(
    stride: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a chunk ends with a run of one entry or of several."""
    monkeypatch.setattr(read_path, "READ_CHUNK_BYTES_TARGET", chunk)
    bookie = OfRuns()
    filled(bookie, 30)
    request = pb.ReadRequest(ledger_id=1, first_entry=1, last_entry=28, stride=stride)
    assert read_all(request, bookie) == list(range(1, 29, stride))


@pytest.mark.parametrize("lacking", [0, 1, 4, 9])
def test_read_that_meets_a_hole_brings_what_is_before_it_and_its_name(lacking: int) -> None:
    bookie = ScriptedBookie()
    filled(bookie)
    del bookie.ledgers[LedgerId(1)].entries[lacking]
    reading = RangeRead(bookie, pb.ReadRequest(ledger_id=1, last_entry=9))
    *before, last = reading.next_messages()
    runs = [decode_read_response(each)[1] for each in before]
    assert [entry for run in runs if run for entry in run.ids()] == list(range(lacking))
    response, run = decode_read_response(last)
    assert run is None and response.status == pb.NO_SUCH_ENTRY
    assert response.entry_id == lacking and reading.ended


def filled(bookie: ScriptedBookie, entries: int = 10) -> None:
    """Entries of 40 bytes in ledger 1."""
    bookie.watch_last_confirmed(LedgerId(1), NO_ENTRY, lambda: None)()  # makes the ledger
    bookie.ledgers[LedgerId(1)].entries = {entry: bytes(40) for entry in range(entries)}


def test_entry_zero_of_ledger_zero_can_be_read() -> None:
    assert read_request_error(pb.ReadRequest()) == ""
    assert read_request_error(pb.ReadRequest(last_entry=2**63 - 1, stride=1)) == ""


@on_loop
async def test_reader_that_comes_goes_on_in_turns_with_those_that_read_much(f: Fixture) -> None:
    """However much those have asked for: else a reader of one entry waits for all of it."""
    entries = 2_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_path, "READ_CHUNK_BYTES_TARGET", 40)
        patch.setattr(f.service._answers, "_bytes_max", 1)  # one part at a time
        filled(f.bookie, entries)
        brought: dict[str, list[int]] = {"much": [], "little": []}
        calls = 0

        async def read(name: str, last: int) -> None:
            nonlocal calls
            found = brought[name]
            while not found or found[-1] < last:
                calls += 1
                first = found[-1] + 1 if found else 0
                request = pb.ReadRequest(ledger_id=1, first_entry=first, last_entry=last)
                async for answer in f.stub.Read(request, timeout=15, metadata=HERE):
                    assert answer.status == pb.OK
                    found += range(answer.run.first_entry, answer.run.first_entry + 1)

        much = asyncio.ensure_future(read("much", entries - 1))
        while len(brought["much"]) < 10:
            await asyncio.sleep(0.001)
        for _number in range(5):
            brought["little"].clear()
            await read("little", 0)
        assert len(brought["much"]) < entries, "they did not wait for its end"
        await much
        assert brought["much"] == list(range(entries))
        assert 7 <= calls <= 12, "a call ends early for those that wait, and for nobody else"
