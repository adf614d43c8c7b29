"""Looking up where entries lie: kept, bounded, and never a reason to fail."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.stream.plan import locate
from spark_ledger.stream.plan.locate import Locator
from spark_ledger.types import LedgerId, LedgerMetadata, LedgerState
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers


class Counted(FakeLedgers):
    """Ledgers that count how often one is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[int] = []

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        self.looked_up.append(ledger_id)
        return await super().ledger_metadata(ledger_id)


async def with_ledgers(count: int, *, closed: bool) -> tuple[Counted, list[LedgerId]]:
    ledgers = Counted()
    for _ in range(count):
        await ledgers.create_ledger()
    if closed:
        for each in ledgers.ledgers.values():
            each.metadata = each.metadata.with_changes(state=LedgerState.CLOSED, last_entry_id=9)
    return ledgers, [LedgerId(number) for number in ledgers.ledgers]


@pytest.mark.parametrize(("closed", "again"), [(True, 0), (False, 5)])
def test_closed_ledgers_are_looked_up_once_and_open_ones_again(
    monkeypatch: pytest.MonkeyPatch, closed: bool, again: int
) -> None:
    monkeypatch.setattr(locate, "LOCATED_S", -1.0)

    async def test() -> None:
        ledgers, ids = await with_ledgers(5, closed=closed)
        locator = Locator(ledgers)
        first = await locator.locate([*ids, *ids])
        assert list(first.ledgers) == ids and ledgers.looked_up == ids
        assert await locator.locate(ids) == first
        assert len(ledgers.looked_up) == 5 + again

    asyncio.run(test())


def test_open_ledger_is_known_for_a_while() -> None:
    async def test() -> None:
        ledgers, ids = await with_ledgers(2, closed=False)
        locator = Locator(ledgers)
        for _ in range(3):
            await locator.locate(ids)
        assert ledgers.looked_up == ids

    asyncio.run(test())


def test_ledger_that_is_gone_is_left_out() -> None:
    async def test() -> None:
        ledgers, ids = await with_ledgers(2, closed=True)
        found = await Locator(ledgers).locate([LedgerId(7), *ids])
        assert list(found.ledgers) == ids

    asyncio.run(test())


def test_look_ups_and_what_is_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "PLAN_LEDGERS_MAX", 4)
    monkeypatch.setattr(locate, "LEDGERS_LOCATED_MAX", 6)

    async def test() -> None:
        ledgers, ids = await with_ledgers(20, closed=True)
        locator = Locator(ledgers)
        assert list((await locator.locate(ids)).ledgers) == ids[:4]
        for number in range(0, 20, 4):
            await locator.locate(ids[number:])
            assert len(locator._located) <= 6

    asyncio.run(test())
