"""Rules for paths, sizes and versions that every metadata store checks before it acts."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import METADATA_REQUEST_BYTES_MAX
from spark_ledger.metadata.base import Check, Create, Operation, Put


def check_path(path: str) -> str:
    """The path itself, if it is relative and every level has a name ZooKeeper accepts.

    Raises ConfigurationError: a path holds names that users choose (streams, bookies), so a bad
    one is theirs and must not reach the store, where ``..`` or a slash would name another node.
    """
    for name in path.split("/"):
        if not name or name in {".", ".."} or not name.isprintable():
            raise ConfigurationError(
                f"metadata path {path!r}: each level needs a printable name other than '.' and '..'"
            )
    return path


def check_size(path: str, size_bytes: int) -> None:
    """Refuse what ZooKeeper would answer by dropping the connection, without a reason."""
    if size_bytes > METADATA_REQUEST_BYTES_MAX:
        raise ConfigurationError(
            f"metadata node {path!r}: {size_bytes} bytes in one request, "
            f"at most {METADATA_REQUEST_BYTES_MAX} are possible"
        )


def check_operations(operations: Sequence[Operation]) -> None:
    """Check each part of a transaction, and the size of all of them together."""
    size_bytes = 0
    for operation in operations:
        check_path(operation.path)
        if isinstance(operation, Create | Put):
            size_bytes += len(operation.data)
        if isinstance(operation, Check | Put):
            assert operation.version >= 0, "a compare-and-set names the version it has read"
    if operations:
        check_size(operations[0].path, size_bytes)


def parent_of(path: str) -> str:
    """The path one level up; the root is the empty string."""
    return path.rpartition("/")[0]
