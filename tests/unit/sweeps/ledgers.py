"""Operations on ledgers: write, recover, replace bookies, follow."""

from __future__ import annotations

import asyncio
from typing import Any

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import (
    LedgerError,
)
from spark_ledger.metadata.owners import is_alive
from spark_ledger.types import LedgerState
from tests.unit.sweeps.base import Operation


class WriteALedger(Operation):
    """Create a ledger, append, close it."""

    ledger_id = -1

    async def act(self, client: LedgerClient) -> Any:
        writer = await client.create_ledger()
        self.ledger_id, self.owner = writer.ledger_id, writer.metadata.owner
        for payload in (b"0", b"1", b"2"):
            await writer.append(payload)
        await writer.close()
        return writer.ledger_id

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        if self.ledger_id < 0:
            return
        reader = await client.open_ledger(self.ledger_id, recover=True)
        found = await payloads(reader)
        assert found == [b"0", b"1", b"2"][: len(found)]
        if isinstance(outcome, int):
            assert len(found) == 3

    async def again(self, client: LedgerClient) -> None:
        before, began = self.ledger_id, asyncio.get_running_loop().time()
        assert await self.act(client) > before, "nobody else has its id"
        assert asyncio.get_running_loop().time() - began < 1.0, "nothing is waited for any more"
        assert await is_alive(self.world.tree.open_session(), self.owner), "its writer lives"


async def payloads(reader: LedgerReader) -> list[bytes]:
    last = reader.last_add_confirmed
    return [] if last < 0 else [entry.payload async for entry in reader.read(0, last)]


class RecoverALedger(Operation):
    """Recover what a writer has left open."""

    async def prepare(self, client: LedgerClient) -> None:
        dead = await self.world.client()
        writer = await dead.create_ledger()
        for payload in (b"0", b"1"):
            await writer.append(payload)
        self.ledger_id = writer.ledger_id
        await dead.close()

    async def act(self, client: LedgerClient) -> Any:
        return await payloads(await client.open_ledger(self.ledger_id, recover=True))

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, list) or outcome == [b"0", b"1"]
        reader = await client.open_ledger(self.ledger_id, recover=True)
        assert await payloads(reader) == [b"0", b"1"]
        assert reader.metadata.state is LedgerState.CLOSED

    async def again(self, client: LedgerClient) -> None:
        assert await self.act(client) == [b"0", b"1"]


class ReplaceABookie(Operation):
    """A bookie fails between two appends."""

    bookies = 5

    async def open(self, client: LedgerClient) -> None:
        self.writer = await client.create_ledger()
        await self.writer.append(b"0")
        self.world.kill(self.writer.metadata.last_fragment.bookies[0])
        self.world.kill(self.writer.metadata.last_fragment.bookies[1])

    async def act(self, client: LedgerClient) -> Any:
        await self.writer.append(b"1")
        await self.writer.close()
        return self.writer.metadata

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        for fragment in (await client.ledger_metadata(self.writer.ledger_id)).fragments:
            assert len(set(fragment.bookies)) == 3, "one place for each"
        for bookie_id in self.world.bookies:
            self.world.revive(bookie_id)
        found = await payloads(await client.open_ledger(self.writer.ledger_id, recover=True))
        assert found in ([b"0"], [b"0", b"1"])
        if outcome is not None and not isinstance(outcome, LedgerError):
            assert len(found) == 2

    async def again(self, client: LedgerClient) -> None:
        async with await client.create_ledger() as writer:
            await writer.append(b"0")
        assert set(client.context.load.values()) <= {0, 1}, "only the failed writer counts"


class TailALedger(Operation):
    """Follow a ledger that is closed meanwhile."""

    async def prepare(self, client: LedgerClient) -> None:
        self.writer = await client.create_ledger()
        await self.writer.append(b"0")

    async def act(self, client: LedgerClient) -> Any:
        found = []
        reader = await client.open_ledger(self.writer.ledger_id)
        async for entry in reader.tail(idle_timeout=20.0):
            found.append(entry.payload)
            if len(found) == 1:
                await self.writer.append(b"1")
                await self.writer.close()
        return found

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, list) or outcome == [b"0", b"1"]
        await self.writer.close()

    async def again(self, client: LedgerClient) -> None:
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id)
        found: list[bytes] = []

        async def follow() -> None:
            found.extend([entry.payload async for entry in reader.tail()])

        async with asyncio.TaskGroup() as tails:
            for _two in range(2):
                tails.create_task(follow())
            for payload in (b"0", b"1"):
                await writer.append(payload)
                await asyncio.sleep(0.1)
            await writer.close()
        assert sorted(found) == [b"0", b"0", b"1", b"1"]
