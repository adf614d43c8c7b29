"""Whom a bookie hangs up on when its memory is short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.guard.hanging_up import Why
from bookie_server.service.guard.sockets import Received
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.limits.bookie import BOOKIE_HELD_BYTES_MAX
from spark_ledger.types import BookieId
from tests.contracts.scripted_bookie import ScriptedBookie


def of(byte_count: int) -> Received:
    """So much has come from a client."""
    return Received(byte_count, frozenset({1}))


class Stream:
    """An append stream, which is read or waits for its turn."""

    def __init__(self, peer: str, *, is_read: bool) -> None:
        self.peer = peer
        self.is_read = is_read


@pytest.mark.parametrize(
    ("holding", "waiting", "blamed"),
    [
        ("ab", "", "ab"),
        ("ab", "a", "b"),
        ("ab", "c", "ab"),
        ("ab", "ab", "ab"),
        ("a", "abc", "a"),
        ("", "abc", ""),
    ],
)
def test_those_who_wait_are_spared_only_while_others_are_to_blame(
    holding: str, waiting: str, blamed: str
) -> None:
    """If all wait who hold memory, one of them has to go: else the bookie passes its budget."""

    async def main() -> None:
        described = Description("c", "1", "writable", 0, 0, 0, 0, 0.0)
        service: Any = BookieService(
            ScriptedBookie(), BookieId("b"), describe=lambda: described, metrics=ServiceMetrics()
        )
        ended: list[str] = []

        def hang_up(peer: str, why: Why) -> None:
            assert why is Why.UNFINISHED
            ended.append(peer)

        def received(peers: Iterable[str]) -> dict[str, Received]:
            more = BOOKIE_HELD_BYTES_MAX + 1
            return {peer: of(more if peer in holding else more - 1) for peer in peers}

        service.hang_up, service._sockets.received = hang_up, received
        service._sessions = {Stream(peer, is_read=peer not in waiting) for peer in "abc"}
        assert await service.relieve() == len(blamed)
        assert sorted(ended) == list(blamed)
        service._sessions = set()
        service.close()

    asyncio.run(main())


def relieved(test: Callable[[Any], Awaitable[None]]) -> Callable[[], None]:
    """Runs a test with a service whose clients it makes up: ``ended`` are those hung up on."""

    def run() -> None:
        async def main() -> None:
            described = Description("c", "1", "writable", 0, 0, 0, 0, 0.0)
            service: Any = BookieService(
                ScriptedBookie(),
                BookieId("b"),
                describe=lambda: described,
                metrics=ServiceMetrics(),
            )
            service.ended = []
            service.hang_up = lambda peer, why: service.ended.append((peer, why))
            service._sockets.received = lambda peers: dict.fromkeys(peers, of(0))
            await test(service)
            service.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@relieved
async def test_each_connection_that_ended_counts_in_one_relief(service: Any) -> None:
    """Only what somebody held before can be given back to the kernel."""
    more = BOOKIE_HELD_BYTES_MAX + 1
    ended = service._metrics.connections_ended
    ended["idle"] += 5
    assert await service.relieve() == 5
    service._sessions = {Stream("a", is_read=True)}
    service._sockets.received = lambda _peers: {"a": of(more)}
    assert await service.relieve() == 1
    service._sessions = set()
    service._sockets.received = lambda _peers: {}
    ended["unfinished"] += 1  # the one of before
    ended["idle"] += 2
    assert await service.relieve() == 2
    assert await service.relieve() == 0


@relieved
async def test_request_that_never_comes_is_hung_up_on_as_an_append_is(service: Any) -> None:
    service._limits.receiving_for = lambda seconds: (
        {"holds", "late", "gone", "new"} if not seconds else {"holds", "late", "gone"}
    )
    service._sockets.received = lambda peers: {
        peer: of(BOOKIE_HELD_BYTES_MAX + (peer == "holds")) for peer in peers if peer != "gone"
    }
    assert await service.relieve() == 2
    assert service.ended == [("holds", Why.UNFINISHED), ("late", Why.SILENT)]


@relieved
async def test_end_of_a_shortage_of_memory_reaches_the_gate(service: Any) -> None:
    """Appends would be slow for ever after the first one."""
    told: list[bool] = []
    service._gate.memory_is_short = told.append
    for is_short in (True, False):
        service.memory_is_short(is_short)
    assert told == [True, False]
