"""``ledger cluster status``: how many entries are how safe, counted on the bookies."""

from __future__ import annotations

import json
from typing import cast

import pytest

from spark_ledger.cli import inspection, safety
from spark_ledger.cli.safety import Standing, Tally, exit_status, survey
from spark_ledger.cli.show.zones import Safety
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.metadata.cluster import set_placement
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.transport.base import FIRST_ENTRY, ListedEntries, Transport
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId, PlacementPolicy
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.world import crew, give_cookies, lose


async def found(world: World) -> Standing:
    transport = MemoryTransport(world.alive)
    standing = await survey(MemoryMetadataStore(world.tree), transport, lambda _: None)
    await transport.close()
    return standing


async def written(world: World, *payloads: bytes) -> LedgerWriter:
    writer = await (await world.client()).create_ledger()
    for payload in payloads:
        await writer.append(payload)
    return writer


def forget(world: World, bookie: str, ledger_id: int, *entries: int) -> None:
    held = world.bookies[BookieId(bookie)].ledgers[LedgerId(ledger_id)].entries
    for entry_id in entries:
        del held[EntryId(entry_id)]


def test_copies_that_bookies_lost_are_counted_where_their_entries_stand_now() -> None:
    async def test(world: World) -> None:
        writer = await written(world, *[b"12345"] * 10)
        await writer.close()
        await (await written(world, b"well")).close()
        await written(world, b"open")
        before = await found(world)
        assert exit_status(before) == 0 and before.lacking == 0
        assert before.zones[Safety.WRITE_QUORUM] == Tally(3, 11, 54)
        assert before.zones[Safety.UNCONFIRMED].entries == 1, "its writer alone knows"
        forget(world, "b0", writer.ledger_id, 1)
        once = await found(world)
        assert exit_status(once) == 1 and once.worst == []
        assert once.zones[Safety.ACK_QUORUM] == Tally(1, 1, 5)
        forget(world, "b1", writer.ledger_id, 1, 2)
        forget(world, "b2", writer.ledger_id, 1)
        after = await found(world)
        assert after.zones == {
            Safety.WRITE_QUORUM: Tally(2, 9, 44),
            Safety.ACK_QUORUM: Tally(0, 1, 5),
            Safety.BELOW_ACK_QUORUM: Tally(0, 0, 0),
            Safety.UNREADABLE: Tally(1, 1, 5),
            Safety.UNCONFIRMED: Tally(0, 1, 0),
        }
        assert exit_status(after) == 3
        assert after.worst == [(writer.ledger_id, Safety.UNREADABLE)]

    run_virtually(test)


def test_silent_bookies_copies_are_not_counted_and_it_is_named() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        await (await written(world, b"a", b"b")).close()
        await lose(world, "b1")
        standing = await found(world)
        assert standing.zones[Safety.ACK_QUORUM] == Tally(1, 2, 2)
        assert standing.bookies == {"b0": "writable", "b1": "down", "b2": "writable"}
        assert list(standing.silent) == ["b1"]

    run_virtually(test)


def test_open_ledgers_last_copies_are_the_writers_and_no_fault() -> None:
    async def test(world: World) -> None:
        writer = await written(world, b"a", b"b", b"c")
        forget(world, "b2", writer.ledger_id, 2)
        standing = await found(world)
        assert standing.zones[Safety.WRITE_QUORUM].entries == 2
        assert (standing.zones[Safety.ACK_QUORUM].entries, standing.under_way) == (0, 0)
        await writer.append(b"d")  # with it the bookies hear that entry 2 is confirmed
        standing = await found(world)
        assert (standing.zones[Safety.ACK_QUORUM].entries, standing.under_way) == (1, 1)
        assert standing.lacking == 0 and exit_status(standing) == 0
        await writer.close()
        assert exit_status(await found(world)) == 1

    run_virtually(test)


def test_fragments_against_the_placement_policy_are_counted() -> None:
    async def test(world: World) -> None:
        await (await written(world, b"abc")).close()
        assert exit_status(await found(world)) == 0
        await set_placement(MemoryMetadataStore(world.tree), PlacementPolicy(min_racks=3))
        standing = await found(world)
        assert standing.misplaced == Tally(1, 1, 3)
        assert exit_status(standing) == 1

    run_virtually(test, racks=2)


def test_ledger_that_is_repaired_while_it_is_looked_at_is_counted_as_it_is_then() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        writer = await written(world, b"a")
        await writer.close()
        repairers = await crew(world)
        await lose(world, writer.metadata.fragments[0].bookies[0])

        class Late(MemoryTransport):
            async def list_entries(
                self,
                bookie_id: BookieId,
                ledger_id: LedgerId,
                first: EntryId = FIRST_ENTRY,
                *,
                timeout_s: float,
            ) -> ListedEntries:
                await repairers.passes(200)
                return await super().list_entries(bookie_id, ledger_id, first, timeout_s=timeout_s)

        transport = Late(world.alive)
        standing = await survey(MemoryMetadataStore(world.tree), transport, lambda _: None)
        await transport.close()
        assert standing.zones[Safety.WRITE_QUORUM] == Tally(1, 1, 1)

    run_virtually(test, bookies=4)


def test_deleted_ledger_is_not_counted() -> None:
    async def test(world: World) -> None:
        writer = await written(world, b"a")
        await writer.close()
        client = await world.client()

        class Late:
            async def list_entries(
                self, bookie_id: BookieId, ledger_id: LedgerId, *_: object, timeout_s: float
            ) -> ListedEntries:
                if bookie_id == "b0":
                    await client.delete_ledger(ledger_id)
                return ListedEntries(BookieStatus.NO_SUCH_LEDGER, [])

        late = cast(Transport, Late())
        standing = await survey(MemoryMetadataStore(world.tree), late, lambda _: None)
        assert standing.ledgers == 0 and exit_status(standing) == 0

    run_virtually(test)


def test_command_says_what_stands_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = Standing(ledgers=3, bookies={BookieId("b0"): "writable"})
    standing.zones[Safety.UNREADABLE] = Tally(1, 7, 2048)
    standing.worst.append((LedgerId(5), Safety.UNREADABLE))
    standing.silent[BookieId("b1")] = "unavailable"
    monkeypatch.setattr(inspection, "survey_cluster", lambda uri, advance: standing)
    uri = ("--metadata", "zk://x:1/ledgers")
    result = run("cluster", "status", *uri)
    assert result.status == 3
    assert "committed, no copy found" in result.out and "2.0 KiB" in result.out
    assert "ledger 5: committed, no copy found" in result.out
    assert "b1 does not answer (unavailable)" in result.out
    result = run("cluster", "status", "--json", *uri)
    shown = json.loads(result.out)
    assert shown["zones"]["unreadable"] == {"ledgers": 1, "entries": 7, "user_bytes": 2048}
    assert shown["worst"] == [{"ledger_id": 5, "safety": "unreadable"}]
    assert safety.fields(standing)["lacking_entries"] == shown["lacking_entries"] == 7
