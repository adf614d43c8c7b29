"""Runs the ``ledger`` command in this process, against a client in memory."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

import spark_ledger
from spark_ledger.cli import inspection
from spark_ledger.cli.app import main
from spark_ledger.client.blocking import LedgerConnection
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from tests.unit.spark_ledger.cli.fakes import FakeClient


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The client that commands get; a URI is set, so that a test need not give one."""
    fake = FakeClient()

    def connect(uri: str) -> FakeClient:
        fake.uris.append(uri)
        return fake

    monkeypatch.setattr(spark_ledger, "connect", connect)
    monkeypatch.setattr(LedgerConnection, "connect", connect)
    monkeypatch.setenv("SPARK_LEDGER_METADATA", "zk://from-environment:2181/ledgers")
    return fake


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> MemoryTree:
    """Of the cluster that commands look at."""
    tree = MemoryTree()

    @asynccontextmanager
    async def store(_uri: str) -> AsyncIterator[MetadataStore]:
        yield MemoryMetadataStore(tree)

    monkeypatch.setattr(inspection, "connected_store", store)
    return tree


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("ledgers", "read", "1", stdin=b"...")`` as a shell would, to its exit status."""

    def run_command(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_info:
            main(list(arguments))
        captured = capsysbinary.readouterr()
        status = exit_info.value.code
        assert isinstance(status, int)
        return Outcome(status, captured.out.decode(), captured.err.decode())

    return run_command
