"""The public names of spark-ledger. Importing it loads no pyspark, pyarrow, grpc or kazoo."""

from __future__ import annotations

from spark_ledger import errors
from spark_ledger.types import Dlsn
from spark_ledger.version import __version__

__all__ = ["Dlsn", "__version__", "errors"]
