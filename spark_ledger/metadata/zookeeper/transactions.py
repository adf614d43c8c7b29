"""A metadata transaction as kazoo sends it, and what its results mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions as kz
from kazoo.client import KazooClient

from spark_ledger.metadata.base import Check, Create, Delete, Operation, Put
from spark_ledger.metadata.zookeeper.errors import translated


def send_transaction(
    client: KazooClient, operations: Sequence[Operation], absolute: Callable[[str], str]
) -> Any:
    """Start it; kazoo's result object. ``absolute`` gives a path as the server knows it."""
    request = client.transaction()
    for operation in operations:
        target = absolute(operation.path)
        match operation:
            case Check(_, version):
                request.check(target, version)
            case Create(_, data):
                request.create(target, data)
            case Put(_, data, version):
                request.set_data(target, data, version)
            case Delete(_, version):
                request.delete(target, version)
    return request.commit_async()


def check_results(operations: Sequence[Operation], results: Sequence[Any]) -> None:
    """Raise the error of the operation that failed, if one did."""
    for operation, result in zip(operations, results, strict=True):
        if isinstance(result, kz.RolledBackError | kz.RuntimeInconsistency):
            continue  # undone, or not tried, because of another part
        if isinstance(result, Exception):
            raise translated(result, operation.path, "transaction") from result
