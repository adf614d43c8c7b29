"""Look-ups of keys take turns by connection: who asks for thousands of ledgers that do not exist
keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from typing import Any

import pytest

from bookie_server import ledger_keys, lookup_turns
from bookie_server.core.transitions import KnownLedger
from bookie_server.first_contact import LookUps
from bookie_server.ledger_keys import MetadataKeys
from bookie_server.lookup_turns import LookupTurns
from spark_ledger.bookie_api import ASKED_BY, Refusal
from spark_ledger.limits.bookie import (
    FIRST_CONTACT_AT_FIRST_MAX,
    FIRST_CONTACT_LOOKUPS_MAX,
    FIRST_CONTACT_MISS_S,
)
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree
from spark_ledger.types import BookieStatus, LedgerId
from spark_ledger.wire.frame import access_key_hash
from tests.unit.bookie_server.storage.support import Machine, formatted
from tests.unit.bookie_server.test_first_contact import KEY, L, SlowKeys, created
from tests.unit.virtual_time import run_in_virtual_time

BUSY = BookieStatus.TOO_MANY_REQUESTS
FLOODS = ("a", "b", "c")


class Asking:
    """Asks for ledgers on behalf of connections, and keeps the answers."""

    def __init__(self, delay_s: float = 0.01, tree: MemoryTree | None = None) -> None:
        store = MemoryMetadataStore(
            tree or MemoryTree(), interpose=lambda _name, _path: Fault(delay_s=delay_s)
        )
        self.keys = MetadataKeys(store)
        self.statuses: dict[str, Counter[BookieStatus]] = {}

    def ask(self, who: str, count: int = 1, first: int = 100) -> None:
        token = ASKED_BY.set(who)
        statuses = self.statuses.setdefault(who, Counter())
        for number in range(count):

            def answered(answer: KnownLedger | Refusal) -> None:
                statuses[answer.status if isinstance(answer, Refusal) else BookieStatus.OK] += 1

            self.keys.look_up(LedgerId(first + number), answered)
        ASKED_BY.reset(token)


def test_newcomer_waits_for_one_round_and_not_for_the_floods() -> None:
    async def main() -> None:
        await created(tree := MemoryTree())
        asking = Asking(tree=tree)
        for who in FLOODS:
            asking.ask(who, 1000)
        await asyncio.sleep(0.011)
        asking.ask("honest", first=L)
        await asyncio.sleep(0.05)
        assert asking.statuses["honest"] == {BookieStatus.OK: 1}
        waiting = 3000 - sum(asking.statuses[who].total() for who in FLOODS)
        assert waiting > 2000, "the floods wait for each other"
        await asyncio.sleep(5.0)

    run_in_virtual_time(main())


def test_look_ups_that_find_nothing_are_made_at_a_rate_at_most() -> None:
    """Each costs the loop that serves everybody."""

    async def main() -> None:
        asking = Asking()
        for who in FLOODS:
            asking.ask(who, 1000)
        await asyncio.sleep(1.0)
        per_s = 1 / FIRST_CONTACT_MISS_S
        answered = sum(each[BookieStatus.UNAUTHORIZED] for each in asking.statuses.values())
        at_first = len(FLOODS) * FIRST_CONTACT_AT_FIRST_MAX  # before any has found nothing
        assert per_s - 20 <= answered <= per_s + at_first
        await asyncio.sleep(5.0)
        assert sum(each.total() for each in asking.statuses.values()) == 3000

    run_in_virtual_time(main())


def test_connection_that_comes_anew_has_few_look_ups_until_one_has_ended() -> None:
    """Whoever is ended for ledgers that do not exist connects again: with a hundred look-ups each
    time it had more of them than those that are paced."""

    async def main() -> None:
        asking = Asking(delay_s=0.002)
        connections, seconds = 100, 1.0
        for number in range(connections):
            asking.ask(f"stranger {number}", 300)
            await asyncio.sleep(seconds / connections)
        answered = sum(each[BookieStatus.UNAUTHORIZED] for each in asking.statuses.values())
        paced = seconds / FIRST_CONTACT_MISS_S
        assert answered <= paced + connections * FIRST_CONTACT_AT_FIRST_MAX
        await asyncio.sleep(5.0)

    run_in_virtual_time(main())


def test_connection_of_which_nothing_is_known_goes_on_once_a_look_up_was_given_up() -> None:
    """ZooKeeper does not answer: that is no reason to ask for the others one by one."""

    async def main() -> None:
        turns = LookupTurns(at_once=64, waiting_max=64)
        asked = [turn for _ in range(20) if (turn := turns.take("a")) is not None]
        running = [turn for turn in asked if turn.done()]
        assert len(running) == FIRST_CONTACT_AT_FIRST_MAX and len(asked) == 20
        turns.leave("a", running[0])
        assert [turn.done() for turn in asked].index(False) == FIRST_CONTACT_AT_FIRST_MAX + 1
        turns.leave("a", running[1], found=True)
        assert all(turn.done() for turn in asked)

    run_in_virtual_time(main())


def test_connection_that_found_a_ledger_is_forgotten_behind_many_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookup_turns, "FIRST_CONTACT_FOUND_MAX", 3)

    async def main() -> None:
        turns = LookupTurns(at_once=64, waiting_max=64)
        for who in ("a", "b", "a", "c", "d"):
            turn = turns.take(who)
            assert turn is not None
            turns.leave(who, turn, found=True)
        assert list(turns._found) == ["a", "c", "d"]

    run_in_virtual_time(main())


def test_look_ups_that_find_nothing_keep_no_place_from_those_of_others() -> None:
    """Places that waited for the pace of strangers made new ledgers of honest writers busy."""

    async def main() -> None:
        tree = MemoryTree()
        for number in range(1000):
            await created(tree, ledger_id=LedgerId(100_000 + number))
        asking = Asking(delay_s=0.002, tree=tree)
        for number in range(10):
            asking.ask(f"stranger {number}", 300)
        await asyncio.sleep(0.3)
        asking.ask("honest", 1000, first=100_000)
        await asyncio.sleep(2 * 0.002 * 1000 / FIRST_CONTACT_LOOKUPS_MAX)
        assert asking.statuses["honest"] == {BookieStatus.OK: 1000}
        await asyncio.sleep(5.0)
        assert sum(each.total() for each in asking.statuses.values()) == 4000
        assert not asking.keys._turns._held_back

    run_in_virtual_time(main())


def test_connection_that_finds_a_ledger_is_paced_no_more() -> None:
    """One of its ledgers was deleted."""

    async def main() -> None:
        tree = MemoryTree()
        for number in range(1000):
            await created(tree, ledger_id=LedgerId(100_000 + number))
        asking = Asking(tree=tree)
        asking.ask("honest")
        await asyncio.sleep(0.02)
        assert asking.statuses["honest"] == {BookieStatus.UNAUTHORIZED: 1}
        asking.ask("honest", 1000, first=100_000)
        await asyncio.sleep(0.01 * (1000 // FIRST_CONTACT_LOOKUPS_MAX + 8))
        assert asking.statuses["honest"][BookieStatus.OK] == 1000

    run_in_virtual_time(main())


def test_connection_that_found_nothing_waits_for_its_time_also_beside_free_places() -> None:
    """Whoever asks anew only when it was answered finds all of them free."""

    async def main() -> None:
        asking = Asking(delay_s=0.001)
        asking.ask("a", 30)
        await asyncio.sleep(0.01)
        for _ in range(100):
            asking.ask("a", 30)
            await asyncio.sleep(0.01)
        answered = asking.statuses["a"][BookieStatus.UNAUTHORIZED]
        assert 400 <= answered <= 30 + 1.02 / FIRST_CONTACT_MISS_S
        await asyncio.sleep(5.0)

    run_in_virtual_time(main())


def test_connection_that_finds_every_second_ledger_does_not_use_up_the_time_of_others() -> None:
    """Each time that it was given and did not wait for would be one for which others wait."""

    async def main() -> None:
        turns = LookupTurns(at_once=64, waiting_max=64)
        for _ in range(1000):
            pair = [turns.take("finds some") for _ in range(2)]
            for turn, found in zip(pair, (False, True), strict=True):
                assert turn is not None and turn.done()
                turns.leave("finds some", turn, found=found)
        turn = turns.take("missed once")
        assert turn is not None
        turns.leave("missed once", turn, found=False)
        began = asyncio.get_running_loop().time()
        turn = turns.take("missed once")
        assert turn is not None and await turn
        assert asyncio.get_running_loop().time() - began <= 2 * FIRST_CONTACT_MISS_S
        turns.leave("missed once", turn)

    run_in_virtual_time(main())


def test_no_more_connections_are_remembered_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_turns, "FIRST_CONTACT_PACED_MAX", 10)

    async def main() -> None:
        asking = Asking()
        for number in range(50):
            asking.ask(f"stranger {number}", 3)
        await asyncio.sleep(1.0)
        assert sum(each.total() for each in asking.statuses.values()) == 150
        paced = asking.keys._turns._paced
        assert len(paced) == 10 and list(paced.values()) == sorted(paced.values())

    run_in_virtual_time(main())


def test_look_ups_that_find_their_ledgers_are_made_as_fast_as_the_metadata_are_read() -> None:
    """Thousands of writers come from a bookie that has died."""

    async def main() -> None:
        tree = MemoryTree()
        for number in range(3000):
            await created(tree, ledger_id=LedgerId(100 + number))
        asking = Asking(tree=tree)
        asking.ask("a", 3000)
        await asyncio.sleep(0.01 * (3000 // FIRST_CONTACT_LOOKUPS_MAX + 3))
        assert asking.statuses["a"] == {BookieStatus.OK: 3000}

    run_in_virtual_time(main())


def test_connection_that_is_alone_has_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of writers whose bookie has died begin on another one together."""
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_MAX", 2)
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_WAITING_MAX", 40)

    async def main() -> None:
        asking = Asking()
        asking.ask("a", 60)
        assert asking.statuses["a"] == {BUSY: 60 - 2 - 40}
        asking.ask("honest")
        await asyncio.sleep(1.0)
        assert asking.statuses["a"][BookieStatus.UNAUTHORIZED] == 2 + 40 - 1
        assert asking.statuses["honest"] == {BookieStatus.UNAUTHORIZED: 1}

    run_in_virtual_time(main())


def test_newcomer_takes_a_place_of_whoever_has_most_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a few that flood had the bookie say "busy" to everybody else."""
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_MAX", 2)
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_WAITING_MAX", 40)

    async def main() -> None:
        asking = Asking()
        for who in ("a", "b", "c", "d", "e"):
            asking.ask(who, 30)
        await asyncio.sleep(0)
        asking.ask("honest", 3)
        assert not asking.statuses["honest"], "nothing is refused"
        await asyncio.sleep(1.0)
        assert asking.statuses["honest"] == {BookieStatus.UNAUTHORIZED: 3}
        looked_up = sum(each[BookieStatus.UNAUTHORIZED] for each in asking.statuses.values())
        assert looked_up == 2 + 40, "no more waited than may"

    run_in_virtual_time(main())


def test_look_ups_that_were_given_up_keep_no_place() -> None:
    async def main() -> None:
        asking = Asking(delay_s=3600.0)
        for _ in range(3):
            asking.ask("a", 500)
            await asyncio.sleep(10.0)
        assert asking.statuses["a"] == {BUSY: 1500}
        turns = asking.keys._turns
        assert not turns._waiting and turns._count == 0
        assert turns._free == FIRST_CONTACT_LOOKUPS_MAX
        assert not turns._ready and not turns._held_back

    run_in_virtual_time(main())


def test_newcomer_takes_the_place_of_a_look_up_that_was_given_up_a_moment_ago() -> None:
    """Between the end of its time and the turn of the loop in which it leaves, others may come."""

    async def main() -> None:
        turns = LookupTurns(1, 2)
        at_work = turns.take("a")
        assert at_work is not None
        waiting = [turns.take("b"), turns.take("b")]
        assert waiting[0] and waiting[1]
        waiting[1].cancel()
        newcomer = turns.take("c")
        assert newcomer is not None and turns.take("b") is None, "there are two that wait"
        turns.leave("b", waiting[1])
        turns.leave("a", at_work)
        assert waiting[0].result() and not newcomer.done()
        turns.leave("b", waiting[0])
        assert newcomer.result()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_turns_are_never_lost_and_never_too_many(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(lookup_turns, "FIRST_CONTACT_AT_FIRST_MAX", at_first := 1 + seed % 3)
    print("seed", seed)

    async def main() -> None:
        at_once, waiting_max = draw.randint(1, 4), draw.randint(4, 30)
        turns = LookupTurns(at_once, waiting_max)
        open_: list[tuple[str, asyncio.Future[bool]]] = []
        for _ in range(600):
            if open_ and draw.random() < 0.2:
                draw.choice(open_)[1].cancel()  # it leaves a while later
            elif open_ and draw.random() < 0.5:
                who, turn = open_.pop(draw.randrange(len(open_)))
                turns.leave(who, turn, found=draw.choice([None, True, False]))
            elif draw.random() < 0.1:
                await asyncio.sleep(FIRST_CONTACT_MISS_S)
            else:
                who = draw.choice("abcdefgh")
                turn_ = turns.take(who)
                if turn_ is not None:
                    open_.append((who, turn_))
            running = sum(
                turn.done() and not turn.cancelled() and turn.result() for _, turn in open_
            )
            waiting = Counter(who for who, turn in open_ if not turn.done())
            assert running <= at_once and waiting.total() <= waiting_max
            tries = {who for who, count in turns._running.items() if count >= at_first}
            others = waiting.keys() - turns._paced.keys() - (tries - turns._found.keys())
            assert running == at_once or not others, "nobody waits beside a free place"
        while open_:
            await asyncio.sleep(FIRST_CONTACT_MISS_S)
            for who, turn in [each for each in open_ if each[1].done()]:
                open_.remove((who, turn))
                turns.leave(who, turn)
        assert turns._free == at_once and not turns._waiting and not turns._running
        assert not turns._ready and not turns._held_back

    run_in_virtual_time(main())


def asked_by(who: str, machine: Machine, key: bytes) -> list[tuple[BookieStatus, str]]:
    token = ASKED_BY.set(who)
    answers = machine.start_add(L, [0], key=key)
    ASKED_BY.reset(token)
    return answers


@pytest.mark.parametrize("stranger_first", [True, False])
def test_ledger_that_a_stranger_asks_for_first_is_looked_up_for_its_writer(
    stranger_first: bool,
) -> None:
    """Ids can be guessed: behind the thousands of a stranger its writer would wait as long."""
    keys = SlowKeys()
    machine = Machine(formatted(), keys=keys)
    stranger = asked_by("stranger", machine, b"another key")
    writer = asked_by("writer", machine, KEY)
    again = asked_by("writer", machine, KEY)
    assert len(keys.asked) == 2, "once for each connection"
    if stranger_first:
        keys.answer(Refusal(BUSY, "it has too many"))
        machine.settle()
        assert not stranger and not writer, "the other look-up may bring the key"
        keys.answer()
    else:
        keys.asked.reverse()
        keys.answer()
        machine.settle()
        keys.answer(Refusal(BUSY, "it has too many"))
    machine.settle()
    assert [status for status, _ in stranger] == [BookieStatus.UNAUTHORIZED]
    assert writer == again == [(BookieStatus.OK, "")]


def test_ledger_that_nobody_can_look_up_is_refused_once_all_look_ups_have_ended() -> None:
    keys = SlowKeys()
    machine = Machine(formatted(), keys=keys)
    answers = [asked_by(who, machine, KEY) for who in ("a", "b", "c")]
    for _ in range(3):
        assert not any(answers)
        keys.answer(Refusal(BUSY, "ZooKeeper is away"))
        machine.settle()
    assert [each[0][0] for each in answers] == [BUSY] * 3


def test_answer_of_before_is_none_to_a_later_question_of_the_same_connection() -> None:
    """The ledger may have been closed in between."""
    asked: list[Any] = []
    look_ups = LookUps[KnownLedger](lambda _ledger, answer: asked.append(answer), lambda _: None)
    got: list[object] = []

    def wait(who: str) -> None:
        token = ASKED_BY.set(who)
        look_ups.wait(L, got.append)
        ASKED_BY.reset(token)

    wait("a")
    wait("b")
    known, closed = KnownLedger(access_key_hash(KEY)), KnownLedger(access_key_hash(KEY), True)
    asked[1](known)
    wait("a")
    asked[0](known)
    assert got == [known, known]
    asked[2](closed)
    assert got == [known, known, closed]


def test_answer_that_comes_behind_another_changes_nothing() -> None:
    """Those that wait go on some at a time, and all with the first answer."""
    posted: deque[object] = deque()
    asked: list[object] = []
    known = KnownLedger(access_key_hash(KEY))
    look_ups = LookUps[KnownLedger](lambda _ledger, answer: asked.append(answer), posted.append)
    got: list[object] = []

    def wait(who: str) -> None:
        token = ASKED_BY.set(who)
        look_ups.wait(L, got.append)
        ASKED_BY.reset(token)

    for who in ("a", "b"):
        for _ in range(60):
            wait(who)
    first, second = asked
    first(known)  # type: ignore[operator]
    second(Refusal(BUSY, "late"))  # type: ignore[operator]
    wait("c")
    while posted:
        posted.popleft()()  # type: ignore[operator]
    assert got == [known] * 121 and len(asked) == 2
    assert not look_ups.is_waiting(L)
