"""How large a transaction to several streams may be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.stream import STREAMS_PER_COMMIT_MAX
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.naming import Naming
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer, together
from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.commit.proposals import with_list_within
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Retention
from spark_ledger.stream.several import commit_to
from spark_ledger.stream.statistics import Statistics
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.commit.test_together import PAIR, World
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, loose, run


def test_transaction_of_several_streams_is_measured_with_all_that_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads and configurations that are replaced count as well as the commits: ZooKeeper would end
    the connection of whoever sends too much."""

    async def scenario(less: int | None) -> int:
        world = World()
        streams, _ = await world.streams()
        columns = pa.schema([pa.field(f"column {n}", pa.int64()) for n in range(50)])
        store = streams[0]._nodes.store
        send, sizes = store.transaction, list[int]()

        async def noting(operations: Sequence[Operation]) -> None:
            sizes.append(sum(len(e.path) + len(getattr(e, "data", b"")) + 64 for e in operations))
            await send(operations)

        monkeypatch.setattr(store, "transaction", noting)
        for stream in streams:
            stream._committer.clock_ms = lambda: 10**12
        if less is not None:
            monkeypatch.setattr(together, "TRANSACTION_BYTES_MAX", whole - less)
        parts = [(stream, [loose(1)]) for stream in streams]
        work = commit_to(parts, new_columns=[columns] * 2, **PAIR)
        if less:
            with pytest.raises(ConfigurationError, match=f"takes {whole} bytes"):
                await work
            assert sizes == []
            return 0
        await work
        return sizes[0]

    whole = run(scenario(None))
    assert whole > 4000
    assert run(scenario(0)) == whole
    run(scenario(1))


@pytest.mark.parametrize(
    ("grows", "made"),
    [((False, False), 0), ((True, True), 2), ((True, False), 2)],
    ids=["False-0", "True-2", "one-2"],
)
def test_lists_have_half_of_the_transaction_unless_it_has_configurations_too(
    monkeypatch: pytest.MonkeyPatch, grows: tuple[bool, bool], made: int
) -> None:
    """Each list in a ledger is one that stays as long as the commit: a query that routes its rows
    made one for each stream and micro-batch. The transaction is shared: the configuration of one
    stream takes its room from the lists of all."""

    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams()
        segments = [loose(n, ledger_id=9, first_entry=n) for n in range(1, 40)]
        size = len(codec.encode_segment_list(tuple(segments)))
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", size)
        monkeypatch.setattr(committer, "SEGMENT_LISTS_BYTES_MAX", 2 * size)
        before = len(world.ledgers.ledgers)
        columns = [pa.schema({"more": pa.int64()}) if each else None for each in grows]
        await commit_to([(stream, segments) for stream in streams], new_columns=columns, **PAIR)
        assert len(world.ledgers.ledgers) == before + made
        again = await commit_to([(stream, []) for stream in streams], **PAIR)
        assert [commit.rows for commit in again] == [780, 780]

    run(scenario())


class Unnamed(FakeLedgers):
    """Ledgers whose names have to be noted, as those of real bookies."""

    def __init__(self) -> None:
        super().__init__()
        self._names = Naming(self.store)

    @property
    def naming(self) -> Naming:  # type: ignore[override]
        return self._names


def test_hundred_streams_with_lists_and_twenty_ledgers_each_are_committed_at_once() -> None:
    """Each list takes its whole share. A process that has named no ledger yet needs three
    operations for a name, and streams with a retention a check of each ledger besides."""

    async def scenario() -> None:
        ledgers, numbers = Unnamed(), itertools.count(1_000_000)
        catalog = StreamCatalog(ledgers)
        parts = []
        for number in range(STREAMS_PER_COMMIT_MAX):
            stream = await catalog.create(f"stream-{number:03}", SCHEMA)
            await stream.retention.set_limits(Retention(rows=10**12))
            await stream.refresh()
            own = list(itertools.islice(numbers, 20))
            for each in own:
                await ledgers.store.create(ledger_path(LedgerId(each)), b"", make_parents=True)
            segments = [
                replace(
                    loose(10_000 + 977 * n, ledger_id=own[n * 20 // 56], first_entry=100 + 13 * n),
                    size_bytes=100_000 + 9_973 * n,
                )
                for n in range(56)
            ]
            assert len(codec.encode_segment_list(tuple(segments))) > 4_500
            parts.append((stream, segments))
        before = len(ledgers.ledgers)
        sink_id, run_id = "q" * 36, "r" * 90
        commits = await commit_to(parts, sink_id=sink_id, transaction_id=1, run_id=run_id)
        assert len(commits) == STREAMS_PER_COMMIT_MAX
        assert len(ledgers.ledgers) == before, "no list needs a ledger"

    run(scenario())


def test_key_filters_are_smaller_where_that_spares_a_ledger_for_the_list() -> None:
    """And no smaller than that; where a ledger is made all the same they stay as they are."""
    sparse = bytes.fromhex("0100000000000000") * 16
    segments = tuple(
        replace(loose(n), statistics=Statistics((n, n), None, sparse)) for n in range(1, 21)
    )
    proposal = Proposal((), "q", 1).with_segments(segments)
    whole = codec.encode_segment_list(proposal.segments)
    bare = len(codec.encode_segment_list(proposal.with_segments(segments, 0).segments))
    assert with_list_within(proposal, len(whole)) == (proposal, whole)
    for bytes_max in (len(whole) - 1, (bare + len(whole)) // 2, bare):
        found, data = with_list_within(proposal, bytes_max)
        assert data == codec.encode_segment_list(found.segments) and len(data) <= bytes_max
        assert found.has_key_filters == (bytes_max > bare)
        assert replace(found, segments=()) == replace(proposal, segments=())
        known = [each.statistics for each in found.segments if each.statistics]
        assert [each.times for each in known] == [(n, n) for n in range(1, 21)]
    assert with_list_within(proposal, bare - 1) == (proposal, whole)
