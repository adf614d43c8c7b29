"""Hours of deletions of dropped rows are due: a sweep does a part, and each stream has its turn."""

from __future__ import annotations

import pytest

from spark_ledger.keeper import deletions
from spark_ledger.stream.retention import reclaim
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_former_ledgers import slow_deletions
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes


@pytest.mark.parametrize("steps", [1, 20])
def test_sweep_gives_back_dropped_rows_for_a_while_and_each_stream_has_its_turn(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "PASS_PART_S", 5.0)
    monkeypatch.setattr("spark_ledger.keeper.streams.RECLAIM_STEPS_MAX", steps)
    monkeypatch.setattr(reclaim, "DROPPING_LEDGERS_MAX", 2)
    monkeypatch.setattr(reclaim, "DROPPED_PER_STEP", 6)

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        of: dict[str, set[int]] = {}
        for name in ("a", "b", "c"):
            stream, before = await new_stream(client, name), await ledgers(world)
            await closed_commits(world, stream, 12)
            of[name] = await ledgers(world) - before
            await stream.retention.truncate("latest")
        cared = await elected(world, clock)
        done = slow_deletions(clock, monkeypatch)
        began = list[str]()
        for _ in range(20):
            before_s, count = clock.now, len(done)
            await passes(cared, clock, 10)
            assert clock.now - before_s <= 10.0 + 5.0 + 2.0, "others wait no longer"
            began += [name for name in of if of[name].intersection(done[count:])]
            if not await ledgers(world):
                break
            assert cared._stream_keeper.hurries or not done, "each pass goes on"
        else:
            raise AssertionError("it does not end")
        await passes(cared, clock, 10)
        assert not cared._stream_keeper.hurries
        assert set(began[:4]) == {"a", "b", "c"}

    run(test)
