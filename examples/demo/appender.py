"""A steady writer beside the Spark job, which measures how long each append takes."""

from __future__ import annotations

import statistics
import threading
import time

from spark_ledger.errors import LedgerError
from spark_ledger.stream.blocking import StreamConnection

PAYLOAD = b"x" * 1024
PAUSE_S = 0.002


class SteadyAppender:
    """Appends 1 KiB entries to a ledger of its own, one after the other, until it is stopped."""

    def __init__(self, client: StreamConnection) -> None:
        self._writer = client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        self.latencies: list[tuple[float, float]] = []
        """When each append began, and the seconds until it was confirmed."""
        self.error: LedgerError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="appender", daemon=True)
        self._thread.start()

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def bookies(self) -> tuple[str, ...]:
        """The bookies it writes to now."""
        return self._writer.metadata.last_fragment.bookies

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                begin = time.monotonic()
                self._writer.append(PAYLOAD)
                self.latencies.append((begin, time.monotonic() - begin))
                time.sleep(PAUSE_S)
        except LedgerError as error:
            self.error = error

    def stop(self) -> int:
        """Close the ledger; how many appends were confirmed.

        Raises the LedgerError of an append that failed.
        """
        self._stopping.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        self._writer.close()
        return len(self.latencies)

    def longest_wait_s(self, since: float, until: float) -> float:
        """The longest duration of the appends that were in flight at any time in this span."""
        waits = [took for begin, took in self.latencies if begin <= until and begin + took >= since]
        return max(waits, default=0.0)

    def median_s(self) -> float:
        return statistics.median(took for _, took in self.latencies)
