"""Watchers of a ledger's end: each is called, also while others come and go, and none is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from bookie_server.watchers import Watchers
from spark_ledger.limits.bookie import BOOKIE_WATCHERS_AT_ONCE
from spark_ledger.types import LedgerId

ONE, OTHER = LedgerId(1), LedgerId(2)


def never(_call: Callable[[], None]) -> None:
    raise AssertionError("few are called at once")


def test_notify_calls_those_of_the_ledger_until_they_cancel() -> None:
    watchers, calls = Watchers(never), list[str]()
    cancel = watchers.add(ONE, lambda: calls.append("a"))
    watchers.add(ONE, lambda: calls.append("b"))
    watchers.add(OTHER, lambda: calls.append("other"))
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

    cancels += [watchers.add(ONE, partial(called, number)) for number in range(3)]
    watchers.notify(ONE)
    assert calls == [0, 1, 2]
    watchers.notify(ONE)
    assert calls == [0, 1, 2]
    added = watchers.add(ONE, lambda: cancels.append(watchers.add(ONE, lambda: calls.append(9))))
    watchers.notify(ONE)
    added()
    watchers.notify(ONE)
    assert calls == [0, 1, 2, 9]


def test_many_watchers_are_called_some_at_a_time_in_order() -> None:
    """Each has an answer to send: four thousand in one turn keep everybody else waiting."""
    posted, calls = deque[Callable[[], None]](), list[int]()
    watchers, many = Watchers(posted.append), 2 * BOOKIE_WATCHERS_AT_ONCE + 1
    cancels = [watchers.add(ONE, partial(calls.append, number)) for number in range(many)]
    watchers.notify(ONE)
    assert calls == list(range(BOOKIE_WATCHERS_AT_ONCE)) and len(posted) == 1
    cancels[-1]()
    watchers.add(ONE, partial(calls.append, many))
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
        cancels = [watchers.add(LedgerId(number), lambda: None) for _ in range(2)]
        for cancel in cancels:
            cancel()
    assert not watchers._callbacks
