"""Records of sinks: removed where somebody asked for it, by the time of their stream alone."""

from __future__ import annotations

import contextlib

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConflictError
from spark_ledger.keeper.sinks import forget_sinks
from spark_ledger.metadata.base import Check
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.model import SinkRecord
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.world import Clock, keeper, new_stream, passes, rows

DAY_S = 86_400


class Days:
    """The wall clock of committers, in days: each may have one of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr(
            "spark_ledger.stream.commit.committer.time.time_ns",
            lambda: self.ms * 10**6,
        )

    @property
    def ms(self) -> int:
        """The same in ms since 1970."""
        return (10**9 + self.now * DAY_S) * 1000


async def commit(stream: Stream, sink: str, transaction: int) -> None:
    await stream.append(rows(transaction), sink_id=sink, transaction_id=transaction)


async def forget(
    client: LedgerClient, stream: Stream, *, older_than_days: int, now_ms: int, epoch: int = 0
) -> int:
    """How many records a keeper removes whose epoch is 0, and by whose clock it is then."""
    with contextlib.suppress(ConflictError):
        await client.store.create("keeper/epoch", b"x")
    elected, older_than_s = Check("keeper/epoch", epoch), older_than_days * DAY_S
    return await forget_sinks(
        client.store, stream, lambda: elected, older_than_s=older_than_s, now_ms=now_ms
    )


async def sinks(world: World) -> set[str]:
    store = MemoryMetadataStore(world.tree)
    return {record.sink_id for record in await StreamNodes(store, "s").sinks()}


def test_record_of_a_sink_that_is_gone_for_long_is_removed_by_the_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        clock = Clock()
        stream = await new_stream(await world.client())
        await commit(stream, "gone", 1)
        days.now = 1
        await commit(stream, "alive", 1)
        days.now = 40
        await commit(stream, "alive", 2)
        never = await keeper(world, clock)
        assert await never.elect()
        await passes(never, clock, 200)
        assert await sinks(world) == {"gone", "alive"}
        await never._election.resign()
        asked = await keeper(world, clock, sink_records_s=39.0 * DAY_S)
        assert await asked.elect()
        await passes(asked, clock, 200)
        assert await sinks(world) == {"alive"}
        await commit(stream, "alive", 2)  # applied before
        await commit(stream, "gone", 2)  # goes on as a new one
        assert (await stream.head()).next_commit == 4

    run(test)


def test_records_that_stay_keep_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whichever order they are listed."""
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        for name in ("a", "c", "e", "b"):
            await commit(stream, name, 1)
        days.now = 10
        for alive in ("b", "d", "f"):
            await commit(stream, alive, 2)
        assert await forget(client, stream, older_than_days=5, now_ms=days.ms) == 3
        assert await sinks(world) == {"b", "d", "f"}

    run(test)


def test_sink_that_commits_behind_the_list_of_all_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin anew, and write a second time what it has committed."""
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        for name in ("back", "gone", "alive"):
            await commit(stream, name, 1)
        days.now = 10
        await commit(stream, "alive", 2)
        listed = StreamNodes.sinks

        async def sinks_then_commit(nodes: StreamNodes) -> list[SinkRecord]:
            found = await listed(nodes)
            await commit(stream, "back", 2)
            return found

        monkeypatch.setattr(StreamNodes, "sinks", sinks_then_commit)
        assert await forget(client, stream, older_than_days=5, now_ms=days.ms) == 1
        monkeypatch.setattr(StreamNodes, "sinks", listed)
        assert await sinks(world) == {"alive", "back"}

    run(test)


def test_sink_of_a_stream_that_stands_still_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        clock = Clock()
        stream = await new_stream(await world.client())
        await commit(stream, "first", 1)
        await commit(stream, "last", 1)
        days.now = 1000
        asked = await keeper(world, clock, sink_records_s=float(DAY_S))
        assert await asked.elect()
        await passes(asked, clock, 200)
        assert await sinks(world) == {"first", "last"}

    run(test)


@pytest.mark.parametrize(("silent_days", "stays"), [(1, True), (39, True), (40, False)])
def test_record_stays_for_as_long_as_was_asked(
    silent_days: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await commit(stream, "silent", 1)
        await commit(stream, "alive", 1)
        days.now = silent_days
        await commit(stream, "alive", 2)
        asked = await keeper(world, Clock(), sink_records_s=40.0 * DAY_S)
        assert await asked.elect()
        await asked.run_pass()
        assert ("silent" in await sinks(world)) is stays

    run(test)


def test_keeper_that_is_not_elected_any_more_removes_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await commit(stream, "gone", 1)
        await commit(stream, "alive", 1)
        days.now = 10
        await commit(stream, "alive", 2)
        assert await forget(client, stream, older_than_days=1, now_ms=days.ms, epoch=7) == 0
        assert await sinks(world) == {"gone", "alive"}
        assert await forget(client, stream, older_than_days=1, now_ms=days.ms) == 1

    run(test)


@pytest.mark.parametrize("before", [1, 2, 3])
def test_record_of_a_sink_whose_commit_was_truncated_is_removed_as_well(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its age is then that of the first commit that is left, at least."""
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await commit(stream, "gone", 1)
        for number in range(1, 4):
            days.now = 10 * number
            await commit(stream, "alive", number)
        await stream.retention.truncate((before,))
        days_left = 30 - 10 * before
        asked = [(days_left + 1, 0), (days_left, 1)] if days_left else [(1, 0)]
        for older_than, removed in asked:
            count = await forget(client, stream, older_than_days=older_than, now_ms=days.ms)
            assert count == removed
        assert ("gone" in await sinks(world)) == (days_left == 0)

    run(test)


@pytest.mark.parametrize(
    "commits",
    [
        [("alive", 0), ("slow", -40), ("alive", 0)],
        [("slow", -40), ("alive", 0)],
        [("alive", 0), ("slow", -40), ("slow too", -40), ("alive", 0)],
        [("alive", 0), ("less slow", -39), ("slow", -40), ("slow too", -40), ("alive", 0)],
        [("slow", 0), ("alive", 0), ("ahead", 365)],
        [("slow", 365), ("alive", 0)],
    ],
)
def test_record_stays_though_the_clock_of_a_driver_is_wrong(
    commits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of commits are those of drivers (rule T10): what one driver dates makes no other sink,
    nor its own, older than what lies around its commit."""
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        for sink, days.now in commits:
            await commit(stream, sink, 1 + (await stream.head()).next_commit)
        of_slow = 1 + [sink for sink, _ in commits].index("slow")
        days.now = 1
        assert await forget(client, stream, older_than_days=39, now_ms=days.ms) == 0
        await commit(stream, "slow", of_slow)  # its driver repeats what it committed
        assert (await stream.head()).next_commit == len(commits)

    run(test)


def test_record_goes_once_the_stream_has_gone_on_behind_wrong_clocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    days = Days(monkeypatch)

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        for sink, days.now in [("alive", 0), ("gone", -40), ("alive", 0), ("alive", 40)]:
            await commit(stream, sink, 1 + (await stream.head()).next_commit)
        assert await forget(client, stream, older_than_days=41, now_ms=days.ms) == 0
        assert await forget(client, stream, older_than_days=40, now_ms=days.ms) == 1
        assert await sinks(world) == {"alive"}

    run(test)
