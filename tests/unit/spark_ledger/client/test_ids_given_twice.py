"""A ledger whose id an older one had, as after ZooKeeper was restored: the two never mix."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bookie_server.first_contact import Answer, CopyAnswer
from bookie_server.ledger_keys import MetadataKeys
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.config import ClientConfig
from spark_ledger.errors import LedgerError
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieInfo, LedgerId
from tests.unit.bookie_server.storage.support import Machine, formatted

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


class World:
    """Real bookies without threads, and one metadata tree after the other."""

    def __init__(self) -> None:
        self.machines = {BookieId(f"b{i}"): Machine(formatted(), keys=self) for i in range(3)}
        self._keys: MetadataKeys

    async def connect(self) -> LedgerClient:
        """A client of a metadata store that knows these bookies and nothing else."""
        tree = MemoryTree()
        self._keys = MetadataKeys(MemoryMetadataStore(tree))
        for bookie_id in self.machines:
            registry = BookieRegistry(MemoryMetadataStore(tree))
            await registry.register(BookieInfo(bookie_id, f"memory:{bookie_id}"))
        bookies = {name: machine.bookie for name, machine in self.machines.items()}
        return await LedgerClient.over(
            MemoryMetadataStore(tree), MemoryTransport(bookies), ClientConfig()
        )

    def look_up(self, ledger_id: LedgerId, answer: Answer) -> None:
        """See ``first_contact.LedgerKeys``; asks the metadata store of now."""
        self._keys.look_up(ledger_id, answer)

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        """The same for a copy."""
        self._keys.look_up_copy(ledger_id, answer)

    def held(self) -> list[dict[int, bytes]]:
        """What each bookie holds of ledger 1."""
        return [machine.held(1) for machine in self.machines.values()]

    async def drive(self) -> None:
        """Commit what the bookies were sent, again and again."""
        while True:
            for machine in self.machines.values():
                machine.settle()
            await asyncio.sleep(0)


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        driving = asyncio.create_task(world.drive())
        try:
            async with asyncio.timeout(20):
                await test(world)
        finally:
            driving.cancel()

    asyncio.run(main())


PASSWORDS = pytest.mark.parametrize("password", [b"", b"secret"])


@PASSWORDS
def test_new_ledger_with_the_id_of_an_older_one_stores_nothing_beside_it(password: bytes) -> None:
    async def test(world: World) -> None:
        async with await world.connect() as before:
            older = await before.create_ledger(password=password)
            await older.append(b"older")
            held = world.held()
            after = await world.connect()
            newer = await after.create_ledger(password=password)
            assert newer.ledger_id == older.ledger_id
            with pytest.raises(LedgerError):
                await newer.append(b"newer")
            with pytest.raises(LedgerError):
                await newer.append(b"newer")
            assert world.held() == held
            await older.append(b"older still")
            await older.close()
            reader = await before.open_ledger(older.ledger_id, password=password)
            assert [entry.payload async for entry in reader.read(0, 1)] == [
                b"older",
                b"older still",
            ]
            await after.close()

    run(test)


@PASSWORDS
def test_reader_of_the_new_ledger_gets_nothing_of_the_older_one(password: bytes) -> None:
    async def test(world: World) -> None:
        async with await world.connect() as before:
            older = await before.create_ledger(password=password)
            await older.append(b"older")
            await older.close()
            after = await world.connect()
            newer = await after.create_ledger(password=password)
            reader = await after.open_unconfirmed(newer.ledger_id, password=password)
            with pytest.raises(LedgerError):
                async for entry in reader.read(0, 0, unconfirmed=True):
                    raise AssertionError(entry)
            for recover in (False, True):
                with pytest.raises(LedgerError):
                    await after.open_ledger(newer.ledger_id, password=password, recover=recover)
            assert not any(machine.is_fenced(1) for machine in world.machines.values())
            await after.close()

    run(test)
