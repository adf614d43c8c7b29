"""What the service counts. Plain numbers on the hot path; Prometheus sees them when it scrapes.

Everything is written on the service thread, so nothing here locks. The thread of a scrape reads it
at the same time, and may see one counter a moment before another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bookie_server.core.collection import CollectionStats
from spark_ledger.types import BookieStatus

LATENCY_BOUNDS_S: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of latency buckets, from a journal sync on a fast disk to a client's timeout."""


class Histogram:
    """Counts observations by bucket; the last bucket takes what is above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it) as Prometheus wants them."""
        result: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            result.append((bound, float(running)))
        return result


class KeeperFigures(NamedTuple):
    """What the keeper of the cluster has written down, as a bookie read it last."""

    elected: bool = False
    """Whether the cluster has one."""
    here: bool = False
    """Whether it is a process of this bookie."""
    passed_at: float = 0.0
    """When its last pass ended, in seconds since 1970."""
    open: int = 0
    open_of_the_dead: int = 0
    unnamed: int = 0
    unnamed_of_the_dead: int = 0
    locked: int = 0
    failing: int = 0
    reclaimable_commits: int = 0
    reclaimable_bytes: int = 0
    unlisted: int = 0
    """What the last audit found."""
    audited_at: float = 0.0
    recovered: int = 0
    deleted: int = 0
    reclaimed: int = 0
    streams_finished: int = 0
    audit_deleted: int = 0
    packs: int = 0
    packed_commits: int = 0
    packed_bytes: int = 0


class RepairFigures(NamedTuple):
    """What repair has written down, as a bookie read it last."""

    looked_at: float = 0.0
    """When the auditor looked last, in seconds since 1970."""
    gone_bookies: int = 0
    lost_bookies: int = 0
    stopped: bool = False
    marked: int = 0
    marked_at_one: int = 0
    failing: int = 0
    misplaced: int = 0
    """As the last look at all ledgers found them."""
    checked_at: float = 0.0
    with_holes: int = 0
    """What the last check found."""
    repaired: int = 0
    copied_entries: int = 0
    copied_bytes: int = 0
    source_waited_s: float = 0.0


class ServiceMetrics:
    """Counters of the service since the start of the process."""

    def __init__(self) -> None:
        self.adds: Counter[BookieStatus] = Counter()
        """Runs answered, by status."""
        self.entries_added = 0
        self.bytes_added = 0
        self.add_latency = Histogram()
        """From decoding a run to its answer."""
        self.metadata_restored: Callable[[], str] = str
        """What to say if the metadata store went back in time; empty if it did not."""
        self.collection: Callable[[], CollectionStats] = CollectionStats
        """How the garbage collection goes."""
        self.keeper: Callable[[], KeeperFigures | None] = _no_keeper
        self.repair: Callable[[], RepairFigures | None] = _no_repair
        """How the keeper goes; None where this bookie does not look."""
        self.append_streams = 0
        """Append streams open now."""
        self.reads: Counter[BookieStatus] = Counter()
        """Range reads, by how they ended."""
        self.bytes_read = 0
        self.read_latency = Histogram()
        self.fences: Counter[BookieStatus] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        """Finished calls by method and grpc code."""
        self.calls_in_progress: Counter[str] = Counter()
        self.long_polls = 0
        """Tail requests held now."""
        self.connections_ended: Counter[str] = Counter()
        """Connections that the bookie has hung up on, by reason."""
        self.calls_refused: Counter[str] = Counter()
        """Calls above the bound of their kind, by kind."""
        self.stalled_reads: Callable[[], dict[str, str]] = dict
        """Ledger directories that do not answer reads, and why that is said."""
        self.reads_waiting: Callable[[], int] = int
        """Reads and lists that wait for a thread of their directory."""
        self.answer_bytes: Callable[[], int] = int
        """Bytes read for clients and not sent yet."""

    def adds_completed(
        self, status: BookieStatus, runs: int, entries: int, size_bytes: int, seconds: float
    ) -> None:
        """Runs were answered, each after so many seconds."""
        self.adds[status] += runs
        if status is BookieStatus.OK:
            self.entries_added += entries
            self.bytes_added += size_bytes
            self.add_latency.observe(seconds, runs)

    def read_ended(self, status: BookieStatus, size_bytes: int, seconds: float) -> None:
        """One range read was answered to its end."""
        self.reads[status] += 1
        self.bytes_read += size_bytes
        self.read_latency.observe(seconds)


def _no_keeper() -> KeeperFigures | None:
    return None


def _no_repair() -> RepairFigures | None:
    return None
