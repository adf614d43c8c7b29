"""Several streams in one read: order, limits, replays, streams that join, go and come again."""

from __future__ import annotations

import itertools
import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from connector.options import ReadOptions, read_options
from connector.read import several_source, source
from connector.read.readers import LedgerBatchReader, LedgerStreamReader
from connector.read.source import stored_schema
from spark_ledger.errors import (
    ConfigurationError,
    DataLossError,
    NoSuchStreamError,
    SchemaMismatchError,
)
from spark_ledger.spark.progress import progress_of
from spark_ledger.stream.blocking import Stream, StreamConnection
from spark_ledger.types import Dlsn
from tests.unit.connector.world import ROWS, Cluster, cluster, copied, table

__all__ = ["cluster"]

Rows = dict[str, list[int]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_source, "STREAMS_LISTED_S", 0.0)
    monkeypatch.setattr(several_source, "POLL_WAIT_S", 0.001)


def options(streaming: bool = True, /, **given: str) -> ReadOptions:
    defaults = {"metadata": "zk://h/l", "includeMetadata": "true"}
    if "streamPattern" not in given and "stream" not in given:
        defaults["streams"] = "a,b"
    return read_options({**defaults, **given}, streaming=streaming)


class Query:
    """A streaming query: Spark's calls, and the offset that its checkpoint holds."""

    def __init__(self, at: Any = None, **given: str) -> None:
        self.options = options(**given)
        self.schema = stored_schema(self.options)
        self.reader = LedgerStreamReader(self.options, self.schema)
        self.at = self.reader.initialOffset() if at is None else at

    def trigger(self) -> Rows | None:
        """The rows of a micro-batch by stream; None if there is none."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.at, self.limit)))
        if end == self.at:
            return None
        rows, self.at = self.planned(self.at, end), end
        self.reader.commit(end)
        return rows

    @property
    def limit(self) -> Any:
        return self.reader.getDefaultReadLimit()

    def planned(self, start: Any, end: Any) -> Rows:
        planner = LedgerStreamReader(self.options, self.schema)
        return read(planner, planner.partitions(start, end))

    def rest(self) -> Rows:
        """All rows until nothing is new. The first micro-batch may be empty (rule T31)."""
        found: Rows = defaultdict(list, self.trigger() or {})
        while (rows := self.trigger()) is not None:
            for name, values in rows.items():
                found[name] += values
        return dict(found)


def read(reader: Any, partitions: Any) -> Rows:
    found: Rows = defaultdict(list)
    for partition in partitions:
        for batch in copied(reader).read(copied(partition)):
            positions = batch.column("_ledger").to_pylist()
            for place, value in zip(positions, batch.column("a").to_pylist(), strict=True):
                found[place.get("stream", "s")].append(value)
    return dict(found)


def batch(**given: str) -> Rows:
    chosen = options(False, **given)
    reader = LedgerBatchReader(chosen, stored_schema(chosen))
    return read(reader, reader.partitions())


# -- the thin path ---------------------------------------------------------------------------------


def test_batch_read_of_two_streams_has_the_rows_of_each_in_order(cluster: Cluster) -> None:
    cluster.create(1, 2, 3, name="a")
    cluster.create(10, 20, name="b")
    cluster.create(7, name="other")
    cluster.create(8, name="a-more")
    cluster.create(9, name="not-a")
    assert batch() == {"a": [1, 2, 3], "b": [10, 20]}
    assert batch(streamPattern="[ab]") == batch()
    assert batch(streamPattern="a") == {"a": [1, 2, 3]}, "the whole name has to fit"


def test_streaming_read_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    a, b = cluster.create(1, 2, name="a"), cluster.create(10, name="b")
    query = Query()
    assert query.trigger() == {"a": [1, 2], "b": [10]}
    assert query.trigger() is None
    b.append(table(20))
    assert query.trigger() == {"b": [20]}
    ids = {name: cluster.stream(name).config.stream_id for name in "ab"}
    last = {name: cluster.stream(name).commit(1).segments[0] for name in "ab"}
    assert query.at == {
        "streams": {
            name: {
                "entry": 0,
                "last": {
                    "commit": 1,
                    "entry": last[name].first_entry,
                    "ledger": last[name].ledger_id,
                },
                "segment": 2,
                "stream": ids[name],
            }
            for name in "ab"
        }
    }
    a.append(table(3))
    assert Query(query.at).rest() == {"a": [3]}


def test_replay_of_any_range_of_offsets_gives_the_same_rows(cluster: Cluster) -> None:
    a, b = cluster.create(*range(4), name="a"), cluster.create(*range(10, 13), name="b")
    query = Query(maxRowsPerTrigger="3")
    seen: list[tuple[Any, Rows]] = [(query.at, {})]
    while (rows := query.trigger()) is not None:
        seen.append((query.at, rows))
    a.append(table(99))
    b.append(table(98))
    cluster.create(97, name="c")
    for (first, (start, _)), (last, (end, _)) in itertools.combinations(enumerate(seen), 2):
        wanted: Rows = defaultdict(list)
        for _, rows in seen[first + 1 : last + 1]:
            for name, values in rows.items():
                wanted[name] += values
        assert Query(start, streamPattern="[abc]").planned(start, end) == dict(wanted)


# -- positions by stream ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "wanted"),
    [
        ("earliest", {"a": [1, 2, 3], "b": [10, 20]}),
        ("latest", {}),
        ('{"a": {"segment": 2}, "b": "latest"}', {"a": [3]}),
        ('{"b": {"segment": 1}}', {"a": [1, 2, 3], "b": [20]}),
        ('{"streams": {"b": {"entry": 0, "segment": 1}}}', {"a": [1, 2, 3], "b": [20]}),
    ],
)
def test_starting_position_by_stream_is_where_each_begins(
    cluster: Cluster, position: str, wanted: Rows
) -> None:
    cluster.create(1, 2, 3, name="a")
    cluster.create(10, 20, name="b")
    assert Query(startingPosition=position).rest() == wanted
    assert batch(startingPosition=position) == wanted


def test_times_and_ends_by_stream_bound_each(cluster: Cluster) -> None:
    a, b = cluster.create(1, 2, name="a"), cluster.create(10, 20, name="b")
    time_ms = a.commit(1).time_ms
    b_ms = b.commit(0).time_ms
    assert batch(endingPosition='{"a": {"segment": 1}}') == {"a": [1], "b": [10, 20]}
    assert batch(startingTimestamp=json.dumps({"a": time_ms + 1 - 1}))["b"] == [10, 20]
    assert batch(startingTimestamp=json.dumps({"b": b_ms}))["b"] == [10, 20]
    assert batch(startingTimestamp=json.dumps({"a": "1999-01-01"}))["a"] == [1, 2]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingPosition": '{"segment": 3}'}, "give positions by stream"),
        ({"startingPosition": '{"c": "latest"}'}, "'c' is none of the streams 'a', 'b'"),
        ({"startingPosition": '{"a": {"entry": 3}}'}, 'names its "segment"'),
        ({"stream": "a", "streams": "a,b"}, "streams and stream exclude each other"),
        ({"streamPattern": "a", "streams": "a,b"}, "streams and streamPattern exclude"),
        ({"stream": "a", "startingTimestamp": '{"b": 1}'}, "'b' is none of the streams 'a'"),
        ({"streams": "a,,b"}, "separated by commas"),
        ({"streams": "a,a"}, "names a stream twice"),
        ({"streamPattern": "*"}, "regular expression"),
        ({"streams": ",".join(map(str, range(257)))}, "one read takes 256"),
    ],
)
def test_options_of_several_streams_that_do_not_fit_are_refused(
    given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        options(**given)


# -- limits ----------------------------------------------------------------------------------------


def test_limit_per_trigger_is_shared_and_no_stream_starves(cluster: Cluster) -> None:
    cluster.create(*range(100), name="a")
    cluster.create(*range(200, 204), name="b")
    query = Query(maxRowsPerTrigger="10")
    first = query.trigger()
    assert first == {"a": [0, 1, 2, 3, 4, 5], "b": [200, 201, 202, 203]}
    assert query.trigger() == {"a": list(range(6, 16))}, "nobody else needs it"


def test_limit_below_one_entry_of_each_serves_them_in_turn(cluster: Cluster) -> None:
    for name in "ab":
        stream = cluster.create(name=name)
        for n in range(3):
            stream.append(table(*range(10 * n, 10 * n + 5)))
    query = Query(maxRowsPerTrigger="3")
    served = [sorted(rows) for _ in range(6) if (rows := query.trigger()) is not None]
    assert served == [["a"], ["b"]] * 3


def test_rows_of_all_streams_count_for_the_least_rows_of_a_trigger(cluster: Cluster) -> None:
    a = cluster.create(1, name="a")
    cluster.create(10, name="b")
    query = Query(minRowsPerTrigger="3")
    assert query.trigger() is None
    a.append(table(2))
    assert query.trigger() == {"a": [1, 2], "b": [10]}


def test_available_now_reads_what_is_there_and_no_more(cluster: Cluster) -> None:
    a = cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    query = Query(streamPattern=".*", maxRowsPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    a.append(table(3))
    cluster.create(20, name="c")
    assert query.rest() == {"a": [1, 2], "b": [10]}
    again = Query(query.at, streamPattern=".*")
    again.reader.prepareForTriggerAvailableNow()
    assert again.rest() == {"a": [3], "c": [20]}


def test_available_now_ends_though_a_stream_is_made_again_meanwhile(cluster: Cluster) -> None:
    cluster.create(1, name="a")
    cluster.create(10, name="b")
    query = Query(failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger() == {"a": [1], "b": [10]}
    a = cluster.create(2, 3, name="a")
    assert query.trigger() == {"a": [2, 3]}
    for row in range(4, 7):
        a.append(table(row))
        assert query.trigger() is None, "the run ends where the new stream ended when it came"
    assert Query(query.at).rest() == {"a": [4, 5, 6]}


# -- streams that join, and go ---------------------------------------------------------------------


def test_new_stream_that_fits_the_pattern_joins_the_running_query(cluster: Cluster) -> None:
    cluster.create(1, name="clicks-1")
    query = Query(streamPattern="clicks-.*", startingPosition="latest")
    assert query.trigger() is None
    cluster.create(2, 3, name="clicks-2")
    cluster.create(4, name="views")
    assert query.trigger() == {}, "it joins, at its earliest row"
    assert query.trigger() == {"clicks-2": [2, 3]}
    assert query.trigger() is None


def test_query_begins_before_there_is_a_stream(cluster: Cluster) -> None:
    chosen = options(streamPattern="clicks-.*", includeMetadata="false")
    with pytest.raises(NoSuchStreamError, match=r"there are no streams that fit 'clicks-\.\*'"):
        stored_schema(chosen)
    reader = LedgerStreamReader(chosen, ROWS)
    assert reader.initialOffset() == {"streams": {}}
    cluster.create(1, name="clicks-1")
    offset: Any = {"streams": {}}
    offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
    assert list(offset["streams"]) == ["clicks-1"]


def test_checkpoint_of_one_stream_goes_on_with_several(cluster: Cluster) -> None:
    a = cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    single = Query(stream="a")
    assert single.trigger() == {"s": [1, 2]}
    a.append(table(3))
    query = Query(single.at)
    assert query.trigger() == {"a": [3]}
    assert query.trigger() == {"b": [10]}


def test_micro_batch_of_one_stream_is_repeated_with_several(cluster: Cluster) -> None:
    cluster.create(1, 2, name="a")
    cluster.create(10, name="b")
    single = Query(stream="a")
    start = single.at
    single.trigger()
    assert Query(single.at).planned(start, single.at) == {"a": [1, 2]}


def test_checkpoint_of_another_stream_is_refused(cluster: Cluster) -> None:
    for name in "abc":
        cluster.create(1, name=name)
    of_c = Query(stream="c")
    with pytest.raises(ConfigurationError, match="none of the streams 'a', 'b'"):
        Query(of_c.at).trigger()
    with pytest.raises(ConfigurationError, match=r"several streams \(a, b\)"):
        Query(Query().at, stream="a").trigger()


def test_stream_that_is_named_no_more_is_loss(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create(1, name="a")
    cluster.create(10, name="b")
    before = Query(startingPosition="latest").at
    cluster.stream("a").append(table(2))
    with pytest.raises(DataLossError, match="reads stream 'b' too"):
        Query(before, streams="a").trigger()
    with caplog.at_level(logging.WARNING):
        assert Query(before, streams="a", failOnDataLoss="false").rest() == {"a": [2]}
    assert "its rows stay unread" in caplog.text


@pytest.mark.parametrize("given", [{"streams": "a,b"}, {"streamPattern": "[ab]"}])
def test_deleted_stream_fails_the_query_or_is_left_out(
    cluster: Cluster, given: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    a = cluster.create(1, name="a")
    cluster.create(10, name="b")
    strict, lenient = Query(**given), Query(failOnDataLoss="false", **given)
    for query in (strict, lenient):
        assert query.trigger() == {"a": [1], "b": [10]}
    cluster.outside.delete_stream("b")
    a.append(table(2))
    with pytest.raises(DataLossError, match="stream 'b', which this query reads among others"):
        strict.trigger()
    with caplog.at_level(logging.WARNING):
        assert lenient.rest() == {"a": [2]}
    assert "going on without it, because failOnDataLoss=false" in caplog.text
    cluster.create(20, name="b")
    assert lenient.rest() == {"b": [20]}
    assert lenient.reader.partitions(lenient.at, lenient.at) == []


def test_stream_made_again_loses_rows_of_that_stream_only(cluster: Cluster) -> None:
    cluster.create(1, name="a")
    cluster.create(10, name="b")
    strict, lenient = Query(), Query(failOnDataLoss="false")
    for query in (strict, lenient):
        query.trigger()
    cluster.create(20, name="b")
    with pytest.raises(DataLossError, match="stream 'b' was deleted and created again"):
        strict.trigger()
    assert lenient.rest() == {"b": [20]}


def test_handle_of_each_stream_that_was_deleted_or_made_again_is_closed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Stream] = []
    close = Stream.close

    def noted(self: Stream) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Stream, "close", noted)
    a = cluster.create(1, name="a")
    cluster.create(10, name="b")
    query = Query(failOnDataLoss="false")
    query.trigger()
    opened: Any = query.reader._source
    for row in (20, 30):
        former = opened._sources["b"].stream
        cluster.create(row, name="b")
        assert query.rest() == {"b": [row]}
        assert former in closed, "its watch and its ledgers are for nobody"
    last, kept = opened._sources["b"].stream, opened._sources["a"].stream
    cluster.outside.delete_stream("b")
    a.append(table(2))
    assert query.rest() == {"a": [2]}
    assert last in closed and kept not in closed


def test_truncated_stream_loses_rows_of_that_stream_only(cluster: Cluster) -> None:
    cluster.create(1, 2, name="a")
    b = cluster.create(10, 20, 30, name="b")
    strict, lenient = Query(), Query(failOnDataLoss="false")
    b.retention.truncate(Dlsn(2))
    with pytest.raises(DataLossError, match="stream 'b'"):
        strict.trigger()
    assert lenient.rest() == {"a": [1, 2], "b": [30]}


# -- schemas ---------------------------------------------------------------------------------------


def make(cluster: Cluster, name: str, **columns: pa.DataType) -> None:
    cluster.outside.create_stream(name, pa.schema(list(columns.items())))


def test_streams_of_several_schemas_are_read_in_the_widest(cluster: Cluster) -> None:
    make(cluster, "a", A=pa.int32(), only=pa.string())
    make(cluster, "b", a=pa.int64())
    cluster.stream("a").append(pa.table({"A": pa.array([1], pa.int32()), "only": ["x"]}))
    cluster.stream("b").append(table(2**40))
    chosen = options(False, includeMetadata="false")
    schema = stored_schema(chosen)
    assert schema.simpleString() == "struct<A:bigint,only:string>"
    reader = LedgerBatchReader(chosen, schema)
    rows = [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]
    assert rows == [{"A": 1, "only": "x"}, {"A": 2**40, "only": None}]


def test_column_that_a_stream_lacks_may_be_null_though_the_others_never_have_it_so(
    cluster: Cluster,
) -> None:
    never_null = [pa.field(name, pa.int64(), nullable=False) for name in "ak"]
    for name, fields in (("a", never_null), ("b", never_null[:1])):
        schema = pa.schema(fields)
        rows = {field.name: [1] for field in fields}
        cluster.outside.create_stream(name, schema).append(pa.table(rows, schema))
    stored = stored_schema(options(False))
    assert {field.name: field.nullable for field in stored.fields[:2]} == {"a": False, "k": True}
    assert batch() == {"a": [1], "b": [1]}


def test_streams_that_fit_no_schema_are_refused_by_name(cluster: Cluster) -> None:
    make(cluster, "a", x=pa.string())
    make(cluster, "b", x=pa.int64())
    with pytest.raises(
        SchemaMismatchError, match="streams 'a' and 'b' cannot be read together: column 'x' is str"
    ):
        stored_schema(options())


def test_stream_that_joins_with_another_schema_is_refused_by_name(cluster: Cluster) -> None:
    cluster.create(1, name="c1")
    query = Query(streamPattern="c.*")
    make(cluster, "c2", a=pa.string())
    with pytest.raises(SchemaMismatchError, match="stream 'c2': column 'a' is stored as string"):
        query.reader.latestOffset(query.at, query.limit)


# -- tasks -----------------------------------------------------------------------------------------


def test_small_streams_share_a_task(cluster: Cluster) -> None:
    for name in "abcd":
        cluster.create(1, 2, name=name)
    chosen = options(False, streamPattern=".")
    assert len(LedgerBatchReader(chosen, ROWS).partitions()) == 1
    chosen = options(False, streamPattern=".", minPartitions="3")
    assert len(LedgerBatchReader(chosen, ROWS).partitions()) == 3


def test_progress_has_the_lag_of_each_stream(cluster: Cluster) -> None:
    cluster.create(1, 2, 3, name="a")
    cluster.create(10, name="b")
    query = Query(maxRowsPerTrigger="2")
    assert query.trigger() == {"a": [1], "b": [10]}
    newest: Any = query.reader.reportLatestOffset()
    assert [newest["streams"][name]["rowsBehind"] for name in "ab"] == [2, 0]
    assert [newest["streams"][name]["batchRows"] for name in "ab"] == [1, 1]
    assert newest["streams"]["a"]["name"] == "a"
    source = {"endOffset": query.at, "latestOffset": json.dumps(newest), "numInputRows": 2}
    reported = {"id": "q", "runId": "r", "batchId": 0, "sources": [source]}
    now = progress_of(SimpleNamespace(json=json.dumps(reported)))
    assert [(s.name, s.rows, s.rows_behind) for s in now.sources] == [("a", 1, 2), ("b", 1, 0)]
    assert Query(startingPosition=json.dumps(newest)).rest() == {}


def test_connection_waits_for_any_of_the_streams(cluster: Cluster) -> None:
    cluster.create(1, name="a")
    made: StreamConnection = cluster.outside
    a = made.stream("a")
    made.wait_for_any([(a, 0)], 60.0)
    made.wait_for_any([(a, 1)], 0.001)
    assert source.open_source(options(streamPattern="a")).initial_offset()
