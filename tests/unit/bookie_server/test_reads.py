"""Reads return entries in order up to a bound, say what is missing, and deny nothing damaged."""

from __future__ import annotations

import errno
from typing import cast

import pytest

from bookie_server import reads
from bookie_server.reads import read_entries
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.ledgers import directory_store
from bookie_server.storage.ledgers.entry_log import LOG_HEADER_BYTES, log_ids, log_path
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.bookie_api import ReadOutcome
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.listed import listed
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    expected,
    formatted,
)

OK = BookieStatus.OK
L = LedgerId(7)


@pytest.fixture
def files() -> MemoryFileSystem:
    return formatted()


@pytest.fixture
def machine(files: MemoryFileSystem) -> Machine:
    return Machine(files)


def read(
    machine: Machine,
    first: int,
    last: int,
    *,
    stride: int = 1,
    max_bytes: int = MIB,
    ledger_id: int = L,
) -> ReadOutcome:
    return machine.bookie.read(
        LedgerId(ledger_id), EntryId(first), EntryId(last), stride=stride, max_bytes=max_bytes
    )


def ids(outcome: ReadOutcome) -> list[int]:
    return [entry_id for run in outcome.runs for entry_id in run.ids()]


@pytest.fixture(params=["cache", "log", "both"])
def filled(machine: Machine, request: pytest.FixtureRequest) -> Machine:
    """Entries 0-9, 20-29 and, of a striped ledger 8, 0, 1, 3, 4, 6, 7."""
    machine.add(7, range(5))
    machine.add(8, [0, 1, 3])
    if request.param == "both":
        machine.flush()
    machine.add(7, range(5, 10))
    machine.add(7, range(20, 30))
    machine.add(8, [4, 6, 7])
    if request.param == "log":
        machine.flush()
    return machine


def test_read_returns_the_entries_of_a_range(filled: Machine) -> None:
    outcome = read(filled, 0, 9)
    assert (outcome.status, ids(outcome)) == (OK, list(range(10)))
    frames = b"".join(run.frames for run in outcome.runs)
    assert frames == b"".join(expected(7, range(10)).values())
    assert ids(read(filled, 3, 7)) == [3, 4, 5, 6, 7]
    assert ids(read(filled, 1, 9, stride=3)) == [1, 4, 7]
    assert ids(read(filled, 9, 9)) == [9]
    assert listed(filled.bookie, L) == [(0, 9), (20, 29)]


def test_read_with_a_stride_returns_the_stripe(filled: Machine) -> None:
    for first, found in ((0, [0, 3, 6]), (1, [1, 4, 7])):
        outcome = read(filled, first, 8, stride=3, ledger_id=8)
        assert (outcome.status, ids(outcome)) == (OK, found)
    outcome = read(filled, 0, 8, ledger_id=8)
    assert (outcome.status, outcome.entry_id, ids(outcome)) == (
        BookieStatus.NO_SUCH_ENTRY,
        2,
        [0, 1],
    )
    assert listed(filled.bookie, LedgerId(8)) == [(0, 1), (3, 4), (6, 7)]


def test_read_ends_at_the_byte_limit_but_returns_one_entry(filled: Machine) -> None:
    assert ids(read(filled, 0, 9, max_bytes=1)) == [0], "at least one"
    assert ids(read(filled, 0, 9, max_bytes=40)) == [0]
    assert ids(read(filled, 0, 9, max_bytes=199)) == [0, 1, 2, 3]
    assert ids(read(filled, 0, 9, max_bytes=400)) == list(range(10))
    assert ids(read(filled, 0, 9, stride=2, max_bytes=130)) == [0, 2, 4]


def test_read_leaves_a_stored_run_that_will_not_fit_to_the_next(machine: Machine) -> None:
    for first in (0, 5):
        machine.add(7, range(first, first + 5))
    assert ids(read(machine, 0, 9, max_bytes=200)) == [0, 1, 2, 3, 4]
    assert ids(read(machine, 0, 9, max_bytes=399)) == [0, 1, 2, 3, 4], "not nine, cut from two runs"
    assert ids(read(machine, 5, 9, max_bytes=399)) == [5, 6, 7, 8, 9]
    assert ids(read(machine, 3, 9, max_bytes=160)) == [3, 4, 5, 6], "what is short says little"


def test_read_behind_a_slow_disk_ends_with_the_run_that_it_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread moves on, and its client hears of it: the disk answers every time."""
    for first in (0, 2, 4):
        machine.add(7, range(first, first + 2))
        machine.flush()
    assert ids(read(machine, 0, 9)) == list(range(6))
    monkeypatch.setattr(reads, "BOOKIE_READ_QUICK_S", 0.0)
    for first in (0, 2, 4):
        outcome = read(machine, first, 5)
        assert (outcome.status, ids(outcome)) == (OK, [first, first + 1])


def test_page_of_a_striped_ledger_behind_a_slow_disk_ends_with_the_block_that_it_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are read to know what they have: a list of them all takes minutes, and whoever
    asks has left by then, and begins anew."""
    for first in (0, 4, 10):
        machine.add(8, [first, first + 1, first + 3])
        machine.flush()
    everything = [(0, 1), (3, 5), (7, 7), (10, 11), (13, 13)]
    assert machine.bookie.entry_page(LedgerId(8), EntryId(0)) == (everything, None)
    monkeypatch.setattr(directory_store, "BOOKIE_READ_QUICK_S", 0.0)
    monkeypatch.setattr(LedgerStorage, "ledger_record", lambda *_: None)
    for first, page in {
        0: ([(0, 1), (3, 3)], 4),
        3: ([(3, 3)], 4),
        4: ([(4, 5), (7, 7)], 10),
        8: ([], 10),  # no denial
        10: ([(10, 11), (13, 13)], None),
    }.items():
        assert machine.bookie.entry_page(LedgerId(8), EntryId(first)) == page
    assert listed(machine.bookie, LedgerId(8)) == everything


def test_read_of_missing_entries_says_which_is_missing(filled: Machine) -> None:
    outcome = read(filled, 8, 25)
    assert (outcome.status, outcome.entry_id) == (BookieStatus.NO_SUCH_ENTRY, 10)
    assert ids(outcome) == [8, 9] and "ledger 7 entry 10" in outcome.message
    outcome = read(filled, 30, 30)
    assert (outcome.status, outcome.runs) == (BookieStatus.NO_SUCH_ENTRY, [])
    outcome = read(filled, 0, 0, ledger_id=99)
    assert (outcome.status, outcome.runs) == (BookieStatus.NO_SUCH_LEDGER, [])
    assert listed(filled.bookie, LedgerId(99)) is None
    end = filled.bookie.end_of_ledger(LedgerId(99), access_key=b"")
    assert end.status is BookieStatus.NO_SUCH_LEDGER


def test_partial_reads_use_the_block_cache(machine: Machine, files: MemoryFileSystem) -> None:
    machine.add(7, range(50))
    machine.flush()
    assert ids(read(machine, 0, 9)) == list(range(10))
    log = log_path(LEDGERS[1], log_ids(files, LEDGERS[1])[0])
    files.damage(log, LOG_HEADER_BYTES + 180, b"\xff\xff")
    assert ids(read(machine, 10, 48)) == list(range(10, 49)), "from memory"
    assert ids(read(machine, 49, 49)) == [49]
    outcome = read(machine, 0, 9)
    assert outcome.status is BookieStatus.IO_ERROR, "read to its end: the block was given up"


@pytest.mark.parametrize("harm", ["damaged", "missing", "unreadable"])
def test_read_of_damaged_entries_is_an_io_error_and_no_denial(
    files: MemoryFileSystem, harm: str
) -> None:
    failing = False

    def plan(operation: Operation) -> Fault | None:
        in_ledgers = operation.path.parent in LEDGERS
        return Fault(errno.EIO) if failing and in_ledgers and operation.kind == "pread" else None

    machine = Machine(FaultFileSystem(files, plan))
    machine.add(7, range(5))
    machine.flush()
    machine.add(7, [5])
    log = log_path(LEDGERS[1], log_ids(files, LEDGERS[1])[0])
    if harm == "damaged":
        files.damage(log, LOG_HEADER_BYTES + 80, b"\xff\xff")
    elif harm == "missing":
        files.remove(log)
    else:
        failing = True
    outcome = read(machine, 0, 5)
    assert (outcome.status, outcome.entry_id, outcome.runs) == (BookieStatus.IO_ERROR, 0, [])
    assert str(log) in outcome.message
    assert ids(read(machine, 5, 5)) == [5], "what is in memory is served"
    assert read(machine, 6, 6).status is BookieStatus.NO_SUCH_ENTRY


def test_read_up_to_damage_returns_entries_and_an_io_error() -> None:
    files = formatted()
    machine = Machine(files)
    for first in (0, 5):
        assert machine.add(7, range(first, first + 5)) is BookieStatus.OK
        machine.flush()
    rows = machine.bookie._storage.store_of(LedgerId(7)).index.rows(LedgerId(7))
    damaged = rows[1].location
    path = log_path(LEDGERS[1], damaged.log_id)
    files.damage(path, damaged.offset + 100, b"\xff\xff\xff")
    outcome = machine.bookie.read(LedgerId(7), EntryId(3), EntryId(9), stride=1, max_bytes=1 << 20)
    assert [entry for run in outcome.runs for entry in run.ids()] == [3, 4]
    assert (outcome.status, outcome.entry_id) == (BookieStatus.IO_ERROR, 5)
    assert str(path) in outcome.message


def test_read_leaves_an_entry_that_is_larger_than_what_is_left_to_the_next(
    machine: Machine,
) -> None:
    """Only the first entry of an answer may pass its bound."""
    machine.add(7, [0])
    machine.add(7, [1], size=1000)
    assert ids(read(machine, 0, 1, max_bytes=300)) == [0]
    assert ids(read(machine, 1, 1, max_bytes=300)) == [1]


@pytest.mark.parametrize("error", [OSError("the disk"), CorruptionError("the index")])
def test_ledger_that_cannot_be_read_is_not_denied(error: Exception) -> None:
    """Whether nothing is held of it, or only this entry is missing, nobody can tell (rule S9)."""

    class Storage:
        def read(self, *_given: object, **_named: object) -> None:
            return None

        def ledger_record(self, _ledger_id: LedgerId) -> None:
            raise error

    outcome = read_entries(
        cast("LedgerStorage", Storage()), L, EntryId(0), EntryId(3), stride=1, max_bytes=MIB
    )
    assert (outcome.status, outcome.entry_id) == (BookieStatus.IO_ERROR, 0)
    assert outcome.message == str(error)


def in_memory(
    machine: Machine, first: int, last: int, *, stride: int = 1, max_bytes: int = MIB
) -> ReadOutcome | None:
    read_in_memory = machine.bookie.ledger_disks.read_in_memory
    return read_in_memory(L, EntryId(first), EntryId(last), stride, max_bytes)


def test_what_is_in_memory_is_read_as_it_is_with_the_disk(machine: Machine) -> None:
    machine.add(7, range(10))
    for wanted in ((0, 9, 1, MIB), (3, 7, 1, MIB), (1, 9, 3, MIB), (0, 9, 1, 199), (2, 9, 1, 1)):
        first, last, stride, max_bytes = wanted
        found = in_memory(machine, first, last, stride=stride, max_bytes=max_bytes)
        assert found == read(machine, first, last, stride=stride, max_bytes=max_bytes), wanted


def test_what_is_on_the_disk_only_is_not_asked_for_and_not_denied() -> None:
    asked: list[Operation] = []

    def plan(operation: Operation) -> Fault | None:
        if operation.kind == "pread" and operation.path.parent in LEDGERS:
            asked.append(operation)
        return None

    machine = Machine(FaultFileSystem(formatted(), plan))
    machine.add(7, range(10))
    assert in_memory(machine, 10, 12) is None, "to deny an entry is for who asks the disk (rule S9)"
    machine.flush()
    asked.clear()
    assert in_memory(machine, 0, 9) is None and not asked
    assert ids(read(machine, 0, 3)) == [0, 1, 2, 3] and asked
    asked.clear()
    found = in_memory(machine, 4, 9)
    assert found is not None and ids(found) == [4, 5, 6, 7, 8, 9], "its block is in the cache"
    assert found.entry_id == 10 and not asked


def test_disks_of_a_bookie_are_its_ledger_directories(machine: Machine) -> None:
    disks = machine.bookie.ledger_disks
    assert list(disks.names) == [str(each) for each in LEDGERS]
    for ledger_id in (6, 7):
        store = machine.bookie._storage.store_of(LedgerId(ledger_id))
        assert disks.names[disks.number_of(LedgerId(ledger_id))] == str(store.directory)
