"""Damage that healing the index does not mend costs no look at all rows at each flush (S24)."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bookie_server.storage.index.lmdb_update import LmdbUpdate
from bookie_server.storage.ledgers import directory_scrub
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.entry_log import log_path
from bookie_server.storage.ledgers.lacking import TooMuchLackingError
from spark_ledger.errors import CorruptionError
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.ledgers.test_rotten_rows import (
    ALL,
    ROTTEN,
    Disk,
    Start,
    filled,
    rot,
)
from tests.unit.bookie_server.storage.ledgers.test_rotten_rows import disk as disk
from tests.unit.bookie_server.storage.ledgers.test_rotten_rows import start as start
from tests.unit.bookie_server.storage.support import Machine, expected

OK = BookieStatus.OK
SPARSE, OTHER_DIRECTORY = LedgerId(4), LedgerId(3)
Looks = list[int]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Looks]:
    """How many each look at all rows has found."""
    # An error that is kept leads to an open log, by its traceback.
    caplog.set_level(logging.CRITICAL, directory_scrub.__name__)
    found: Looks = []
    drop_damaged = LmdbUpdate.drop_damaged

    def noted(update: LmdbUpdate) -> dict[LedgerId, EntryId]:
        dropped = drop_damaged(update)
        found.append(len(dropped))
        return dropped

    monkeypatch.setattr(LmdbUpdate, "drop_damaged", noted)
    yield found
    gc.collect()


def commits(machine: Machine) -> int:
    """Of the index of the directory that is damaged."""
    index: Any = machine.bookie._storage.store_of(SPARSE).index
    return int(index._env.info()["last_txnid"])


def with_a_rotten_block(start: Start) -> Machine:
    """Its row is whole, and an add between its entries needs to know which ones it has."""
    machine = filled(start)
    assert machine.add(SPARSE, [10, 12]) is OK
    machine.flush()
    store = machine.bookie._storage.store_of(SPARSE)
    row = store.index.row_at(SPARSE, EntryId(10))
    assert row is not None and row.is_sparse
    for ledger_id, entry in ((SPARSE, 11), (ROTTEN, 2)):
        assert machine.add(ledger_id, [entry]) is OK
    with log_path(store.directory, row.location.log_id).open("r+b") as file:
        file.seek(row.location.offset + row.location.length - 1)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    return machine


def flush_in_vain(machine: Machine) -> None:
    with pytest.raises(CorruptionError):
        machine.flush()


def test_rotten_block_has_the_index_looked_at_once_and_holds_up_no_other_directory(
    start: Start, looks: Looks
) -> None:
    machine = with_a_rotten_block(start)
    before = commits(machine)
    for entry in (2, 3, 4):
        assert machine.add(OTHER_DIRECTORY, [entry]) is OK
        flush_in_vain(machine)
        assert not machine.bookie._storage.store_of(OTHER_DIRECTORY).dirty_ledgers()
    assert (looks, commits(machine)) == ([0], before)
    machine.bookie._storage.scrubber.run_once()
    machine.flush()
    assert machine.bookie.failure == ""
    assert machine.held(OTHER_DIRECTORY) == expected(OTHER_DIRECTORY, range(5))


def test_row_that_rots_later_is_taken_out_beside_a_rotten_block(start: Start, looks: Looks) -> None:
    machine = with_a_rotten_block(start)
    for _again in range(2):
        flush_in_vain(machine)
    assert looks == [0]
    rot(machine, "last row", ROTTEN)
    for _again in range(3):
        flush_in_vain(machine)
    assert looks == [0, 1]
    assert machine.bookie.lacking.ledgers() == [ROTTEN]
    machine.bookie._storage.scrubber.run_once()
    machine.flush()
    assert machine.bookie.lacking.ledgers() == [ROTTEN, SPARSE]
    assert machine.bookie.failure == ""


def finds_nothing(_patch: pytest.MonkeyPatch) -> None:
    """The index adds up."""


def is_refused(patch: pytest.MonkeyPatch, error: Exception) -> None:
    drop_damaged = LmdbUpdate.drop_damaged

    def refused(update: LmdbUpdate) -> None:
        drop_damaged(update)
        raise error

    patch.setattr(LmdbUpdate, "drop_damaged", refused)


HEALING: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "finds nothing": finds_nothing,
    "meets a bad page": lambda patch: is_refused(patch, CorruptionError("a page is damaged")),
    "has too much to list": lambda patch: is_refused(patch, TooMuchLackingError("too much")),
}


@pytest.mark.parametrize("how", HEALING)
def test_healing_that_did_not_help_is_tried_again_for_other_damage_or_behind_a_pass(
    start: Start, looks: Looks, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    machine = filled(start)
    HEALING[how](monkeypatch)
    storage = machine.bookie._storage
    store = storage.store_of(SPARSE)
    met = ["page 7 is damaged"]

    def damaged(*_of: object) -> None:
        raise CorruptionError(met[0])

    monkeypatch.setattr(store, "flush", damaged)
    monkeypatch.setattr(store, "delete_some", damaged)

    def meets() -> None:
        for _again in range(2):
            with pytest.raises((CorruptionError, TooMuchLackingError)):
                machine.bookie.flush()
            with pytest.raises(CorruptionError):
                storage.delete_ledgers([SPARSE])

    meets()
    assert looks == [0]
    met[0] = "page 8 is damaged"
    meets()
    assert looks == [0, 0]
    storage.scrubber.run_once()
    meets()
    assert looks == [0, 0, 0]


def test_disk_without_room_for_the_list_is_asked_before_all_rows_are_looked_at(
    start: Start, disk: Disk, looks: Looks
) -> None:
    machine = filled(start)
    rot(machine, "last row", ROTTEN)
    assert all(machine.add(each, [2]) is OK for each in ALL)
    disk.is_full = True
    for _again in range(2):
        with pytest.raises(OSError, match="No space"):
            machine.flush()
    assert looks == []
    disk.is_full = False
    machine.flush()
    assert looks == [1]


def test_start_that_meets_what_cannot_be_healed_stores_nothing_twice(
    start: Start, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_rotten_block(start)
    failed: list[str] = []
    flush = DirectoryStore.flush

    def noted(store: DirectoryStore, *marks: Any) -> bool:
        try:
            return flush(store, *marks)
        except CorruptionError as error:
            failed.append(str(error))
            raise

    monkeypatch.setattr(DirectoryStore, "flush", noted)
    with pytest.raises(CorruptionError, match="wrong checksum"):
        start()
    assert (looks, len(failed)) == ([0], 1)
