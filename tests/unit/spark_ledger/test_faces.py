"""Faces of one implementation, blocking or asyncio: each argument is handed on by its name."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from spark_ledger.aio import StreamClient
from spark_ledger.client.blocking import BlockingReader, LedgerConnection
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.stream import blocking
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.packs.optimizer import Optimizer
from spark_ledger.stream.plan.locate import Locator
from spark_ledger.stream.retention.blocking import StreamRetention
from spark_ledger.stream.retention.handle import StreamRetention as AsyncStreamRetention
from spark_ledger.stream.segment_writer import SegmentWriter as AsyncSegmentWriter
from spark_ledger.stream.several import AppendedStreams
from spark_ledger.stream.several import commit_to as several_commit_to
from spark_ledger.stream.stream import Stream as AsyncStream

BATCH = pa.record_batch({"n": pa.array([1], pa.int64())})
GIVEN: dict[str, Any] = {"data": BATCH, "parts": [(MagicMock(), [])]}
"""Where a face looks at what it hands on."""

NO_FACE = {"connect", "wait_for_any"}
"""Made with other arguments than the implementation takes; they have tests of their own."""


class Calls:
    """Stands in for an implementation, and keeps how it was called."""

    def __init__(self, kind: type, *, is_async: bool = False, **parts: type) -> None:
        self._kind, self._is_async = kind, is_async
        self._parts = {name: Calls(part) for name, part in parts.items()}
        self._made: list[tuple[inspect.Signature, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name in self._parts:
            return self._parts[name]
        return self.of(getattr(self._kind, name), is_method=True)

    def of(self, function: Callable[..., Any], *, is_method: bool = False) -> Callable[..., Any]:
        """A function of the same parameters."""
        signature = inspect.signature(function)
        if is_method:
            parameters = list(signature.parameters.values())[1:]
            signature = signature.replace(parameters=parameters)

        def call(*args: Any, **kwargs: Any) -> Any:
            found = signature.bind(*args, **kwargs).arguments
            self._made.append((signature, {**found, **found.pop("options", {})}))
            return _soon() if self._is_async else MagicMock(__radd__=lambda *_: 0)

        return call

    def clear(self) -> None:
        self._made.clear()
        for part in self._parts.values():
            part.clear()

    def all(self) -> list[tuple[inspect.Signature, dict[str, Any]]]:
        return [*self._made, *(each for part in self._parts.values() for each in part.all())]


async def _soon() -> MagicMock:
    return MagicMock()


def portal() -> MagicMock:
    return MagicMock(call=lambda work: work, iterate=lambda items: MagicMock())


def bare(kind: type[Any], **fields: Any) -> Any:
    made = object.__new__(kind)
    for name, value in {"_closed": False, "_portal": portal(), **fields}.items():
        setattr(made, name, value)
    return made


def ledger_connection(calls: Calls) -> Any:
    return bare(LedgerConnection, _client=calls)


def stream_connection(calls: Calls) -> Any:
    return bare(blocking.StreamConnection, _streams=calls, _appended=calls, _handles=set())


def several_streams(calls: Calls) -> Any:
    """Those of the asyncio client that go to the streams."""
    return bare(StreamClient, streams=calls, _appended=calls)


FACES: list[tuple[type, Callable[[Calls], Any], Calls]] = [
    (LedgerConnection, ledger_connection, Calls(LedgerClient)),
    (BlockingReader, lambda calls: BlockingReader(portal(), calls), Calls(LedgerReader)),  # type: ignore[arg-type]
    (StreamRetention, lambda calls: StreamRetention(portal(), calls), Calls(AsyncStreamRetention)),  # type: ignore[arg-type]
    (
        blocking.Stream,
        lambda calls: bare(blocking.Stream, _stream=calls, _handles=set()),
        Calls(AsyncStream, optimizer=Optimizer, locator=Locator),
    ),
    (
        blocking.SegmentWriter,
        lambda calls: blocking.SegmentWriter(portal(), calls),  # type: ignore[arg-type]
        Calls(AsyncSegmentWriter),
    ),
]


class Streams(StreamCatalog, AppendedStreams):
    """What both faces of a connection's streams stand before."""


FACES += [
    (blocking.StreamConnection, stream_connection, Calls(Streams)),
    (StreamClient, several_streams, Calls(Streams, is_async=True)),
]


def methods() -> Iterator[Any]:
    for kind, make, calls in FACES:
        for name, method in vars(kind).items():
            is_public = inspect.isfunction(method) and not name.startswith("_")
            if is_public and name not in NO_FACE and len(inspect.signature(method).parameters) > 1:
                yield pytest.param(
                    make, calls, method, id=f"{method.__qualname__}-{kind.__module__}"
                )


@pytest.mark.parametrize(("make", "calls", "method"), list(methods()))
def test_each_argument_is_handed_on(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Calls], Any],
    calls: Calls,
    method: Callable[..., Any],
) -> None:
    monkeypatch.setattr(blocking, "commit_to", calls.of(several_commit_to))
    if make is several_streams:
        above = calls.of(LedgerClient.create_ledger, is_method=True)
        monkeypatch.setattr(LedgerClient, "create_ledger", lambda _, **kw: above(**kw))
    calls.clear()
    parameters = list(inspect.signature(method).parameters.values())[1:]
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters:
        value = GIVEN.get(parameter.name, object())
        if parameter.name == "data" and method.__name__ == "append_to":
            value = {"a": BATCH}
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        elif parameter.kind is parameter.VAR_KEYWORD:
            named["exist_ok" if method.__name__ == "create_stream" else "dry_run"] = value
        else:
            positional.append(value)
    result = method(make(calls), *positional, **named)
    if asyncio.iscoroutine(result):
        asyncio.run(result)
    signature, found = calls.all()[-1]  # some check before they ask
    given = dict(zip([each.name for each in parameters], positional, strict=False)) | named
    for name, value in given.items():
        if method.__name__ == "commit_to":  # by stream, behind their faces
            stream, segments = GIVEN["parts"][0]
            changed = {"parts": [(stream._stream, segments)], "new_columns": [value]}
            value = changed.get(name, value)
        assert found.get(name, "not handed on") == value, name
    for parameter in parameters:  # what is left out means the same
        inner = signature.parameters.get(parameter.name)
        if inner is not None and inner.name != "new_columns":
            assert parameter.default == inner.default, parameter.name
