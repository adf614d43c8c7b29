"""``ledger cluster usage --verify``: what bookies hold is what metadata name, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from spark_ledger.cli import inspection
from spark_ledger.cli.verify import BookieCopies, Verified, verify
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.transport.base import ListedEntries, ReadChunk, Transport
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.client.world import run as run_in_world

B0, B1, B2 = BookieId("b0"), BookieId("b1"), BookieId("b2")


@pytest.fixture(autouse=True, params=[2, 10_000])
def entries_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the stretches are in which a ledger is compared."""
    monkeypatch.setattr("spark_ledger.cli.verify.ENTRIES_AT_ONCE", request.param)


async def found(world: World) -> Verified:
    read: list[int] = []
    transport = MemoryTransport(world.alive)
    verified = await verify(MemoryMetadataStore(world.tree), transport, read.append)
    await transport.close()
    return verified


async def written(world: World, *payloads: bytes, password: bytes = b"") -> LedgerWriter:
    client = await world.client()
    writer = await client.create_ledger(password=password)
    for payload in payloads:
        await writer.append(payload)
    return writer


def test_cluster_in_order_is_well() -> None:
    async def test(world: World) -> None:
        await (await written(world, b"a", b"bcd")).close()
        await (await written(world)).close()
        await (await written(world, b"x", password=b"secret")).close()
        await written(world, b"open")
        verified = await found(world)
        assert verified.is_well, verified
        assert (verified.closed, verified.open, verified.locked) == (3, 1, 1)
        assert verified.named_bytes == 15
        assert [each.user_bytes for each in verified.bookies.values()] == [4, 4, 4]
        assert [each.entries for each in verified.bookies.values()] == [3, 3, 3]

    run_in_world(test)


def lose(world: World, ledger_id: LedgerId) -> None:
    del world.bookies[B1].ledgers[ledger_id].entries[1]


def change(world: World, ledger_id: LedgerId) -> None:
    entries = world.bookies[B1].ledgers[ledger_id].entries
    entries[1] = entries[1][:-1] + b"?"


@pytest.mark.parametrize(
    ("fault", "missing", "damaged"), [(lose, 1, 0), (change, 0, 1)], ids=["lost", "changed"]
)
def test_copy_that_is_not_as_the_others_is_told(
    fault: Callable[[World, LedgerId], None], missing: int, damaged: int
) -> None:
    async def test(world: World) -> None:
        writer = await written(world, b"a", b"bcd", b"e")
        await writer.close()
        fault(world, LedgerId(writer.ledger_id))
        verified = await found(world)
        assert not verified.is_well
        copies = verified.bookies[B1]
        assert (copies.missing, copies.damaged, copies.user_bytes) == (missing, damaged, 2)
        assert verified.bookies[B0].user_bytes == 5
        (line,) = verified.faults
        assert f"ledger {writer.ledger_id}" in line and "b1" in line

    run_virtually(test)


def test_ledger_whose_node_is_damaged_is_a_fault_and_the_others_are_compared() -> None:
    async def test(world: World) -> None:
        damaged, other = await written(world, b"a"), await written(world, b"bcd")
        await damaged.close()
        await other.close()
        store, path = MemoryMetadataStore(world.tree), ledger_path(LedgerId(damaged.ledger_id))
        await store.put(path, b"{", (await store.get(path)).version)
        verified = await found(world)
        assert not verified.is_well and (verified.closed, verified.unknown) == (1, 1)
        assert [each.user_bytes for each in verified.bookies.values()] == [3, 3, 3]
        assert [each.left_ledgers for each in verified.bookies.values()] == [0, 0, 0]
        (line,) = verified.faults
        assert f"ledger {damaged.ledger_id}: " in line and "damaged" in line

    run_virtually(test)


def test_what_metadata_do_not_name_is_told() -> None:
    """Before the first ledger that they name, and between two."""

    async def test(world: World) -> None:
        writers = [await written(world, b"a") for _ledger in range(4)]
        for writer in writers:
            await writer.close()
        store = MemoryMetadataStore(world.tree)
        for writer in writers[::2]:
            await store.delete(ledger_path(LedgerId(writer.ledger_id)))
        verified = await found(world)
        assert not verified.is_well and not verified.faults
        assert [each.left_ledgers for each in verified.bookies.values()] == [2, 2, 2]

    run_virtually(test)


def test_ids_that_no_bookie_holds_are_not_asked_for() -> None:
    """A cluster that ran for years has given millions of ids, and holds thousands of ledgers."""
    asked: list[int] = []

    class Counted(MemoryTransport):
        async def list_entries(
            self, bookie_id: BookieId, ledger_id: LedgerId, *words: Any, **more: Any
        ) -> Any:
            asked.append(ledger_id)
            return await super().list_entries(bookie_id, ledger_id, *words, **more)

        async def list_ledgers(self, bookie_id: BookieId, first: LedgerId, **more: Any) -> Any:
            asked.append(-1)
            return await super().list_ledgers(bookie_id, first, **more)

        async def describe(self, bookie_id: BookieId, **more: Any) -> Any:
            words = await super().describe(bookie_id, **more)
            return words._replace(next_ledger_id=50_000)

    async def test(world: World) -> None:
        writers = [await written(world, b"a") for _ledger in range(4)]
        for writer in writers:
            await writer.close()
        await MemoryMetadataStore(world.tree).delete(ledger_path(LedgerId(writers[1].ledger_id)))
        for bookie in world.bookies.values():  # one that was made ten thousand ids later
            bookie.ledgers[LedgerId(43_210)] = bookie.ledgers[LedgerId(writers[2].ledger_id)]
        transport = Counted(world.alive)
        verified = await verify(MemoryMetadataStore(world.tree), transport, lambda _: None)
        assert [each.left_ledgers for each in verified.bookies.values()] == [2, 2, 2]
        assert asked.count(-1) == 2 * 3, "a list, and that nothing is behind it"
        assert len(asked) - asked.count(-1) == (3 + 2) * 3
        await transport.close()

    run_virtually(test)


@pytest.mark.parametrize("says_next", [True, False])
def test_bookie_of_a_former_version_is_asked_id_by_id(says_next: bool) -> None:
    """One of a still older version does not say up to which id it has heard of ledgers."""
    end = 0

    class Former(MemoryTransport):
        async def list_ledgers(self, *_: Any, **__: Any) -> Any:
            return BookieStatus.BAD_REQUEST, []

        async def describe(self, bookie_id: BookieId, **more: Any) -> Any:
            words = await super().describe(bookie_id, **more)
            return words._replace(next_ledger_id=end if says_next else 0)

    async def test(world: World) -> None:
        nonlocal end
        writers = [await written(world, b"a") for _ledger in range(3)]
        for writer in writers:
            await writer.close()
        end = writers[-1].ledger_id + 1
        for writer in writers[::2]:
            await MemoryMetadataStore(world.tree).delete(ledger_path(LedgerId(writer.ledger_id)))
        transport = Former(world.alive)
        verified = await verify(MemoryMetadataStore(world.tree), transport, lambda _: None)
        assert [each.left_ledgers for each in verified.bookies.values()] == [2, 2, 2]
        await transport.close()

    run_virtually(test)


def test_entries_behind_the_end_are_counted_and_copies_of_all_stretches_compared() -> None:
    async def test(world: World) -> None:
        writer = await written(world, *(b"%d" % number for number in range(7)))
        await writer.close()
        ledger_id = LedgerId(writer.ledger_id)
        entries = world.bookies[B0].ledgers[ledger_id].entries
        for number in (7, 8, 12):
            entries[number] = entries[0]
        for number in (3, 5, 6):
            del world.bookies[B1].ledgers[ledger_id].entries[number]
        change(world, ledger_id)
        verified = await found(world)
        first, second = verified.bookies[B0], verified.bookies[B1]
        assert (first.beyond, first.missing, first.entries) == (3, 0, 7)
        assert (second.missing, second.damaged, second.entries) == (3, 1, 4)
        assert any("lacks 3 of 7 entries, the first is 3" in fault for fault in verified.faults)

    run_virtually(test)


def test_metadata_that_say_another_length_are_told() -> None:
    async def test(world: World) -> None:
        writer = await written(world, b"abc")
        await writer.close()
        ledgers = LedgerStore(MemoryMetadataStore(world.tree))
        before = await ledgers.read(LedgerId(writer.ledger_id))
        await ledgers.compare_and_set(before.value.with_changes(length=4), before.version)
        verified = await found(world)
        assert not verified.is_well
        assert "3 bytes, and the metadata say 4" in verified.faults[0]

    run_virtually(test)


def test_silent_bookie_is_told_and_asked_no_more() -> None:
    async def test(world: World) -> None:
        await (await written(world, b"a")).close()
        world.kill("b2")
        verified = await found(world)
        assert not verified.is_well
        assert verified.bookies[B2].silent
        assert verified.bookies[B0].user_bytes == verified.bookies[B1].user_bytes == 1

    run_virtually(test)


def test_busy_bookie_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ledger.cli.verify.BUSY_ATTEMPTS_MAX", 5)

    async def test(world: World) -> None:
        await (await written(world, b"a", b"b")).close()
        transport = MemoryTransport(world.alive)
        refusals = [3, 3]

        class Busy:
            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

            async def list_entries(self, *words: Any, **more: Any) -> Any:
                refusals[0] -= 1
                if refusals[0] >= 0:
                    return ListedEntries(BookieStatus.TOO_MANY_REQUESTS, [])
                return await transport.list_entries(*words, **more)

            async def read(self, *words: Any, **more: Any) -> Any:
                refusals[1] -= 1
                if refusals[1] >= 0:
                    yield ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, EntryId(0))
                    return
                async for chunk in transport.read(*words, **more):
                    yield chunk

        store = MemoryMetadataStore(world.tree)
        verified = await verify(store, cast(Transport, Busy()), lambda _: None)
        assert verified.is_well, verified
        assert [each.user_bytes for each in verified.bookies.values()] == [2, 2, 2]
        refusals[:] = [10**6, 0]
        verified = await verify(store, cast(Transport, Busy()), lambda _: None)
        assert "too_many_requests" in verified.bookies[B0].silent
        await transport.close()

    run_virtually(test)


@pytest.mark.parametrize("is_well", [True, False])
def test_exit_status_says_whether_all_is_well(
    is_well: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = Verified(
        {B0: BookieCopies(ledgers=2, user_bytes=2048)},
        closed=2,
        named_bytes=2048,
        faults=[] if is_well else ["ledger 7: bookie b0 lacks it"],
    )
    monkeypatch.setattr(inspection, "verify_cluster", lambda *_: verified)
    command = ("cluster", "usage", "--verify", "--metadata", "zk://h:2181/ledgers")
    shown = run(*command)
    assert shown.status == (0 if is_well else 1)
    assert "named      2048 bytes" in shown.out and "held       2048 bytes" in shown.out
    assert ("fault      ledger 7" in shown.out) is not is_well
    assert json.loads(run(*command, "--json").out)["is_well"] is is_well
