"""The partitions that Spark pickles into its tasks: what to read, with nothing to look up first.

Made on the driver's side (``Source.plan``), read in the tasks (``task.read_partition``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql.datasource import InputPartition

from spark_ledger.stream.model import Segment, SegmentRange
from spark_ledger.stream.plan.balance import FirstReads
from spark_ledger.stream.plan.partitions import Plan, Span
from spark_ledger.types import EntryId, LedgerId

_FlatRange: TypeAlias = tuple[
    int,
    LedgerId,
    EntryId,
    EntryId,
    int,
    int,
    int,
    tuple[int, ...],
    int | None,
    tuple[int, int],
    tuple[int, int],
    int,
    int,
    int,
]
"""The fields of a Segment, then those of its SegmentRange."""


class StreamPartition(InputPartition):
    """Ranges of a stream's segments. ``stream_id`` tells the stream from others of its name.

    Pickled as flat tuples: a micro-batch over thousands of small commits would otherwise spend
    most of its planning time in pickling objects one by one.
    """

    def __init__(self, stream_id: str, plan: Plan) -> None:
        super().__init__(None)
        self.stream_id = stream_id
        self.plan = plan

    def __reduce__(
        self,
    ) -> tuple[Callable[..., StreamPartition], tuple[str, tuple[_FlatRange, ...], int, FirstReads]]:
        flat = tuple(
            (
                part.segment.number,
                part.segment.ledger_id,
                part.segment.first_entry,
                part.segment.last_entry,
                part.segment.rows,
                part.segment.size_bytes,
                part.segment.schema_version,
                part.segment.entry_rows,
                part.segment.written_version,
                part.start,
                part.end,
                part.commit,
                part.commit_time_ms,
                part.segment_row,
            )
            for part in self.plan.ranges
        )
        return _stream_partition, (self.stream_id, flat, self.plan.replica_hint, self.plan.reads)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StreamPartition)
            and other.stream_id == self.stream_id
            and other.plan == self.plan
        )

    def __hash__(self) -> int:
        return hash(self.plan)


def _stream_partition(
    stream_id: str, flat: tuple[_FlatRange, ...], replica_hint: int, reads: FirstReads
) -> StreamPartition:
    ranges = tuple(SegmentRange(Segment(*fields[:9]), *fields[9:]) for fields in flat)
    return StreamPartition(stream_id, Plan(ranges, replica_hint, reads))


class StreamSpan(InputPartition):
    """Rows of consecutive commits of a stream, which the task looks up. ``stream_id`` tells the
    stream from others of its name."""

    def __init__(self, stream_id: str, span: Span) -> None:
        super().__init__(None)
        self.stream_id = stream_id
        self.span = span


class SeveralPartition(InputPartition):
    """Parts of several streams, by the name of each: one after the other in one task. A part is a
    ``StreamPartition`` or a ``StreamSpan``."""

    def __init__(self, parts: tuple[tuple[str, StreamPartition | StreamSpan], ...]) -> None:
        super().__init__(None)
        self.parts = parts


class LedgerPartition(InputPartition):
    """Entries ``first_entry`` .. ``last_entry`` of a raw ledger, both included."""

    def __init__(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        replica_hint: int,
        reads: FirstReads | None = None,
    ) -> None:
        super().__init__(None)
        self.reads = reads or FirstReads()
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.last_entry = last_entry
        self.replica_hint = replica_hint
