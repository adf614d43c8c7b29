"""What batch and streaming writes have in common: the stream exists and fits, tasks append."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from connector import sessions
from connector.options import WriteOptions
from connector.retry import START_PATIENCE_S, TASK_PATIENCE_S, Patience, patiently
from connector.schema import arrow_schema_of
from spark_ledger.errors import (
    ConflictError,
    FencedError,
    LedgerClosedError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    RetryableError,
    SchemaMismatchError,
)
from spark_ledger.limits import MIB
from spark_ledger.stream.model import ENTRY_BYTES_DEFAULT, Compression, Segment

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream

_CREATE_ATTEMPTS: Final = 3

KEPT_BYTES_MAX: Final = 16 * MIB
"""Arrow bytes a task keeps to write them again: most micro-batches, and little memory."""

_PASSING: Final = (
    RetryableError,
    OutcomeUnknownError,
    NotEnoughBookiesError,
    FencedError,
    LedgerClosedError,
)
"""Failures that a new ledger may not meet. That adds may have taken effect is no obstacle: they are
in no commit."""


def prepare_stream(options: WriteOptions, schema: StructType) -> str:
    """On the driver, before tasks start: the stream exists and takes rows of this schema. Its id.

    Raises NoSuchStreamError (with createStream=false) and SchemaMismatchError naming the column.
    """
    return patiently(
        lambda: _prepare(options, schema),
        f"stream {options.stream!r}: preparing a write",
        idempotent=True,
        patience_s=START_PATIENCE_S,
    )


def _prepare(options: WriteOptions, schema: StructType) -> str:
    where = f"stream {options.stream!r}: "
    try:
        offered = arrow_schema_of(schema)
        stream = _open_or_create(options, offered)
        if options.merge_schema:
            stream.merge_schema(offered)
        stream.check_schema(offered)
        return stream.config.stream_id
    except SchemaMismatchError as error:
        if str(error).startswith(where):
            raise
        raise SchemaMismatchError(f"{where}{error}") from error


def _open_or_create(options: WriteOptions, offered: Any) -> Stream:
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


def write_segments(
    options: WriteOptions, stream_id: str, batches: Iterator[Any]
) -> tuple[Segment, ...]:
    """In a task: append the rows and wait until they are confirmed. No rows, no entry.

    The writer is this process's and keeps its ledger open for the next task. After a failure
    nothing of this attempt can become visible: only the segments returned here can be committed.
    A part that is small enough to keep is written again while the failure may pass; else Spark
    has to run the task again.
    """
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return ()
    rows = _Rewindable(first, batches)
    patience = Patience(f"stream {options.stream!r}: writing", TASK_PATIENCE_S)
    while True:
        try:
            return _write_once(options, stream_id, rows)
        except _PASSING as error:
            if not rows.is_kept:
                raise
            patience.pause_or_raise(error)


def _write_once(options: WriteOptions, stream_id: str, rows: Iterable[Any]) -> tuple[Segment, ...]:
    writer = sessions.segment_writer(
        options.connection,
        options.stream,
        stream_id,
        compression=options.compression,
        entry_bytes=options.entry_bytes,
    )
    try:
        for batch in rows:
            writer.write(batch)
        return tuple(writer.finish())
    except BaseException:
        writer.abandon()
        raise


class _Rewindable:
    """The batches of a task, from the first one on each time they are gone through, as long as all
    that were drawn fit in ``KEPT_BYTES_MAX``."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self._rest = rest
        self._kept: list[Any] = [first]
        self._kept_bytes: int = first.nbytes

    @property
    def is_kept(self) -> bool:
        """Whether it can be gone through once more."""
        return self._kept_bytes <= KEPT_BYTES_MAX

    def __iter__(self) -> Iterator[Any]:
        yield from tuple(self._kept)
        for batch in self._rest:
            self._kept_bytes += batch.nbytes
            if self.is_kept:
                self._kept.append(batch)
            else:
                self._kept.clear()
            yield batch
