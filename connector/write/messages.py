"""What writer tasks tell the driver: the segments they wrote, and who they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from spark_ledger.stream.model import Segment


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):  # type: ignore[misc]
    """One task attempt's result. Only what a message names can become visible, and only in the
    stream with that id: a later one of the same name has other schemas.

    ``query_id``, ``run_id`` and ``batch_id`` are those of the micro-batch; in a batch write they
    are empty and -1.
    """

    partition: int
    attempt: int
    stream_id: str
    segments: tuple[Segment, ...] = ()
    query_id: str = ""
    run_id: str = ""
    batch_id: int = -1


def in_partition_order(messages: Iterable[TaskWritten | None]) -> tuple[Segment, ...]:
    """All segments, so that their numbers follow the partitions."""
    present = [message for message in messages if message is not None]
    present.sort(key=lambda message: message.partition)
    return tuple(segment for message in present for segment in message.segments)
