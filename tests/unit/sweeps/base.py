"""What is swept: each operation prepares a world, does one thing, and checks what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from tests.unit.spark_ledger.client.world import World
from tests.unit.sweeps.trouble import TroubledStore


class Operation:
    """One operation. ``prepare`` and ``check`` have a client that meets no trouble."""

    bookies = 3
    client: LedgerClient
    """The one that is to meet trouble."""
    store: TroubledStore
    """Its store."""

    def __init__(self, world: World) -> None:
        self.world = world

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is smaller than usual."""

    async def prepare(self, client: LedgerClient) -> None:
        """What is there before."""

    async def open(self, client: LedgerClient) -> None:
        """What the client that is to meet trouble does before."""

    async def meanwhile(self, client: LedgerClient) -> None:
        """What others change then. A server that lags does not know of it yet."""

    async def act(self, client: LedgerClient) -> Any:
        """The operation."""

    async def overtake(self, client: LedgerClient) -> None:
        """What somebody else does of the same in the middle of the operation."""

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        """What has to be true whatever came of it."""

    async def again(self, client: LedgerClient) -> None:
        """The client that met trouble goes on: it has to work as if nothing had happened. Not done
        with one that was closed."""
