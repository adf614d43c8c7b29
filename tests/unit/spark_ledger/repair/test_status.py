"""How far repair is, counted over all pages; and notes that two write at the same time."""

from __future__ import annotations

import asyncio
import time

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import read_node, write_node
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.metadata.unsettled import id_path
from spark_ledger.repair import status
from spark_ledger.repair.nodes import (
    DONE_PATH,
    FAILED_PATH,
    FailedRepair,
    Mark,
    RepairDone,
    count_done,
    mark,
    mark_root,
)
from spark_ledger.repair.status import bytes_to_copy, look
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import Checking, wipe
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import lose, marked


async def failed(store: MetadataStore, ledger_id: int) -> None:
    path = id_path(FAILED_PATH, LedgerId(ledger_id))
    await write_node(store, path, FailedRepair(reason=f"of {ledger_id}", tries=1), None)


async def several(client: LedgerClient, count: int) -> list[int]:
    """Closed ledgers of 30 bytes each, on three of three bookies."""
    writers = [await filled(client) for _ in range(count)]
    for writer in writers:
        await writer.close()
    return [writer.ledger_id for writer in writers]


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_status_counts_marks_and_failures_of_all_pages(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows some failures, and measures some ledgers: a cluster may have a million."""
    monkeypatch.setattr(status, "MEASURED_LEDGERS_MAX", most)
    monkeypatch.setattr(status, "FAILURES_SHOWN_MAX", most)

    async def test(world: World) -> None:
        client = await world.client()
        ids = await several(client, 4)
        lost = frozenset([BookieId("b0")])
        for ledger_id, copies in zip(ids, (0, 1, 1, 2), strict=True):
            await mark(client.store, LedgerId(ledger_id), lost, copies)
        for far in (10_001, 10_002, 25_000):
            await mark(client.store, LedgerId(far), lost, 1)
        for ledger_id in (1, 2, 10_001, 10_002):
            await failed(client.store, ledger_id)
        found = await look(client.store)
        assert found.marked == {0: 1, 1: 5, 2: 1}
        assert found.measured == min(most, 7)
        # Those that are gone, with ids far away, have nothing to copy; they come before the last.
        assert found.bytes_left == 30 * {1: 1, 3: 3, 4: 3}.get(most, 4)
        assert found.failing == 4
        assert [ledger_id for ledger_id, _ in found.failed] == [1, 2, 10_001, 10_002][:most]

    run_virtually(test)


def metadata(quorums: Quorums, *fragments: tuple[int, str], entries: int = 100) -> LedgerMetadata:
    return LedgerMetadata(
        LedgerId(1),
        quorums,
        [Fragment(EntryId(first), tuple(map(BookieId, names))) for first, names in fragments],
        state=LedgerState.CLOSED,
        last_entry_id=EntryId(entries - 1),
        length=1000,
    )


@pytest.mark.parametrize(
    ("ledger", "lost", "size_bytes"),
    [
        (metadata(Quorums(3, 3, 2), (0, "abc")), "a", 1000),
        (metadata(Quorums(3, 3, 2), (0, "abc")), "ab", 2000),
        (metadata(Quorums(3, 2, 1), (0, "abc")), "a", 667),  # two thirds of the entries
        (metadata(Quorums(4, 2, 1), (0, "abcd")), "ad", 1000),
        (metadata(Quorums(3, 3, 2), (0, "abc"), (40, "dbc")), "a", 400),
        (metadata(Quorums(3, 3, 2), (0, "abc"), (40, "dbc")), "d", 600),
        (metadata(Quorums(3, 3, 2), (0, "abc"), (40, "dbc")), "bd", 1600),
        (metadata(Quorums(3, 3, 2), (0, "abc")), "x", 0),
        (metadata(Quorums(3, 3, 2), (0, "abc"), entries=0), "a", 0),
    ],
)
def test_what_is_to_copy_is_what_the_lost_bookies_had_to_hold(
    ledger: LedgerMetadata, lost: str, size_bytes: int
) -> None:
    assert bytes_to_copy(ledger, frozenset(map(BookieId, lost))) == size_bytes


def test_marks_and_counts_of_several_at_the_same_time_all_count() -> None:
    """Auditor and checker mark, and each cluster has several workers."""

    async def test() -> None:
        store, ledger_id = MemoryMetadataStore(MemoryTree()), LedgerId(7)
        names = [frozenset([BookieId(name)]) for name in "abcd"]
        await asyncio.gather(*(mark(store, ledger_id, each, 2) for each in names))
        found = await read_node(store, Mark, id_path(mark_root(2), ledger_id))
        assert found is not None and found.value.bookies == ("a", "b", "c", "d")
        more = [RepairDone(ledgers=n, copied_bytes=10 * n, source_waited_ms=n) for n in (1, 2, 3)]
        await asyncio.gather(*(count_done(store, each) for each in more))
        done = await read_node(store, RepairDone, DONE_PATH)
        assert done is not None
        assert (done.value.ledgers, done.value.copied_bytes) == (6, 60)
        assert done.value.source_waited_ms == 6

    asyncio.run(test())


@pytest.mark.parametrize("worst", [0, 1])
def test_ledger_with_holes_is_marked_by_the_worst_of_its_fragments(worst: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client, 10)
        gone = writer.metadata.last_fragment.bookies[0]
        await lose(world, gone)
        await writer.append(b"in a second fragment")
        await writer.close()
        world.revive(gone)
        await world.register(gone)
        fragments = (await client.ledger_metadata(writer.ledger_id)).fragments
        entry = [0, fragments[1].first_entry]
        for name in fragments[worst].bookies[1:]:
            wipe(world, name, writer, entry[worst])
        wipe(world, fragments[1 - worst].bookies[0], writer, entry[1 - worst])
        assert await Checking(client).check()
        assert await marked(world) == {writer.ledger_id: 3 - 2}

    run_virtually(test, bookies=5)


def test_rate_is_shown_as_long_as_its_count_is_new() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        for ago_ms, shown in ((0, 7), (60_000, 0)):
            time_ms = time.time_ns() // 1_000_000 - ago_ms
            before = await read_node(client.store, RepairDone, DONE_PATH)
            done = RepairDone(bytes_per_s=7, time_ms=time_ms)
            await write_node(client.store, DONE_PATH, done, before)
            assert (await look(client.store)).rate == shown

    run_virtually(test)
