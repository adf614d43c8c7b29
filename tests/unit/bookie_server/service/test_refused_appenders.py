"""What all append streams together keep of refused appenders: of too many one stream ends."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from bookie_server.service import refused_appenders
from spark_ledger.bookie_api import Refusal
from spark_ledger.limits.bookie import BOOKIE_REFUSED_OF_A_LEDGER_MAX
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.service.test_append_session import Aborted, Fixture, on_loop, settle
from tests.unit.bookie_server.service.test_appenders import out_of_order

FENCED = int(BookieStatus.FENCED)
BUSY = int(BookieStatus.TOO_MANY_REQUESTS)


def beside(f: Fixture) -> Fixture:
    """Another stream of the same bookie."""
    g = Fixture()
    g.bookie, g.gate = f.bookie, f.gate
    return g


async def refuse(f: Fixture, *tags: int, status: BookieStatus = BookieStatus.FENCED) -> None:
    for tag in tags:
        f.bookie.refuse_next = status, "refused"
        f.context.send((tag, 0), ledger_id=tag)
        await settle()


@pytest.fixture(autouse=True)
def eight_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_appenders, "BOOKIE_REFUSED_APPENDERS_MAX", 8)


@on_loop
async def test_idle_stream_with_most_refused_appenders_ends_and_others_go_on(f: Fixture) -> None:
    g = beside(f)
    await refuse(f, *range(6))
    await refuse(g, 0, 1)
    assert not f.task.done() and f.gate.refused.count == 8
    await refuse(g, 2)
    with pytest.raises(Aborted):
        await f.task
    assert f.context.aborted is not None
    assert f.context.aborted[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not f.session._over and not f.session._appenders
    g.context.send((3, 0))
    await settle()
    assert g.results == [(0, 0, FENCED), (1, 0, FENCED), (2, 0, FENCED), (3, 0, 0)]
    assert f.gate.refused.count == 3
    await g.finish()
    assert f.gate.refused.count == 0
    again = beside(f)
    await refuse(again, *range(8))
    await again.finish()


@on_loop
async def test_runs_of_a_stream_that_ends_for_its_refusals_are_neither_stored_nor_answered(
    f: Fixture,
) -> None:
    """Also of appenders that were not refused: it has forgotten which those are."""
    f.context.send((100, 0))
    await settle()
    await refuse(f, *range(1, 9))
    f.bookie.refuse_next = BookieStatus.FENCED, "refused"
    f.context.send((9, 0), (1, 1), (100, 1), (101, 0))
    with pytest.raises(Aborted):
        await f.task
    assert len(f.bookie.adds) == 1
    assert f.results == [(100, 0, 0), *((tag, 0, FENCED) for tag in range(1, 9))]
    assert not f.shares._in_flight


@on_loop
async def test_answers_behind_the_end_of_a_stream_count_for_nobody(f: Fixture) -> None:
    bookie = out_of_order(f)
    g = beside(f)
    f.context.send((1, 0), (2, 0))
    g.context.send(*((tag, 0) for tag in range(12)))
    await settle()
    f.task.cancel()
    await asyncio.wait([f.task])
    for answer in bookie.answers:
        answer(BookieStatus.FENCED, "refused")
    assert f.gate.refused.count == 0, "the other has ended at its ninth"
    with pytest.raises(Aborted):
        await g.task
    assert f.gate.refused.count == 0


@on_loop
async def test_stream_whose_client_has_sent_all_ends_with_the_reason(f: Fixture) -> None:
    bookie = out_of_order(f)
    f.context.send(*((tag, 0) for tag in range(10)))
    f.context.requests.put_nowait(grpc.aio.EOF)
    await settle()
    for answer in bookie.answers[:9]:
        answer(BookieStatus.FENCED, "refused")
    with pytest.raises(Aborted):
        await f.task
    bookie.answers[9](BookieStatus.FENCED, "refused")
    assert f.gate.refused.count == 0 and not f.shares._in_flight


@on_loop
async def test_appender_whose_refusal_was_told_is_kept_as_its_tag(f: Fixture) -> None:
    """A disk that stalls is told to all who may wait: it is none of those."""
    await refuse(f, 1, 2)
    await refuse(f, 3, status=BookieStatus.TOO_MANY_REQUESTS)
    assert set(f.session._appenders) == {3}
    for tag in (1, 2, 3):
        f.context.send((tag, 1), ledger_id=tag)
    f.session.disks_stall("it stalls")
    await settle()
    assert not f.bookie.adds
    assert f.results[3:] == [(3, -1, int(BookieStatus.STALLED)), (3, 0, BUSY)]


@on_loop
async def test_writer_that_comes_again_and_again_while_the_bookie_is_busy_ends_no_stream(
    f: Fixture,
) -> None:
    """Each try is a new appender, which its client opens once it has read the last refusal."""
    f.context.send((100, 0), ledger_id=100)
    await settle()
    for number in range(40):
        f.bookie.refuse_next = BookieStatus.TOO_MANY_REQUESTS, "later"
        f.context.send((101 + number, 0), ledger_id=7)
        await settle()
    f.context.send((200, 0), ledger_id=7)
    f.context.send((100, 1), ledger_id=100)
    await settle()
    assert f.results[-2:] == [(200, 0, 0), (100, 1, 0)]
    assert f.gate.refused.count == BOOKIE_REFUSED_OF_A_LEDGER_MAX - 1
    assert len(f.session._appenders) == f.gate.refused.count
    f.session.disks_stall("it stalls")
    await settle()
    told = [tag for tag, _entry, status in f.results if status == int(BookieStatus.STALLED)]
    assert told == [138, 139, 140], "who has read a refusal is told no more"


@on_loop
async def test_appenders_of_a_ledger_that_may_not_have_read_their_refusal_are_kept(
    f: Fixture,
) -> None:
    """A recovery, a second one and a copy of repair, beside the writer."""
    tags = range(1, 1 + BOOKIE_REFUSED_OF_A_LEDGER_MAX)
    for tag in tags:
        f.bookie.refuse_next = BookieStatus.FENCED, "fenced"
        f.context.send((tag, 0))
        await settle()
    f.context.send(*((tag, 1) for tag in tags))
    await settle()
    assert not f.bookie.adds
    f.context.send((9, 0))
    await settle()
    f.context.send(*((tag, 2) for tag in tags[1:]))
    f.context.send((9, 1))
    await settle()
    assert [run.first_entry for run in f.bookie.adds] == [0, 1]
    assert f.gate.refused.count == len(tags) - 1


@on_loop
async def test_many_refused_appenders_of_a_ledger_are_few_with_the_next(f: Fixture) -> None:
    """They were refused before the client read of one: all are told in one message."""
    await settle()
    tags = range(10, 10 + 2 * BOOKIE_REFUSED_OF_A_LEDGER_MAX)
    f.session._refusal = Refusal(BookieStatus.TOO_MANY_REQUESTS, "later")
    f.context.send(*((tag, 0) for tag in tags))
    await settle()
    assert f.gate.refused.count == len(tags), "their client may not have read that"
    f.session._refusal = None
    f.context.send((99, 0))
    await settle()
    assert f.gate.refused.count == BOOKIE_REFUSED_OF_A_LEDGER_MAX - 1
    assert set(f.session._appenders) == set(tags[1 - BOOKIE_REFUSED_OF_A_LEDGER_MAX :])
