"""Damaged rows of one ledger hold up no other: flushes, starts and deletions go on (rule S24)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.lmdb_tables import KEY, LEDGER_KEY
from bookie_server.storage.ledgers import directory_store
from bookie_server.storage.ledgers.lacking import LACKING_NAME
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import BOOKIE_ID, Machine, expected, small_config

OK, IO_ERROR = BookieStatus.OK, BookieStatus.IO_ERROR
ROTTEN, OTHERS = 2, (3, 4, 5)
ALL = (ROTTEN, *OTHERS)

Start = Callable[[], Machine]


class Disk:
    """Has no room for the list of what is lacking once it is ``full``."""

    def __init__(self) -> None:
        self.is_full = False
        self.files = FaultFileSystem(PosixFileSystem(), self._plan)

    def _plan(self, operation: Operation) -> Fault | None:
        is_list = operation.kind == "create" and LACKING_NAME in operation.path.name
        return Fault(errno.ENOSPC) if self.is_full and is_list else None


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def start(tmp_path: Path, disk: Disk) -> Iterator[Start]:
    """Starts the bookie anew, behind a kill of the one before."""
    journal, ledgers = tmp_path / "journal", (tmp_path / "ledgers-0", tmp_path / "ledgers-1")
    for directory in (journal, *ledgers):
        directory.mkdir()
    format_directories(disk.files, journal, ledgers, cluster_id="test", bookie_id=BOOKIE_ID)
    config = small_config(
        journal_directory=journal, ledger_directories=ledgers, write_once_bytes=4 * KIB
    )
    made: list[Machine] = []

    def kill() -> None:
        for machine in made:
            machine.bookie._storage.flush = lambda: None  # type: ignore[method-assign]
            machine.close()
        made.clear()

    def again() -> Machine:
        kill()
        made.append(
            Machine(
                disk.files,
                config,
                open_index=lambda path: LmdbIndex(path, map_bytes=8 * MIB),  # type: ignore[arg-type, return-value]
            )
        )
        return made[0]

    yield again
    kill()


def filled(start: Start) -> Machine:
    """Each of the ledgers has two rows."""
    machine = start()
    for entry in (0, 1):
        for ledger_id in ALL:
            assert machine.add(ledger_id, [entry]) is OK
        machine.flush()
    return machine


def rot(machine: Machine, what: str, *ledgers: int) -> None:
    for ledger_id in ledgers:
        index: Any = machine.bookie._storage.store_of(LedgerId(ledger_id)).index
        table, key = index._rows, KEY.pack(ledger_id, int(what == "last row"))
        if what == "proof":
            table, key = index._proofs, LEDGER_KEY.pack(ledger_id)
        with index._env.begin(write=True, db=table) as transaction:
            stored = bytearray(transaction.get(key))
            stored[3] ^= 1
            transaction.put(key, bytes(stored))


def answers(machine: Machine, ledger_id: int, entries: range) -> list[BookieStatus]:
    return [
        machine.bookie.read(
            LedgerId(ledger_id), EntryId(entry), EntryId(entry), stride=1, max_bytes=1 << 20
        ).status
        for entry in entries
    ]


def check(machine: Machine, *, size: int = 40) -> None:
    """The rotten ledger denies nothing and goes on; all others are whole."""
    assert machine.bookie.failure == ""
    assert answers(machine, ROTTEN, range(4)) == [
        IO_ERROR,
        IO_ERROR,
        OK,
        BookieStatus.NO_SUCH_ENTRY,
    ]
    for each in OTHERS:
        assert machine.held(each) == {**expected(each, [0, 1]), **expected(each, [2], size)}
    assert machine.bookie.lacking.ledgers() == [ROTTEN]


@pytest.mark.parametrize("what", ["last row", "proof"])
def test_flush_goes_on_behind_a_damaged_ledger_that_is_written(start: Start, what: str) -> None:
    machine = filled(start)
    rot(machine, what, ROTTEN)
    for ledger_id in ALL:
        assert machine.add(ledger_id, [2]) is OK
    machine.flush()
    check(machine)
    assert machine.bookie.stats().ledger_storage.scrub.bad == 1
    check(start())


@pytest.mark.parametrize("size", [40, 8 * KIB], ids=["journal", "run log"])
def test_start_goes_on_behind_a_damaged_ledger_that_is_replayed(start: Start, size: int) -> None:
    machine = filled(start)
    rot(machine, "last row", ROTTEN)
    for ledger_id in ALL:
        assert machine.add(ledger_id, [2], size=size) is OK
    for _again in range(2):
        check(start(), size=size)


def test_directories_that_are_both_damaged_are_flushed_in_one_go(start: Start) -> None:
    machine = filled(start)
    rot(machine, "last row", 2, 3)
    for ledger_id in ALL:
        assert machine.add(ledger_id, [2]) is OK
    machine.flush()
    assert machine.bookie.lacking.ledgers() == [2, 3]
    for ledger_id in (2, 3):
        assert answers(machine, ledger_id, range(3)) == [IO_ERROR, IO_ERROR, OK]


def test_start_without_room_for_the_list_goes_on_and_heals_once_there_is_some(
    start: Start, disk: Disk
) -> None:
    """A full disk refuses no start (rule S14), and before the list nothing leaves the index."""
    machine = filled(start)
    rot(machine, "last row", ROTTEN)
    for ledger_id in ALL:
        assert machine.add(ledger_id, [2]) is OK
    disk.is_full = True
    machine = start()
    assert answers(machine, ROTTEN, range(3)) == [OK, IO_ERROR, OK]
    for each in OTHERS:
        assert machine.held(each) == expected(each, range(3))
    with pytest.raises(OSError, match="No space"):
        machine.flush()
    disk.is_full = False
    machine.flush()
    check(machine)


def test_deleted_ledger_that_is_damaged_goes_with_all_others(start: Start) -> None:
    machine = filled(start)
    rot(machine, "last row", ROTTEN)
    machine.keys.missing.update(ALL)
    machine.bookie.delete_ledgers(map(LedgerId, ALL))
    assert machine.bookie.held_ledgers(-1, 9) == []
    assert machine.bookie.failure == ""


@pytest.mark.parametrize("also", [(), (6, 8)])
def test_deleted_ledger_that_cannot_be_healed_keeps_no_other(
    start: Start, disk: Disk, also: tuple[int, ...]
) -> None:
    """On a full disk the deletions have to make the room that the list needs."""
    machine = filled(start)
    for ledger_id in also:
        assert machine.add(ledger_id, [0]) is OK
    machine.flush()
    rot(machine, "last row", ROTTEN)
    disk.is_full = True
    for _again in range(2):
        with pytest.raises(CorruptionError, match="wrong checksum of a row"):
            machine.bookie.delete_ledgers(map(LedgerId, (*ALL, *also)))
        assert [each.ledger_id for each in machine.bookie.held_ledgers(-1, 9)] == [ROTTEN]
    disk.is_full = False
    machine.bookie.delete_ledgers([LedgerId(ROTTEN)])
    assert machine.bookie.held_ledgers(-1, 9) == []


def test_blocks_of_a_damaged_ledger_that_went_in_part_wait_for_a_copy(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the rows that stay could name them as well (rule S25)."""
    monkeypatch.setattr(directory_store, "DELETED_ROWS_AT_ONCE", 1)
    machine = start()
    assert machine.add(ROTTEN, [0], size=40 * KIB) is OK
    machine.flush()
    assert machine.add(ROTTEN, [1]) is OK
    machine.flush()
    rot(machine, "last row", ROTTEN)
    disk.is_full = True
    with pytest.raises(CorruptionError, match="wrong checksum of a row"):
        machine.bookie.delete_ledgers([LedgerId(ROTTEN)])
    assert machine.bookie._storage._stores[0].space.dead._count == 0


def test_damage_that_stays_leaves_the_index_as_it_is(start: Start, disk: Disk) -> None:
    """Without the list its entries would be denied (rule S22)."""
    machine = filled(start)
    rot(machine, "last row", ROTTEN)
    disk.is_full = True
    assert machine.add(ROTTEN, [2]) is OK
    for _again in range(2):
        with pytest.raises(OSError, match="No space"):
            machine.flush()
        assert answers(machine, ROTTEN, range(3)) == [OK, IO_ERROR, OK]
    with suppress(OSError):
        machine.bookie._storage.scrubber.run_once()
    assert answers(machine, ROTTEN, range(3)) == [OK, IO_ERROR, OK]


def test_directory_with_a_damaged_ledger_gives_back_what_others_took(start: Start) -> None:
    """Its copies may never come, and a restart does not help: the list is durable (rule S24)."""
    machine = filled(start)
    rot(machine, "last row", ROTTEN)
    assert machine.add(ROTTEN, [2]) is OK
    machine.flush()
    machine = start()
    compactor = machine.bookie._storage.compactor
    for churn in range(10, 18, 2):
        for first in range(0, 100, 10):
            assert machine.add(churn, range(first, first + 10), size=300) is OK
        machine.flush()
        machine.bookie.delete_ledgers([LedgerId(churn)])
        compactor.run_once(full=True, paced=False)
    assert compactor.stats.removed_bytes > 3 * 30 * KIB
    assert answers(machine, ROTTEN, range(3)) == [IO_ERROR, IO_ERROR, OK]
