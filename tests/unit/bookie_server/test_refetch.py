"""What a bookie found damaged comes back from the other copies, by repair (rule S23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookie_server.ledger_keys import MetadataKeys
from bookie_server.refetch import Refetch
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.repair.holes import Hole, hole
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from tests.unit.bookie_server.storage.ledgers.test_scrub import flip, rows_of, scrub
from tests.unit.bookie_server.storage.support import LEDGERS, Machine, formatted, small_config
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.repair.world import crew, lose, marked

ME, OTHER, THIRD = BookieId("b0"), BookieId("b1"), BookieId("b2")


def made(
    *firsts: int, last: int | None, quorums: tuple[int, int, int] = (3, 3, 2)
) -> LedgerMetadata:
    """A ledger whose first fragment is on all three bookies, and the others without the first."""
    bookies = [(ME, OTHER, THIRD), *[(BookieId("b3"), OTHER, THIRD)] * (len(firsts) - 1)]
    fragments = tuple(map(Fragment, map(EntryId, firsts), bookies))
    ledger = LedgerMetadata(LedgerId(2), Quorums(*quorums), fragments)
    if last is None:
        return ledger
    return ledger.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(last))


def test_hole_is_what_the_metadata_want_of_a_stretch() -> None:
    closed = made(0, last=19)
    assert hole(closed, ME, 5, 9, [(0, 4), (10, 19)]) is Hole.REPAIR
    assert hole(closed, ME, 5, 9, [(0, 19)]) is Hole.NONE
    assert hole(closed, ME, 20, 25, []) is Hole.NONE, "behind the end nothing is wanted"
    assert hole(closed, BookieId("b9"), 5, 9, []) is Hole.NONE, "it is no member"


def test_hole_in_what_a_writer_may_still_change_waits() -> None:
    assert hole(made(0, last=None), ME, 5, 9, []) is Hole.WAIT
    assert hole(made(0, 8, last=None), ME, 5, 9, [(0, 4)]) is Hole.REPAIR
    assert hole(made(0, 8, last=None), ME, 8, 9, []) is Hole.NONE, "it was replaced"


def test_hole_of_a_striped_ledger_counts_the_entries_of_its_own_lanes_only() -> None:
    striped = made(0, last=8, quorums=(3, 1, 1))
    assert hole(striped, ME, 0, 8, [(0, 0), (3, 3), (6, 6)]) is Hole.NONE
    assert hole(striped, ME, 0, 8, [(0, 0), (6, 6)]) is Hole.REPAIR


def flip_first(machine: Machine, ledger_id: LedgerId) -> None:
    flip(machine, rows_of(machine, ledger_id)[0].location, directory=LEDGERS[ledger_id % 2])


@asynccontextmanager
async def stored(world: World) -> AsyncIterator[Machine]:
    """The bookie b0 with a storage of its own, in the world of scripted ones."""
    store = MemoryMetadataStore(world.tree)
    machine = Machine(formatted(), small_config(), keys=MetadataKeys(store))
    world.bookies[ME] = world.alive[ME] = machine.bookie  # type: ignore[assignment]

    async def drive() -> None:
        while True:
            machine.settle()
            await asyncio.sleep(0.001)

    driving = asyncio.create_task(drive())
    try:
        yield machine
    finally:
        driving.cancel()


def test_bookie_that_lacks_something_and_is_down_for_a_moment_is_not_replaced() -> None:
    async def test(world: World) -> None:
        async with stored(world) as machine:
            client = await world.client()
            while True:
                writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
                await writer.append(b"1" * 50)
                await writer.close()
                before = await client.ledger_metadata(writer.ledger_id)
                if ME in before.last_fragment.bookies:
                    break
            machine.flush()
            flip_first(machine, writer.ledger_id)
            assert scrub(machine).lacking == 1
            await Refetch(machine.bookie, MemoryMetadataStore(world.tree), ME).look()
            await lose(world, ME)
            await (await crew(world)).worker.run_pass()
            after = await client.ledger_metadata(writer.ledger_id)
            assert after.fragments == before.fragments

    run(test, bookies=4)


@pytest.mark.parametrize("closes", [True, False])
def test_damaged_blocks_come_back_by_repair(closes: bool) -> None:
    async def test(world: World) -> None:
        async with stored(world) as machine:
            client = await world.client()
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
            payloads = [b"%d" % number * 50 for number in range(20)]
            for payload in payloads:
                await writer.append(payload)
                machine.flush()
            if closes:
                await writer.close()
            ledger_id = writer.ledger_id
            directory = LEDGERS[ledger_id % 2]
            for row in rows_of(machine, ledger_id)[3:9]:
                flip(machine, row.location, directory=directory)
            assert scrub(machine).lacking == 6
            refetch = Refetch(machine.bookie, MemoryMetadataStore(world.tree), ME)
            repair = await crew(world)
            await refetch.look()
            if not closes:
                assert await marked(world) == {}, "its writer may still change it"
                await writer.close()
                await refetch.look()
            assert await marked(world) == {ledger_id: 2}
            await repair.passes(10)
            await refetch.look()
            assert await marked(world) == {}, "repair has nothing to do"
            assert scrub(machine).lacking == 6, "the copies are not stored yet"
            machine.flush()
            await refetch.look()
            assert await marked(world) == {}
            stats = scrub(machine)
            assert (stats.lacking, stats.refetched) == (0, 6)
            held = machine.held(ledger_id)
            assert [payload in held[number] for number, payload in enumerate(payloads)] == [
                True
            ] * 20
            metadata = await client.ledger_metadata(ledger_id)
            assert len(metadata.fragments) == 1, "nobody was replaced"

    run(test)


def test_what_is_lacking_of_a_deleted_ledger_is_forgotten() -> None:
    async def test(world: World) -> None:
        async with stored(world) as machine:
            client = await world.client()
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
            await writer.append(b"1" * 50)
            await writer.close()
            machine.flush()
            ledger_id = writer.ledger_id
            flip_first(machine, ledger_id)
            assert scrub(machine).lacking == 1
            refetch = Refetch(machine.bookie, MemoryMetadataStore(world.tree), ME)
            await client.delete_ledger(ledger_id)
            await refetch.look()
            assert machine.bookie.lacking.ledgers() == [ledger_id], "the collection is to come"
            machine.bookie.delete_ledgers([ledger_id])
            await refetch.look()
            assert machine.bookie.lacking.ledgers() == []

    run(test)
