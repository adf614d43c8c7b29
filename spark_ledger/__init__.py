"""The public names of spark-ledger. Importing it loads no pyspark, pyarrow, grpc or kazoo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ledger import errors
from spark_ledger.types import Dlsn
from spark_ledger.version import __version__

if TYPE_CHECKING:
    from types import ModuleType

    from spark_ledger import aio, local, spark
    from spark_ledger.stream.blocking import StreamConnection


def connect(uri: str, **options: object) -> StreamConnection:
    """Connect to a cluster: ``with spark_ledger.connect("zk://host:2181/ledgers") as client: ...``

    ``options`` are the fields of ``spark_ledger.config.ClientConfig``.

    Raises ConfigurationError if the URI is malformed or an option is unknown,
    MetadataUnavailableError if ZooKeeper does not answer.
    """
    from spark_ledger.stream.blocking import StreamConnection

    return StreamConnection.connect(uri, **options)


_SUBMODULES = ("aio", "local", "spark")


def __getattr__(name: str) -> ModuleType:
    """``spark_ledger.aio``, ``.local`` and ``.spark`` without an import of their own, on use."""
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"spark_ledger.{name}")
    raise AttributeError(f"module 'spark_ledger' has no attribute {name!r}")


__all__ = ["Dlsn", "__version__", "aio", "connect", "errors", "local", "spark"]
