"""Holds and truncations in rare states: the first hold, bounds, clocks, lost replies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from spark_ledger.errors import ConfigurationError, ConflictError, DataLossError, RetryableError
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention import tries
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.retention.test_truncation import (
    YEAR_MS,
    Between,
    stream_of,
    timed,
)
from tests.unit.spark_ledger.stream.world import Faults, another, numbers, run


def test_first_hold_of_a_stream_is_seen_by_a_truncation_under_way() -> None:
    """The configuration says whether there may be holds, and changes with the first one."""

    async def scenario(step: int) -> bool:
        ledgers, stream = await stream_of(4)
        rival = await another(ledgers)[1].open("s")
        held: list[str] = []

        async def hold() -> None:
            with suppress(DataLossError):  # the truncation was first
                held.append((await rival.retention.hold("slow", (1,), for_s=60)).name)

        store = Between(stream._nodes.store, step, hold)
        stream._nodes.store = store
        try:
            await stream.retention.truncate((3,))
        except ConflictError:
            assert held, "nothing else keeps it"
        assert (await rival._watch.read()).earliest_commit == (0 if held else 3), step
        return store.calls_left > 0

    steps = 1
    while not run(scenario(steps)):
        steps += 1
    assert steps > 3


def test_hold_from_the_end_on_counts_only_what_follows() -> None:
    async def scenario() -> None:
        _, stream = await stream_of(0, retention=Retention(rows=1))
        await timed(stream, [1, 2, 3])
        hold = await stream.retention.hold("slow", "latest", for_s=60, size_bytes_max=20)
        assert (hold.commit, hold.position, hold.bytes_before) == (3, Dlsn(3), 30)
        await timed(stream, [4, 5])
        assert await stream.retention.release_void(hold.made_ms) == []
        assert await stream.retention.apply(hold.made_ms) == 3
        await timed(stream, [6])
        assert await stream.retention.release_void(hold.made_ms) == [hold]

    run(scenario())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_limits_applied_without_a_reply_say_how_much_was_dropped(outcome: Outcome) -> None:
    async def scenario() -> None:
        ledgers, _ = await stream_of(6, retention=Retention(rows=2))
        other = await another(ledgers, Faults([outcome]))[1].open("s")
        assert await other.retention.apply(1 << 50) == 4

    run(scenario())


def test_truncate_before_a_time_keeps_what_a_clock_that_was_set_back_dates_older() -> None:
    """Commits from the oldest young one on stay, also where later ones are dated before it."""

    async def scenario() -> None:
        _, stream = await stream_of(0)
        await timed(stream, [0, YEAR_MS, 5, 6])
        assert await stream.retention.truncate(before_ms=YEAR_MS // 2) == Dlsn(1)

    run(scenario())


@pytest.mark.parametrize("position", [Dlsn(4, 0, 1), Dlsn(4, 1, 0), Dlsn(5)])
def test_position_behind_the_end_is_refused(position: Dlsn) -> None:
    async def scenario() -> None:
        _, stream = await stream_of(4)
        for work in (
            stream.retention.truncate(position),
            stream.retention.hold("slow", position, for_s=60),
        ):
            with pytest.raises(ConfigurationError, match="behind the end"):
                await work
        assert await numbers(stream.read()) == [0, 1, 2, 3]

    run(scenario())


@pytest.mark.parametrize(
    "limits",
    [
        Retention(size_bytes=1, rows=1000),
        Retention(size_bytes=1000, rows=1),
        Retention(age_s=1000.0, size_bytes=1),
        Retention(age_s=1.0, size_bytes=1000, rows=1000),
    ],
)
def test_one_limit_drops_though_the_others_would_keep(limits: Retention) -> None:
    async def scenario() -> None:
        _, stream = await stream_of(0, retention=limits)
        await timed(stream, [1000 * n for n in range(6)])
        assert await stream.retention.apply(now_ms=5000) == (4 if limits.age_s == 1.0 else 5)

    run(scenario())


def test_change_that_loses_every_race_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "TRUNCATE_TIMEOUT_S", 0.01)

    async def scenario() -> None:
        ledgers, stream = await stream_of(4, retention=Retention(rows=1))
        await stream.retention.hold("slow", (1,), for_s=60)

        async def lost(operations: Sequence[Operation]) -> None:
            raise ConflictError("another was first")

        ledgers.store.transaction = lost  # type: ignore[method-assign]
        for work in (
            stream.retention.truncate((1,)),
            stream.retention.apply(1 << 50),
            stream.retention.set_limits(Retention()),
            stream.retention.hold("slow", (2,), for_s=60),
            stream.retention.release("slow"),
            stream.retention.allow_packs(),
        ):
            with pytest.raises(RetryableError, match="won every race"):
                await work

    run(scenario())
