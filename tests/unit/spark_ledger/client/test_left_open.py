"""Ledgers that a connection could not close: closed later, one by one, as soon as that works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from spark_ledger.client.left_open import LeftOpen
from spark_ledger.errors import (
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from spark_ledger.limits.client import LEFT_OPEN_DELAY_S, LEFT_OPEN_DELAY_S_MAX, LEFT_OPEN_MAX
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.virtual_time import run_in_virtual_time


class Recoveries:
    """Recoveries that fail as told; ``done`` are those that came to an end."""

    def __init__(self, fails: Callable[[LedgerId, int], LedgerError | None]) -> None:
        self.calls: list[tuple[float, LedgerId]] = []
        self.done: list[LedgerId] = []
        self._fails = fails

    async def __call__(self, ledger_id: LedgerId) -> None:
        self.calls.append((asyncio.get_running_loop().time(), ledger_id))
        error = self._fails(ledger_id, len(self.calls))
        if error is not None:
            raise error
        self.done.append(ledger_id)


def test_ledger_is_closed_once_zookeeper_answers_again() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        await writer.abandon()
        read, outage = client._context.ledgers.read_latest, [True]

        async def away(ledger_id: LedgerId) -> object:
            if outage:
                raise MetadataUnavailableError("no ZooKeeper server answers")
            return await read(ledger_id)

        client._context.ledgers.read_latest = away  # type: ignore[method-assign, assignment]
        client.close_later(writer.ledger_id)
        await asyncio.sleep(3)
        assert client._left_open.ledger_ids == [writer.ledger_id]
        outage.clear()
        await asyncio.sleep(10)
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert metadata.is_closed and metadata.last_entry_id == 0
        assert client._left_open.ledger_ids == []

    run_virtually(test)


def test_pauses_grow_while_it_fails_and_every_ledger_has_its_turn() -> None:
    away = MetadataUnavailableError("no ZooKeeper server answers")
    recoveries = Recoveries(lambda _, call: away if call <= 8 else None)

    async def test() -> None:
        left = LeftOpen(recoveries)
        for number in range(3):
            left.add(LedgerId(number))
        await asyncio.sleep(280)
        assert sorted(recoveries.done) == [0, 1, 2] and left.ledger_ids == []
        times = [at for at, _ in recoveries.calls]
        pauses = [b - a for a, b in pairwise(times)]
        assert max(pauses) == pytest.approx(LEFT_OPEN_DELAY_S_MAX)
        assert [each for _, each in recoveries.calls[:6]] == [0, 1, 2, 0, 1, 2]
        await left.close()

    run_in_virtual_time(test())


@pytest.mark.parametrize(
    "gone",
    [NoSuchLedgerError("ledger 0 does not exist"), MetadataRestoredError("it is another one now")],
)
def test_ledger_that_is_there_no_more_is_forgotten_and_the_next_one_closed(
    gone: LedgerError,
) -> None:
    """Behind a restore the id may be that of another client's ledger, which nobody may fence."""
    recoveries = Recoveries(lambda ledger_id, _: gone if ledger_id == 0 else None)

    async def test() -> None:
        left = LeftOpen(recoveries)
        left.add(LedgerId(0))
        left.add(LedgerId(1))
        await asyncio.sleep(10)
        assert recoveries.done == [1] and left.ledger_ids == []
        left.add(LedgerId(2))
        await asyncio.sleep(10)
        assert recoveries.done == [1, 2]
        await left.close()

    run_in_virtual_time(test())


def test_ledger_with_a_way_to_close_of_its_own_is_never_recovered() -> None:
    """However often that fails: recovery would fence whoever has the id by now."""
    away = MetadataUnavailableError("no ZooKeeper server answers")
    recoveries = Recoveries(lambda *_: None)
    own = Recoveries(lambda _, call: away if call <= 3 else None)

    async def test() -> None:
        left = LeftOpen(recoveries)
        left.add(LedgerId(0), own)
        left.add(LedgerId(1))
        await asyncio.sleep(280)
        assert own.done == [0] and len(own.calls) == 4
        assert [each for _, each in recoveries.calls] == [1]
        await left.close()

    run_in_virtual_time(test())


def test_ledger_that_comes_while_its_loop_ends_leaves_no_task() -> None:
    """``asyncio.run`` cancels the tasks that there are: one made meanwhile is destroyed, and Python
    says so on standard error."""

    async def test() -> None:
        left = LeftOpen(Recoveries(lambda *_: None))
        left.add(LedgerId(0))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(LEFT_OPEN_DELAY_S)
        assert left.ledger_ids == []
        await left.close()

    run_in_virtual_time(test())


def test_nothing_is_closed_once_the_connection_is() -> None:
    recoveries = Recoveries(lambda *_: None)

    async def test() -> None:
        left = LeftOpen(recoveries)
        left.add(LedgerId(0))
        await left.close()
        await asyncio.sleep(2 * LEFT_OPEN_DELAY_S)
        assert not recoveries.calls

    run_in_virtual_time(test())


def test_ledgers_are_closed_although_an_application_has_cancelled_all_tasks() -> None:
    hangs = True

    async def close(ledger_id: LedgerId) -> None:
        await asyncio.sleep(3600 if hangs else 0)
        done.append(ledger_id)

    done: list[LedgerId] = []

    async def test() -> None:
        nonlocal hangs
        left = LeftOpen(close)
        for number in range(3):
            left.add(LedgerId(number))
        await asyncio.sleep(LEFT_OPEN_DELAY_S + 1)
        hangs = False
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(LEFT_OPEN_DELAY_S_MAX)
        assert sorted(done) == [0, 1, 2]
        await left.close()

    run_in_virtual_time(test())


def test_no_more_ledgers_wait_than_the_bound_and_the_newest_stay() -> None:
    async def test() -> None:
        left = LeftOpen(Recoveries(lambda *_: MetadataUnavailableError("away")))
        for number in range(LEFT_OPEN_MAX + 5):
            left.add(LedgerId(number))
        assert left.ledger_ids == list(range(5, LEFT_OPEN_MAX + 5))
        await left.close()

    run_in_virtual_time(test())


def test_closed_connection_ends_the_attempts() -> None:
    closed = LedgerClosedError("the connection is closed")
    recoveries = Recoveries(lambda *_: closed)

    async def test() -> None:
        left = LeftOpen(recoveries)
        left.add(LedgerId(0))
        await asyncio.sleep(2 * LEFT_OPEN_DELAY_S_MAX)
        assert len(recoveries.calls) == 1
        left.add(LedgerId(1))
        await left.close()
        left.add(LedgerId(2))
        await asyncio.sleep(2 * LEFT_OPEN_DELAY_S_MAX)
        assert len(recoveries.calls) == 1

    run_in_virtual_time(test())
