"""Dropped commits that name more ledgers than may be listed at once, or than there is time for."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.retention import reclaim
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.reclaim import Reclaimed
from spark_ledger.stream.segment_writer import SegmentWriter
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import freed, optimize, packs_of
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.retention.test_giving_back import closed_commits
from tests.unit.spark_ledger.stream.world import SCHEMA, root_of, run, table


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "DROPPING_LEDGERS_MAX", 3)
    monkeypatch.setattr(reclaim, "LOOKS_AT_ONCE", 2)


class Counting(ClosedDeletions):
    """Counts the looks at each ledger."""

    def __init__(self, ledgers: FakeLedgers) -> None:
        super().__init__(ledgers)
        self.looks: Counter[LedgerId] = Counter()

    async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        self.looks[ledger_id] += 1
        return await super().read(ledger_id)


def test_step_deletes_all_that_is_due_and_looks_once_at_each() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 3, each=7)
        await stream.retention.truncate((14,))
        deletions = Counting(ledgers)
        reclaimer = stream.retention.reclaimer(deletions, LiveNames())
        assert await reclaimer.step(2) == Reclaimed(14, 2, is_done=True)
        assert sorted(deletions.looks.values()) == [1] * 14
        assert len(ledgers.ledgers) == 7 and root_of(ledgers).dropped == 2

    run(scenario())


def test_step_that_has_no_more_time_says_so_and_the_next_one_goes_on() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 3, each=7)
        await stream.retention.truncate((14,))
        has_time = itertools.cycle([True, False])
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert await reclaimer.step(2, lambda: False) == Reclaimed(0, 0, is_done=False)
        steps = [await reclaimer.step(2, lambda: next(has_time)) for _ in range(5)]
        assert steps == [
            Reclaimed(3, 0, is_done=False),
            Reclaimed(3, 0, is_done=False),
            Reclaimed(3, 1, is_done=False),
            Reclaimed(3, 0, is_done=False),
            Reclaimed(2, 1, is_done=True),
        ]
        assert root_of(ledgers).dropped == 2

    run(scenario())


def test_pack_of_many_ledgers_is_freed_when_all_of_them_are_gone() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 4, each=2)
        await optimize(stream)
        former = len(ledgers.ledgers) - 1
        for _ in range(former // 3):
            has_time = itertools.cycle([True, False])
            reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
            assert await reclaimer.free_packed(functools.partial(next, has_time)) == 3
            assert not packs_of(ledgers).packs[0].is_freed
        await freed(stream, ledgers)
        assert packs_of(ledgers).packs[0].is_freed and len(ledgers.ledgers) == 1

    run(scenario())


@pytest.mark.parametrize("seed", [*range(20), 224, 400])
def test_what_there_was_no_time_for_is_found_again_beside_open_ledgers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaim, "DROPPED_PER_STEP", 4)
    draw = random.Random(seed)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        names, still_open = LiveNames(), list[SegmentWriter]()
        for number in range(14):
            segments = []
            for _ in range(draw.randrange(1, 6)):
                writer = stream.writer()
                await writer.write(table(number))
                segments += await writer.finish()
                if draw.random() < 0.1:
                    still_open.append(writer)
                else:
                    await writer.close()
            await stream.commit_segments(segments)
        await stream.retention.truncate("latest")

        async def visit() -> bool:
            """One of a keeper, as long as there is time; whether it was enough."""
            times_left = draw.randrange(1, 4)

            def has_time() -> bool:
                nonlocal times_left
                times_left -= 1
                return times_left >= 0

            reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), names)
            while not (await reclaimer.step(14, has_time)).is_done:
                if times_left < 0:
                    return False
            return True

        async def visits() -> None:
            for _ in range(100):
                if await visit():
                    return
            raise AssertionError("it does not end")

        while still_open:
            await visits()
            assert set(ledgers.ledgers) == {each.ledger_id for each in still_open}
            await still_open.pop(draw.randrange(len(still_open))).close()
        await visits()
        assert (len(ledgers.ledgers), root_of(ledgers).dropped) == (0, 14)

    run(scenario())
