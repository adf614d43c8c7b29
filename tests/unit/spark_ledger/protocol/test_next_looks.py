"""A machine names no time for a look that could change nothing: its shell would look fifty times a
second (rule P11)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.protocol.append_phases import Phase
from spark_ledger.protocol.events import (
    BookiesChosen,
    ChooseBookies,
    CloseAppender,
    MetadataRead,
    ReadMetadata,
    WriteMetadata,
)
from spark_ledger.types import BookieId, BookieStatus
from tests.unit.spark_ledger.protocol.append_driver import LIMITS, Writer
from tests.unit.spark_ledger.protocol.ledgers import one, only
from tests.unit.spark_ledger.protocol.recovery_driver import NO, Recoverer, found_one

FENCED, STALLED = BookieStatus.FENCED, BookieStatus.STALLED
RETRY_S, TIMEOUT_S = LIMITS.replacement_retry_s, LIMITS.add_timeout_s


def next_look(writer: Writer | Recoverer) -> float:
    due = writer.machine.next_deadline
    assert due is not None and due > writer.now, "a time that has passed"
    return due


def test_no_look_for_replacements_is_due_while_they_are_chosen_and_written() -> None:
    writer = Writer()
    writer.add()
    writer.now = 1.0
    one(writer.fail(1), ChooseBookies)
    assert next_look(writer) == TIMEOUT_S, "the answer is an event of its own"
    one(writer.choose(i1="b3"), WriteMetadata)
    assert next_look(writer) == TIMEOUT_S


def stalled_alone() -> Writer:
    """b1 owes an entry that the others confirmed before b2 was lost: nothing waits for b1."""
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    writer.ack(2, 0)
    writer.fail(2)
    writer.tick(0.1)
    writer.told("b0", "b1", last=0)
    return writer


def test_silent_member_that_nobody_waits_for_is_looked_at_once_in_a_while() -> None:
    writer = stalled_alone()
    looks = 0
    while writer.machine.failed_indexes == {2}:
        now = next_look(writer)
        assert only(writer.tick(now), ChooseBookies) == []
        looks += 1
        assert now <= LIMITS.stalled_wait_s + RETRY_S
    assert writer.machine.failed_indexes == {1, 2}, "it has had its time"
    assert looks <= 2 + (LIMITS.stalled_wait_s - TIMEOUT_S) / RETRY_S + 10, "LAC is told meanwhile"


def test_silent_member_is_replaced_soon_after_an_entry_comes_that_needs_it() -> None:
    writer = stalled_alone()
    writer.tick(TIMEOUT_S)
    writer.now = TIMEOUT_S + 0.1
    assert one(writer.add(), ChooseBookies).indexes == (2,)
    writer.choose()
    assert next_look(writer) == TIMEOUT_S + RETRY_S
    assert one(writer.tick(TIMEOUT_S + RETRY_S), ChooseBookies).silent == {1: "b1"}


def test_silent_member_is_looked_at_once_in_a_while_beside_a_fence_in_question() -> None:
    writer = Writer()
    writer.add()
    writer.ack(0, 0)
    assert only(writer.fail(2, FENCED), ReadMetadata)
    assert only(writer.tick(TIMEOUT_S), ChooseBookies) == []
    assert next_look(writer) == TIMEOUT_S + RETRY_S
    writer.now = TIMEOUT_S + 0.1
    asked = one(writer.machine.handle(MetadataRead(writer.first), writer.now), ChooseBookies)
    assert asked.indexes == (2,)


def test_full_writer_looks_once_in_a_while_at_silent_members_that_it_cannot_spare() -> None:
    """And at their timeout, which is no multiple of that."""
    writer = Writer()
    writer.now = 0.25
    writer.add(count=20)
    looks: list[float] = []
    while not looks or not only(writer.tick(looks[-1]), ChooseBookies):
        looks.append(next_look(writer))
    assert looks == [1.25, 2.25, 3.25, 4.25, 5.25]
    other = Writer()
    other.add(count=20)
    other.tick(LIMITS.spare_after_s + 0.5)
    other.tick(TIMEOUT_S - 0.5)
    assert next_look(other) == TIMEOUT_S


def test_member_of_a_full_writer_is_spared_once_another_has_answered() -> None:
    writer = Writer()
    writer.add(count=20)
    writer.ack(0, 19)
    assert not only(writer.tick(1.0), CloseAppender), "one copy confirms nothing"
    writer.now = 1.5
    writer.ack(1, 19)
    writer.tick(1.6)
    writer.told("b0", "b1", "b2", last=19)
    assert next_look(writer) == LIMITS.spare_after_s + RETRY_S
    assert only(writer.tick(next_look(writer)), CloseAppender) == [CloseAppender(2)]


def test_recovery_names_no_time_for_a_look_while_replacements_are_chosen() -> None:
    recoverer = found_one()
    recoverer.now = 1.0
    one(recoverer.fail(1, "b1"), ChooseBookies)
    assert next_look(recoverer) == TIMEOUT_S, "b0 and b2 may become silent"


def test_recovery_names_no_time_for_a_look_while_nothing_is_to_be_written() -> None:
    recoverer = Recoverer()
    recoverer.fenced()
    recoverer.bring(2, 0)
    for index in (0, 2):
        recoverer.ack(index, f"b{index}", 0)
    recoverer.now = 1.0
    assert only(recoverer.fail(1, "b1"), ChooseBookies) == []
    assert recoverer.machine.next_deadline is None
    assert one(recoverer.bring(2, 1), ChooseBookies).indexes == (1,)
    assert next_look(recoverer) == 6.0
    recoverer.end(0, NO, 2)


def _step(writer: Writer, draw: random.Random) -> None:
    """Something happens, or does not: questions may stay unanswered for long."""
    machine, index = writer.machine, draw.randrange(3)
    member = machine.bookies[index]
    last = machine.last_add_pushed
    steps: list[Callable[[], object]] = [
        lambda: writer.add(size=draw.choice([1, 60])),
        lambda: writer.ack(index, last),
        lambda: writer.ack(index, draw.randint(0, max(last, 0))),
        lambda: writer.fail(index, draw.choice([*BookieStatus][1:])),
        lambda: writer.fail(index, STALLED),
        lambda: writer.fail(index, BookieStatus.TOO_MANY_REQUESTS),
        lambda: machine.handle(MetadataRead(machine.metadata), writer.now),
    ]
    if machine.phase is Phase.CHOOSING:
        alive = frozenset(each for each in range(3) if draw.random() < 0.7)
        found = {index: BookieId(f"n{writer.now}")} if draw.random() < 0.5 else {}
        steps += 2 * [lambda: machine.handle(BookiesChosen(found, alive), writer.now)]
    if machine._wanted is not None:
        wanted = machine._wanted
        steps += 2 * [lambda: writer.written(wanted, machine._version + 1)]
    if last >= 0:
        steps.append(lambda: writer.told(member, last=machine.last_add_confirmed))
    steps[draw.randrange(len(steps))]()


@pytest.mark.parametrize("seed", range(8))
def test_time_that_a_writer_names_is_never_past_after_a_look(seed: int) -> None:
    """Times are multiples of 1/64, so that sums of them are exact."""
    draw, writer = random.Random(seed), Writer()
    wait_s = AppendLimits().stalled_wait_s
    for _ in range(60):
        try:
            _step(writer, draw)
        except AssertionError as error:
            assert "question" in str(error), f"seed {seed}"
            continue
        if writer.machine.phase in (Phase.CLOSING, Phase.CLOSED):
            return
        writer.now += draw.choice([1, 20, 64, 333, int(64 * wait_s)]) / 64
        writer.tick(writer.now)
        due = writer.machine.next_deadline
        assert due is None or due > writer.now, f"seed {seed}"
