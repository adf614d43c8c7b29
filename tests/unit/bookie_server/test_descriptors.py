"""How a bookie shares out its file descriptors, and that a server keeps to its part."""

from __future__ import annotations

import asyncio
import resource
from contextlib import ExitStack

import pytest

from bookie_server.descriptors import raise_limit, share_out
from bookie_server.service import admin
from bookie_server.service.grpc_server import GrpcServer
from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.bookie import (
    BOOKIE_ADMIN_CONNECTIONS_MAX,
    BOOKIE_CONNECTIONS_MAX,
    BOOKIE_OPEN_LOGS_MAX,
)
from spark_ledger.types import BookieId
from tests.contracts.scripted_bookie import ScriptedBookie


@pytest.mark.parametrize("directories", [1, 2, 10])
@pytest.mark.parametrize("limit", [600, 1024, 4096, 65_536, 1 << 20])
def test_share_out_any_limit_leaves_the_storage_its_part(limit: int, directories: int) -> None:
    share = share_out(limit, directories)
    storage = limit - share.connections
    assert 8 <= share.open_logs <= BOOKIE_OPEN_LOGS_MAX
    assert storage >= 96 + directories * (8 + share.open_logs)
    assert storage >= min(limit // 2, 96 + directories * (8 + BOOKIE_OPEN_LOGS_MAX)) - directories
    assert 0 < share.connections <= BOOKIE_CONNECTIONS_MAX


def test_share_out_too_low_a_limit_is_refused_with_the_one_that_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="needs 224"):
        share_out(223, 1)
    assert share_out(224, 1).connections == 112


def test_raise_limit_takes_the_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _which, pair: limits.append(pair))
    assert raise_limit() == 4096 == raise_limit()
    assert limits[1:] == [(4096, 4096)], "once"
    limits[:] = [(1024, resource.RLIM_INFINITY)]
    assert raise_limit() == 1 << 20


def test_raise_limit_that_is_not_allowed_uses_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_which: int, _pair: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit() == 1024


async def closed_of(port: int, count: int, *, close_expected: int) -> int:
    """How many of so many new connections the server closes."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    with ExitStack() as closing:
        for _reader, writer in connections:
            closing.callback(writer.close)
        reads = [asyncio.ensure_future(_until_closed(reader)) for reader, _writer in connections]
        deadline = asyncio.get_running_loop().time() + 20
        while sum(read.done() for read in reads) < close_expected:
            assert asyncio.get_running_loop().time() < deadline, "they stay open"
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        closed = sum(read.done() for read in reads)
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    return closed


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1024):
            pass
    except ConnectionError:
        return


def test_connections_beyond_their_number_are_closed_at_once() -> None:
    async def main() -> None:
        service = BookieService(
            ScriptedBookie(),
            BookieId("b"),
            describe=lambda: Description("c", "1", "writable", 0, 0, 0, 0, 0.0),
            metrics=ServiceMetrics(),
        )
        server = GrpcServer(service, ServiceMetrics(), connections_max=3)
        port = await server.start("127.0.0.1", 0)
        assert await closed_of(port, 8, close_expected=5) == 5
        await server.stop(0.0)
        service.close()

    asyncio.run(main())


def test_connections_to_the_admin_port_beyond_their_number_are_closed_at_once() -> None:
    async def main() -> None:
        listener = admin.bind("127.0.0.1", 0)
        server = admin.AdminServer(
            listener, status=dict, metrics=lambda: b"", is_healthy=lambda: True
        )
        await server.start()
        count = BOOKIE_ADMIN_CONNECTIONS_MAX + 7
        assert await closed_of(listener.getsockname()[1], count, close_expected=7) == 7
        await server.stop()

    asyncio.run(main())
