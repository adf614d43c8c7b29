"""Holds beside limits: who drops what, how holds are counted, and what a sweep writes."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from spark_ledger.errors import ConflictError, RetryableError
from spark_ledger.limits.stream import TRUNCATE_TIMEOUT_S
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.tries import Tries
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.retention.test_truncation import YEAR_MS, stream_of, timed
from tests.unit.spark_ledger.stream.world import Deletions, Faults, another, loose, run
from tests.unit.virtual_time import run_in_virtual_time


@pytest.mark.parametrize(
    ("held", "first"),
    [([], 3), ([1], 1), ([3], 3), ([4], 3), ([5], 3), ([4, 2], 2), ([2, 4], 2), ([0, 1], 0)],
)
def test_limits_drop_up_to_the_first_hold_and_never_more_than_they_allow(
    held: list[int], first: int
) -> None:
    """A hold that lies behind what the limits drop changes nothing."""

    async def scenario() -> None:
        _, stream = await stream_of(6, retention=Retention(rows=3))
        now_ms = 0
        for n, position in enumerate(held):
            hold = await stream.retention.hold(f"h{n}", (position,), for_s=60)
            now_ms = hold.made_ms
        assert await stream.retention.apply(now_ms) == first
        assert (await stream._watch.read()).earliest_commit == first

    run(scenario())


@pytest.mark.parametrize("void", ["by time", "by bytes"])
def test_hold_that_is_void_does_not_hide_one_that_is_not(void: str) -> None:
    async def scenario() -> None:
        _, stream = await stream_of(0, retention=Retention(rows=1))
        await timed(stream, [1, 2, 3, 4, 5])
        bound = 10 if void == "by bytes" else None
        over = await stream.retention.hold(
            "over", (1,), for_s=60 if bound else 1, size_bytes_max=bound
        )
        keeps = await stream.retention.hold("keeps", (3,), for_s=60)
        now_ms = keeps.made_ms + 1000
        assert await stream.retention.apply(now_ms) == 3
        assert await stream.retention.release_void(now_ms) == [over]
        assert await stream.retention.holds() == [keeps]

    run(scenario())


@pytest.mark.parametrize(
    ("position", "commit", "bytes_before"),
    [
        ("earliest", 1, 10),
        ((1, 0, 0), 1, 10),
        ((2, 0, 1), 2, 20),  # within a commit: all of it is held
        ((3, 0, 0), 3, 50),
        ("latest", 4, 60),
        ((4, 0, 0), 4, 60),
    ],
)
def test_hold_counts_from_the_commit_that_has_its_position(
    position: str | tuple[int, ...], commit: int, bytes_before: int
) -> None:
    async def scenario() -> None:
        _, stream = await stream_of(0, retention=Retention(rows=100))
        for rows in (1, 1, 3, 1):
            await stream.commit_segments([loose(rows)])
        await stream.retention.truncate((1,))
        hold = await stream.retention.hold("h", position, for_s=1.5, size_bytes_max=7)
        wanted = {"earliest": Dlsn(1), "latest": Dlsn(4)}.get(str(position)) or Dlsn(*position)
        assert (hold.commit, hold.position, hold.bytes_before) == (commit, wanted, bytes_before)
        assert (hold.expires_ms - hold.made_ms, hold.size_bytes_max) == (1500, 7)
        assert hold.held_bytes(await stream.head()) == 60 - bytes_before

    run(scenario())


@pytest.mark.parametrize("void", ["by time", "by bytes"])
def test_truncation_that_was_asked_for_is_refused_by_a_hold_that_is_over(void: str) -> None:
    """Its owner is told, and says so; the keeper takes it off (rule T16)."""

    async def scenario() -> None:
        _, stream = await stream_of(0)
        await timed(stream, [1, 2, 3, 4])
        bound = 10 if void == "by bytes" else None
        hold = await stream.retention.hold("slow", (1,), for_s=60, size_bytes_max=bound)
        stream.retention._clock_ms = lambda: hold.expires_ms
        assert hold.is_void(await stream.head(), hold.expires_ms)
        for first in (2, 4):
            with pytest.raises(ConflictError, match=r"hold 'slow' keeps the rows .*\(1, 0, 0\)"):
                await stream.retention.truncate((first,))
        assert await stream.retention.truncate((1,)) == Dlsn(1), "up to what it holds"
        assert await stream.retention.truncate((4,), ignore_holds=True) == Dlsn(4)

    run(scenario())


def test_clock_that_may_be_set_back_ends_no_hold_earlier() -> None:
    """By the time that is ahead it would be over."""

    async def scenario() -> None:
        _, stream = await stream_of(4, retention=Retention(rows=1))
        hold = await stream.retention.hold("slow", (1,), for_s=60)
        now_ms = hold.expires_ms - 1
        assert await stream.retention.apply(now_ms, ahead_ms=hold.expires_ms + 1000) == 1
        assert await stream.retention.apply(hold.expires_ms, ahead_ms=hold.expires_ms) == 2

    run(scenario())


def test_commits_that_are_dated_later_than_now_are_young_unless_they_are_ahead_of_all() -> None:
    """The clock of a keeper was set back; those were made by right clocks (rule T15)."""
    now_ms = 10_000_000

    async def scenario(ahead_ms: int | None) -> int:
        _, stream = await stream_of(0, retention=Retention(age_s=300.0))
        await timed(stream, [0, now_ms + 100_000, now_ms - 400_000, now_ms - 10_000])
        assert (await stream.head()).time_resets == (2,)
        return await stream.retention.apply(now_ms, ahead_ms)

    assert run(scenario(now_ms + 200_000)) == 1
    assert run(scenario(now_ms + 100_000)) == 1
    assert run(scenario(now_ms + 99_999)) == 3
    assert run(scenario(None)) == 3


def test_age_counts_back_from_now_though_the_newest_commit_is_dated_later() -> None:
    """The smaller of two clocks counts, and not the latest time that was believed (rule T15)."""
    now_ms = 10_000_000

    async def scenario() -> None:
        _, stream = await stream_of(0, retention=Retention(age_s=300.0))
        assert await stream.retention.apply(now_ms, now_ms + 200_000) == 0, "there is no commit"
        await timed(stream, [now_ms - 350_000, now_ms - 250_000, now_ms + 100_000])
        assert await stream.retention.apply(now_ms, now_ms + 200_000) == 1

    run(scenario())


def test_commit_of_a_clock_that_was_ahead_goes_with_what_was_made_after_it() -> None:
    """It counts as made between its neighbours, and all of those are older than the time."""

    async def scenario(before_ms: int, left: int) -> None:
        _, stream = await stream_of(0)
        await timed(stream, [0, YEAR_MS, 5, 6])
        stream.retention._clock_ms = lambda: 1000
        assert await stream.retention.truncate(before_ms=before_ms) == Dlsn(left)

    for before_ms, left in ((100, 4), (7, 4), (6, 3), (5, 1), (0, 0)):
        run(scenario(before_ms, left))


def test_holds_that_could_not_be_taken_off_are_not_told_as_gone() -> None:
    async def scenario() -> None:
        ledgers, stream = await stream_of(3)
        hold = await stream.retention.hold("slow", (1,), for_s=60)
        other = await another(ledgers, Faults([Outcome.LOST_REQUEST]))[1].open("s")
        assert await other.retention.release_void(hold.expires_ms) == []
        assert await stream.retention.holds() == [hold]
        assert await other.retention.release_void(hold.expires_ms) == [hold]
        assert await stream.retention.holds() == []

    run(scenario())


def test_extent_is_that_of_now_whatever_was_read_before() -> None:
    async def scenario() -> None:
        ledgers, stream = await stream_of(0, retention=Retention(rows=100))
        await ledgers.store.create("keeper", b"")
        await timed(stream, [1000 * n for n in range(6)], rows=2)
        look = (await another(ledgers)[1].open("s")).retention
        counts = (await another(ledgers)[1].open("s")).retention
        found = [await look.extent()]
        await stream.retention.set_limits(Retention(rows=50))
        await stream.retention.truncate((4,))
        found.append(await look.extent())
        assert [each.retention.rows for each in found] == [100, 50]
        assert (await counts.crowded(20), await counts.crowded(60)) == (3, 1)
        keeper = stream.retention.reclaimer(Deletions(ledgers), LiveNames())
        assert (await keeper.step(3)).is_done
        found.append(await look.extent())
        assert (await counts.crowded(20), await counts.crowded(21)) == (3, 0)
        assert (await keeper.step(4)).is_done
        found.append(await look.extent())
        assert await counts.crowded(1) == 0
        assert [
            (each.dropped_commits, each.live_rows, each.live_bytes, each.reclaimable_rows)
            for each in found
        ] == [(0, 12, 120, 0), (0, 4, 40, 8), (3, 4, 40, 2), (4, 4, 40, 0)]
        assert [each.reclaimable_bytes for each in found] == [0, 80, 20, 0]
        assert [each.since_ms for each in found] == [0, 4000, 4000, 4000]

    run(scenario())


def test_sweep_that_finds_no_void_hold_and_nothing_to_drop_writes_nothing() -> None:
    """Each write of the holds makes truncations that are on their way begin again."""

    async def scenario() -> None:
        ledgers, stream = await stream_of(3, retention=Retention(rows=2))
        hold = await stream.retention.hold("slow", "earliest", for_s=60)
        paths = [f"streams/s/{node}" for node in ("config", "head", "holds")]
        before = [await ledgers.store.get(path) for path in paths]
        assert await stream.retention.release_void(hold.made_ms) == []
        assert await stream.retention.apply(hold.made_ms) == 0
        await stream.retention.set_limits(Retention(rows=2))
        assert not await stream.retention.release("other")
        assert [await ledgers.store.get(path) for path in paths] == before
        ledgers, stream = await stream_of(0)
        config = await ledgers.store.get(paths[0])
        await stream.retention.set_limits(Retention())
        assert await ledgers.store.get(paths[0]) == config, "it keeps all, as it did"

    run(scenario())


def test_attempts_pause_longer_and_longer_up_to_a_bound_until_time_is_up() -> None:
    """So that of many who race nobody waits for long, and the metadata are asked no more often."""

    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            return b

    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        began, tries, at = loop.time(), Tries("s", Longest()), list[float]()
        with pytest.raises(RetryableError, match="won every race"):
            while True:
                await tries.begin()
                at.append(loop.time() - began)
        return at

    at = run_in_virtual_time(scenario())
    pauses = [b - a for a, b in pairwise([0.0, *at])]
    assert pauses[:8] == pytest.approx([0, *(0.002 * 2**n for n in range(7))])
    assert pauses[8:] == pytest.approx([0.2] * len(pauses[8:]))
    assert TRUNCATE_TIMEOUT_S <= at[-1] < TRUNCATE_TIMEOUT_S + 0.21
