"""No two clients get the same id, also after lost replies, and many of them cause no storm."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

import pytest

from spark_ledger.errors import ConflictError, MetadataUnavailableError, OutcomeUnknownError
from spark_ledger.limits.metadata import (
    LEDGER_ID_BLOCK,
    LEDGER_ID_BLOCK_MAX,
    LEDGER_ID_BLOCK_S,
    LEDGER_ID_PAUSE_S,
    LEDGER_ID_PAUSE_S_MAX,
)
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.codec import CounterNode
from spark_ledger.metadata.json_nodes import decode_node
from spark_ledger.metadata.ledger_ids import COUNTER_PATH, next_counted
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from tests.unit.virtual_time import run_in_virtual_time


class Forgetful(MemoryMetadataStore):
    """A store whose next write never arrives. Like the ZooKeeper store, it then reads the node, and
    takes the write for done if the node holds the bytes that were to be written."""

    def __init__(self, tree: MemoryTree, rival: LedgerStore) -> None:
        super().__init__(tree)
        self._rival: LedgerStore | None = rival

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = True
    ) -> None:
        if not await self._stands(path, data, 0):
            await super().create(path, data, ephemeral=ephemeral, make_parents=make_parents)

    async def put(self, path: str, data: bytes, version: int) -> int:
        if await self._stands(path, data, version + 1):
            return version + 1
        return await super().put(path, data, version)

    async def _stands(self, path: str, data: bytes, version: int) -> bool:
        rival, self._rival = self._rival, None
        if rival is None:
            return False
        await rival.new_ledger_id()
        found = await self.get(path)
        if (found.value, found.version) != (data, version):
            raise ConflictError("another was there instead")
        return True


def test_id_block_after_lost_reply_is_given_to_one_client() -> None:
    async def scenario(taken_before: int) -> None:
        tree = MemoryTree()
        for _ in range(taken_before):
            await LedgerStore(MemoryMetadataStore(tree)).new_ledger_id()
        rival = LedgerStore(MemoryMetadataStore(tree))
        ours = LedgerStore(Forgetful(tree, rival))
        given = [await ours.new_ledger_id() for _ in range(LEDGER_ID_BLOCK + 1)]
        theirs = [await rival.new_ledger_id() for _ in range(LEDGER_ID_BLOCK + 1)]
        assert not {*given} & {*theirs}

    for taken_before in (0, 1):
        asyncio.run(scenario(taken_before))


def test_many_clients_that_start_at_once_cost_a_few_requests_each() -> None:
    """200 of them took 20,100 reads and as many writes when they tried again at once."""

    async def main() -> None:
        tree, requests = MemoryTree(), 0

        def interpose(_name: str, _path: str) -> Fault:
            nonlocal requests
            requests += 1
            return Fault(delay_s=0.001)

        clients = [
            LedgerStore(tree.open_session(interpose=interpose), random.Random(seed))
            for seed in range(100)
        ]
        ids = await asyncio.gather(*(client.new_ledger_id() for client in clients))
        assert len(set(ids)) == len(clients)
        assert requests <= 16 * len(clients)

    asyncio.run(main())


def test_client_that_needs_many_ids_takes_larger_and_larger_blocks() -> None:
    async def main() -> None:
        tree, writes = MemoryTree(), 0

        def interpose(name: str, _path: str) -> Fault:
            nonlocal writes
            writes += name in ("put", "create")
            return Fault()

        client = LedgerStore(tree.open_session(interpose=interpose))
        ids = [await client.new_ledger_id() for _ in range(10_000)]
        assert ids == sorted(set(ids))
        assert writes <= 10
        counter = tree.get(COUNTER_PATH)
        taken = decode_node(CounterNode, COUNTER_PATH, counter.value).next_id
        assert taken - ids[-1] <= LEDGER_ID_BLOCK_MAX

    asyncio.run(main())


def test_client_that_needs_few_ids_takes_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        tree = MemoryTree()
        client = LedgerStore(tree.open_session())
        ids = [await client.new_ledger_id() for _ in range(5 * LEDGER_ID_BLOCK)]
        counter = tree.get(COUNTER_PATH)
        taken = decode_node(CounterNode, COUNTER_PATH, counter.value).next_id
        assert taken == ids[-1] + 1

    monkeypatch.setattr("spark_ledger.metadata.ledger_ids.LEDGER_ID_BLOCK_S", 0.0)
    asyncio.run(main())


def test_client_that_has_been_idle_takes_larger_blocks_once_it_needs_many_ids() -> None:
    async def main() -> None:
        tree, writes = MemoryTree(), 0

        def interpose(name: str, _path: str) -> Fault:
            nonlocal writes
            writes += name in ("put", "create")
            return Fault()

        client = LedgerStore(tree.open_session(interpose=interpose))
        await client.new_ledger_id()
        await asyncio.sleep(10 * LEDGER_ID_BLOCK_S)
        for _ in range(10_000):
            await client.new_ledger_id()
        assert writes <= 12

    run_in_virtual_time(main())


def test_client_that_could_take_no_block_for_a_while_takes_a_small_one_then() -> None:
    async def main() -> None:
        tree, fault = MemoryTree(), Fault(Outcome.UNAVAILABLE)
        client = LedgerStore(tree.open_session(interpose=lambda _name, _path: fault))
        for _ in range(20):
            with pytest.raises(MetadataUnavailableError):
                await client.new_ledger_id()
        fault = Fault()
        first = await client.new_ledger_id()
        assert await next_counted(tree.open_session()) == first + LEDGER_ID_BLOCK

    run_in_virtual_time(main())


@pytest.mark.parametrize("how", ["unavailable", "no reply", "cancelled"])
def test_id_block_that_could_not_be_taken_is_given_to_nobody(how: str) -> None:
    """Not the ids behind the last block either: another client has them."""

    async def main() -> None:
        tree, fault = MemoryTree(), Fault()
        ours = LedgerStore(tree.open_session(interpose=lambda _name, _path: fault))
        theirs = LedgerStore(tree.open_session())
        given = [await ours.new_ledger_id() for _ in range(LEDGER_ID_BLOCK)]
        given += [await theirs.new_ledger_id() for _ in range(LEDGER_ID_BLOCK)]
        if how == "cancelled":
            fault = Fault(delay_s=10.0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ours.new_ledger_id(), 0.01)
        else:
            fault = Fault(Outcome.UNAVAILABLE if how == "unavailable" else Outcome.LOST_REPLY)
            with pytest.raises((MetadataUnavailableError, OutcomeUnknownError)):
                await ours.new_ledger_id()
        fault = Fault()
        given += [await ours.new_ledger_id() for _ in range(2 * LEDGER_ID_BLOCK)]
        assert len({*given}) == len(given)

    asyncio.run(main())


def test_client_that_loses_the_counter_waits_up_to_twice_as_long_each_time() -> None:
    class Draw(random.Random):
        bounds: ClassVar[list[tuple[float, float]]] = []

        def uniform(self, a: float, b: float) -> float:
            self.bounds.append((a, b))
            return 0.0

    async def main() -> None:
        tree, losses = MemoryTree(), 9

        def interpose(name: str, path: str) -> Fault:
            nonlocal losses
            if name == "put" and losses:
                losses -= 1
                found = tree.get(path)
                tree.apply([Put(path, found.value, found.version)])
            return Fault()

        await LedgerStore(tree.open_session()).new_ledger_id()
        await LedgerStore(tree.open_session(interpose=interpose), Draw()).new_ledger_id()
        longest = [min(LEDGER_ID_PAUSE_S * 2**n, LEDGER_ID_PAUSE_S_MAX) for n in range(9)]
        assert Draw.bounds == [(0.0, each) for each in longest]
        assert longest[-1] == LEDGER_ID_PAUSE_S_MAX

    run_in_virtual_time(main())
