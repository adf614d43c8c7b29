"""A batch write from its planner to its commit, with replies that get lost, over real streams."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from connector.write import prepare, writers
from spark_ledger.errors import (
    ConflictError,
    NoSuchStreamError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.stream.blocking import StreamConnection
from tests.unit.connector.world import (
    ROWS,
    WIDER,
    Cluster,
    batch_write,
    cluster,
    copied,
    micro_batch,
    table,
    to_write,
)

__all__ = ["cluster"]

NAMED = {"txnAppId": "app", "txnVersion": "7"}


def test_batch_write_is_one_commit_in_order_of_the_partitions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_write(monkeypatch, [1, 2], [], [3], [4, 5])
    assert cluster.rows() == [1, 2, 3, 4, 5]
    assert cluster.stream().head().next_commit == 1


def test_batch_commit_with_lost_reply_and_no_name_is_not_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could tell the repetition from new rows, so the user is told instead."""
    cluster.create()
    cluster.lose_the_next_commit_reply()
    with pytest.raises(OutcomeUnknownError):
        batch_write(monkeypatch, [1, 2])
    assert cluster.rows() == [1, 2]


@pytest.mark.parametrize("arrived", [True, False])
def test_named_batch_commit_with_lost_reply_is_made_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    cluster.create()
    if arrived:
        cluster.lose_the_next_commit_reply()
    else:
        cluster.lose_the_next_commit_request()
    batch_write(monkeypatch, [1, 2], options=NAMED)
    assert not cluster.faults and len(cluster.clock.pauses) == 1
    assert cluster.rows() == [1, 2]


@pytest.mark.parametrize("arrived", [True, False])
def test_micro_batch_commit_with_lost_reply_is_made_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    cluster.create()
    for number in range(3):
        if arrived:
            cluster.lose_the_next_commit_reply()
        else:
            cluster.lose_the_next_commit_request()
        micro_batch(monkeypatch, number, number)
        assert not cluster.faults
    assert cluster.rows() == [0, 1, 2]


@pytest.mark.parametrize("version", ["7", "6"])
def test_batch_write_of_committed_version_is_skipped_with_a_warning(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
) -> None:
    batch_write(monkeypatch, [1], options=NAMED)
    before = cluster.entries()
    with caplog.at_level(logging.WARNING):
        batch_write(monkeypatch, [2], options={**NAMED, "txnVersion": version})
    assert cluster.entries() == before
    assert "is skipped, because txnVersion 7 was committed before" in caplog.text
    assert cluster.rows() == [1]
    batch_write(monkeypatch, [3], options={**NAMED, "txnVersion": "8"})
    assert cluster.rows() == [1, 3]


def test_skipped_overwrite_keeps_the_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_write(monkeypatch, [1], options=NAMED)
    batch_write(monkeypatch, [2], overwrite=True, options=NAMED)
    assert cluster.rows() == [1]
    assert cluster.stream().head().next_commit == 1


def test_batch_write_overtaken_by_its_version_ends_well(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of one job: the slower one finds at its commit that the other was first."""
    cluster.create()
    writer = _planned(cluster)
    cluster.stream().append(table(1), sink_id="app", transaction_id=8)
    writer.commit([])
    assert cluster.rows() == [1]


def test_batch_write_conflict_of_another_kind_is_raised(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    writer = _planned(cluster)

    def refuse(*_args: object, **_named: object) -> None:
        raise ConflictError("of another kind")

    monkeypatch.setattr(writers.LedgerBatchWriter, "_stream", refuse)
    monkeypatch.setattr(writers.LedgerBatchWriter, "_is_committed", lambda self: False)
    with pytest.raises(ConflictError, match="of another kind"):
        writer.commit([])


def _planned(cluster: Cluster) -> writers.LedgerBatchWriter:
    """An overwriting write of version 7, of which no task has rows, planned and not committed."""
    return copied(writers.LedgerBatchWriter(to_write(**NAMED), ROWS, overwrite=True))


@pytest.mark.parametrize("rows", [[], [9]])
def test_overwrite_replaces_all_rows_also_by_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    batch_write(monkeypatch, [1, 2])
    batch_write(monkeypatch, rows, overwrite=True)
    assert cluster.rows() == rows


def test_append_without_rows_makes_no_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_write(monkeypatch, [], [])
    assert cluster.stream().head().next_commit == 0


def test_batch_write_to_stream_made_again_meanwhile_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    writer = _planned(cluster)
    cluster.create(2)
    with pytest.raises(NoSuchStreamError):
        writer.commit([])
    assert cluster.rows() == [2]


# -- the stream that a write prepares --------------------------------------------------------------


def test_write_creates_the_stream_with_the_options(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"ensembleSize": "5", "writeQuorum": "4", "ackQuorum": "3", "compression": "zstd"}
    batch_write(monkeypatch, [1], options={**options, "entryBytes": "2048"})
    config = cluster.stream().config
    quorums = config.quorums
    assert (quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum) == (5, 4, 3)
    assert (config.compression.value, config.entry_bytes) == ("zstd", 2048)


def test_write_without_leave_to_create_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoSuchStreamError, match="createStream=true"):
        batch_write(monkeypatch, [1], options={"createStream": "false"})
    assert cluster.outside.list_streams() == []


def test_write_that_loses_the_race_to_create_uses_the_other_stream(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = StreamConnection.create_stream

    def slower(self: StreamConnection, *given: object, **named: object) -> object:
        if self is not cluster.outside and not cluster.outside.list_streams():
            cluster.create(1)
        return create(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamConnection, "create_stream", slower)
    batch_write(monkeypatch, [2])
    assert cluster.rows() == [1, 2]


def test_merge_schema_adds_the_columns_before_they_are_checked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    with pytest.raises(SchemaMismatchError, match="'b'"):
        batch_write(monkeypatch, schema=WIDER)
    batch_write(monkeypatch, schema=WIDER, options={"mergeSchema": "true"})
    assert cluster.stream().schema.names == ["a", "b"]
    batch_write(monkeypatch, [2])
    assert cluster.rows() == [1, 2]


def test_preparation_with_lost_reply_is_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_or_create, failures = prepare._open_or_create, [OutcomeUnknownError("lost")]

    def flaky(*given: object) -> object:
        if failures:
            raise failures.pop()
        return open_or_create(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare, "_open_or_create", flaky)
    batch_write(monkeypatch, [1])
    assert cluster.rows() == [1]
    assert pa.types.is_int64(cluster.stream().schema.field("a").type)
