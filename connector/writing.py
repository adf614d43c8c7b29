"""What batch and streaming writes have in common: the stream exists and fits, tasks append."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.types import StructType

from connector import sessions
from connector.options import WriteOptions
from connector.patience import START_PATIENCE_S, patiently
from connector.schema import arrow_schema_of
from spark_ledger.errors import ConflictError, NoSuchStreamError, SchemaMismatchError
from spark_ledger.stream.model import ENTRY_BYTES_DEFAULT, Compression, Segment

_CREATE_ATTEMPTS: Final = 3


def prepare_stream(options: WriteOptions, schema: StructType) -> None:
    """On the driver, before tasks start: the stream exists and takes rows of this schema.

    Raises NoSuchStreamError (with createStream=false) and SchemaMismatchError naming the column.
    """
    patiently(
        lambda: _prepare(options, schema),
        f"stream {options.stream!r}: preparing a write",
        idempotent=True,
        patience_s=START_PATIENCE_S,
    )


def _prepare(options: WriteOptions, schema: StructType) -> None:
    try:
        offered = arrow_schema_of(schema)
        stream = _open_or_create(options, offered)
        if options.merge_schema:
            stream.merge_schema(offered)
        else:
            stream.check_schema(offered)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"stream {options.stream!r}: {error}") from error


def _open_or_create(options: WriteOptions, offered: Any) -> Any:
    for _ in range(_CREATE_ATTEMPTS):
        try:
            return sessions.fresh_stream(options.connection, options.stream)
        except NoSuchStreamError as error:
            if not options.create_stream:
                raise NoSuchStreamError(
                    f"{error}; or let the write create it with createStream=true"
                ) from error
        try:
            _create(options, offered)
        except ConflictError:
            continue  # somebody was faster, which is as good: open theirs
    return sessions.fresh_stream(options.connection, options.stream)


def _create(options: WriteOptions, offered: Any) -> None:
    quorums = options.quorums
    sessions.connection(options.connection).create_stream(
        options.stream,
        schema=offered,
        ensemble_size=quorums.ensemble_size,
        write_quorum=quorums.write_quorum,
        ack_quorum=quorums.ack_quorum,
        compression=options.compression or Compression.LZ4.value,
        entry_bytes=options.entry_bytes or ENTRY_BYTES_DEFAULT,
    )


def write_segments(options: WriteOptions, batches: Iterator[Any]) -> tuple[Segment, ...]:
    """In a task: append the rows and wait until they are confirmed. No rows, no entry.

    The writer is this process's and keeps its ledger open for the next task. After a failure
    nothing of this attempt can become visible: only the segments returned here can be committed.
    """
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return ()
    writer = sessions.segment_writer(
        options.connection,
        options.stream,
        compression=options.compression,
        entry_bytes=options.entry_bytes,
    )
    try:
        writer.write(first)
        for batch in batches:
            writer.write(batch)
        return tuple(writer.finish())
    except BaseException:
        writer.abandon()
        raise
