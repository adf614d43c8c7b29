"""Installed as the top-level module ``pyspark_ledger``: Spark finds ``format("ledger")`` by it.

A process beside Spark's driver imports every module named ``pyspark_*`` and registers its attribute
``DefaultSource``. A module that raises at import would switch off the search for all other data
sources too, so nothing is imported here until that attribute is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector import LedgerDataSource


def __getattr__(name: str) -> type[LedgerDataSource]:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from connector import LedgerDataSource
    except ImportError as error:
        raise AttributeError(f"the ledger data source cannot be imported: {error}") from error
    return LedgerDataSource
