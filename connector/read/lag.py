"""How far a query is behind its stream: the part of the newest offset that people read.

Spark shows a source's newest offset in the query's progress and gives it to nobody else. So this
offset has the end of the stream, which is a position like others, and beside it the stream's name
and what the query has still to read. It is reckoned from where the micro-batch that is being
planned will end.
"""

from __future__ import annotations

from typing import NamedTuple

from connector.read.offsets import OffsetJson
from spark_ledger.stream.model import Commit, Head
from spark_ledger.types import Dlsn


class Lag(NamedTuple):
    """What lies between a query and the end. ``milliseconds``: how long the oldest waiting row has
    been committed; 0 if none waits. An entry is not cut by bytes: of an entry that is half read,
    no byte waits."""

    rows: int = 0
    size_bytes: int = 0
    milliseconds: int = 0


NO_LAG = Lag()


def stream_lag(head: Head, position: Dlsn, commit: Commit, now_ms: int) -> Lag:
    """The lag at a position before the end, which lies in ``commit``."""
    rows, size_bytes = commit.rows_before, commit.bytes_before
    for segment in commit.segments:
        if segment.number < position.segment:
            rows += segment.rows
            size_bytes += segment.size_bytes
        elif segment.number == position.segment:
            begun = min(position.entry + (position.slot > 0), segment.entries)
            rows += sum(segment.entry_rows[: position.entry]) + position.slot
            size_bytes += segment.size_bytes * begun // segment.entries
    return Lag(
        max(0, head.rows - rows),
        max(0, head.size_bytes - size_bytes),
        max(0, now_ms - commit.time_ms),  # clocks differ: a commit may seem to be yet to come
    )


def with_lag(end: OffsetJson, name: str, lag: Lag) -> OffsetJson:
    """The newest offset with the lag beside it. ``PositionJson`` passes over these keys, so that
    the whole may be pasted as a position."""
    return {
        **end,
        "name": name,
        "rowsBehind": lag.rows,
        "bytesBehind": lag.size_bytes,
        "millisBehind": lag.milliseconds,
    }
