"""Sizes and times of what watches Spark's queries (``spark_ledger.spark``)."""

from __future__ import annotations

from typing import Final

REPORT_BYTES_MAX: Final = 4096
"""A report of a task has a dozen numbers: some 300 bytes."""

REPORT_SENT_AGAIN_S: Final = 0.05
"""How long a task waits for a listener whose queue is full. A report is worth no more than that."""

REPORT_BATCHES_MAX: Final = 64
"""Micro-batches of a run whose reports are kept until Spark's progress comes. It comes within the
next micro-batch; a failed one never gets any."""

SOCKET_PARENT_CHARACTERS_MAX: Final = 40
"""Linux allows 107 bytes for a socket's path; the names below the parent take up to 65."""

METRICS_QUERIES_MAX: Final = 256
"""Ended queries whose numbers are still served, so that the last value is seen: the newest."""
