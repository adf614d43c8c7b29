"""The Spark data source ``format("ledger")``.

``LedgerDataSource`` is loaded on first use, so that importing this package costs nothing. Spark
finds the source by the module ``pyspark_ledger``. ``register`` is for sessions in which it does
not: one ``pyspark_*`` module that fails at import switches Spark's search off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.datasource import LedgerDataSource

__all__ = ["LedgerDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make ``format("ledger")`` known to a SparkSession."""
    from connector.datasource import LedgerDataSource

    spark.dataSource.register(LedgerDataSource)


def __getattr__(name: str) -> type[LedgerDataSource]:
    if name == "LedgerDataSource":
        from connector.datasource import LedgerDataSource

        return LedgerDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
