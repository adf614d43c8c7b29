"""Watchers of a ledger's end: each is called, also while others come and go, and none is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from bookie_server.watchers import Watchers
from spark_ledger.limits.bookie import BOOKIE_WATCHERS_AT_ONCE
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

ONE, OTHER = LedgerId(1), LedgerId(2)


def never(_call: Callable[[], None]) -> None:
    raise AssertionError("few are called at once")


def test_notify_calls_those_of_the_ledger_until_they_cancel() -> None:
    watchers, calls = Watchers(never), list[str]()
    cancel = watchers.add(ONE, NO_ENTRY, lambda: calls.append("a"))
    watchers.add(ONE, NO_ENTRY, lambda: calls.append("b"))
    watchers.add(OTHER, NO_ENTRY, lambda: calls.append("other"))
    watchers.notify(ONE)
    assert calls == ["a", "b"]
    cancel()
    cancel()
    watchers.notify(ONE)
    watchers.notify(LedgerId(3))
    assert calls == ["a", "b", "b"]


def test_watcher_that_cancels_itself_or_another_stops_nobody() -> None:
    """Its client has its answer, and leaves from within the call."""
    watchers, calls = Watchers(never), list[int]()
    cancels: list[Callable[[], None]] = []

    def called(number: int) -> None:
        calls.append(number)
        cancels[number]()

    cancels += [watchers.add(ONE, NO_ENTRY, partial(called, number)) for number in range(3)]
    watchers.notify(ONE)
    assert calls == [0, 1, 2]
    watchers.notify(ONE)
    assert calls == [0, 1, 2]
    added = watchers.add(
        ONE, NO_ENTRY, lambda: cancels.append(watchers.add(ONE, NO_ENTRY, lambda: calls.append(9)))
    )
    watchers.notify(ONE)
    added()
    watchers.notify(ONE)
    assert calls == [0, 1, 2, 9]


def test_many_watchers_are_called_some_at_a_time_in_order() -> None:
    """Each has an answer to send: four thousand in one turn keep everybody else waiting."""
    posted, calls = deque[Callable[[], None]](), list[int]()
    watchers, many = Watchers(posted.append), 2 * BOOKIE_WATCHERS_AT_ONCE + 1
    cancels = [watchers.add(ONE, NO_ENTRY, partial(calls.append, number)) for number in range(many)]
    watchers.notify(ONE)
    assert calls == list(range(BOOKIE_WATCHERS_AT_ONCE)) and len(posted) == 1
    cancels[-1]()
    watchers.add(ONE, NO_ENTRY, partial(calls.append, many))
    watchers.notify(ONE)
    watchers.notify(OTHER)
    assert len(calls) == BOOKIE_WATCHERS_AT_ONCE and len(posted) == 1, "the turns go on as before"
    while posted:
        posted.popleft()()
    behind = [*range(BOOKIE_WATCHERS_AT_ONCE), many]
    assert sorted(calls) == sorted([*range(many - 1), *behind])
    assert calls[: many - 1] == list(range(many - 1)), "those who waited go before the second round"
    watchers.notify(ONE)
    assert len(posted) == 1 and len(watchers._due) == 1
    for cancel in cancels:
        cancel()
    while posted:
        posted.popleft()()
    assert not watchers._due


def test_ledger_that_nobody_watches_any_more_is_forgotten() -> None:
    watchers = Watchers(never)
    for number in range(100):
        cancels = [watchers.add(LedgerId(number), NO_ENTRY, lambda: None) for _ in range(2)]
        for cancel in cancels:
            cancel()
    assert not watchers._callbacks and not watchers._waiting


def test_who_waits_for_more_than_is_confirmed_is_not_called() -> None:
    """Or each entry of a busy ledger would wake everybody who waits for one that may never come."""
    watchers, calls = Watchers(never), list[int]()
    many = 4_000
    far = [watchers.add(ONE, EntryId(2**62 + n), partial(calls.append, -1)) for n in range(many)]
    near = {
        above: watchers.add(ONE, EntryId(above), partial(calls.append, above))
        for above in (7, -1, 3, 4)
    }
    watchers.notify(ONE, EntryId(-1))
    assert calls == []
    watchers.notify(ONE, EntryId(4))
    assert calls == [-1, 3], "those that wait for less, and nobody that has it already"
    near[3]()
    near[-1]()
    watchers.notify(ONE, EntryId(5))
    assert calls == [-1, 3, 4]
    for cancel in far[1:]:
        cancel()
    watchers.notify(ONE, EntryId(2**63 - 1))
    assert calls == [-1, 3, 4, 4, 7, -1]
    calls.clear()
    watchers.notify(ONE)
    assert calls == [4, 7, -1], "a fence is for all"
    for cancel in (far[0], near[4], near[7], near[7]):
        cancel()
    assert not watchers._callbacks and not watchers._waiting
