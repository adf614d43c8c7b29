"""How long an add took, as metrics tell it, and the address that a bookie is told to listen at."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_server.service import admin, answered_adds, append_session
from bookie_server.service.grpc_server import GrpcServer
from spark_ledger.errors import ConfigurationError
from tests.unit.bookie_server.service import test_append_session
from tests.unit.bookie_server.service.test_append_session import settle
from tests.unit.bookie_server.service.test_grpc_service import Fixture, on_loop


def test_add_of_a_long_message_takes_from_when_its_message_was_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not from its own turn: an operator would not see that a message waits for its turns."""
    now_s = 100.0
    clock = SimpleNamespace(perf_counter=lambda: now_s)

    @test_append_session.on_loop
    async def adds(f: test_append_session.Fixture) -> None:
        add = f.bookie.add

        def add_slowly(*given: Any, **named: Any) -> None:
            nonlocal now_s
            now_s += 1.0
            add(*given, **named)

        monkeypatch.setattr(f.bookie, "add", add_slowly)
        f.bookie.hold = True
        f.context.send(*[(tag, 0) for tag in range(1, 5)])
        await settle()
        while len(f.bookie.adds) < 4:
            await settle()
        f.bookie.hold = False
        f.bookie.release()
        await settle()
        assert sum(f.metrics.add_latency.counts) == 4
        assert f.metrics.add_latency.total == 4 * 4.0

    monkeypatch.setattr(append_session, "time", clock)
    monkeypatch.setattr(answered_adds, "time", clock)
    monkeypatch.setattr(append_session, "APPEND_TURN_S", 0.5)
    adds()


@on_loop
async def test_host_in_brackets_is_looked_up_without_them(f: Fixture) -> None:
    """gRPC wants them around an address of IPv6, and the resolver does not know them."""
    asked: list[str] = []

    def look_up(host: str, *_args: Any, **_options: Any) -> list[Any]:
        asked.append(host)
        return []

    bound: list[str] = []

    def take(address: str) -> int:
        bound.append(address)
        return 3181

    server = GrpcServer(f.service, f.metrics)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", look_up)
        patch.setattr(server._server, "add_insecure_port", take)
        assert server.bind("[::1]", 0) == 3181
    assert (asked, bound) == (["::1"], ["[::1]:0"])


@on_loop
async def test_host_that_is_not_this_machine_is_named_and_not_called_in_use(f: Fixture) -> None:
    for host in ("192.0.2.1", "x" * 300, "a..b"):
        with pytest.raises(ConfigurationError, match=r"cannot listen on .*: .*: listen\.host must"):
            GrpcServer(f.service, f.metrics).bind(host, 0)
        with pytest.raises(ConfigurationError, match="cannot listen on"):
            admin.bind(host, 0)


@on_loop
async def test_port_that_is_in_use_is_called_so(f: Fixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:\d+: is it in use\?"):
            GrpcServer(f.service, f.metrics).bind("127.0.0.1", port)
