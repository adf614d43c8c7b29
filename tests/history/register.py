"""The state of a ledger as a register, and the search for an order that explains what was seen.

The search is that of Wing and Gong with Lowe's memory: take any call that may come first, apply it,
go on; states that were tried are not tried again. A call that only reads the state and fits is
taken at once, because that never hurts. If the budget is used up the result is "undecided", never
"correct".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.history.model import FOREVER

STEPS_MAX = 100_000

ABSENT, OPEN, CLOSED, GONE = "absent", "open", "closed", "gone"
State = tuple[str, int | None]


class Register(NamedTuple):
    """One call. ``what``: create, close, delete; is-open, is-closed, is-gone.

    ``end`` is the ledger's end that was reported; None if the outcome is unknown: the call may take
    effect once, at any time after it began, or never.
    """

    what: str
    end: int | None
    began: int
    ended: int
    number: int = 0

    @property
    def is_optional(self) -> bool:
        return self.end is None


def linearize(calls: Sequence[Register], steps_max: int = STEPS_MAX) -> bool | None:
    """Whether some order explains the calls; None if ``steps_max`` steps were not enough to
    tell."""
    ends = sorted({c.end for c in calls if c.end is not None and c.what in ("close", "is-closed")})
    everything = frozenset(range(len(calls)))
    created = any(c.what == "create" for c in calls)
    first: State = (ABSENT if created else OPEN, None)
    todo: list[tuple[frozenset[int], State]] = [(everything, first)]
    tried: set[tuple[frozenset[int], State]] = set()
    steps = 0
    while todo:
        left, state = _looked(calls, *todo.pop())
        if all(calls[i].is_optional for i in left):
            return True
        if (left, state) in tried:
            continue
        tried.add((left, state))
        steps += len(left)
        if steps > steps_max:
            return None
        for i in _may_come_first(calls, left):
            todo += [(left - {i}, after) for after in _apply(calls[i], state, ends)]
    return False


def _may_come_first(calls: Sequence[Register], left: frozenset[int]) -> list[int]:
    """Calls that began before any other one ended."""
    first_end = min((calls[i].ended for i in left), default=FOREVER)
    return [i for i in left if calls[i].began <= first_end]


def _looked(
    calls: Sequence[Register], left: frozenset[int], state: State
) -> tuple[frozenset[int], State]:
    """Take the next calls that only read the state and fit it."""
    while True:
        fit = [i for i in _may_come_first(calls, left) if _fits(calls[i], state)]
        if not fit:
            return left, state
        left = left.difference(fit)


def _fits(call: Register, state: State) -> bool:
    match call.what:
        case "is-open":
            return state[0] == OPEN
        case "is-closed":
            return state == (CLOSED, call.end)
        case "is-gone":
            return state[0] in (ABSENT, GONE)
        case "close":
            return not call.is_optional and state == (CLOSED, call.end)
        case "delete":
            return not call.is_optional and state[0] == GONE
    return False


def _apply(call: Register, state: State, ends: Sequence[int]) -> list[State]:
    """The states that a change may lead to; none if it is impossible here."""
    match call.what, state[0]:
        case "create", "absent":
            return [(OPEN, None)]
        case "close", "open":
            return [(CLOSED, call.end)] if call.end is not None else [(CLOSED, e) for e in ends]
        case "delete", "open" | "closed" | "gone":
            return [(GONE, None)]
    return []
