"""The append stream's answers: what each says of which run, and who is told of an end."""

from __future__ import annotations

import asyncio

from spark_ledger.runs import EntryRun
from spark_ledger.transport.append_stream import RESULTS_OF_NOTHING_MAX
from spark_ledger.transport.base import AddResult
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.spark_ledger.transport.test_append_stream import (
    BOOKIE,
    Fixture,
    make_run,
    on_loop,
    settle,
)

OK, UNAVAILABLE = BookieStatus.OK, BookieStatus.UNAVAILABLE


def run_of(first: int, count: int, ids: list[int] | None = None) -> EntryRun:
    return EntryRun(LedgerId(1), EntryId(first), ids, [50] * count, bytes(50 * count))


async def settle_all(f: Fixture) -> None:
    """All answers are taken, and what they bring about."""
    while not f.call.answers.empty():
        await settle()
    await settle()


@on_loop
async def test_run_of_many_entries_is_answered_by_its_last(f: Fixture) -> None:
    appender = f.open()
    appender.send(run_of(0, 3))
    appender.send(run_of(3, 2, [3, 7]))
    appender.send(run_of(8, 1))
    await settle()
    f.call.answer(appender.tag, 2)
    await settle()
    assert f.stream.bytes_in_flight == 150
    f.call.answer(appender.tag, 7)
    await settle()
    assert f.stream.bytes_in_flight == 50
    assert f.results == [AddResult(BOOKIE, OK, EntryId(last), "") for last in (2, 7)]


@on_loop
async def test_acknowledgement_within_a_run_is_of_none_that_was_sent(f: Fixture) -> None:
    appender = f.open()
    appender.send(run_of(0, 3))
    await settle()
    f.call.answer(appender.tag, 1)
    await settle()
    assert [result.status for result in f.results] == [BookieStatus.IO_ERROR]


@on_loop
async def test_answer_of_an_ended_appender_hides_none_behind_it(f: Fixture) -> None:
    """Answers to many ledgers come in one message."""
    gone, stays = f.open(1), f.open(2)
    gone.send(make_run(0))
    stays.send(make_run(0, ledger_id=2))
    await settle()
    gone.close()
    results = [
        pb.AddResult(tag=appender.tag, ledger_id=ledger_id, last_entry=0)
        for ledger_id, appender in ((1, gone), (2, stays))
    ]
    f.call.answers.put_nowait(pb.AppendResponse(results=results).SerializeToString())
    await settle()
    assert [result.status for result in f.results] == [OK]
    assert f.stream.bytes_in_flight == 0


@on_loop
async def test_break_names_the_first_entry_without_an_answer(f: Fixture) -> None:
    appender = f.open()
    for first in (0, 3, 6):
        appender.send(run_of(first, 3))
    await settle()
    f.call.answer(appender.tag, 2)
    await settle()
    f.stream.break_off("gone")
    await settle()
    assert [(r.status, r.last_entry) for r in f.results] == [(OK, 2), (UNAVAILABLE, 5)]


@on_loop
async def test_close_fails_every_appender_and_leaves_no_task(f: Fixture) -> None:
    """Also those that wait for nothing: they could send nothing any more."""
    appenders = [f.open(ledger_id) for ledger_id in (1, 2, 3)]
    appenders[1].send(make_run(0, ledger_id=2))
    await settle()
    await f.stream.close()
    assert [result.status for result in f.results] == [UNAVAILABLE] * 3
    assert f.call.cancelled and all(task.done() for task in f.stream._tasks)


@on_loop
async def test_acknowledgement_that_comes_again_says_nothing_new(f: Fixture) -> None:
    appender = f.open()
    for entry_id in (0, 1):
        appender.send(make_run(entry_id))
    await settle()
    for last_entry in (1, 1, 0):
        f.call.answer(appender.tag, last_entry)
    await settle()
    assert {result.status for result in f.results} == {BookieStatus.OK}
    assert f.stream.bytes_in_flight == 0


def nothing_new(count: int) -> bytes:
    """Results for a tag that nobody has."""
    return b"\x0a\x00" * count


@on_loop
async def test_bookie_that_answers_what_it_was_not_sent_loses_its_stream(f: Fixture) -> None:
    """A message has room for eight million such results: seconds of the loop, each time."""
    appender = f.open()
    appender.send(make_run(0))
    await settle()
    f.call.answers.put_nowait(nothing_new(RESULTS_OF_NOTHING_MAX))
    await settle()
    assert not f.stream.is_broken and not f.results
    f.call.answers.put_nowait(nothing_new(1))
    await settle()
    assert [result.status for result in f.results] == [UNAVAILABLE]
    assert "it answers what it was not sent" in f.results[0].message and f.call.cancelled


@on_loop
async def test_acknowledgements_and_notes_that_say_nothing_new_lose_a_bookie_its_stream(
    f: Fixture,
) -> None:
    appender = f.open()
    appender.send(make_run(0))
    appender.send(make_run(1))
    await settle()
    f.call.answer(appender.tag, 0)
    f.call.answer(appender.tag, -1, pb.STALLED)
    for _ in range(RESULTS_OF_NOTHING_MAX // 2):
        f.call.answer(appender.tag, 0)
        f.call.answer(appender.tag, -1, pb.STALLED)
    await settle_all(f)
    assert not f.stream.is_broken
    f.call.answer(appender.tag, 0)
    await settle_all(f)
    assert f.stream.is_broken


@on_loop
async def test_answers_of_appenders_that_have_ended_cost_a_bookie_nothing(f: Fixture) -> None:
    """Thousands of writers are closed before a slow bookie has answered; then it answers them all,
    and tells each of a stall and of a refusal first."""
    appenders = [f.open(number) for number in range(2 * RESULTS_OF_NOTHING_MAX)]
    for appender in appenders:
        appender.send(make_run(0, ledger_id=appender.ledger_id))
    await settle_all(f)
    for appender in appenders:
        appender.close()
    for status in (pb.STALLED, pb.TOO_MANY_REQUESTS, pb.OK):
        results = [pb.AddResult(tag=appender.tag, status=status) for appender in appenders]
        f.call.answers.put_nowait(pb.AppendResponse(results=results).SerializeToString())
    await settle_all(f)
    assert not f.stream.is_broken


@on_loop
async def test_disk_that_stalls_and_goes_on_for_ever_costs_a_bookie_nothing(f: Fixture) -> None:
    appender = f.open()
    for entry_id in range(2 * RESULTS_OF_NOTHING_MAX):
        appender.send(make_run(entry_id))
        f.call.answer(appender.tag, -1, pb.STALLED)
        f.call.answer(appender.tag, entry_id)
        await settle()
    assert len(f.results) == 4 * RESULTS_OF_NOTHING_MAX and not f.stream.is_broken


@on_loop
async def test_others_have_a_turn_within_an_answer_to_many(f: Fixture) -> None:
    appenders = [f.open(number) for number in range(20_000)]
    for appender in appenders:
        appender.send(make_run(0, 1, appender.ledger_id))
    await settle_all(f)
    results = [pb.AddResult(tag=each.tag, ledger_id=each.ledger_id) for each in appenders]
    f.call.answers.put_nowait(pb.AppendResponse(results=results).SerializeToString())
    seen = set[int]()
    while len(f.results) < len(appenders):
        await asyncio.sleep(0)
        seen.add(len(f.results))
    assert [result.status for result in f.results] == [OK] * len(appenders)
    assert len(seen - {0}) > 1
