"""Prepares a stream for a write: it exists, and it takes rows of the DataFrame's schema.

Runs in the planner and commit processes beside Spark's driver, before any task starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from connector import sessions
from connector.options import WriteOptions
from connector.retry import RetryBudget, retry_transient
from connector.schema import (
    arrow_schema_of,
    spark_schema_of,
    spark_type_name,
    why_kept_out,
    why_refused,
)
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    SchemaMismatchError,
)
from spark_ledger.limits.connector import (
    RETRY_AT_START_S,
    RETRY_IN_TASK_S,
    RETRY_S,
    STREAM_CREATE_ATTEMPTS,
)
from spark_ledger.stream.declared import declared_columns
from spark_ledger.stream.model import ENTRY_BYTES_DEFAULT, Compression
from spark_ledger.types import BookieState

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream


def prepare_stream(options: WriteOptions, schema: StructType) -> str:
    """Open or create the stream; its id. A stream that is there is not changed: what mergeSchema
    adds is part of the commit (rule T19).

    Raises NoSuchStreamError if there is no stream and createStream=false, SchemaMismatchError
    naming the column if the stream does not take rows of ``schema``.
    """
    # A cluster that this process has reached has the right URI, and may have a query that runs.
    is_known = sessions.is_connected(options.connection)
    return retry_transient(
        lambda: _prepare(options, schema),
        f"stream {options.stream!r}: preparing a write",
        idempotent=True,
        budget_s=RETRY_S if is_known else RETRY_AT_START_S,
    )


def _prepare(options: WriteOptions, schema: StructType) -> str:
    subject = f"stream {options.stream!r}: "
    try:
        offered = arrow_schema_of(schema)
        stream = _open_or_create(options, offered)
        _check_columns(options, stream, schema, offered)
        return stream.config.stream_id
    except SchemaMismatchError as error:
        if str(error).startswith(subject):
            raise
        raise SchemaMismatchError(f"{subject}{error}") from error


def _check_columns(
    options: WriteOptions, stream: Stream, schema: StructType, offered: pa.Schema
) -> None:
    """``offered``: the schema as Arrow has it, by which the store goes. Raises
    SchemaMismatchError."""
    try:
        stream.check_schema(offered, merge_schema=options.merge_schema)
    except SchemaMismatchError as error:
        kept = spark_schema_of(stream.schema, include_metadata=False)
        reason = why_refused(kept, schema, merge=options.merge_schema)
        raise SchemaMismatchError(reason or str(error)) from error
    reason = why_kept_out(stream.schema, offered)
    if reason:
        raise SchemaMismatchError(reason)


def _open_or_create(options: WriteOptions, schema: pa.Schema) -> Stream:
    """Raises NoSuchStreamError, and ConflictError if the deletion of a former stream of this name
    does not end."""
    # Not a retry of a failure: another writer may create or delete the stream between our two
    # calls, so each round looks again at what there is.
    attempts, conflict = 0, None
    deletion = RetryBudget(f"stream {options.stream!r}: creating it", RETRY_S)
    while True:
        try:
            return sessions.fresh_stream(options.connection, options.stream)
        except NoSuchStreamError as error:
            if not options.create_stream:
                raise NoSuchStreamError(
                    f"{error}; or let the write create it with createStream=true"
                ) from error
            if conflict is not None and _is_name_in_use(options):
                # Neither to be opened nor to be created: the former one is being deleted, which
                # takes as long as it has ledgers, or until a keeper goes on with it.
                deletion.pause_or_raise(conflict)
            elif attempts == STREAM_CREATE_ATTEMPTS:
                raise
            else:
                attempts += 1
        _wait_for_bookies(options)
        try:
            _create(options, schema)
            conflict = None
        except ConflictError as error:
            conflict = error  # another writer created it first: open theirs


def _is_name_in_use(options: WriteOptions) -> bool:
    return options.stream in sessions.connection(options.connection).stream_names()


def _wait_for_bookies(options: WriteOptions) -> None:
    """Wait a little for as many bookies as a new stream needs: better than a task that finds none,
    and its repetitions. Raises NotEnoughBookiesError."""
    needed, subject = options.quorums.ensemble_size, f"stream {options.stream!r}"
    budget = RetryBudget(f"{subject}: creating it", RETRY_IN_TASK_S)
    while True:
        bookies = sessions.connection(options.connection).list_bookies()
        writable = sum(each.state is BookieState.WRITABLE for each in bookies)
        if writable >= needed:
            return
        budget.pause_or_raise(
            NotEnoughBookiesError(
                f"{subject} is not created: with the options ensembleSize = {needed} and "
                f"writeQuorum = {options.quorums.write_quorum} (given, or by default) it needs "
                f"{needed} bookies, and {writable} take writes: start more, or lower both"
            )
        )


def _create(options: WriteOptions, schema: pa.Schema) -> None:
    quorums = options.quorums
    try:  # before it is asked of the store, which knows no names of Spark's
        declared_columns(schema, options.key_columns, options.time_column, spark_type_name)
    except ConfigurationError as error:
        raise ConfigurationError(f"stream {options.stream!r}: {error}") from error
    sessions.connection(options.connection).create_stream(
        options.stream,
        schema=schema,
        ensemble_size=quorums.ensemble_size,
        write_quorum=quorums.write_quorum,
        ack_quorum=quorums.ack_quorum,
        compression=options.compression or Compression.LZ4.value,
        entry_bytes=options.entry_bytes or ENTRY_BYTES_DEFAULT,
        retention=options.retention,
        key_columns=options.key_columns,
        time_column=options.time_column,
    )
