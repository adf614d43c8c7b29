"""Clients that follow a ledger with several tails, which share what they learn (rule P24)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import LedgerError, NotFoundError
from tests.history.model import Phase
from tests.sim.clients import Client, ReaderClient, failure

if TYPE_CHECKING:
    from tests.sim.world import World

_STAYS_S: Final = 3.0
_STOPS_S: Final = 1.0


class SharingClient(ReaderClient):
    """A client with more tails of the ledger than its own."""

    def __init__(self, world: World, name: str, ledger_id: int, *, tails: bool) -> None:
        assert tails
        super().__init__(world, name, ledger_id, tails=True)

    async def connect(self) -> LedgerClient:
        client = await super().connect()
        for number in range(self.draw.randint(1, 3)):
            self.world.clients.append(Companion(self, client, f"{self.name}+{number}"))
        return client


class Companion(ReaderClient):
    """Another tail in the process of a client and over its connection, with a handle of its own.

    It stops between two batches and leaves in the middle, as it likes, and comes again. No other
    tail may be harmed by that, and all of them have to be given what is so.
    """

    def __init__(self, leader: ReaderClient, client: LedgerClient, name: str) -> None:
        Client.__init__(self, leader.world, name)
        self.process = leader.process
        self.ledger_id = leader.ledger_id
        self.delivered = 0
        self._client = client
        self.start(self._come_and_go())

    async def connect(self) -> LedgerClient:
        return self._client

    async def _come_and_go(self) -> None:
        reader = await self._open()
        if reader is None:
            return
        for _ in range(40):
            await asyncio.sleep(self.draw.uniform(0.0, 0.3))
            try:
                async with asyncio.timeout(self.draw.uniform(0.0, _STAYS_S)):
                    await self._follow(reader, self.delivered)
            except NotFoundError:
                return
            except (LedgerError, TimeoutError):
                continue
            if reader.is_closed or self.world.healing:
                return

    async def _follow(self, reader: LedgerReader, following: int) -> int:
        operation = -1
        try:
            idle_timeout = self.draw.uniform(0.1, 4.0)
            async with aclosing(reader.tail_batches(following, idle_timeout=idle_timeout)) as tail:
                operation = self._await_news(following)
                async for batch in tail:
                    self._delivered(operation, reader, following, batch)
                    following, operation = following + len(batch), -1
                    if self.draw.random() < 0.3:
                        await asyncio.sleep(self.draw.uniform(0.0, _STOPS_S))
                    operation = self._await_news(following)
        except LedgerError as error:
            self._ended(operation, failure(error), self.name_of(error))
            raise
        except asyncio.CancelledError:
            self.world.counts["tails left"] += 1
            self._ended(operation, Phase.UNKNOWN, "Left")
            raise
        self._delivered(operation, reader, following, [])
        return following

    def _ended(self, operation: int, phase: Phase, error: str) -> None:
        if operation >= 0:  # else it had been given something, and had not asked for more
            self.end(operation, phase, "tail", ledger_id=self.ledger_id, error=error)
