"""Repair's look at what is lacking, beside a scrub that takes damaged rows out (rule S22).

A stretch that left the list while its damaged row was still there would be denied once it goes.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable

import pytest

from bookie_server.refetch import Refetch
from bookie_server.storage.index import memory_index
from bookie_server.storage.ledgers.lacking import Lacking
from spark_ledger.limits import KIB, MIB
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from tests.crash.disk import after_kill
from tests.unit.bookie_server.storage.ledgers.test_scrub import (
    files_of,
    flip,
    rows_of,
    scrub,
    status_of,
)
from tests.unit.bookie_server.storage.support import Machine, formatted, small_config
from tests.unit.bookie_server.test_refetch import ME

L = LedgerId(2)
CONFIG = small_config(write_once_bytes=4 * KIB, entry_log_bytes=MIB)
WAITS_S = 0.1
"""For what should not happen, or waits; a slow machine makes such a test see less, never fail."""


@pytest.fixture
def machine() -> Machine:
    """Ledger 2: two blocks of ten entries in one entry log."""
    machine = Machine(formatted(), CONFIG)
    for first in (0, 10):
        assert machine.add(L, range(first, first + 10)) is BookieStatus.OK
        machine.flush()
    return machine


def damage(machine: Machine) -> None:
    """Of the first block; twice is not at all."""
    flip(machine, rows_of(machine, L)[0].location)


def taken_out(machine: Machine) -> None:
    damage(machine)
    assert scrub(machine).lacking == 1


def look(machine: Machine, interpose: Callable[[], None] = lambda: None) -> None:
    """``interpose`` runs when the metadata are read."""

    async def main() -> None:
        store = await closed()
        done: list[bool] = []

        def first(*_of: object) -> Fault:
            if not done:
                done.append(True)
                interpose()
            return Fault()

        store.interpose = first
        await Refetch(machine.bookie, store, ME).look()

    asyncio.run(main())


async def closed() -> MemoryMetadataStore:
    """The metadata of the ledger, which wants all its 20 entries here."""
    store = MemoryTree().open_session()
    fragment = Fragment(EntryId(0), (ME, BookieId("b1")))
    made = await LedgerStore(store).create(LedgerMetadata(L, Quorums(2, 2, 1), (fragment,)))
    wanted = made.value.with_changes(
        state=LedgerState.CLOSED, last_entry_id=EntryId(19), length=800
    )
    await LedgerStore(store).compare_and_set(wanted, made.version)
    return store


def is_lacking(machine: Machine) -> bool:
    return bool(machine.bookie.lacking.of(L))


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("reads_again", [False, True])
def test_stretch_whose_row_is_on_its_way_out_stays_on_the_list(
    machine: Machine, reads_again: bool
) -> None:
    """Also if the disk reads the block after all: its row goes."""
    damage(machine)
    with machine.bookie._storage._flush_lock:
        scrubbing = started(lambda: scrub(machine))
        while not is_lacking(machine):
            scrubbing.join(0.001)
            assert scrubbing.is_alive()
        if reads_again:
            damage(machine)
        looking = started(lambda: look(machine))
        looking.join(WAITS_S)
    scrubbing.join(10)
    looking.join(10)
    assert len(rows_of(machine, L)) == 1 and is_lacking(machine)
    assert status_of(machine, L, 0) is BookieStatus.IO_ERROR


def test_stretch_whose_row_goes_after_it_was_counted_stays_on_the_list(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was listed, and its row could not be taken out; then the disk read it for once."""
    with monkeypatch.context() as patch:
        patch.setattr(memory_index._MemoryUpdate, "commit", fails)
        damage(machine)
        with pytest.raises(OSError, match="no space"):
            scrub(machine)
    damage(machine)
    look(machine, lambda: taken_out(machine))
    assert is_lacking(machine) and status_of(machine, L, 0) is BookieStatus.IO_ERROR


def fails(*_of: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


def test_row_is_not_taken_out_between_the_last_look_and_the_list(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_out(machine)
    assert machine.add(L, range(10), recovery=True) is BookieStatus.OK
    machine.flush()
    remove, scrubbing = Lacking.remove, list[threading.Thread]()

    def slowly(lacking: Lacking, *of: object) -> int:
        damage(machine)  # the copy, this time
        scrubbing.append(started(lambda: scrub(machine)))
        scrubbing[0].join(WAITS_S)
        return remove(lacking, *of)  # type: ignore[arg-type]

    monkeypatch.setattr(Lacking, "remove", slowly)
    look(machine)
    scrubbing[0].join(10)
    assert is_lacking(machine) and status_of(machine, L, 0) is BookieStatus.IO_ERROR


@pytest.mark.parametrize("restarts", [False, True])
def test_damaged_block_whose_row_stays_counts_as_no_copy(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    damage(machine)
    with monkeypatch.context() as patch:
        patch.setattr(memory_index._MemoryUpdate, "commit", fails)
        with pytest.raises(OSError, match="no space"):
            scrub(machine)
    if restarts:
        machine = Machine(after_kill(files_of(machine)), CONFIG)
    look(machine)
    assert is_lacking(machine) and len(rows_of(machine, L)) == 2
    assert scrub(machine).lacking == 1
    assert status_of(machine, L, 0) is BookieStatus.IO_ERROR


@pytest.mark.parametrize("size", [40, 4 * KIB], ids=["entry log", "run log"])
def test_copy_in_memory_only_takes_no_stretch_off_the_list(machine: Machine, size: int) -> None:
    """A crash takes it away, and then the entries would be denied."""
    taken_out(machine)
    answers = machine.start_add(L, range(10), recovery=True, size=size)
    look(machine)
    if size > 40:  # a flush leaves it in memory, as its place is not settled
        machine.bookie.flush()
        look(machine)
    assert not answers and is_lacking(machine)
    again = Machine(after_kill(files_of(machine)), CONFIG)
    assert status_of(again, L, 0) is BookieStatus.IO_ERROR


def test_copy_that_is_stored_takes_its_stretch_off_the_list(machine: Machine) -> None:
    taken_out(machine)
    assert machine.add(L, range(10), recovery=True) is BookieStatus.OK
    machine.flush()
    look(machine)
    assert not is_lacking(machine) and status_of(machine, L, 0) is BookieStatus.OK


def test_copies_are_found_behind_any_number_of_rows(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_server.storage.ledgers.directory_scrub.COMPACTION_ROWS_AT_ONCE", 2)
    taken_out(machine)
    for entries in ([0, 2], [1], [3, 4, 5], [6], [7], [9]):
        assert machine.add(L, entries, recovery=True) is BookieStatus.OK
        machine.flush()
    (lack,) = machine.bookie.lacking.of(L)

    def copied() -> list[int]:
        found = machine.bookie.lacking.copies_of(lack)
        return [each for first, last in found for each in range(first, last + 1) if each < 10]

    assert copied() == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    flip(machine, rows_of(machine, L)[0].location)  # that of 0 and 2
    flip(machine, rows_of(machine, L)[4].location)
    assert copied() == [1, 3, 4, 5, 7, 9]
