"""Installed as the top-level module ``pyspark_ledger``: Spark finds ``format("ledger")`` by it.

Spark imports every module named ``pyspark_*`` in a process of its own and registers the attribute
``DefaultSource``. One that raises at import would switch off the search for every other data
source too, so nothing is imported here until that attribute is asked for.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from connector import LedgerDataSource
    except ImportError as error:
        raise AttributeError(f"the ledger data source cannot be imported: {error}") from error
    return LedgerDataSource
