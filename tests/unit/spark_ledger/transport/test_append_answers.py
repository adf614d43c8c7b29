"""The append stream's answers: what each says of which run, and who is told of an end."""

from __future__ import annotations

from spark_ledger.runs import EntryRun
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
