"""ledger keeper run: it ends well when it is told to, and says so when it cannot go on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import UnauthorizedError
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import (
    AUDIT_PATH,
    PACKED_PATH,
    AuditState,
    PackedNode,
    Unlisted,
    read_audit,
)
from spark_ledger.keeper.optimizing import Packable
from spark_ledger.metadata import connect as connecting
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.stream.packs.optimizer import Packed
from spark_ledger.transport.memory import MemoryTransport
from tests.unit.spark_ledger.cli.conftest import Run

COMMAND = ("keeper", "run", "--metadata", "zk://h:2181/ledgers")


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryTree:
    tree = MemoryTree()

    async def connect(_uri: str) -> LedgerClient:
        return await LedgerClient.over(MemoryMetadataStore(tree), MemoryTransport({}))

    async def open_store(_uri: str) -> MemoryMetadataStore:
        return MemoryMetadataStore(tree)

    monkeypatch.setattr(LedgerClient, "connect", connect)
    monkeypatch.setattr(connecting, "open_store", open_store)
    return tree


def test_keeper_that_cannot_go_on_ends_with_its_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_keeper: Keeper, _stop: asyncio.Event) -> None:
        raise UnauthorizedError("the credentials do not allow it")

    monkeypatch.setattr(Keeper, "run", refused)
    ended = run(*COMMAND)
    assert ended.status == 1
    assert "the credentials do not allow it" in ended.err


def test_keeper_that_is_told_to_end_ends_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits(_keeper: Keeper, stop: asyncio.Event) -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        assert stop.is_set()

    monkeypatch.setattr(Keeper, "run", waits)
    assert run(*COMMAND).status == 0


def audited(tree: MemoryTree) -> AuditState:
    found = asyncio.run(read_audit(MemoryMetadataStore(tree)))
    assert found is not None
    return found.value


def test_audit_is_asked_for_and_the_status_says_so(run: Run, cluster: MemoryTree) -> None:
    asked = run("keeper", "audit", *COMMAND[2:])
    assert asked.status == 0 and "ledger keeper status" in asked.out
    assert audited(cluster).is_asked
    assert run("keeper", "audit", *COMMAND[2:]).status == 0, "once more does no harm"
    assert "audit: begins soon" in run("keeper", "status", *COMMAND[2:]).out


def test_status_says_what_audits_found(run: Run, cluster: MemoryTree) -> None:
    last = Unlisted(ledgers=5, user_bytes=2048, deleted=3)
    state = AuditState(begun_s=9.0, ended_ms=10**12, last=last, deleted=8, unread=("orders",))
    asyncio.run(MemoryMetadataStore(cluster).create(AUDIT_PATH, encode_node(state)))
    said = run("keeper", "status", *COMMAND[2:]).out
    assert "under way" in said and "could not read orders" in said
    assert "found 5 ledgers (2.0 KiB) that nothing names, deleted 3; 8 by all audits" in said
    fields = json.loads(run("keeper", "status", "--json", *COMMAND[2:]).out)
    assert fields["audit"]["last"]["deleted"] == 3


def test_dry_audit_of_a_cluster_in_order_finds_nothing(run: Run) -> None:
    found = run("keeper", "audit", "--dry-run", "--json", *COMMAND[2:])
    assert (found.status, json.loads(found.out)) == (0, [])


def test_status_says_what_was_packed(run: Run, cluster: MemoryTree) -> None:
    node = PackedNode(packs=3, commits=700, copied_bytes=9_000)
    asyncio.run(MemoryMetadataStore(cluster).create(PACKED_PATH, encode_node(node)))
    fields = json.loads(run("keeper", "status", "--json", *COMMAND[2:]).out)
    assert fields["packed"] == {"packs": 3, "commits": 700, "copied_bytes": 9_000}


def test_dry_run_says_what_would_be_packed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def packable(_keeper: Keeper) -> AsyncGenerator[Packable, None]:
        yield Packable("orders", Packed(4, 3, 6, 600, 2048, 9, None))

    monkeypatch.setattr(Keeper, "packable", packable)
    said = run(*COMMAND, "--dry-run").out
    assert "stream orders: commits 4..6 are packed: 9 small entries, 2.0 KiB" in said
    fields = json.loads(run(*COMMAND, "--dry-run", "--json").out)
    assert fields == [{"stream": "orders", "due": "pack", "first_commit": 4, "commits": 3}]
