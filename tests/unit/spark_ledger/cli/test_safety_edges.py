"""What ``ledger cluster status`` believes of bookies that are silent, busy or broken, and of
ledgers that change under its eyes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from spark_ledger.cli.safety import LOOKS_MAX, Standing, exit_status, survey
from spark_ledger.cli.show.zones import Safety
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.transport.base import LastConfirmed, ListedEntries
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieStatus, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually


async def found(world: World, transport: MemoryTransport | None = None) -> Standing:
    transport = transport or MemoryTransport(world.alive)
    standing = await survey(MemoryMetadataStore(world.tree), transport, lambda _: None)
    await transport.close()
    return standing


async def written(world: World, *payloads: bytes, **options: Any) -> LedgerWriter:
    writer = await (await world.client()).create_ledger(**options)
    for payload in payloads:
        await writer.append(payload)
    return writer


async def of_two_fragments(world: World, size: int) -> LedgerWriter:
    """An open ledger: entry 0 is in the first one, entries 1 and 2 in the second."""
    writer = await written(world, b"0", ensemble_size=size, write_quorum=size, ack_quorum=1)
    await writer.flush()
    world.kill(writer.metadata.last_fragment.bookies[0])
    for payload in (b"1", b"2"):
        await writer.append(payload)
    assert [each.first_entry for each in writer.metadata.fragments] == [0, 1]
    world.revive(writer.metadata.fragments[0].bookies[0])
    return writer


class Answers(MemoryTransport):
    """Counts questions; ``said`` has what bookies say in turn instead of what they hold."""

    def __init__(self, world: World) -> None:
        super().__init__(world.alive)
        self.asked: Counter[tuple[str, str]] = Counter()
        self.said: dict[tuple[str, int], list[BookieStatus]] = {}

    async def list_entries(
        self, bookie_id: BookieId, ledger_id: LedgerId, *words: Any, **more: Any
    ) -> ListedEntries:
        self.asked["held", bookie_id] += 1
        if said := self.said.get((bookie_id, ledger_id)):
            return ListedEntries(said.pop(0), [])
        return await super().list_entries(bookie_id, ledger_id, *words, **more)

    async def read_last_confirmed(self, bookie_id: BookieId, *words: Any, **more: Any) -> Any:
        self.asked["end", bookie_id] += 1
        return await super().read_last_confirmed(bookie_id, *words, **more)


def test_entries_before_the_last_fragment_are_confirmed_whoever_is_silent() -> None:
    async def test(world: World) -> None:
        writer = await of_two_fragments(world, 1)
        world.kill(writer.metadata.last_fragment.bookies[0])
        standing = await found(world)
        assert standing.zones[Safety.WRITE_QUORUM].entries == 1
        assert not standing.at_risk

    run_virtually(test)


def test_entries_of_an_open_ledger_are_confirmed_that_more_know_to_be_than_may_lie() -> None:
    async def test(world: World) -> None:
        writer = await written(world, b"0", b"1", b"2")
        for name, last in (("b0", 0), ("b1", 2), ("b2", 1)):
            world.bookies[BookieId(name)].ledgers[writer.ledger_id].last_add_confirmed = last
        standing = await found(world)
        assert standing.zones[Safety.WRITE_QUORUM].entries == 2
        assert standing.zones[Safety.UNCONFIRMED].entries == 1
        assert not standing.silent, "the one that was told first is no liar"

    run_virtually(test)


def test_copies_that_a_fragment_of_before_lacks_are_made_by_no_writer() -> None:
    async def test(world: World) -> None:
        writer = await of_two_fragments(world, 2)
        first = writer.metadata.fragments[0].bookies[0]
        world.bookies[first].ledgers[LedgerId(writer.ledger_id)].entries.clear()
        standing = await found(world)
        assert (standing.lacking, standing.under_way) == (1, 0)
        assert exit_status(standing) == 1

    run_virtually(test)


def test_silent_bookie_is_asked_once_and_not_for_each_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_ledger.cli.safety.LEDGERS_AT_ONCE", 1)

    async def test(world: World) -> None:
        for _ledger in range(3):
            await written(world, b"0")
        world.kill("b2")
        transport = Answers(world)
        standing = await found(world, transport)
        assert list(standing.silent) == ["b2"]
        assert (transport.asked["end", "b2"], transport.asked["held", "b2"]) == (1, 1)
        assert transport.asked["held", "b1"] == 3

    run_virtually(test)


@pytest.mark.parametrize(
    ("said", "lacking", "silent"),
    [
        ([BookieStatus.TOO_MANY_REQUESTS] * 2, 0, []),
        ([BookieStatus.IO_ERROR], 1, []),
        ([BookieStatus.UNAVAILABLE], 3, ["b1"]),
    ],
)
def test_answer_counts_for_its_ledger_or_for_the_bookie(
    said: list[BookieStatus], lacking: int, silent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is busy is asked again. What cannot be read is one ledger's."""
    monkeypatch.setattr("spark_ledger.cli.safety.LEDGERS_AT_ONCE", 1)
    monkeypatch.setattr("spark_ledger.cli.safety.LOOKS_MAX", 1)

    async def test(world: World) -> None:
        writers = [await written(world, payload) for payload in (b"0", b"1", b"2")]
        for writer in writers:
            await writer.close()
        transport = Answers(world)
        transport.said["b1", writers[0].ledger_id] = list(said)
        standing = await found(world, transport)
        assert standing.lacking == lacking
        assert list(standing.silent) == silent

    run_virtually(test)


def test_first_of_the_ledgers_at_risk_are_named_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_ledger.cli.safety.WORST_TOLD_MAX", 2)

    async def test(world: World) -> None:
        ids = []
        for _ledger in range(3):
            writer = await written(world, b"0")
            await writer.close()
            for name in ("b0", "b1"):
                world.bookies[BookieId(name)].ledgers[LedgerId(writer.ledger_id)].entries.clear()
            ids.append(writer.ledger_id)
        standing = await found(world)
        assert standing.worst == [(each, Safety.BELOW_ACK_QUORUM) for each in ids[:2]]
        assert standing.zones[Safety.BELOW_ACK_QUORUM].ledgers == 3

    run_virtually(test)


@pytest.mark.parametrize("look", range(1, LOOKS_MAX + 1))
def test_ledger_that_is_deleted_in_one_of_its_looks_is_not_counted(look: int) -> None:
    """It changes in each look before."""

    async def test(world: World) -> None:
        writer = await written(world, b"0")
        await writer.close()
        store, path = MemoryMetadataStore(world.tree), ledger_path(LedgerId(writer.ledger_id))
        looks = 0

        class Changes(MemoryTransport):
            async def list_entries(self, bookie_id: BookieId, *_: Any, **__: Any) -> ListedEntries:
                nonlocal looks
                if bookie_id == "b0":
                    looks += 1
                    node = await store.get(path)
                    await store.put(path, node.value, node.version)
                    if looks == look:
                        await store.delete(path)
                return ListedEntries(BookieStatus.NO_SUCH_LEDGER, [])

            async def read_last_confirmed(self, *_: Any, **__: Any) -> LastConfirmed:
                raise AssertionError("it is closed")

        standing = await found(world, Changes(world.alive))
        assert looks == look
        assert standing.ledgers == 0 and exit_status(standing) == 0

    run_virtually(test)


def test_ledger_whose_node_cannot_be_read_is_not_safe() -> None:
    """It is the first of two that is told."""

    async def test(world: World) -> None:
        store = MemoryMetadataStore(world.tree)
        ids = []
        for _ledger in range(2):
            writer = await written(world, b"0")
            await writer.close()
            path = ledger_path(LedgerId(writer.ledger_id))
            await store.put(path, b"{", (await store.get(path)).version)
            ids.append(writer.ledger_id)
        standing = await found(world)
        assert (standing.unknown, standing.at_risk) == (2, 0)
        assert ledger_path(LedgerId(ids[0])) in standing.unknown_why
        assert exit_status(standing) == 3

    run_virtually(test)
