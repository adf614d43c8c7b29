"""Adds that wait for the keys of their ledgers stop no other add, and are bounded by connection."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bookie_server.core.copies import CopyGrant
from bookie_server.core.key_room import KeyRoom, Waiter
from bookie_server.core.transitions import KnownLedger
from bookie_server.first_contact import Answer as KeyAnswer
from bookie_server.first_contact import CopyAnswer
from spark_ledger.bookie_api import ASKED_BY, Refusal
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import (
    BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX,
    BOOKIE_KEY_WAITING_BYTES_MAX,
)
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import access_key_hash
from spark_ledger.wire.shown_keys import copy_key
from tests.unit.bookie_server.storage.support import Answer, Machine, expected, formatted
from tests.unit.bookie_server.test_first_contact import KEY, SlowKeys

OK, BUSY = BookieStatus.OK, BookieStatus.TOO_MANY_REQUESTS
L = LedgerId(7)
LARGE = 950_000


class SilentKeys(SlowKeys):
    """Keeps the look-ups of copies as well, and for whom it looks."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[CopyAnswer] = []
        self.asked_by: list[str] = []

    def look_up(self, ledger_id: LedgerId, answer: KeyAnswer) -> None:
        self.asked_by.append(ASKED_BY.get())
        super().look_up(ledger_id, answer)

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        self.copies.append(answer)


@pytest.fixture
def keys() -> SilentKeys:
    return SilentKeys()


@pytest.fixture
def machine(keys: SilentKeys) -> Machine:
    """Of a bookie that knows one ledger."""
    machine = Machine(formatted(), keys=keys)
    answers = machine.start_add(L, [0], key=KEY)
    keys.answer()
    machine.settle()
    assert answers == [(OK, "")]
    return machine


@contextmanager
def asked_by(who: str) -> Iterator[None]:
    token = ASKED_BY.set(who)
    yield
    ASKED_BY.reset(token)


def strangers(machine: Machine, count: int, *, first: int = 100) -> list[list[Answer]]:
    """Each sends a large add to a ledger of its own, which was never made."""
    answers = []
    for number in range(first, first + count):
        with asked_by(f"stranger {number}"):
            answers.append(machine.start_add(number, [0], size=LARGE))
    return answers


def test_adds_that_wait_for_a_key_are_not_in_flight_and_more_of_them_are_refused(
    machine: Machine, keys: SilentKeys
) -> None:
    """The metadata store is away: writers of ledgers that are known need it for nothing."""
    answers = strangers(machine, 80)
    waiting = answers.count([])
    assert waiting == BOOKIE_KEY_WAITING_BYTES_MAX // (LARGE + 1024)
    assert [answer[0][0] for answer in answers if answer] == [BUSY] * (80 - waiting)
    assert machine.bookie.append_bytes_in_flight == 0, "the service reads on"
    assert machine.bookie.stats().append_bytes_in_flight == waiting * LARGE
    assert machine.add(L, [1], key=KEY) is OK
    while keys.asked:
        keys.answer(Refusal(BUSY, "no answer within 3 s"))
    machine.settle()
    assert all([status for status, _ in answer] == [BUSY] for answer in answers)
    assert machine.bookie.stats().append_bytes_in_flight == 0
    assert strangers(machine, waiting) == [[]] * waiting, "there is room again"


def test_copies_that_wait_for_their_grant_have_the_same_room(
    machine: Machine, keys: SilentKeys
) -> None:
    key, answers = copy_key(bytes(24)), []
    for number in range(80):
        with asked_by(f"worker {number}"):
            answers.append(machine.start_add(L, [9], key=key, recovery=True, size=LARGE))
    waiting = answers.count([])
    assert waiting == BOOKIE_KEY_WAITING_BYTES_MAX // (LARGE + 1024)
    assert machine.bookie.append_bytes_in_flight == 0
    assert strangers(machine, 1)[0][0][0] is BUSY
    while keys.copies:
        keys.copies.pop()(CopyGrant(b"", b"", EntryId(-1)))
    machine.settle()
    assert all(len(answer) == 1 for answer in answers)
    assert machine.bookie.stats().append_bytes_in_flight == 0


def test_add_of_whoever_has_less_takes_the_place_of_the_newest_of_whoever_has_most(
    machine: Machine, keys: SilentKeys
) -> None:
    with asked_by("flood"):
        flood = [machine.start_add(8, [number], key=KEY, size=LARGE) for number in range(60)]
    waiting = flood.count([])
    assert [bool(answer) for answer in flood] == [False] * waiting + [True] * (60 - waiting)
    with asked_by("honest"):
        answers = [machine.start_add(9, [number], key=KEY, size=LARGE) for number in range(2)]
    assert answers == [[], []] and flood.count([]) == waiting - 2
    assert flood[waiting - 3] == [] and flood[waiting - 2][0][0] is BUSY, "the newest of them"
    for _ in range(2):
        keys.answer()
    for _ in range(waiting):
        machine.settle()
        machine.flush()
    assert answers == [[(OK, "")]] * 2
    assert flood[: waiting - 2] == [[(OK, "")]] * (waiting - 2)
    assert machine.held(8) == expected(8, range(waiting - 2), size=LARGE)
    assert machine.bookie.stats().append_bytes_in_flight == 0


def test_adds_that_waited_for_a_flush_wait_on_for_their_keys_each_for_its_connection(
    machine: Machine, keys: SilentKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush ends on behalf of nobody. Under one name they would be one connection, which has most
    and makes way to a stranger."""
    is_full = True
    monkeypatch.setattr(machine.bookie._storage, "is_full", lambda _ledger: is_full)
    keys.asked_by.clear()
    honest = strangers(machine, 30)
    assert not keys.asked_by and machine.bookie.stats().adds_waiting == 30
    is_full = False
    machine.bookie.on_flushed()
    assert keys.asked_by == [f"stranger {number}" for number in range(100, 130)]
    assert ASKED_BY.get() == "", "what else is done there is done for nobody"
    with asked_by("flood"):
        flood = [machine.start_add(8, [number], key=KEY, size=LARGE) for number in range(60)]
    assert honest == [[]] * 30
    assert len([answer for answer in flood if answer]) > 50


def test_fences_wait_however_full_the_room_is(machine: Machine, keys: SilentKeys) -> None:
    strangers(machine, 80)
    answers = machine.start_fence(8, key=KEY)
    assert answers == []
    keys.asked[-1][1](KnownLedger(access_key_hash(KEY)))
    machine.settle()
    assert answers == [(OK, "")]


def test_many_small_adds_have_a_bound_as_well() -> None:
    """Each takes more than its bytes."""
    room = KeyRoom(10_000)
    refusals = [room.enter(Waiter[None]("flood", 1, lambda _: None)) for _number in range(12)]
    assert refusals.count(None) == 9 and room.frames_bytes == 9


def test_adds_that_wait_are_refused_once_when_the_bookie_closes(machine: Machine) -> None:
    answers = strangers(machine, 80)
    waiting = answers.count([])
    machine.close()
    assert Counter(status for answer in answers for status, _ in answer) == {
        BUSY: 80 - waiting,
        BookieStatus.IO_ERROR: waiting,
    }
    assert machine.bookie.stats().append_bytes_in_flight == 0


def test_bound_leaves_room_to_others_and_holds_what_a_client_may_have() -> None:
    assert 17 * MIB < BOOKIE_KEY_WAITING_BYTES_MAX < BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX


def test_nobody_makes_way_for_an_add_that_has_no_room_even_so() -> None:
    """One connection is a little above the others: what it would give up is too little."""
    room, refused = KeyRoom(100_000), list[str]()

    def enter(who: str, frames_bytes: int) -> bool:
        waiter = Waiter[None](who, frames_bytes, lambda _: refused.append(who))
        return room.enter(waiter) is None

    for who in ("a", "b", "c"):
        assert enter(who, 25_000)
    assert enter("a", 1_000) and enter("a", 1_000) and enter("d", 15_000)
    before = room.frames_bytes
    assert not enter("e", 25_500)
    assert not refused and room.frames_bytes == before
    assert enter("e", 2_500) and refused == ["a"], "the newest of it is enough for this one"


def freeable(waiting: list[Waiter[None]], share: int) -> int:
    """What connections above a share would give up, each the newest first."""
    freed = 0
    for who in {each.who for each in waiting}:
        costs = [each.cost for each in waiting if each.who == who]
        while sum(costs) > share:
            freed += costs.pop()
    return freed


@pytest.mark.parametrize("seed", range(10))
def test_room_counts_exactly_and_is_never_more_than_there_is(seed: int) -> None:
    draw = random.Random(seed)
    print("seed", seed)
    bytes_max = 100_000
    room = KeyRoom(bytes_max)
    refused: list[Waiter[None]] = []
    waiting: list[Waiter[None]] = []

    def waiter() -> Waiter[None]:
        one = Waiter[None](
            draw.choice("abcdef"), draw.choice([0, 1, 5_000, 40_000]), lambda _: refused.append(one)
        )
        return one

    for _ in range(2_000):
        if waiting and draw.random() < 0.3:
            room.leave(waiting.pop(draw.randrange(len(waiting))))
        else:
            one, before = waiter(), len(refused)
            costs = Counter[str]()
            for each in waiting:
                costs[each.who] += each.cost
            enters = room.enter(one) is None
            for gone in refused[before:]:
                assert costs[gone.who] > costs[one.who] + one.cost
                of_connection = [each for each in waiting if each.cost and each.who == gone.who]
                assert gone is of_connection[-1], "the newest one"
                costs[gone.who] -= gone.cost
                waiting.remove(gone)
            if enters:
                waiting.append(one)
            else:
                assert len(refused) == before, "nobody makes way for one that has no room"
                assert (
                    costs.total() - freeable(waiting, costs[one.who] + one.cost)
                    > bytes_max - one.cost
                )
        assert sum(each.cost for each in waiting) <= bytes_max
        assert room.frames_bytes == sum(each.frames_bytes for each in waiting)
    for each in waiting:
        room.leave(each)
    assert room.frames_bytes == 0 and not room._waiters and not room._costs


class Costs(dict[str, int]):
    """By connection; counts how often all are looked at."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def test_connections_are_compared_only_if_there_is_no_room() -> None:
    """With a slow ZooKeeper thousands of them wait, and each add would look at all."""
    room = KeyRoom(100_000)
    costs = room._costs = Costs()
    looks = []
    for number in range(12):
        room.enter(Waiter[None](f"{number % 10}", 9_000, lambda _: None))
        looks.append(costs.looks)
    assert looks == [0] * 9 + [1, 2, 3]
