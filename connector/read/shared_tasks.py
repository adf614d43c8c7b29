"""Puts the partitions of several streams into tasks: small streams share one. Pure.

A task costs about 50 ms of Spark's own time whatever it reads, so a hundred small streams are read
by a few. All follows from the partitions of each stream, which follow from commits (rule T5).
"""

from __future__ import annotations

from collections.abc import Sequence

from connector.read.partitions import SeveralPartition, StreamPartition, StreamSpan
from spark_ledger.limits.connector import PARTITION_BYTES_MIN
from spark_ledger.stream.plan.partitions import PlanLimits

Part = StreamPartition | StreamSpan


def share_tasks(
    planned: Sequence[tuple[str, Sequence[Part]]], limits: PlanLimits
) -> list[SeveralPartition]:
    """Tasks for the partitions of each stream, in the order of the streams.

    A stream that is one small partition shares a task with those beside it, up to the size below
    which a task costs more than its data, as long as there are enough tasks.
    """
    spare = sum(len(parts) for _, parts in planned) - limits.min_partitions
    largest = PARTITION_BYTES_MIN
    if limits.max_bytes_per_partition is not None:
        largest = min(largest, limits.max_bytes_per_partition)
    tasks: list[list[tuple[str, Part]]] = []
    room = 0
    for name, parts in planned:
        for part in parts:
            is_small = len(parts) == 1 and isinstance(part, StreamPartition)
            size_bytes = part.plan.size_bytes if isinstance(part, StreamPartition) else largest
            if is_small and size_bytes <= room and spare > 0:
                tasks[-1].append((name, part))
                spare -= 1
            else:
                tasks.append([(name, part)])
                room = largest if is_small else 0
            room -= size_bytes
    return [SeveralPartition(tuple(task)) for task in tasks]
