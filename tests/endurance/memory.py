"""What the processes of a Spark driver hold in memory, and whether that has grown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import psutil

MB: Final = 1 << 20

SLACK: Final = 1.1
"""Garbage that is yet to be collected, and arenas of malloc, swing by less."""

FLOOR_MB: Final = 16.0
"""Small processes swing by more than a share: a buffer of a few MB here and there."""

JUDGED: Final = ("heap_mb", "jvm_mb", "driver_mb", "workers_mb", "largest_worker_mb")


class Memory(NamedTuple):
    """One look at a driver in Python, its JVM, and the Python processes that this has started."""

    seconds: float
    batches: int
    """Micro-batches that were done, of all queries."""

    heap_mb: float
    """What lives in the JVM's heap, after a full collection."""

    jvm_mb: float
    """Resident, as the next ones."""

    driver_mb: float
    workers: int
    workers_mb: float
    """All together; what they share is counted once (PSS)."""

    largest_worker_mb: float


class Told(NamedTuple):
    """What a driver says of itself."""

    heap_bytes: int
    batches: int


def measured(driver: psutil.Process, told: Told, seconds: float) -> Memory:
    """Look now. Processes that end in the meantime are left out."""
    jvm, workers = 0, []
    for process in driver.children(recursive=True):
        try:
            if process.name() == "java":
                jvm += process.memory_info().rss
            else:
                workers.append(process.memory_full_info().pss)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return Memory(
        seconds=round(seconds, 1),
        batches=told.batches,
        heap_mb=round(told.heap_bytes / MB, 1),
        jvm_mb=round(jvm / MB, 1),
        driver_mb=round(driver.memory_info().rss / MB, 1),
        workers=len(workers),
        workers_mb=round(sum(workers) / MB, 1),
        largest_worker_mb=round(max(workers, default=0) / MB, 1),
    )


def thirds(samples: Sequence[Memory]) -> dict[str, tuple[float, float]]:
    """The median of each number in the first third of the looks, and in the last one."""
    third = len(samples) // 3
    first, last = samples[:third], samples[-third:]
    return {
        name: (
            statistics.median(getattr(each, name) for each in first),
            statistics.median(getattr(each, name) for each in last),
        )
        for name in (*JUDGED, "workers")
    }


def memory_growth(samples: Sequence[Memory]) -> list[str]:
    """What is more in the last third than in the first one, by more than its swing."""
    if len(samples) < 6:
        return ["too few looks to judge growth: run it for longer"]
    found = thirds(samples)
    return [
        f"{name} grew from {found[name][0]:.1f} to {found[name][1]:.1f}"
        for name in JUDGED
        if found[name][1] > found[name][0] * SLACK + FLOOR_MB
    ]
