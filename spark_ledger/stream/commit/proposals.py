"""What callers ask to commit, checked before they write rows."""

from __future__ import annotations

import uuid

import pyarrow as pa

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.stream import KEY_FILTERS_BYTES_MAX
from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.arrow_types import AsyncRows
from spark_ledger.stream.format.schema import canonical_schema


def new_proposal(
    operation: str,
    sink_id: str | None,
    transaction_id: int | None,
    run_id: str,
    overwrite: bool,
    new_columns: pa.Schema | None,
) -> Proposal:
    """A proposal, without segments yet. Raises ConfigurationError for ids that are not valid.

    Checked before rows are written: no client could read a commit with such ids again.
    """
    columns = None if new_columns is None else canonical_schema(new_columns)
    if sink_id is None and transaction_id is None:
        return Proposal(
            (),
            uuid.uuid4().hex,
            0,
            run_id,
            overwrites=overwrite,
            is_remembered=False,
            new_columns=columns,
        )
    if sink_id is None or transaction_id is None:
        raise ConfigurationError(
            f"{operation}: give sink_id and transaction_id together, or neither"
        )
    return Proposal((), sink_id, transaction_id, run_id, overwrites=overwrite, new_columns=columns)


def columns_of(data: AsyncRows) -> pa.Schema | None:
    """The columns of data in memory, which count also without rows; None for data to come."""
    return data.schema if isinstance(data, pa.RecordBatch | pa.Table) else None


def with_list_within(proposal: Proposal, bytes_max: int) -> tuple[Proposal, bytes]:
    """The proposal with the list of its segments, which is so long at most if smaller key filters
    help: without one a reader looks into a segment, and a ledger for the list stays as long as the
    commit (rule T28). If nothing helps, the proposal as it is."""
    found, filter_bytes = proposal, KEY_FILTERS_BYTES_MAX
    data = whole = codec.encode_segment_list(proposal.segments)
    while len(data) > bytes_max and found.has_key_filters:
        filter_bytes //= 4
        found = proposal.with_segments(proposal.segments, filter_bytes)
        data = codec.encode_segment_list(found.segments)
    return (found, data) if len(data) <= bytes_max else (proposal, whole)
