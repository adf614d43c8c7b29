"""What a bookie says of itself: to clients, to the metadata store, and to its operators."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict

from bookie_server.bookie import Bookie
from bookie_server.config import BookieConfig
from bookie_server.core.read_only import Cause, why_read_only
from bookie_server.service.grpc_service import Description
from bookie_server.service.metrics import ServiceMetrics
from bookie_server.stall_watch import StallWatch
from bookie_server.storage.cookie import Cookie
from bookie_server.storage.stats import StorageStats
from spark_ledger.types import BookieState
from spark_ledger.version import __version__


class Report:
    """Reads what others change; any thread."""

    def __init__(
        self,
        config: BookieConfig,
        cookie: Cookie,
        bookie: Bookie,
        stalls: StallWatch,
        metrics: ServiceMetrics,
        fatal: Callable[[], str],
    ) -> None:
        """``fatal``: why the storage has failed for good; empty while it has not."""
        self._config = config
        self._cookie = cookie
        self._bookie = bookie
        self._stalls = stalls
        self._metrics = metrics
        self._fatal = fatal
        self._started_at = time.monotonic()

    def state(self) -> BookieState:
        """READ_ONLY after a failure, as entries that cannot be flushed would fill the memory, and
        while the disks are full or stall."""
        return BookieState.READ_ONLY if self._read_only() else BookieState.WRITABLE

    def why_read_only(self) -> str:
        """The most lasting reason; empty while the bookie is writable."""
        return next(iter(self._read_only().values()), "")

    def description(self) -> Description:
        """For whoever asks over the network."""
        stats = self._bookie.stats()
        return Description(
            cluster_id=self._cookie.cluster_id,
            version=__version__,
            state=self.state().value,
            ledgers=stats.ledger_storage.ledgers,
            journal_bytes=stats.journal.bytes_written,
            entry_log_bytes=stats.ledger_storage.entry_log_bytes_written,
            free_bytes=stats.disks.free_bytes,
            uptime_s=time.monotonic() - self._started_at,
            next_ledger_id=self._bookie.next_ledger_id(),
            scrubbed_at=stats.ledger_storage.scrub.ended_at,
            damaged=stats.ledger_storage.scrub.bad,
            lacking=stats.ledger_storage.scrub.lacking,
        )

    def status(self) -> dict[str, object]:
        """For ``/status``."""
        storage: StorageStats = self._bookie.stats()
        keeper = self._metrics.keeper()
        return {
            "bookie_id": self._cookie.bookie_id,
            "rack": self._config.rack,
            "pid": os.getpid(),
            **asdict(self.description()),
            "journal": storage.journal._asdict(),
            "ledger_storage": storage.ledger_storage,
            "append_bytes_in_flight": storage.append_bytes_in_flight,
            "adds_waiting": storage.adds_waiting,
            "failure": storage.failure,
            "metadata_restored": self._metrics.metadata_restored(),
            "read_only": self.why_read_only(),
            "stalled_reads": self._metrics.stalled_reads(),
            "reads_waiting": self._metrics.reads_waiting(),
            "collection": self._metrics.collection()._asdict(),
            "keeper": None if keeper is None else keeper._asdict(),
            "directories": storage.disks.status(storage.directories),
        }

    def exposition(self) -> bytes:
        """For ``/metrics``."""
        from bookie_server.service.prometheus import exposition  # loaded at the first scrape

        stats = self._bookie.stats()
        up = not (self._fatal() or stats.failure)
        return exposition(self._metrics, stats, up=up, read_only=self._read_only())

    def _read_only(self) -> dict[Cause, str]:
        """Why it is READ_ONLY, by cause."""
        bookie = self._bookie
        full, stall = bookie.disks.states.reason, self._stalls.stall
        return why_read_only(bookie.failure, full, stall, bookie.leaving)
