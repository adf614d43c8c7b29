"""Commits that were dropped before they were sealed: they get no page, and leave no ledger."""

from __future__ import annotations

import pytest

from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Deletions,
    Faults,
    another,
    commit_nodes,
    loose,
    root_of,
    run,
    small_manifests,
)


async def reclaimed(stream: Stream, ledgers: FakeLedgers, earliest: int) -> None:
    reclaimer = stream.retention.reclaimer(Deletions(ledgers), LiveNames())
    while not (await reclaimer.step(earliest)).is_done:
        pass


async def truncated(ledgers: FakeLedgers, *, commits: int, earliest: int) -> None:
    """A stream of which nothing was sealed when its oldest commits were dropped for good."""
    _, streams = another(ledgers)
    await streams.create("s", SCHEMA)
    stream = await streams.open("s")
    for number in range(commits):
        await stream.commit_segments([loose(2)], sink_id="a", transaction_id=number)
    await stream.retention.truncate((earliest, 0, 0))
    await reclaimed(stream, ledgers, earliest)
    await stream.close()


@pytest.mark.parametrize("outcome", [None, Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_leaves_of_dropped_commits_are_not_written_and_their_nodes_go(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome | None
) -> None:
    async def test() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        small_manifests(monkeypatch, leaf=2, kept=100)
        await truncated(ledgers, commits=11, earliest=7)
        assert root_of(ledgers).dropped == 7 and root_of(ledgers).sealed == 0

        small_manifests(monkeypatch, leaf=2, kept=1)
        _, streams = another(ledgers, Faults([outcome] if outcome else []))
        stream = await streams.open("s")
        await stream._committer.sealer.seal(11)
        root = root_of(ledgers)
        assert root.sealed == 10 and root.first == 6, "commit 6 shares its leaf with one that lives"
        assert commit_nodes(ledgers) == [10]
        assert [commit.number for commit in await stream.commits(7, 11)] == [7, 8, 9, 10]

        await stream.retention.truncate((10, 0, 0))
        await reclaimed(stream, ledgers, 10)
        assert not root_of(ledgers).ledgers() and not ledgers.ledgers, "nothing is left of them"

    run(test())
