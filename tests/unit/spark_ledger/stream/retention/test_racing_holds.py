"""Changes of holds beside one another: each is made, and none undoes another without a word."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.stream.model import Retention
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.retention.test_truncation import Between, stream_of
from tests.unit.spark_ledger.stream.world import another, run

Change = Callable[[Stream], Awaitable[object]]


async def renew_a(by: Stream) -> None:
    await by.retention.hold("a", (2,), for_s=60)


async def add_b(by: Stream) -> None:
    await by.retention.hold("b", (1,), for_s=60)


async def release_a(by: Stream) -> None:
    await by.retention.release("a")


async def limit(by: Stream) -> None:
    await by.retention.set_limits(Retention(rows=5))


@pytest.mark.parametrize(
    ("outer", "inner", "left"),
    [
        (release_a, renew_a, []),
        (release_a, add_b, ["b"]),
        (add_b, release_a, ["b"]),
        (renew_a, add_b, ["a", "b"]),
        (release_a, limit, []),
        (limit, release_a, []),
    ],
)
def test_change_of_holds_that_loses_a_race_is_made_all_the_same(
    outer: Change, inner: Change, left: list[str]
) -> None:
    """The one happens between any two steps of the other, and both are done then. What is renewed
    before its release ends is gone."""

    async def scenario(step: int) -> bool:
        ledgers, stream = await stream_of(4, retention=Retention(rows=9))
        await stream.retention.hold("a", (1,), for_s=60)
        rival = await another(ledgers)[1].open("s")
        store = Between(stream._nodes.store, step, lambda: inner(rival))
        stream._nodes.store = store
        await outer(stream)
        if store.calls_left > 0:
            return False
        found = [each.name for each in await rival.retention.holds()]
        assert found == left, f"step {step}"
        if limit in (outer, inner):
            assert (await rival.retention.limits()).rows == 5
        return True

    steps = 1
    while run(scenario(steps)):
        steps += 1
    assert steps > 3, "something happened between"
