"""Each operation, with each kind of trouble at each call that it makes: it ends, says the truth,
leaves nothing running, and can be repeated."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from itertools import count

import pytest

from tests.effort import SWEPT_CALLS, in_shares
from tests.unit.spark_ledger.client.world import World
from tests.unit.sweeps.base import Operation
from tests.unit.sweeps.operations import OPERATIONS, OVERTAKEN
from tests.unit.sweeps.trouble import (
    Kind,
    Trouble,
    copy_of,
    outcome_of,
    troubled_client,
)
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = [
    pytest.mark.leaves_open(part, reason="a connection is closed, or a caller leaves, in between")
    for part in (
        "watch ",
        "client: a tail",
        "client: bookies that count as used",
        "open ledger of a stream",
    )
]
"""What a connection has at its close. What is left in the end each run looks at itself."""

ENDS_WITHIN_S = 90.0
"""A commit tries for a minute."""

AT_MOST_CALLS = 400


async def _run(
    make: type[Operation],
    trouble: Trouble,
    errors: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, seen: errors.append(seen))
    world = World(make.bookies)
    await world.start()
    operation = make(world)
    operation.patch(monkeypatch)
    healthy = await world.client()
    await operation.prepare(healthy)
    client, operation.store = await troubled_client(world, trouble)
    operation.client = client
    await operation.open(client)
    trouble.overtake = partial(operation.overtake, healthy)
    trouble.past = copy_of(world.tree)
    await operation.meanwhile(healthy)
    began = loop.time()
    outcome = await outcome_of(operation.act(client), trouble)
    assert loop.time() - began <= ENDS_WITHIN_S, "it ends"
    await operation.check(healthy, outcome)
    if trouble.kind is not Kind.CLOSED:
        await operation.again(client)
    await client.close()
    await world.close()
    for _turn in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing runs on"
    assert not world.tree._watches, "nothing is watched"
    assert errors == [], "every error is handled"


KINDS: list[Kind] = [kind for kind in Kind if kind not in (Kind.NOTHING, Kind.OVERTAKEN)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", OPERATIONS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("part", in_shares(list(range(SWEPT_CALLS.proof)), SWEPT_CALLS))
def test_operation_in_trouble_ends_and_can_be_repeated(
    make: type[Operation], kind: Kind, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (part + KINDS.index(kind) + OPERATIONS.index(make)) % SWEPT_CALLS.proof + 1
    _sweep(make, kind, first, monkeypatch)


@pytest.mark.parametrize("make", OVERTAKEN, ids=lambda make: make.__name__)
@pytest.mark.parametrize("part", in_shares(list(range(SWEPT_CALLS.proof)), SWEPT_CALLS))
def test_operation_that_another_overtakes_in_the_middle_does_no_harm(
    make: type[Operation], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (part + OPERATIONS.index(make)) % SWEPT_CALLS.proof + 1
    _sweep(make, Kind.OVERTAKEN, first, monkeypatch)


def _sweep(make: type[Operation], kind: Kind, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []  # that the loop was told of, because nobody handled them
    for at in count(first, SWEPT_CALLS.proof):
        trouble = Trouble(kind, at)
        try:
            run_in_virtual_time(_run(make, trouble, errors, monkeypatch))
        except BaseException as error:
            where = trouble.calls[at - 1] if at <= trouble.count else "no call"
            raise AssertionError(f"{kind} at call {at}, {where}: {error!r}") from error
        if trouble.count < at:
            break
        assert at < AT_MOST_CALLS, "an operation makes few calls"
    gc.collect(1)  # young objects: to walk over all of them takes longer than the test
    assert errors == [], "every error is handled"
