"""Looks that are repeated because others change what is looked at: so many, and then the error."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from connector import sessions
from connector.read.several_source import SeveralSource
from connector.write import prepare
from connector.write.prepare import prepare_stream
from spark_ledger.errors import ConflictError, DataLossError, NoSuchStreamError
from spark_ledger.limits.connector import LOOKS_BESIDE_TRUNCATIONS, STREAM_CREATE_ATTEMPTS
from spark_ledger.stream.blocking import StreamConnection
from tests.unit.connector.read.test_several import Query, soon
from tests.unit.connector.world import ROWS, Cluster, cluster, to_write

__all__ = ["cluster", "soon"]


class Looks:
    """Counts, and ends a test that goes on for ever."""

    def __init__(self) -> None:
        self.count = 0

    def one(self) -> None:
        self.count += 1
        assert self.count < 100, "it goes on for ever"


@pytest.mark.parametrize("losses", [0, 1, LOOKS_BESIDE_TRUNCATIONS, LOOKS_BESIDE_TRUNCATIONS + 1])
def test_trigger_of_several_streams_looks_a_few_times_beside_truncations(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """Rows that were truncated are passed over; rows that are lost end the query."""
    for name in ("a", "b"):
        cluster.create(1, name=name)
    looks, look = Looks(), SeveralSource._latest_offset

    def latest(self: SeveralSource, start: Any, *, unlimited: bool) -> Any:
        looks.one()
        if looks.count <= losses:
            raise DataLossError("rows are gone")
        return look(self, start, unlimited=unlimited)

    query = Query(failOnDataLoss="false")
    monkeypatch.setattr(SeveralSource, "_latest_offset", latest)
    if losses > LOOKS_BESIDE_TRUNCATIONS:
        with pytest.raises(DataLossError, match="rows are gone"):
            query.trigger()
        assert looks.count == LOOKS_BESIDE_TRUNCATIONS + 1
    else:
        assert query.trigger() == {"a": [1], "b": [1]}
        assert looks.count == losses + 1


@pytest.mark.parametrize("lost", [*range(STREAM_CREATE_ATTEMPTS + 1)])
def test_stream_that_others_create_and_delete_is_looked_for_a_few_times(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Each time somebody else was first, and has deleted it before it is opened."""
    looks, create = Looks(), StreamConnection.create_stream

    def raced(self: StreamConnection, *given: Any, **named: Any) -> Any:
        looks.one()
        if looks.count <= lost:
            raise ConflictError("stream 's' exists already")
        return create(self, *given, **named)

    monkeypatch.setattr(StreamConnection, "create_stream", raced)
    if lost == STREAM_CREATE_ATTEMPTS:
        with pytest.raises(NoSuchStreamError, match="'s' does not exist"):
            prepare_stream(to_write(), ROWS)
        assert looks.count == STREAM_CREATE_ATTEMPTS
    else:
        assert prepare_stream(to_write(), ROWS) == cluster.stream().config.stream_id
        assert looks.count == lost + 1


def test_stream_that_is_deleted_again_and_again_is_no_reason_to_count_bookies_for_ever(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks()

    def gone(*given: Any) -> NoReturn:
        looks.one()
        raise NoSuchStreamError("stream 's' does not exist")

    monkeypatch.setattr(sessions, "fresh_stream", gone)
    monkeypatch.setattr(prepare, "_create", lambda options, schema: None)
    with pytest.raises(NoSuchStreamError):
        prepare_stream(to_write(), ROWS)
    assert looks.count == STREAM_CREATE_ATTEMPTS + 1
