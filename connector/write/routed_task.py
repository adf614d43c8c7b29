"""What a writing task does where a column routes the rows: each row goes to the stream it names.

As ``task``: what is written is in no commit. The streams of one task have their rows in the order
in which they came; a stream that does not exist is created, if the options say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from connector import sessions
from connector.options import WriteOptions
from connector.schema import arrow_schema_of
from connector.task_report import TaskWatch, log_task
from connector.write.prepare import prepare_stream
from connector.write.task import TaskWritten, written_with_retries
from spark_ledger.errors import ConfigurationError, SchemaMismatchError
from spark_ledger.limits.stream import STREAMS_PER_COMMIT_MAX
from spark_ledger.spark.reports import Report
from spark_ledger.stream.model import Segment

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import SegmentWriter


class Route(NamedTuple):
    """Where rows go: the column that says it, and the columns that are stored. Pickled."""

    column: str
    stored: spark.StructType
    keeps: bool


class Part(NamedTuple):
    """What a task wrote for one stream."""

    name: str
    stream_id: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class TaskRouted(TaskWritten):
    """What one task attempt wrote, by stream. Pickled: made in the task, read at the commit."""

    parts: tuple[Part, ...] = ()


def route_of(options: WriteOptions, schema: spark.StructType) -> Route:
    """The route of a DataFrame's rows.

    Raises SchemaMismatchError if there is no such column, or two, or if it is no text.
    """
    wanted = options.route_column
    assert wanted is not None, "the options name a column"
    found = [field for field in schema.fields if field.name.lower() == wanted.lower()]
    if not found:
        raise SchemaMismatchError(
            f"option routeColumn: the DataFrame has no column {wanted!r}; its columns are "
            f"{', '.join(schema.names)}"
        )
    field = found[0]
    if len(found) > 1:
        raise SchemaMismatchError(
            f"option routeColumn: the names {field.name!r} and {found[1].name!r} differ in case "
            "only, so both or none are the column: rename one"
        )
    if not isinstance(field.dataType, spark.StringType):
        raise SchemaMismatchError(
            f"option routeColumn: column {field.name!r} has the type "
            f"{field.dataType.simpleString()}, and names of streams are text: cast it to string"
        )
    keeps = options.keep_route_column
    stored = spark.StructType([each for each in schema.fields if keeps or each is not field])
    if not stored.fields:
        raise SchemaMismatchError(
            f"option routeColumn: the DataFrame has no column but {field.name!r}, which is not "
            "stored: add one, or set keepRouteColumn=true"
        )
    return Route(field.name, stored, keeps)


def write_routed(
    options: WriteOptions, route: Route, batches: Iterator[pa.RecordBatch]
) -> tuple[tuple[Part, ...], Report]:
    """Append the rows to their streams, and wait until they are confirmed; the parts by stream.

    Raises ConfigurationError if a row names no stream, or the rows too many.
    """
    watch = TaskWatch(options.connection)
    nothing: tuple[Part, ...] = ()
    parts = written_with_retries(
        options.subject, batches, lambda rows: _write_once(options, route, rows), nothing
    )
    segments = [segment for part in parts for segment in part.segments]
    report = watch.report(
        "write",
        rows=sum(segment.rows for segment in segments),
        entries=sum(segment.entries for segment in segments),
        size_bytes=sum(segment.size_bytes for segment in segments),
    )
    where = " to " + ", ".join(repr(part.name) for part in parts) if parts else ""
    log_task(options.subject, where, report, to_stderr=options.task_log)
    return parts, report


def _write_once(
    options: WriteOptions, route: Route, rows: Iterable[pa.RecordBatch]
) -> tuple[Part, ...]:
    new_columns = arrow_schema_of(route.stored) if options.merge_schema else None
    writers: dict[str, SegmentWriter] = {}
    ids: dict[str, str] = {}
    try:
        for batch in rows:
            for name, routed in by_stream(batch, route):
                if name not in writers:
                    _check_count(options, len(writers) + 1)
                    ids[name] = prepare_stream(options.of_stream(name), route.stored)
                    writers[name] = sessions.segment_writer(
                        options.connection,
                        name,
                        ids[name],
                        compression=options.compression,
                        entry_bytes=options.entry_bytes,
                    )
                writers[name].write(routed, merge_schema=new_columns)
        return tuple(
            Part(name, ids[name], tuple(writer.finish())) for name, writer in writers.items()
        )
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise


def by_stream(batch: pa.RecordBatch, route: Route) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch by the streams that they name, in order. Raises ConfigurationError."""
    column = batch.column(route.column)
    if column.null_count:
        raise ConfigurationError(
            f"option routeColumn: {column.null_count} rows have null in {route.column!r}, which "
            "names no stream: filter them out, or give them a name (coalesce)"
        )
    rows = batch if route.keeps else batch.drop_columns([route.column])
    try:
        names = [str(name) for name in column.unique().to_pylist()]
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"option routeColumn: {error.object!r} in {route.column!r} is no UTF-8 text, and so "
            "names no stream"
        ) from None
    for name in names:
        if len(names) == 1:
            yield name, rows
        else:
            yield name, rows.filter(pc.equal(column, pa.scalar(name, column.type)))


def _check_count(options: WriteOptions, streams: int) -> None:
    if streams > STREAMS_PER_COMMIT_MAX:
        raise ConfigurationError(
            f"{options.subject}: the rows name more than {STREAMS_PER_COMMIT_MAX} streams, and one "
            "commit takes no more: route by a coarser column, or use several queries"
        )
