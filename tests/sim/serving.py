"""Services of the simulated cluster, keepers and repairers: they die in the middle of things, and
come back, until a while after the faults have ended. Their recoveries are in the history."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import MetadataRestoredError
from tests.sim.clients import Client

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.sim.world import World

_CRASH: Final = 0.02
_LOOK_S: Final = 0.05
_AFTER_HEALING_S: Final = 2.0


class ServiceClient(Client):
    """One process of a service. Another one comes when it dies."""

    crash_fault: ClassVar[str]
    """The fault as it is counted."""

    def __init__(self, world: World, service: str, starts: int = 0) -> None:
        super().__init__(world, f"{service}.{starts}")
        self._service = service
        self._starts = starts
        self.start(self._run())

    @classmethod
    def begin(cls, world: World, service: str, starts: int = 0) -> None:
        """Start one more process, unless the faults have ended."""
        if not world.healing:
            world.clients.append(cls(world, service, starts))

    @abstractmethod
    def serve(self, client: LedgerClient, stop: asyncio.Event) -> Awaitable[None]:
        """The service itself, until it is told to stop."""

    async def look(self, client: LedgerClient) -> None:
        """What else happens beside it, now and then."""

    def recovers(self, ledger_id: int) -> None:
        """It begins to recover a ledger."""

    def ending(self) -> None:
        """It is about to die, or has ended."""

    async def connect(self) -> LedgerClient:
        """A client whose recoveries are in the history, as everybody's are."""
        client = await super().connect()
        open_ledger = client.open_ledger

        async def recorded(ledger_id: int, *, recover: bool = False) -> LedgerReader:
            if recover:
                self.recovers(ledger_id)
            opening = open_ledger(ledger_id, recover=recover)
            if recover and ledger_id in self.world.ledger_ids:
                reader = await self.attempt("recover", opening, ledger_id=ledger_id)
                assert isinstance(reader, LedgerReader), "that is what opening a ledger gives"
                return reader
            return await opening

        client.open_ledger = recorded  # type: ignore[method-assign,assignment]
        return client

    async def _run(self) -> None:
        world, stop = self.world, asyncio.Event()
        client = await self.connect()
        working = asyncio.ensure_future(self.serve(client, stop))
        while not world.healing:
            await asyncio.sleep(_LOOK_S)
            await self.look(client)
            if _has_to_begin_anew(working) or self.draw.random() < _CRASH:
                world.fault(self.crash_fault, self.name)
                self.ending()
                again_s = self.draw.uniform(0.0, 0.5)
                name, starts = self._service, self._starts + 1
                world.loop.later(again_s, None, type(self).begin, world, name, starts)
                self.crash()
                await asyncio.sleep(0)  # a dead process never returns from here
        await asyncio.sleep(_AFTER_HEALING_S)
        stop.set()
        with contextlib.suppress(MetadataRestoredError):
            await working
        self.ending()


def _has_to_begin_anew(working: asyncio.Future[None]) -> bool:
    """Whether the service has ended because its ZooKeeper was restored (rule K6)."""
    return working.done() and isinstance(working.exception(), MetadataRestoredError)
