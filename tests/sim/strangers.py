"""A client that does not know a ledger's key, and must be refused everywhere: also by bookies that
have not heard of the ledger, and of ledgers that are still to be made."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError, NotFoundError, UnauthorizedError
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.sim.clients import Client
from tests.sim.node import BookieNode
from tests.sim.transport import SimTransport

if TYPE_CHECKING:
    from tests.sim.world import World

_WRONG: Final = (b"", b"a wrong one")
_WRONG_KEY: Final = b"k" * 32
_TIMEOUT_S: Final = 0.4


class StrangerClient(Client):
    """Tries to open a ledger, and to fence it and add to it on its bookies."""

    def __init__(self, world: World, name: str, ledger_id: int) -> None:
        super().__init__(world, name)
        self.ledger_id = LedgerId(ledger_id)
        self.password: bytes = world.passwords.get(ledger_id, b"")
        self.start(self._run())

    async def _run(self) -> None:
        client = await self.connect()
        transport: Any = client._context.transport
        assert isinstance(transport, SimTransport)
        for _ in range(self.draw.randint(2, 5)):
            await asyncio.sleep(self.draw.uniform(0.02, 0.4))
            try:
                await self._open(client)
            except NotFoundError:
                return
            await self._ask_bookie(transport)

    async def _open(self, client: LedgerClient) -> None:
        recover = self.draw.random() < 0.5
        right = {self.password}
        if self.world.options.restores:
            right.add(b"")  # the id may be given again, to a ledger without a password
        wrong = self.draw.choice([one for one in _WRONG if one not in right])
        try:
            await client.open_ledger(self.ledger_id, recover=recover, password=wrong)
        except UnauthorizedError:
            self.world.counts["strangers refused"] += 1
        except NotFoundError:
            raise
        except LedgerError as error:
            self.world.say(f"{self.name}: {type(error).__name__}")
        else:
            self._got_in(f"opened it, recover={recover}")

    async def _ask_bookie(self, transport: SimTransport) -> None:
        """Ask a bookie for this ledger, or claim one of the next that will be made."""
        up = [node for node in self.world.nodes.values() if node.process]
        if not up:
            return
        node = self.draw.choice(up)
        ledger_id = self.ledger_id
        if self.draw.random() < 0.4:
            ledger_id = LedgerId(ledger_id + self.draw.randint(1, 12))
        key = self.draw.choice([b"", _WRONG_KEY])
        act = self.draw.choice([self._fence, self._fence_and_read, self._announce, self._add])
        status = await act(transport, node, ledger_id, key)
        what = f"{act.__name__[1:]} of ledger {ledger_id}"
        self.world.say(f"{self.name} asks {node.name}: {what}: {status.name}")
        if status is BookieStatus.UNAUTHORIZED:
            self.world.counts["strangers refused"] += 1
        elif status is BookieStatus.OK:
            self._got_in(f"was served by {node.name}: {what}")

    def _got_in(self, what: str) -> None:
        text = f"{self.name}, without the password of ledger {self.ledger_id}, {what}"
        self.world.violate("access", "stranger", text)

    # -- what it tries -----------------------------------------------------------------------------

    async def _fence(
        self, transport: SimTransport, node: BookieNode, ledger_id: LedgerId, key: bytes
    ) -> BookieStatus:
        told = await transport.read_last_confirmed(
            node.bookie_id, ledger_id, fence=True, access_key=key, timeout_s=_TIMEOUT_S
        )
        return told.status

    async def _fence_and_read(
        self, transport: SimTransport, node: BookieNode, ledger_id: LedgerId, key: bytes
    ) -> BookieStatus:
        chunks: Any = transport.read(
            node.bookie_id,
            ledger_id,
            EntryId(0),
            EntryId(0),
            fence=True,
            access_key=key,
            timeout_s=_TIMEOUT_S,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                status: BookieStatus = chunk.status
                return status
        raise AssertionError("a read has an answer")

    async def _announce(
        self, transport: SimTransport, node: BookieNode, ledger_id: LedgerId, key: bytes
    ) -> BookieStatus:
        return await transport.write_last_confirmed(
            node.bookie_id, ledger_id, EntryId(10**6), access_key=key, timeout_s=_TIMEOUT_S
        )

    async def _add(
        self, transport: SimTransport, node: BookieNode, ledger_id: LedgerId, key: bytes
    ) -> BookieStatus:
        """Add a frame that the bookie holds already, if it holds one: if that is accepted it does
        no harm."""
        held = node.promises.acknowledged.get(ledger_id) or {
            0: b"a stranger's frame, which is none at all"
        }
        entry_id, frame = self.draw.choice(list(held.items()))
        answer: asyncio.Future[AddResult] = self.world.loop.create_future()

        def answered(result: AddResult) -> None:
            if not answer.done():
                answer.set_result(result)

        appender = transport.open_appender(
            node.bookie_id,
            ledger_id,
            access_key=key,
            recovery=self.draw.random() < 0.5,
            on_result=answered,
        )
        appender.send(EntryRun(ledger_id, EntryId(entry_id), None, (len(frame),), frame))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return (await answer).status
        except TimeoutError:
            return BookieStatus.TIMEOUT
        finally:
            appender.close()
