"""Streams without a loop: the same answers from threads, and iterables that block."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.errors import (
    ConfigurationError,
    LedgerClosedError,
    LedgerError,
    NoSuchStreamError,
    RetryableError,
    SchemaMismatchError,
)
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, table


class Client(FakeLedgers):
    async def close(self) -> None:
        await self.store.close()


@pytest.fixture
def connection() -> Iterator[StreamConnection]:
    with StreamConnection(BlockingPortal.get(), cast(LedgerClient, Client())) as made:
        yield made


def values(batches: Iterator[Any]) -> list[int]:
    return [n for batch in batches for n in batch.column("n").to_pylist()]


def test_append_and_read_without_a_loop(connection: StreamConnection) -> None:
    with connection.create_stream("s", SCHEMA) as stream:
        commit = stream.append(table(0, 3), sink_id="j", transaction_id=1)
        assert commit.applied
        assert not stream.append(table(0, 3), sink_id="j", transaction_id=1).applied
        assert values(stream.read()) == [0, 1, 2]
        assert values(stream.read(Dlsn(0, 0, 1), "latest")) == [1, 2]
        assert values(stream.tail("earliest", idle_timeout=0.01)) == [0, 1, 2]
        assert connection.list_streams() == ["s"]
        assert connection.stream("s").head().rows == 3
        assert (stream.name, stream.schema, stream.config.name) == ("s", SCHEMA, "s")
        assert stream.last_transaction("j") == ("j", 1, 0, "")
        stream.commit_segments([], sink_id="k/ü %", transaction_id=7, run_id="r")
        assert sorted(stream.last_transactions()) == [("j", 1, 0, ""), ("k/ü %", 7, 1, "r")]
        assert stream.wait_for_commit(after_segment=0, timeout_s=0.01).next_segment == 1
        assert stream.commit(0) == stream.commit_at(0) == stream.commits(0, 1)[0] == commit
        assert stream.first_commit_since(0) == commit
        assert stream.position_at_timestamp(0) == Dlsn(0)
        ranges = ranges_between(stream.commits_between(0, 1), Dlsn(0), Dlsn(1))
        assert [p.batch.num_rows for p in stream.read_ranges(ranges)] == [3]
        stream.check_schema(SCHEMA)
        with pytest.raises(SchemaMismatchError):
            stream.check_schema(pa.schema([("n", pa.string())]))
        assert stream.merge_schema(pa.schema([("z", pa.int8())])).names == ["n", "text", "z"]
        assert stream.refresh().schema_version == 1
    connection.delete_stream("s")
    with pytest.raises(NoSuchStreamError):
        connection.stream("s")


def test_micro_batches_of_one_writer(connection: StreamConnection) -> None:
    stream = connection.create_stream("s", SCHEMA)
    with stream.writer() as writer:
        assert writer.write(table(0, 2)) == 2
        assert writer.write(batch for batch in table(2, 2).to_batches()) == 2
        first = writer.finish()
        writer.write(table(50, 9))
        writer.abandon()
        writer.write(table(4, 1))
        second = writer.finish()
    stream.commit_segments([*first, *second], sink_id="q", transaction_id=0)
    assert values(stream.read()) == [0, 1, 2, 3, 4]


def test_items_for_a_writer_are_taken_in_the_callers_thread(connection: StreamConnection) -> None:
    """There they may block, even on the connection that they are written with."""
    stream = connection.create_stream("s", SCHEMA)

    def items() -> Iterator[pa.Table]:
        for n in range(3):
            assert stream.head().next_commit == 0
            yield table(n)

    with stream.writer() as writer:
        assert writer.write(items()) == 3
        stream.commit_segments(writer.finish())
    assert values(stream.read()) == [0, 1, 2]


def test_data_may_come_from_another_stream_of_the_same_portal(
    connection: StreamConnection,
) -> None:
    source = connection.create_stream("source", SCHEMA)
    source.append(table(0, 10))
    copy = connection.create_stream("copy", SCHEMA)
    assert copy.append(source.read()).rows == 10
    assert values(copy.read()) == list(range(10))


def test_threads_may_share_a_stream(connection: StreamConnection) -> None:
    stream = connection.create_stream("s", SCHEMA)
    with ThreadPoolExecutor(4) as pool:
        commits = list(pool.map(lambda n: stream.append(table(n)), range(12)))
    assert sorted(commit.number for commit in commits) == list(range(12))
    assert sorted(values(stream.read())) == list(range(12))


def test_leaving_an_iterator_early_stops_it(connection: StreamConnection) -> None:
    stream = connection.create_stream("s", SCHEMA)
    stream.append(table(0, 5))
    batches = stream.tail("earliest")
    assert next(batches).num_rows == 5
    batches.close()  # type: ignore[attr-defined]


def test_a_closed_connection_says_so() -> None:
    connection = StreamConnection(BlockingPortal.get(), cast(LedgerClient, Client()))
    connection.close()
    with pytest.raises(LedgerClosedError, match="closed"):
        connection.list_streams()


def test_closing_a_connection_closes_the_ledgers_of_its_streams() -> None:
    client = Client()
    with StreamConnection(BlockingPortal.get(), cast(LedgerClient, client)) as connection:
        stream = connection.create_stream("s", SCHEMA)
        stream.append(table(0))
        writer = stream.writer()
        writer.write(table(1))
        writer.finish()
        assert not any(ledger.closed for ledger in client.ledgers.values())
    assert len(client.ledgers) == 2
    assert all(ledger.closed for ledger in client.ledgers.values())


@pytest.mark.parametrize("error", [KeyboardInterrupt, LedgerError])
@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5])
def test_connection_whose_close_fails_at_one_of_its_streams_is_closed_all_the_same(
    failing: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its session goes on, and the keeper leaves its open ledgers alone. The first four are
    streams and writers, the fifth those of ``append_to``."""
    client, calls = Client(), 0
    connection = StreamConnection(BlockingPortal.get(), cast(LedgerClient, client))
    streams = [connection.create_stream(name, SCHEMA) for name in ("a", "b")]
    writers = [stream.writer() for stream in streams]
    for stream, writer in zip(streams, writers, strict=True):
        stream.append(table(0))
        writer.write(table(1))
        writer.finish()
    call = BlockingPortal.call

    def interrupted(portal: BlockingPortal, work: Any) -> Any:
        nonlocal calls
        calls += 1
        found = call(portal, work)
        if calls == failing:
            raise error
        return found

    monkeypatch.setattr(BlockingPortal, "call", interrupted)
    with pytest.raises(error):
        connection.close()
    assert client.store._closed
    before = calls
    connection.close()
    assert calls == before, "it is closed"


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("then", ["raises", "gives no rows"])
def test_micro_batch_whose_data_end_with_an_error_is_refused(
    connection: StreamConnection, then: str, rows: int
) -> None:
    """They are taken in the caller's thread: what came before the error is not the whole of it."""
    stream = connection.create_stream("s", SCHEMA, entry_bytes=1024)

    def items() -> Iterator[Any]:
        yield table(0, rows)
        if then == "raises":
            raise ZeroDivisionError
        yield "no rows"

    with stream.writer() as writer:
        with pytest.raises((ZeroDivisionError, ConfigurationError)):
            writer.write(items())
        with pytest.raises(RetryableError, match="write all of it again"):
            writer.finish()
        assert writer.write([table(5), table(6)]) == 2
        stream.commit_segments(writer.finish())
        with pytest.raises((ZeroDivisionError, ConfigurationError)):
            writer.write(items())
        writer.abandon()
        writer.write(table(7))
        stream.commit_segments(writer.finish())
    assert values(stream.read()) == [5, 6, 7]
