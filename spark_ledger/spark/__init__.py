"""Watching Spark's streaming queries over ledgers: where each is, and how far behind.

``progress(query)`` is a typed value of a query's last micro-batch; ``LedgerListener`` logs a line
for every micro-batch and serves the numbers to Prometheus. pyspark is needed for the listener only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ledger.spark.progress import QueryProgress, SourceProgress, progress

if TYPE_CHECKING:
    from spark_ledger.spark.listener import LedgerListener

__all__ = ["LedgerListener", "QueryProgress", "SourceProgress", "progress"]


def __getattr__(name: str) -> type[LedgerListener]:
    if name == "LedgerListener":
        from spark_ledger.spark.listener import LedgerListener

        return LedgerListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
