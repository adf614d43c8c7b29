"""What ``BookieServer`` ties together: each part is tested by itself, and here that it is told."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from bookie_server import refetch
from bookie_server.bookie import Bookie
from bookie_server.collection.collector import LedgerCollector
from bookie_server.exit_codes import EXIT_OK
from bookie_server.identity import Identity
from bookie_server.keeper_process import Watched
from bookie_server.leaving import LeavingWatch
from bookie_server.refetch import Refetch
from bookie_server.registration import Registration
from bookie_server.service import admin
from bookie_server.service.grpc_server import GrpcServer
from bookie_server.service.grpc_service import BookieService
from bookie_server.service.guard.memory import MemoryGuard
from bookie_server.stall_watch import StallWatch
from spark_ledger.metadata.memory import MemoryMetadataStore
from tests.unit.bookie_server.test_server import Cluster, until
from tests.unit.bookie_server.test_server import cluster as cluster
from tests.unit.bookie_server.test_server_end import serving


def test_memory_is_looked_at_when_a_call_begins_or_a_message_comes(cluster: Cluster) -> None:
    """A guard that rests looks every few seconds only."""

    async def main() -> None:
        async with serving(cluster) as (bookie, _running):
            connections = bookie._service.connections
            guard = connections.on_sign.__self__  # type: ignore[attr-defined]
            assert isinstance(guard, MemoryGuard)
            assert guard._budget_bytes == cluster.config.memory_bytes
            guard._had_sign = False
            connections.given("p", 1)
            assert guard._had_sign
            guard._had_sign = False
            with connections.call("p"):
                assert guard._had_sign and guard._calls() == 1
            clients = bookie._service.clients
            clients._is_resting = True
            with connections.call("p"):
                assert not clients._is_resting, "who comes anew is looked at soon"

    asyncio.run(main())


def test_what_is_damaged_is_asked_for_while_the_bookie_serves(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Refetch] = []

    async def look(asking: Refetch) -> None:
        looks.append(asking)

    monkeypatch.setattr(refetch, "REFETCH_LOOK_S", 0.01)
    monkeypatch.setattr(Refetch, "look", look)

    async def main() -> None:
        async with serving(cluster) as (_bookie, _running):
            await until(lambda: len(looks) > 2)
            assert not looks[0]._is_accepted()
            monkeypatch.setattr(Identity, "is_restore_accepted", True)
            assert looks[0]._is_accepted()

    asyncio.run(main())


def test_health_is_that_of_storage_and_identity(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = msgspec.structs.replace(cluster.config.admin, enabled=True, port=0)
    cluster.config = msgspec.structs.replace(cluster.config, admin=settings)
    asked: list[Callable[[], bool]] = []
    make = admin.AdminServer.__init__

    def noting(made: admin.AdminServer, listener: Any, **given: Any) -> None:
        asked.append(given["is_healthy"])
        make(made, listener, **given)

    monkeypatch.setattr(admin.AdminServer, "__init__", noting)

    async def main() -> None:
        async with serving(cluster) as (bookie, _running):
            await until(lambda: bool(asked))
            (is_healthy,) = asked
            assert is_healthy()
            for name in ("_fatal", "_replaced"):
                setattr(bookie, name, "why")
                assert not is_healthy(), name
                setattr(bookie, name, "")
            with monkeypatch.context() as patch:
                patch.setattr(Bookie, "failure", property(lambda _: "a flush failed"))
                assert not is_healthy()
            assert is_healthy()

    asyncio.run(main())


STEPS: tuple[tuple[type, str], ...] = (
    (Refetch, "stop"),
    (LedgerCollector, "stop"),
    (LeavingWatch, "stop"),
    (Watched, "stop"),
    (admin.AdminServer, "stop"),
    (Registration, "stop"),
    (BookieService, "drain"),
    (GrpcServer, "stop"),
    (MemoryGuard, "stop"),
    (StallWatch, "stop"),
    (BookieService, "close"),
    (BookieService, "wait_for_reads"),
    (Identity, "release"),
    (Bookie, "close"),
    (MemoryMetadataStore, "close"),
)
"""Of a stop, in their order. Others hear that the bookie goes before it takes no calls; calls are
answered before what answers them ends; the stop is noted behind the last answer, while the
directories are locked; the session ends last."""


def test_stop_ends_all_parts_in_the_reverse_order_of_the_start(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.config = msgspec.structs.replace(
        cluster.config,
        admin=msgspec.structs.replace(cluster.config.admin, enabled=True, port=0),
        keeper=msgspec.structs.replace(cluster.config.keeper, enabled=True),
    )
    done: list[tuple[type, str]] = []

    def watched(owner: type, name: str) -> Callable[..., Any]:
        original = getattr(owner, name)

        def method(*of: Any, **named: Any) -> Awaitable[None] | None:
            done.append((owner, name))
            return original(*of, **named)  # type: ignore[no-any-return]

        return method

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, watched(owner, name))
    collects = gc.get_threshold()

    async def main() -> None:
        async with serving(cluster) as (bookie, running):
            await until(lambda: bookie._metrics.keeper() is not None)
            await asyncio.sleep(0.05)  # what follows the keeper is begun in the same turn
            assert gc.get_threshold() != collects
            del done[:]
            bookie._stop.set()
            assert await running == EXIT_OK
        assert gc.get_threshold() == collects

    asyncio.run(main())
    assert tuple(dict.fromkeys(done)) == STEPS


@pytest.mark.parametrize("why", ["_fatal", "_replaced", "not claimed"])
def test_stop_without_a_right_to_the_bookie_notes_nothing_and_answers_nobody(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    released: list[Identity] = []
    graces: list[float] = []
    stop = GrpcServer.stop

    async def stop_and_note(of: GrpcServer, grace_s: float) -> None:
        graces.append(grace_s)
        await stop(of, grace_s)

    async def release(identity: Identity) -> None:
        released.append(identity)
        await identity.close()

    monkeypatch.setattr(Identity, "release", release)
    monkeypatch.setattr(GrpcServer, "stop", stop_and_note)

    async def main() -> None:
        async with serving(cluster) as (bookie, running):
            if why == "not claimed":
                bookie._identity.is_claimed = False
            else:
                setattr(bookie, why, "why")
            bookie._stop.set()
            await running
        assert not released
        assert graces == [cluster.config.drain_timeout_s if why == "not claimed" else 0.0]

    asyncio.run(main())
