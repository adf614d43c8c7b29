"""Truncation through the handle of a stream: what goes, what stays, who is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from spark_ledger.errors import ConfigurationError, ConflictError, DataLossError
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention import handle
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Deletions,
    Faults,
    another,
    loose,
    numbers,
    run,
    small_manifests,
    table,
)

YEAR_MS = 365 * 24 * 3600 * 1000


async def timed(stream: Stream, times_ms: list[int], rows: int = 1) -> None:
    """One commit of so many rows at each of the times, as the writers' clocks show them."""
    for time_ms in times_ms:
        stream._committer.clock_ms = partial(int, time_ms)
        await stream.commit_segments([loose(*[1] * rows)])


async def stream_of(count: int, **options: Any) -> tuple[FakeLedgers, Stream]:
    """A stream with rows 0, 1, 2 ..., one in each commit."""
    ledgers = FakeLedgers()
    stream = await StreamCatalog(ledgers).create("s", SCHEMA, **options)
    for n in range(count):
        await stream.append(table(n))
    return ledgers, stream


@pytest.mark.parametrize("manifests", [False, True])
def test_truncate_before_position_drops_commits_and_keeps_names(
    manifests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manifests:
        small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers, stream = await stream_of(9)
        assert await stream.retention.truncate((4,)) == Dlsn(4)
        assert await numbers(stream.read()) == [4, 5, 6, 7, 8]
        assert await numbers(stream.read(Dlsn(6), Dlsn(8))) == [6, 7]  # names are as before
        with pytest.raises(DataLossError, match="truncated"):
            await numbers(stream.read(Dlsn(3)))
        with pytest.raises(DataLossError, match="truncated"):
            await stream.commit_at(3)
        assert (await stream.head()).earliest_commit == 4
        assert await stream.retention.truncate((2,)) == Dlsn(4)  # what is gone stays gone
        assert await stream.retention.truncate("earliest") == Dlsn(4)
        _, streams = another(ledgers)
        assert await numbers((await streams.open("s")).read()) == [4, 5, 6, 7, 8]

    run(scenario())


def test_truncate_within_commit_keeps_the_whole_commit() -> None:
    async def scenario() -> None:
        stream = (await stream_of(1))[1]
        await stream.commit_segments([loose(2, 2), loose(3, first_entry=2)])
        assert await stream.retention.truncate((2, 0, 1)) == Dlsn(1)
        assert await stream.retention.truncate((1, 1, 0)) == Dlsn(1)

    run(scenario())


def test_truncate_of_stream_whose_newest_commit_has_no_rows_drops_nothing_more() -> None:
    async def scenario() -> None:
        _, stream = await stream_of(3)
        await stream.commit_segments([], sink_id="a", transaction_id=0, overwrite=True)
        head = await stream.head()
        assert head.earliest == head.end == Dlsn(3), "no rows are left, and one commit"
        assert await stream.retention.truncate((1,)) == Dlsn(3)
        assert await stream.retention.truncate("earliest") == Dlsn(3)
        assert await stream.retention.truncate("latest") == Dlsn(3)
        assert (await stream._watch.read()).earliest_commit == 3

    run(scenario())


def test_truncate_latest_drops_all_and_stream_goes_on() -> None:
    async def scenario() -> None:
        stream = (await stream_of(3))[1]
        assert await stream.retention.truncate("latest") == Dlsn(3)
        assert await numbers(stream.read()) == []
        assert await stream.first_commit_since(0) is None
        await stream.append(table(3))
        assert await numbers(stream.read()) == [3]
        assert (await stream.position_at_timestamp(0)) == Dlsn(3)

    run(scenario())


def test_truncate_before_time_drops_what_was_made_before() -> None:
    async def scenario() -> None:
        stream = (await stream_of(0))[1]
        await timed(stream, [1000, 2000, 3000, 4000])
        assert await stream.retention.truncate(before_ms=2001) == Dlsn(2)
        assert await stream.retention.truncate(before_ms=4000) == Dlsn(3)
        assert await stream.retention.truncate(before_ms=5000) == Dlsn(4)
        with pytest.raises(ConfigurationError, match="to come"):
            await stream.retention.truncate(before_ms=1 << 50)

    run(scenario())


def test_times_that_went_back_are_searched_behind_a_truncation() -> None:
    async def scenario() -> None:
        stream = (await stream_of(0))[1]
        await timed(stream, [0, YEAR_MS, 5, 6, 7])
        await stream.retention.truncate((1,))
        assert (await stream.head()).time_resets == (2,)
        assert await stream.position_at_timestamp(6) == Dlsn(3)
        await stream.retention.truncate((2,))
        assert (await stream.head()).time_resets == ()
        assert await stream.position_at_timestamp(6) == Dlsn(3)

    run(scenario())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "a position or a time"),
        ({"before": "latest", "before_ms": 1}, "not both"),
        ({"before": Dlsn(7)}, "behind the end"),
        ({"before": "soon"}, "use 'earliest'"),
    ],
)
def test_truncate_with_bad_bound_is_refused(kwargs: dict[str, Any], message: str) -> None:
    async def scenario() -> None:
        stream = (await stream_of(1))[1]
        with pytest.raises(ConfigurationError, match=message):
            await stream.retention.truncate(**kwargs)
        assert await numbers(stream.read()) == [0]

    run(scenario())


@pytest.mark.parametrize(
    "outcomes",
    [[Outcome.LOST_REPLY], [Outcome.LOST_REQUEST], [Outcome.LOST_REPLY, Outcome.LOST_REQUEST]],
)
def test_truncate_whose_reply_is_lost_is_done_once(outcomes: list[Outcome]) -> None:
    async def scenario() -> None:
        ledgers, stream = await stream_of(4)
        _, streams = another(ledgers, Faults(outcomes))
        other = await streams.open("s")
        assert await other.retention.truncate((2,)) == Dlsn(2)
        assert await numbers(stream.read()) == [2, 3]

    run(scenario())


@pytest.mark.parametrize("outcomes", [[Outcome.LOST_REPLY], [Outcome.LOST_REQUEST]])
def test_release_whose_reply_is_lost_says_that_there_was_a_hold(outcomes: list[Outcome]) -> None:
    async def scenario() -> None:
        ledgers, stream = await stream_of(4)
        await stream.retention.hold("slow", (2,), for_s=60)
        _, streams = another(ledgers, Faults(outcomes))
        other = await streams.open("s")
        assert await other.retention.release("slow")
        assert await stream.retention.holds() == []

    run(scenario())


def test_repeated_transaction_whose_commit_was_truncated_changes_nothing() -> None:
    async def scenario() -> None:
        ledgers, stream = await stream_of(2)
        await stream.append(table(2), sink_id="q", transaction_id=7, run_id="r")
        await stream.retention.truncate("latest")
        _, streams = another(ledgers)
        other = await streams.open("s")

        async def gone(_: int) -> Any:
            raise DataLossError("swept")

        other._log.get = gone  # type: ignore[method-assign, assignment]
        for again in (
            await other.append(table(2), sink_id="q", transaction_id=7),
            await other.commit_segments([], sink_id="q", transaction_id=7),
        ):
            assert (again.number, again.applied, again.truncated) == (2, False, True)
            assert (again.run_id, again.segments) == ("r", ())

    run(scenario())


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifests", [False, True])
@pytest.mark.parametrize(
    ("limits", "first"),
    [
        (Retention(), 0),
        (Retention(age_s=2.0), 6),
        (Retention(age_s=2.5), 6),
        (Retention(age_s=3.0), 5),
        (Retention(rows=4), 7),  # commits of two rows
        (Retention(rows=5), 6),  # never fewer than asked for
        (Retention(rows=1), 8),
        (Retention(size_bytes=60), 6),
        (Retention(size_bytes=1), 8),
        (Retention(rows=1000), 0),
        (Retention(age_s=1000.0, rows=4), 7),  # one limit suffices
        (Retention(age_s=1.0, size_bytes=100), 7),
    ],
)
def test_apply_drops_what_a_limit_allows(
    limits: Retention, first: int, manifests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manifests:
        small_manifests(monkeypatch)

    async def scenario() -> None:
        stream = (await stream_of(0, retention=limits))[1]
        await timed(stream, [1000 * n for n in range(9)], rows=2)
        assert await stream.retention.apply(now_ms=8000) == first
        assert (await stream.head()).earliest_commit == first
        assert await stream.retention.apply(now_ms=8000) == 0

    run(scenario())


def test_apply_with_clock_a_year_ahead_drops_by_the_newest_commit() -> None:
    async def scenario() -> None:
        stream = (await stream_of(0, retention=Retention(age_s=5.0)))[1]
        await timed(stream, [1000 * n for n in range(9)])
        await stream.retention.apply(now_ms=8000 + YEAR_MS)
        assert (await stream.head()).earliest_commit == 3

    run(scenario())


@pytest.mark.parametrize(
    ("times", "first"),
    [
        # one writer a year ahead: those before it are no older for that
        ([-9, -3, YEAR_MS // 1000, -2, -1, 0], 1),
        ([-9, -8, YEAR_MS // 1000, -2, -1, 0], 2),
        ([-9, -8, -3, -2, -1, YEAR_MS // 1000], 2),
        ([-9, YEAR_MS // 1000, -8, -1, 0], 3),
        # one writer a year behind: those before it are young
        ([-9, -3, -YEAR_MS // 1000, -2, -1, 0], 1),
        ([-9, -8, -YEAR_MS // 1000, -7, -1, 0], 4),
        ([-3, -2, -1, 0, -YEAR_MS // 1000, -YEAR_MS // 1000], 0),
    ],
)
def test_apply_with_a_writer_a_year_off_keeps_young_commits(times: list[int], first: int) -> None:
    async def scenario() -> None:
        now_ms = 2 * YEAR_MS
        stream = (await stream_of(0, retention=Retention(age_s=300.0)))[1]
        await timed(stream, [now_ms + 60_000 * minutes for minutes in times])
        await stream.retention.apply(now_ms=now_ms)
        assert (await stream.head()).earliest_commit == first

    run(scenario())


@pytest.mark.parametrize(
    "limits",
    [{"age_s": 0.0}, {"age_s": float("nan")}, {"size_bytes": 0}, {"rows": -1}, {"rows": True}],
)
def test_limits_out_of_bounds_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="retention of"):
        Retention(**limits)


def test_limits_are_kept_and_seen_by_others() -> None:
    async def scenario() -> None:
        ledgers, stream = await stream_of(1)
        limits = Retention(age_s=7.5, size_bytes=5, rows=6)
        await stream.retention.set_limits(limits)
        _, streams = another(ledgers)
        other = await streams.open("s")
        assert other.config.retention == limits == await other.retention.limits()
        await stream.append(table(1))  # whoever writes goes on
        await other.retention.set_limits(Retention())
        assert await stream.retention.limits() == Retention()
        assert replace(stream.config, retention=limits).has_retention
        await StreamCatalog(ledgers).delete("s")
        assert not ledgers.store.tree.children("streams")

    run(scenario())


# -- holds -----------------------------------------------------------------------------------------


def test_hold_keeps_rows_from_truncation_and_limits() -> None:
    async def scenario() -> None:
        stream = (await stream_of(6, retention=Retention(rows=1)))[1]
        hold = await stream.retention.hold("slow", (2,), for_s=60)
        assert await stream.retention.holds() == [hold]
        with pytest.raises(ConflictError, match="hold 'slow' keeps"):
            await stream.retention.truncate((4,))
        await stream.retention.truncate((1,))
        await stream.retention.apply(now_ms=hold.expires_ms - 1)
        assert await numbers(stream.read()) == [2, 3, 4, 5]
        await stream.retention.hold("slow", (3,), for_s=60)  # moves on
        await stream.retention.apply(now_ms=hold.expires_ms - 1)
        assert await numbers(stream.read()) == [3, 4, 5]
        assert await stream.retention.release("slow")
        assert not await stream.retention.release("slow")
        await stream.retention.apply(now_ms=hold.expires_ms - 1)
        assert await numbers(stream.read()) == [5]

    run(scenario())


def test_hold_of_rows_that_were_given_back_all_the_same_stops_no_later_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers, stream = await stream_of(9, retention=Retention(rows=1))
        await stream._committer.sealer.close()
        hold = await stream.retention.hold("slow", (1,), for_s=60)
        await stream.retention.truncate((5,), ignore_holds=True)
        await ledgers.store.create("keeper", b"")
        retention = (await another(ledgers)[1].open("s")).retention
        while not (await retention.reclaimer(Deletions(ledgers), LiveNames()).step(5)).is_done:
            pass
        assert await retention.apply(now_ms=hold.expires_ms - 1) == 0
        assert await numbers(stream.read()) == [5, 6, 7, 8], "what it holds of them stays"
        assert await retention.apply(now_ms=hold.expires_ms) == 3
        assert (await stream.retention.extent()).live_rows == 1

    run(scenario())


def test_hold_that_is_over_is_void() -> None:
    async def scenario() -> None:
        stream = (await stream_of(6, retention=Retention(rows=1)))[1]
        hold = await stream.retention.hold("slow", "earliest", for_s=60)
        await stream.retention.hold("other", (3,), for_s=120)
        assert await stream.retention.release_void(hold.expires_ms - 1) == []
        await stream.retention.apply(now_ms=hold.expires_ms)
        assert await numbers(stream.read()) == [3, 4, 5]
        assert await stream.retention.release_void(hold.expires_ms) == [hold]
        assert [each.name for each in await stream.retention.holds()] == ["other"]

    run(scenario())


def test_hold_over_its_bound_of_bytes_is_void() -> None:
    async def scenario() -> None:
        stream = (await stream_of(0, retention=Retention(rows=1)))[1]
        await timed(stream, [1, 2])
        hold = await stream.retention.hold("slow", "earliest", for_s=60, size_bytes_max=30)
        await timed(stream, [3])
        await stream.retention.apply(now_ms=hold.made_ms)
        assert (await stream.head()).earliest_commit == 0
        await timed(stream, [4])
        await stream.retention.apply(now_ms=hold.made_ms)
        assert (await stream.head()).earliest_commit == 3

    run(scenario())


def test_hold_of_dropped_rows_is_data_loss() -> None:
    async def scenario() -> None:
        stream = (await stream_of(4))[1]
        await stream.retention.truncate((2,))
        with pytest.raises(DataLossError, match="cannot be held"):
            await stream.retention.hold("slow", (1,), for_s=60)
        assert await stream.retention.holds() == []

    run(scenario())


class Between:
    """A store of metadata that lets something happen before its nth operation."""

    def __init__(self, store: Any, step: int, happen: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self.calls_left = step
        self._happen = happen

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("get", "get_latest", "transaction"):
            return method

        async def called(*args: Any) -> Any:
            self.calls_left -= 1
            if self.calls_left == 0:
                await self._happen()
            return await method(*args)

        return called


@pytest.mark.parametrize("hold_is_within", [False, True])
def test_hold_beside_a_truncation_is_kept_or_refused(hold_is_within: bool) -> None:
    """One of them happens between any two steps of the other."""

    async def scenario(step: int) -> bool:
        ledgers, stream = await stream_of(4, retention=Retention(rows=9))
        rival = await another(ledgers)[1].open("s")

        async def hold(by: Stream) -> None:
            with suppress(DataLossError):
                await by.retention.hold("slow", (1,), for_s=60)

        async def truncate(by: Stream) -> None:
            with suppress(ConflictError):
                await by.retention.truncate((3,))

        outer, inner = (truncate, hold) if hold_is_within else (hold, truncate)
        store = Between(stream._nodes.store, step, lambda: inner(rival))
        stream._nodes.store = store
        await outer(stream)
        head, holds = await rival._watch.read(), await rival.retention.holds()
        assert [each.name for each in holds] == ["slow"] * (head.earliest_commit == 0)
        return store.calls_left > 0

    for step in range(1, 50):
        if run(scenario(step)):
            return
    raise AssertionError("a hold takes fewer steps")


def test_holds_are_bounded_and_each_of_them_may_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "HOLDS_MAX", 3)

    async def scenario() -> None:
        stream = (await stream_of(4))[1]
        for n, name in enumerate("abcabc"):
            await stream.retention.hold(name, (n // 2,), for_s=60)
        with pytest.raises(ConfigurationError, match="has 3 holds, and may have 3"):
            await stream.retention.hold("d", (1,), for_s=60)
        await stream.retention.release("b")
        await stream.retention.hold("d", (1,), for_s=60)

    run(scenario())


@pytest.mark.parametrize(
    "options",
    [
        {"name": "a/b", "for_s": 1},
        {"name": "", "for_s": 1},
        {"name": "h", "for_s": 0},
        {"name": "h", "for_s": 1e9},
        {"name": "h", "for_s": 1, "size_bytes_max": 0},
        {"name": "h", "for_s": 1, "position": (9,)},
    ],
)
def test_bad_hold_is_refused(options: dict[str, Any]) -> None:
    async def scenario() -> None:
        stream = (await stream_of(1))[1]
        with pytest.raises(ConfigurationError):
            await stream.retention.hold(**options)

    run(scenario())


# -- formats ---------------------------------------------------------------------------------------


def test_extent_counts_what_is_live_and_what_is_to_go() -> None:
    async def scenario() -> None:
        stream = (await stream_of(0))[1]
        await timed(stream, [1000 * n for n in range(6)], rows=2)
        await stream.retention.truncate((4,))
        extent = await stream.retention.extent()
        assert (extent.live_rows, extent.live_bytes) == (4, 40)
        assert (extent.reclaimable_rows, extent.reclaimable_bytes) == (8, 80)
        assert (extent.since_ms, extent.dropped_commits) == (4000, 0)
        await stream.retention.truncate("latest")
        extent = await stream.retention.extent()
        assert (extent.live_rows, extent.live_bytes, extent.since_ms) == (0, 0, 0)

    run(scenario())
