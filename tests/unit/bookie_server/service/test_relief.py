"""Whom a bookie hangs up on when its memory is short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.guard.hanging_up import Why
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.limits.bookie import BOOKIE_HELD_BYTES_MAX
from spark_ledger.types import BookieId
from tests.contracts.scripted_bookie import ScriptedBookie


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

        def received(peers: Iterable[str]) -> dict[str, int]:
            more = BOOKIE_HELD_BYTES_MAX + 1
            return {peer: more if peer in holding else more - 1 for peer in peers}

        service.hang_up, service._sockets.received = hang_up, received
        service._sessions = {Stream(peer, is_read=peer not in waiting) for peer in "abc"}
        assert await service.relieve() == len(blamed)
        assert sorted(ended) == list(blamed)
        service._sessions = set()
        service.close()

    asyncio.run(main())
