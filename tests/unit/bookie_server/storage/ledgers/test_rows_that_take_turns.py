"""Copies of a striped ledger that came lane by lane: a row for each entry of few blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from bookie_server.storage.blocks import Block
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.ledgers.entry_log import EntryLogReader
from bookie_server.storage.ledgers.recent_blocks import BLOCKS_KEPT, RecentBlocks
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.limits.entries import ENSEMBLE_SIZE_MAX
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.ledgers.test_scrub import (
    EVEN,
    compact,
    files_of,
    flip,
    rows_of,
    scrub,
)
from tests.unit.bookie_server.storage.support import Machine, expected, formatted, small_config

L, COUNT, SIZE = LedgerId(2), 60, 600
HELD = [e for e in range(COUNT) if e % 5 in (0, 3, 4)]
LOGS = small_config(entry_log_bytes=1024 * KIB, write_once_bytes=0, write_cache_bytes=2048 * KIB)
"""A flush is one log."""


@pytest.fixture(params=[4 * KIB, 0], ids=["run log", "entry log"])
def machine(request: pytest.FixtureRequest) -> Machine:
    """A member of a 5/3/2 ledger got its lanes one after the other."""
    config = small_config(write_once_bytes=request.param, entry_log_bytes=1024 * KIB)
    machine = Machine(formatted(), config)
    for lane in (0, 3, 4):
        ids = range(lane, COUNT, 5)
        assert machine.add(L, ids, size=SIZE, recovery=True) is BookieStatus.OK
        machine.flush()
    assert len(rows_of(machine, L)) > COUNT / 3
    return machine


def among_dead_bytes() -> Machine:
    """Every other entry of a ledger, beside another one that is to be deleted."""
    machine = Machine(formatted(), LOGS)
    assert machine.add(L, range(0, 100, 2), size=SIZE, recovery=True) is BookieStatus.OK
    assert machine.add(4, range(300), size=SIZE) is BookieStatus.OK
    machine.flush()
    return machine


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[BlockLocation]]:
    """How often each block is read."""
    counted = Counter[BlockLocation]()
    read = EntryLogReader.read

    def watched(reader: EntryLogReader, location: BlockLocation, *, entries: int = 0) -> EntryRun:
        counted[location] += 1
        return read(reader, location, entries=entries)

    monkeypatch.setattr(EntryLogReader, "read", watched)
    yield counted


def test_page_of_entries_reads_each_block_once(
    machine: Machine, reads: Counter[BlockLocation]
) -> None:
    page = machine.bookie.entry_page(L, EntryId(0))
    assert page is not None and page.next_entry is None
    assert [e for low, high in page.ranges for e in range(low, high + 1)] == HELD
    assert reads and set(reads.values()) == {1}


def test_run_among_them_is_stored_with_one_look_at_each_block(
    machine: Machine, reads: Counter[BlockLocation]
) -> None:
    assert machine.add(L, range(1, COUNT, 5), size=SIZE, recovery=True) is BookieStatus.OK
    reads.clear()
    machine.flush()
    assert reads and set(reads.values()) == {1}
    assert machine.held(L) == expected(L, sorted([*HELD, *range(1, COUNT, 5)]), SIZE)


def test_scrub_reads_each_block_once(machine: Machine, reads: Counter[BlockLocation]) -> None:
    before = len({row.location for row in rows_of(machine, L)})
    stats = scrub(machine)
    assert reads and set(reads.values()) == {1}
    assert (stats.directories[0].blocks, stats.lacking) == (before, 0)


@pytest.mark.parametrize("lanes", [9, ENSEMBLE_SIZE_MAX - 1])
def test_blocks_of_as_many_lanes_as_there_may_be_are_read_once(
    lanes: int, reads: Counter[BlockLocation]
) -> None:
    config = small_config(write_once_bytes=4 * KIB, entry_log_bytes=1024 * KIB)
    machine = Machine(formatted(), config)
    for lane in range(lanes):
        ids = range(lane, 10 * ENSEMBLE_SIZE_MAX, ENSEMBLE_SIZE_MAX)
        assert machine.add(L, ids, size=SIZE, recovery=True) is BookieStatus.OK
        machine.flush()
    assert len({row.location for row in rows_of(machine, L)}) == lanes
    reads.clear()
    page = machine.bookie.entry_page(L, EntryId(0))
    assert page is not None and page.next_entry is None
    assert len(reads) == lanes and set(reads.values()) == {1}
    reads.clear()
    scrub(machine)
    assert len(reads) == lanes and set(reads.values()) == {1}


def test_all_rows_of_a_damaged_block_leave_the_index_and_its_copy_is_good(
    machine: Machine, reads: Counter[BlockLocation]
) -> None:
    rows = rows_of(machine, L)
    bad = Counter(row.location for row in rows).most_common(1)[0][0]
    flip(machine, bad)
    assert scrub(machine).directories[0].bad_blocks == 1
    assert rows_of(machine, L) == [row for row in rows if row.location != bad]
    assert reads[bad] == 2, "whether a second look at it brings the same"
    lane = next(row.first_entry for row in rows if row.location == bad) % 5
    assert machine.add(L, range(lane, COUNT, 5), size=SIZE, recovery=True) is BookieStatus.OK
    machine.flush()
    lacking = machine.bookie._storage.store_of(L).lacking
    scrubbed = machine.bookie._storage.store_of(L).scrub
    for lack in lacking.of(L):
        reads.clear()
        assert scrubbed.copies_of(lack)
        assert set(reads.values()) <= {1}
    assert machine.held(L) == expected(L, HELD, SIZE)


def test_rows_that_move_while_their_ledger_is_read_leave_the_index_with_their_damaged_copy() -> (
    None
):
    machine, other = among_dead_bytes(), LedgerId(4)
    assert machine.add(L, [21], size=SIZE, recovery=True) is BookieStatus.OK
    machine.flush()
    assert machine.add(L, [51], size=SIZE, recovery=True) is BookieStatus.OK
    machine.flush()
    machine.close()
    machine = Machine(files_of(machine), LOGS)
    machine.bookie.delete_ledgers([other])
    machine.flush()
    moved: list[BlockLocation] = []

    def move(_: int) -> None:
        if not moved:
            compact(machine)
            moved.append(rows_of(machine, L)[0].location)
            flip(machine, moved[0])

    before = {row.location for row in rows_of(machine, L)}
    storage = machine.bookie._storage
    scrubbed, lacking = storage.store_of(L).scrub, storage.store_of(L).lacking
    scrubbed.run(storage._flush_lock, move)
    assert moved and moved[0] not in before
    assert [row.first_entry for row in rows_of(machine, L)] == [21, 51]
    assert {lack.log_id for lack in lacking.of(L)} == {moved[0].log_id}
    assert machine.add(L, range(0, 100, 2), size=SIZE, recovery=True) is BookieStatus.OK
    machine.flush()
    assert machine.held(L) == expected(L, sorted([*range(0, 100, 2), 21, 51]), SIZE)


def test_bytes_of_a_block_are_alive_once_whatever_rows_it_has(machine: Machine) -> None:
    blocks = {row.location: row.byte_count for row in rows_of(machine, L)}
    index = machine.bookie._storage.store_of(L).index
    uses = index.log_use()
    assert uses is not None
    assert sum(use.byte_count for use in uses.values()) == sum(blocks.values())
    assert sum(use.rows for use in uses.values()) == len(rows_of(machine, L))


def test_rows_of_a_block_that_move_one_after_the_other_count_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flush has put an entry into the block while it was copied: a row of it stayed."""
    machine = among_dead_bytes()
    machine.close()
    machine = Machine(files_of(machine), LOGS)
    machine.bookie.delete_ledgers([LedgerId(4)])
    machine.flush()
    read, stayed = EntryLogReader.read_block, list[IndexRow]()

    def add_too(reader: EntryLogReader, location: BlockLocation) -> Block:
        block = read(reader, location)
        if not stayed:
            assert machine.add(L, [51], size=SIZE, recovery=True) is BookieStatus.OK
            machine.flush()
            stayed.extend(row for row in rows_of(machine, L) if row.location == location)
        return block

    with monkeypatch.context() as patch:
        patch.setattr(EntryLogReader, "read_block", add_too)
        compact(machine)
    assert [row.first_entry for row in stayed] == [0, 52]
    compact(machine)
    assert not {row.location for row in stayed} & {row.location for row in rows_of(machine, L)}
    uses = machine.bookie._storage.store_of(L).index.log_use()
    assert uses and all(use.byte_count for use in uses.values()), "its log is not garbage"
    compact(machine)
    assert machine.bookie._storage.store_of(L).index.log_use() == uses
    assert machine.held(L) == expected(L, sorted([*range(0, 100, 2), 51]), SIZE)


def test_block_whose_first_row_is_gone_counts_once_it_is_copied() -> None:
    machine = among_dead_bytes()
    assert machine.add(L, [21, 51], size=SIZE, recovery=True) is BookieStatus.OK
    machine.flush()
    machine.close()
    machine = Machine(files_of(machine), LOGS)
    storage = machine.bookie._storage
    store = storage.store_of(L)
    before = rows_of(machine, L)
    update = store.index.begin()
    update.delete_row(L, before[0])
    update.commit()
    for log in store.space.survey(storage._flush_lock):
        assert store.space.compact(log, storage._flush_lock, lambda _: None, 1024 * KIB)
    rows, uses = rows_of(machine, L), store.index.log_use()
    assert not {row.location for row in before} & {row.location for row in rows}
    assert uses and {row.first_entry for row in rows} == {21, 22, 51, 52}
    blocks = {row.location: row.byte_count for row in (*rows, *store.index.rows(LedgerId(4)))}
    assert sum(use.byte_count for use in uses.values()) == sum(blocks.values())


def test_what_is_dead_beside_them_is_given_back(machine: Machine) -> None:
    """The log seems no fuller than it is."""
    assert machine.add(4, range(100), size=SIZE) is BookieStatus.OK
    machine.flush()
    assert machine.add(6, range(1000), size=SIZE) is BookieStatus.OK  # the run log goes on
    machine.flush()
    machine.bookie.delete_ledgers([LedgerId(4), LedgerId(6)])
    machine.flush()
    compact(machine)
    store = machine.bookie._storage.store_of(L)
    logs = store.space.survey(machine.bookie._storage._flush_lock)
    assert sum(log.garbage_bytes for log in logs) < 100 * SIZE, logs
    assert machine.held(L) == expected(L, HELD, SIZE)
    assert files_of(machine).exists(EVEN)


def test_restart_has_the_same_rows(machine: Machine) -> None:
    rows = rows_of(machine, L)
    assert any(row.is_part for row in rows)
    machine.close()
    again = Machine(files_of(machine), small_config())
    assert rows_of(again, L) == rows and again.held(L) == expected(L, HELD, SIZE)


def test_block_that_ends_below_a_run_is_not_read_for_it() -> None:
    """Its damage is the scrub's, and no flush waits for that."""
    machine = Machine(formatted(), small_config(write_once_bytes=4 * KIB))
    assert machine.add(L, [0, 2, 4], size=2000) is BookieStatus.OK
    assert machine.add(L, [6, 7], size=2000) is BookieStatus.OK
    machine.flush()
    flip(machine, rows_of(machine, L)[0].location)
    assert machine.add(L, [5], size=2000, recovery=True) is BookieStatus.OK
    machine.flush()
    store = machine.bookie._storage.store_of(L)
    assert store.cache.frozen is None and len(rows_of(machine, L)) == 3
    with pytest.raises(CorruptionError):
        store.read_block(L, rows_of(machine, L)[0])


def test_few_blocks_are_remembered() -> None:
    recent = RecentBlocks[int]()
    blocks = [BlockLocation(1, 4096 * number, 10) for number in range(BLOCKS_KEPT + 1)]
    for number, block in enumerate(blocks):
        recent.put(block, number)
        assert recent.get(blocks[0]) == 0, "it is asked for again and again"
    assert [recent.get(each) for each in blocks] == [0, None, *range(2, BLOCKS_KEPT + 1)]
    assert IndexRow(EntryId(0), EntryId(0), blocks[0], is_sparse=False).is_part is False
