"""Reads the holds of a stream, and shows them to a commit that overwrites its rows (rule T16).

It decides nothing about truncations: see ``handle``.
"""

from __future__ import annotations

from spark_ledger.errors import ConflictError, NotFoundError, RetryableError
from spark_ledger.metadata.base import Check, Operation
from spark_ledger.stream.model import Head, StreamConfig
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.retention.format import decode_holds
from spark_ledger.stream.retention.rules import Hold, first_held
from spark_ledger.types import Versioned


async def read_holds(nodes: StreamNodes, config: StreamConfig) -> Versioned[tuple[Hold, ...]]:
    """The holds of a stream with this configuration. Raises NoSuchStreamError, CorruptionError."""
    if not config.has_retention:
        return Versioned((), 0)
    try:
        node = await nodes.store.get(nodes.holds_path)
    except NotFoundError as error:
        raise nodes.no_such_stream() from error
    return Versioned(decode_holds(node.value, nodes.holds_path), node.version)


async def checks_to_drop(
    nodes: StreamNodes, config: StreamConfig, before: Head, after: Head, *, is_undecided: bool
) -> list[Operation]:
    """The parts of a commit's transaction that see to holds if it drops rows: none if it does not.
    They fail if a hold came meanwhile. The first one of a stream comes with another version of the
    configuration, which each commit checks.

    Raises ConflictError if a hold keeps some of the rows, void or not, as for a truncation that was
    asked for. RetryableError instead if ``is_undecided``: a transaction of before may have dropped
    them, and the hold have come behind it.
    """
    number = after.earliest_commit
    if number == before.earliest_commit or not config.has_retention:
        return []
    holds = await read_holds(nodes, config)
    hold = first_held(holds.value)
    if hold is not None and hold.commit < number:
        error = RetryableError if is_undecided else ConflictError
        raise error(
            f"stream {nodes.name!r}: nothing was overwritten, because hold {hold.name!r} keeps the "
            f"rows from position {tuple(hold.position)} on; append instead, or remove the hold"
        )
    return [Check(nodes.holds_path, holds.version)]
