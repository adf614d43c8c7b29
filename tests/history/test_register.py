"""The search for an order of calls agrees with trying all orders, and has a bound."""

from __future__ import annotations

import random
from itertools import permutations

from tests.history.model import FOREVER
from tests.history.register import ABSENT, OPEN, Register, State, linearize
from tests.history.register import _apply as apply
from tests.history.register import _fits as fits


def by_all_orders(calls: list[Register]) -> bool:
    """Every order of every choice of the calls that may not have happened."""
    optional = [c for c in calls if c.is_optional]
    certain = [c for c in calls if not c.is_optional]
    ends = sorted({c.end for c in calls if c.end is not None and c.what in ("close", "is-closed")})
    first: State = (ABSENT if any(c.what == "create" for c in calls) else OPEN, None)
    for mask in range(2 ** len(optional)):
        chosen = certain + [c for bit, c in enumerate(optional) if mask >> bit & 1]
        for order in permutations(chosen):
            if all(
                not later.ended < earlier.began
                for at, earlier in enumerate(order)
                for later in order[at + 1 :]
            ) and _runs(list(order), first, ends):
                return True
    return False


def _runs(order: list[Register], state: State, ends: list[int]) -> bool:
    if not order:
        return True
    call, rest = order[0], order[1:]
    if fits(call, state) and _runs(rest, state, ends):
        return True
    return any(_runs(rest, after, ends) for after in apply(call, state, ends))


def random_calls(rng: random.Random) -> list[Register]:
    moments = rng.sample(range(100), 10)
    calls = []
    for number in range(rng.randint(2, 5)):
        began, ended = sorted(moments[2 * number : 2 * number + 2])
        kinds = ["create", "close", "delete", "is-open", "is-closed", "is-gone"]
        what = rng.choice(kinds[1:] if number else kinds)
        end: int | None = rng.choice((0, 1)) if what in ("close", "is-closed") else -1
        if what in ("close", "delete") and rng.random() < 0.3:
            end, ended = None, FOREVER
        calls.append(Register(what, end, began, ended, number))
    return calls


def test_search_agrees_with_trying_all_orders() -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    outcomes = set()
    for round_ in range(1500):
        calls = random_calls(rng)
        expected = by_all_orders(calls)
        assert linearize(calls) is expected, f"seed {seed}, round {round_}: {calls}"
        outcomes.add(expected)
    assert outcomes == {True, False}, "both kinds were tried"


def test_search_of_linearizable_calls_takes_few_steps() -> None:
    calls = [Register("create", -1, 0, 1)]
    for number in range(500):  # all at the same time
        calls.append(Register("is-open", -1, 2 + number, 3000 + number))
        calls.append(Register("is-closed", 7, 1000 + number, 4000 + number))
    calls.append(Register("close", 7, 2000, 5000))
    assert linearize(calls, steps_max=20_000) is True


def test_search_over_its_bound_is_undecided() -> None:
    calls = [Register("close", None, number, FOREVER) for number in range(12)]
    calls += [Register("is-closed", end, 50 + end, 60 + end) for end in range(3)]
    assert linearize(calls, steps_max=10) is None
    assert linearize(calls) is False
