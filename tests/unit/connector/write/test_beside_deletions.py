"""Writes to a stream that is just being deleted wait for the end of that, and then make it anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from connector.write.prepare import prepare_stream
from spark_ledger.errors import ConflictError, MetadataUnavailableError, NoSuchStreamError
from spark_ledger.limits.connector import RETRY_PAUSES_S, RETRY_S, STREAM_CREATE_ATTEMPTS
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.connector.world import (
    ROWS,
    Cluster,
    batch_write,
    cluster,
    micro_batch,
    to_write,
)

__all__ = ["cluster"]


def delete_in_part(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever deletes the stream ends when it has marked it."""

    def dies(*_: object) -> NoReturn:
        raise MetadataUnavailableError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(StreamCatalog, "_named_ledgers", dies)
        with pytest.raises(MetadataUnavailableError):
            cluster.outside.delete_stream("s")


@pytest.mark.parametrize("pauses", [1, STREAM_CREATE_ATTEMPTS + 1])
@pytest.mark.parametrize("how", ["prepare", "batch", "micro-batch"])
def test_stream_that_is_being_deleted_is_made_again_once_it_is_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str, pauses: int
) -> None:
    former = cluster.create(1, 2, 3).config.stream_id
    delete_in_part(cluster, monkeypatch)

    def keeper() -> Iterator[None]:
        for _ in range(pauses - 1):
            cluster.clock.meanwhile = finish.__next__
            yield
        cluster.outside.delete_stream("s")
        yield

    finish = keeper()
    cluster.clock.meanwhile = finish.__next__
    if how == "prepare":
        prepare_stream(to_write(), ROWS)
    elif how == "batch":
        batch_write(monkeypatch, [7])
    else:
        micro_batch(monkeypatch, 0, 7)
    assert len(cluster.clock.pauses) == pauses
    assert cluster.rows() == ([] if how == "prepare" else [7])
    assert cluster.stream().config.stream_id != former


def test_stream_whose_deletion_does_not_end_is_waited_for_a_while_and_the_error_names_that(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    delete_in_part(cluster, monkeypatch)
    with pytest.raises(ConflictError, match="'s' is being deleted; delete it again to finish that"):
        prepare_stream(to_write(), ROWS)
    assert RETRY_S - RETRY_PAUSES_S[-1] < sum(cluster.clock.pauses) <= RETRY_S


def test_stream_that_is_being_deleted_is_not_waited_for_by_a_write_that_may_not_make_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    delete_in_part(cluster, monkeypatch)
    with pytest.raises(NoSuchStreamError, match="createStream=true"):
        prepare_stream(to_write(createStream="false"), ROWS)
    assert not cluster.clock.pauses


def test_stream_that_another_writer_makes_first_is_opened_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = StreamConnection.create_stream

    def raced(self: StreamConnection, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(StreamConnection, "create_stream", create)
        cluster.create()
        return create(self, *given, **named)

    monkeypatch.setattr(StreamConnection, "create_stream", raced)
    assert prepare_stream(to_write(), ROWS) == cluster.stream().config.stream_id
    assert not cluster.clock.pauses
