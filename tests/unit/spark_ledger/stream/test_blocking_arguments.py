"""What is given to a method of the blocking face arrives at that on the loop, each in its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pyarrow as pa
import pytest

from spark_ledger.client.portal import BlockingPortal
from spark_ledger.stream import blocking
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.packs.optimizer import Optimizer
from spark_ledger.stream.plan.locate import Locator
from spark_ledger.stream.retention import blocking as blocking_retention
from spark_ledger.stream.retention.handle import StreamRetention
from spark_ledger.stream.several import AppendedStreams
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.world import table


class Called:
    """Notes what a method of a class was called with."""

    def __init__(self, kind: type, noted: dict[str, Any], **parts: object) -> None:
        self._kind, self._noted = kind, noted
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._kind, name)

        def call(*values: object, **named: object) -> Any:
            bound = inspect.signature(method).bind(self, *values, **named)
            arguments = {**bound.arguments, **bound.arguments.get("options", {})}
            self._noted.update(arguments)
            return SimpleNamespace(retention=None)

        return call


class Portal:
    """Runs nothing: what there would be to run are the answers of ``Called``."""

    def call(self, work: object) -> object:
        return work

    def iterate(self, work: object) -> Iterator[object]:
        yield work


def given_to(method: Any) -> dict[str, Any]:
    """Something else for each argument."""
    names = list(inspect.signature(method).parameters)[1:]
    given: dict[str, Any] = {name: object() for name in names if name != "options"}
    if "data" in given:
        given["data"] = table(0)
    if "options" in names:
        options = ("entry_bytes", "pack_bytes", "entries_min", "dry_run", "pace")
        given.update({name: object() for name in options})
    return given


def methods(kind: type, *without: str) -> list[str]:
    return [
        name
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in without
    ]


def check(method: Any, noted: dict[str, Any], given: dict[str, Any]) -> None:
    method(**given)
    arrived = {name: noted.get(name) for name in given}
    assert arrived == given


@pytest.mark.parametrize("name", methods(blocking.Stream, "refresh", "head", "close"))
def test_arguments_of_a_stream_arrive(name: str) -> None:
    noted: dict[str, Any] = {}
    parts = {"locator": Called(Locator, noted), "optimizer": Called(Optimizer, noted)}
    inner = Called(Stream, noted, retention=None, **parts)
    portal = cast(BlockingPortal, Portal())
    stream = blocking.Stream(portal, cast(Stream, inner), WeakSet())
    method = getattr(stream, name)
    check(method, noted, given_to(getattr(blocking.Stream, name)))


@pytest.mark.parametrize("name", methods(blocking_retention.StreamRetention))
def test_arguments_of_a_retention_arrive(name: str) -> None:
    noted: dict[str, Any] = {}
    inner = cast(StreamRetention, Called(StreamRetention, noted))
    retention = blocking_retention.StreamRetention(cast(BlockingPortal, Portal()), inner)
    given = given_to(getattr(blocking_retention.StreamRetention, name))
    check(getattr(retention, name), noted, given)


@pytest.mark.parametrize("name", ["create_stream", "append_to", "stream", "delete_stream"])
def test_arguments_of_a_connection_arrive(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: dict[str, Any] = {}
    connection = object.__new__(blocking.StreamConnection)
    connection._portal = cast(BlockingPortal, Portal())
    connection._handles = WeakSet()
    connection._streams = cast(StreamCatalog, Called(StreamCatalog, noted))
    connection._appended = cast(AppendedStreams, Called(AppendedStreams, noted))
    monkeypatch.setattr(connection, "_call", lambda work: work)
    given = given_to(getattr(blocking.StreamConnection, name))
    if name == "append_to":
        given["data"] = {"s": table(0), "t": pa.RecordBatch.from_pylist([{"n": 1}])}
    check(getattr(connection, name), noted, given)
