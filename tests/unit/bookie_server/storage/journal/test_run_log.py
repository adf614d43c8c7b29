"""Large runs are written once, to the run log of their directory, and are there afterwards."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.base import run_log_location
from bookie_server.storage.journal import logs
from bookie_server.storage.journal.files import journal_numbers, journal_path
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.witness import decode_witness
from bookie_server.storage.records import FILE_HEADER_BYTES
from spark_ledger.bookie_api import LedgerEnd
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.crash.disk import LOST, after_power_cut
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)

CONFIG = small_config(write_once_bytes=1000)
LARGE = 2000
LEDGER = 4
"""It lives in the first of two directories."""
RUN_LOG = LEDGERS[0]
OK = BookieStatus.OK


def lost(files: MemoryFileSystem) -> MemoryFileSystem:
    """The disk after a power cut that kept nothing unsynced."""
    return after_power_cut(files, LOST, random.Random(1))


def end_of(machine: Machine, ledger_id: int = LEDGER) -> LedgerEnd:
    return machine.bookie.end_of_ledger(LedgerId(ledger_id), access_key=b"")


def entry_log_bytes(machine: Machine) -> int:
    return machine.bookie.stats().ledger_storage.entry_log_bytes_written


def failing(files: MemoryFileSystem, kind: str, error: int) -> FaultFileSystem:
    """Every operation of a kind on the run log fails."""

    def plan(operation: Operation) -> Fault | None:
        hit = operation.kind == kind and operation.path.parent == RUN_LOG
        return Fault(error) if hit and "journal-" in operation.path.name else None

    return FaultFileSystem(files, plan)


def test_large_run_is_written_once() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    assert machine.add(LEDGER, [0, 1], size=LARGE) is OK
    journal = machine.bookie.stats().journal
    assert journal.bytes_written == 0 and journal.run_log_bytes >= 2 * LARGE
    assert machine.held(LEDGER) == expected(LEDGER, [0, 1], LARGE), "from memory"
    machine.flush()
    assert machine.bookie.stats().ledger_storage.cache_bytes == 0
    assert entry_log_bytes(machine) == 0, "the run stays where it is"
    assert machine.held(LEDGER) == expected(LEDGER, [0, 1], LARGE), "from the run log"
    again = Machine(lost(files), CONFIG)
    assert again.held(LEDGER) == expected(LEDGER, [0, 1], LARGE)
    assert end_of(again).last_entry == 1


def test_small_run_goes_to_the_journal() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    assert machine.add(LEDGER, [0], size=100) is OK
    assert machine.bookie.stats().journal.run_log_bytes == 0
    assert not journal_numbers(files, RUN_LOG), "no large run, no file"
    machine.flush()
    assert entry_log_bytes(machine) > 0


def test_batch_of_both_kinds_survives_a_power_cut_before_any_flush() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    with machine.bookie.batch():
        machine.start_add(LEDGER, [0], size=LARGE, key=b"key")
        machine.start_add(LEDGER, [1], size=50, key=b"key")
        machine.start_add(LEDGER + 1, [0], size=LARGE)
    machine.settle()
    assert machine.fence(LEDGER, key=b"key") is OK
    again = Machine(lost(files), CONFIG)
    assert again.held(LEDGER) == expected(LEDGER, [0], LARGE) | expected(LEDGER, [1], 50)
    assert again.held(LEDGER + 1) == expected(LEDGER + 1, [0], LARGE)
    assert again.is_fenced(LEDGER)
    assert again.add(LEDGER, [2], key=b"wrong") is BookieStatus.UNAUTHORIZED


def test_no_power_cut_leaves_a_large_run_without_the_key_of_its_ledger() -> None:
    """A record without a key would refuse the ledger's writer and each recovery, for ever."""
    files = formatted()
    disks: list[MemoryFileSystem] = []

    def before(_operation: Operation) -> None:
        disks.append(lost(files))

    machine = Machine(FaultFileSystem(files, before), CONFIG)
    disks.clear()
    answers = machine.start_add(LEDGER, [0], size=LARGE, key=b"key")
    machine.settle()
    assert answers == [(OK, "")]
    disks.append(lost(files))
    held = 0
    for disk in disks:
        again = Machine(disk, CONFIG)
        if again.held(LEDGER):
            held += 1
            assert again.add(LEDGER, [1], key=b"wrong") is BookieStatus.UNAUTHORIZED
            assert again.add(LEDGER, [1], key=b"key") is OK
    assert 0 < held < len(disks)


def test_flush_leaves_a_run_that_is_not_durable_for_the_next() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    assert machine.add(LEDGER, [0], size=LARGE) is OK
    answers = machine.start_add(LEDGER, [1], size=LARGE)
    machine.bookie.flush()
    cut = Machine(lost(files), CONFIG)
    assert cut.held(LEDGER) == expected(LEDGER, [0], LARGE)
    assert end_of(cut).last_entry == 0, "an end that nothing holds would mislead a recovery"
    machine.settle()
    assert answers == [(OK, "")]
    assert machine.held(LEDGER) == expected(LEDGER, [0, 1], LARGE)
    machine.flush()
    assert entry_log_bytes(machine) == 0
    again = Machine(lost(files), CONFIG)
    assert again.held(LEDGER) == expected(LEDGER, [0, 1], LARGE)
    assert end_of(again).last_entry == 1


def test_run_that_overlaps_stored_entries_is_not_written_again() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    for ids in ([3, 4], [8]):
        assert machine.add(LEDGER, ids, size=LARGE) is OK
    machine.flush()
    ids = list(range(1, 11))
    assert machine.add(LEDGER, ids, size=LARGE, recovery=True) is OK
    machine.flush()
    assert entry_log_bytes(machine) == 0
    assert machine.held(LEDGER) == expected(LEDGER, ids, LARGE)
    assert Machine(lost(files), CONFIG).held(LEDGER) == expected(LEDGER, ids, LARGE)


@pytest.mark.parametrize("size", [100, LARGE])
def test_damaged_last_batch_of_a_log_is_noticed_once_another_log_went_on(size: int) -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    other = LARGE + 100 - size
    assert machine.add(LEDGER, [0], size=size) is OK
    path = journal_path(RUN_LOG if size == LARGE else JOURNAL, 1)
    damaged_at = FILE_HEADER_BYTES + 30
    assert machine.add(LEDGER, [1], size=other) is OK
    files.damage(path, damaged_at, b"\xa5\x5a")
    disk = lost(files)
    with pytest.raises(CorruptionError, match=f"{path}.* batch 1 was synced"):
        Machine(disk, CONFIG)
    # The look at it has changed nothing: the next start says the same.
    with pytest.raises(CorruptionError, match=f"{path}.* batch 1 was synced"):
        Machine(disk, CONFIG)


def test_missing_file_of_a_run_log_is_noticed() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    assert machine.add(LEDGER, [0], size=LARGE) is OK
    files.remove(journal_path(RUN_LOG, 1))
    files.sync_directory(RUN_LOG)
    with pytest.raises(CorruptionError, match=f"{journal_path(RUN_LOG, 1)} is missing"):
        Machine(lost(files), CONFIG)


def test_run_that_is_not_where_its_row_says_is_unreadable_and_not_denied() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    assert machine.add(LEDGER, [0], size=LARGE) is OK
    path = journal_path(RUN_LOG, 1)
    file = files.open(path)
    old = file.pread(file.size(), 0)
    assert machine.add(LEDGER, [1], size=LARGE) is OK
    machine.flush()
    older = lost(files)
    older.damage(path, 0, old)
    outcome = Machine(older, CONFIG).bookie.read(
        LedgerId(LEDGER), EntryId(1), EntryId(1), stride=1, max_bytes=1
    )
    assert outcome.status is BookieStatus.IO_ERROR and str(path) in outcome.message


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("preallocate", errno.ENOSPC),
        ("create", errno.EDQUOT),
        ("pwritev", errno.EIO),
        ("fdatasync", errno.EIO),
    ],
)
def test_run_log_that_cannot_be_written_leaves_its_runs_to_the_journal(
    kind: str, error: int
) -> None:
    disk = formatted()
    machine = Machine(failing(disk, kind, error), CONFIG)
    for entry_id in range(3):
        assert machine.add(LEDGER, [entry_id], size=LARGE) is OK
    assert machine.add(LEDGER + 1, [0], size=LARGE) is OK
    journal = machine.bookie.stats().journal
    assert journal.bytes_written >= 3 * LARGE and not machine.fatal
    machine.flush()
    assert entry_log_bytes(machine) >= 3 * LARGE
    for again in (machine, Machine(lost(disk), CONFIG)):
        assert again.held(LEDGER) == expected(LEDGER, [0, 1, 2], LARGE)
        assert again.held(LEDGER + 1) == expected(LEDGER + 1, [0], LARGE)


@pytest.mark.parametrize(("error", "comes_back"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_run_log_without_room_is_tried_again_after_a_while_and_one_that_failed_is_not(
    monkeypatch: pytest.MonkeyPatch, error: int, comes_back: bool
) -> None:
    monkeypatch.setattr(logs, "_RETRY_AFTER_BATCHES", 3)
    attempts = 0

    def plan(operation: Operation) -> Fault | None:
        nonlocal attempts
        is_file = operation.path.parent == RUN_LOG and "journal-" in operation.path.name
        if operation.kind != "create" or not is_file:
            return None
        attempts += 1
        return Fault(error) if attempts == 1 else None

    machine = Machine(FaultFileSystem(formatted(), plan), CONFIG)
    tried = []
    for entry_id in range(5):
        assert machine.add(LEDGER, [entry_id], size=LARGE) is OK
        tried.append(attempts)
    assert tried == ([1, 1, 1, 1, 2] if comes_back else [1] * 5)
    assert (machine.bookie.stats().journal.run_log_bytes > 0) is comes_back
    machine.flush()
    assert machine.held(LEDGER) == expected(LEDGER, range(5), LARGE)


def test_run_log_whose_next_file_is_there_without_room_for_its_name_writes_on_in_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch behind it in the file before would be one that the next file does not begin with."""
    monkeypatch.setattr(logs, "_RETRY_AFTER_BATCHES", 0)
    files, refused = formatted(), list[Operation]()

    def plan(operation: Operation) -> Fault | None:
        hit = operation.kind == "sync_directory" and operation.path == RUN_LOG
        if not hit or refused or 2 not in journal_numbers(files, RUN_LOG):
            return None
        refused.append(operation)
        return Fault(errno.ENOSPC)

    machine = Machine(FaultFileSystem(files, plan), CONFIG)
    added: dict[int, bytes] = {}
    while not refused:
        entries = range(len(added), len(added) + 5)
        assert machine.add(LEDGER, entries, size=LARGE) is OK
        added |= expected(LEDGER, entries, LARGE)
    last = [len(added)]  # there is room for it in the first file
    assert machine.add(LEDGER, last, size=LARGE) is OK
    again = Machine(lost(files), CONFIG)
    assert again.held(LEDGER) == added | expected(LEDGER, last, LARGE)
    machine.close()
    assert Machine(lost(files), CONFIG).held(LEDGER) == again.held(LEDGER)


def test_run_log_on_a_disk_above_its_mark_gets_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    space = files.space(RUN_LOG)
    monkeypatch.setattr(files, "space", lambda _directory: space._replace(free_bytes=0))
    assert machine.add(LEDGER, [0], size=LARGE, recovery=True) is OK
    assert not journal_numbers(files, RUN_LOG)
    assert machine.bookie.stats().journal.run_log_bytes == 0


def test_start_makes_a_new_file_of_a_run_log() -> None:
    files = formatted()
    for run in range(3):
        machine = Machine(files, CONFIG)
        assert machine.add(LEDGER, [run], size=LARGE) is OK
        files = lost(files)
    assert journal_numbers(files, RUN_LOG) == [1, 2, 3]
    assert Machine(files, CONFIG).held(LEDGER) == expected(LEDGER, [0, 1, 2], LARGE)


def test_full_file_of_a_run_log_is_kept_and_names_the_next() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    ids = list(range(60))
    for entry_id in ids:
        assert machine.add(LEDGER, [entry_id], size=LARGE) is OK
    machine.flush()
    numbers = journal_numbers(files, RUN_LOG)
    assert len(numbers) >= 4 and not any(name.endswith(".free") for name in files.list(RUN_LOG))
    assert machine.held(LEDGER) == expected(LEDGER, ids, LARGE)
    files.remove(journal_path(RUN_LOG, numbers[-1]))
    files.sync_directory(RUN_LOG)
    with pytest.raises(CorruptionError, match="is missing"):
        Machine(lost(files), CONFIG)


def test_run_logs_are_read_when_nothing_is_written_once_any_more() -> None:
    files = formatted()
    machine = Machine(files, CONFIG)
    assert machine.add(LEDGER, [0], size=LARGE) is OK
    plain = small_config(write_once_bytes=0)
    again = Machine(lost(files), plain)
    assert again.held(LEDGER) == expected(LEDGER, [0], LARGE)
    assert again.add(LEDGER, [1], size=LARGE) is OK
    assert again.bookie.stats().journal.run_log_bytes == 0
    once_more = Machine(lost(files), CONFIG)
    assert once_more.add(LEDGER, [2], size=LARGE) is OK


def test_row_that_names_the_run_of_another_ledger_is_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(formatted(), CONFIG)
    for ledger_id in (LEDGER, LEDGER + 2):
        assert machine.add(ledger_id, [0], size=LARGE) is OK
    machine.flush()
    index = machine.bookie._storage.store_of(LedgerId(LEDGER)).index
    wrong = index.row_at(LedgerId(LEDGER + 2), EntryId(0))
    monkeypatch.setattr(index, "row_at", lambda _ledger, _entry: wrong)
    outcome = machine.bookie.read(LedgerId(LEDGER), EntryId(0), EntryId(0), stride=1, max_bytes=1)
    assert outcome.status is BookieStatus.IO_ERROR
    assert "should be in log" in outcome.message


@pytest.mark.parametrize("body", [b"", b"x" * 11, b"x" * 13])
def test_witness_of_another_length_is_none(body: bytes) -> None:
    assert decode_witness(body) is None


def test_place_in_a_run_log_is_told_from_an_entry_log() -> None:
    location = run_log_location(7, 4096, 10)
    assert location.run_log_file == 7 and location.log_id < 1 << 32
    assert location._replace(log_id=7).run_log_file == 0


def test_run_log_that_failed_is_not_written_before_the_next_start() -> None:
    disk = formatted()
    syncs = writes = 0

    def plan(operation: Operation) -> Fault | None:
        nonlocal syncs, writes
        in_run_log = operation.path.parent == RUN_LOG and "journal-" in operation.path.name
        writes += in_run_log and operation.kind == "pwritev"
        if operation.kind != "fdatasync" or not in_run_log:
            return None
        syncs += 1
        return Fault(errno.EIO) if syncs == 2 else None  # behind that of the file's header

    machine = Machine(FaultFileSystem(disk, plan), CONFIG)
    assert machine.add(LEDGER, [0], size=LARGE) is OK
    assert syncs == 2
    before = writes
    assert machine.add(LEDGER, [1], size=LARGE) is OK
    assert machine.bookie.stats().journal.run_log_bytes == 0
    machine.bookie._journal.close()
    assert (syncs, writes) == (2, before), "also not that it ends here (rule S3)"
    again = Machine(lost(disk), CONFIG)
    assert again.held(LEDGER) == expected(LEDGER, [0, 1], LARGE)
    assert again.add(LEDGER, [2], size=LARGE) is OK
    assert again.bookie.stats().journal.run_log_bytes >= LARGE


def test_disk_that_is_waited_for_is_the_one_that_is_named() -> None:
    """A stall names it, and an operator looks at that disk (rule S15)."""
    named: list[tuple[Path, Path]] = []
    journal: list[Journal] = []

    def plan(operation: Operation) -> Fault | None:
        if operation.kind in ("pwritev", "fdatasync") and "journal-" in operation.path.name:
            named.extend((operation.path.parent, each.writing_in) for each in journal)
        return None

    machine = Machine(FaultFileSystem(formatted(), plan), CONFIG)
    journal.append(machine.bookie._journal)
    for ledger_id, size in ((4, LARGE), (5, LARGE), (4, 100), (5, LARGE), (5, 100)):
        first = len(machine.held(ledger_id))
        assert machine.add(ledger_id, [first], size=size) is OK
    assert {directory for directory, _ in named} == {JOURNAL, *LEDGERS}
    assert all(directory == told for directory, told in named)


def test_start_that_is_cut_within_the_replay_of_a_run_log_loses_nothing() -> None:
    """The mark of each flush in between is that of the last batch that was applied."""
    disk = formatted()
    machine = Machine(disk, CONFIG)
    ids = range(30)
    for entry_id in ids:
        assert machine.add(LEDGER, [entry_id], size=2 * LARGE) is OK
    disk = lost(disk)
    cuts: list[MemoryFileSystem] = []

    def plan(operation: Operation) -> None:
        if operation.kind == "rename" and operation.path.parent == RUN_LOG / "index":
            cuts.append(lost(disk))

    small = small_config(write_once_bytes=1000, write_cache_bytes=64 * KIB)
    Machine(FaultFileSystem(disk, plan), small)
    assert len(cuts) > 3, "several flushes"
    for cut in cuts:
        again = Machine(cut, CONFIG)
        assert again.held(LEDGER) == expected(LEDGER, ids, 2 * LARGE)
        assert end_of(again).last_entry == ids[-1]


@pytest.mark.parametrize("cache_bytes", [16 * KIB, 256 * KIB])
@pytest.mark.parametrize("failures", [1, 2])
def test_start_on_a_full_disk_that_has_room_again_half_way_stores_all(
    cache_bytes: int, failures: int
) -> None:
    """The flush that found no room is made up for, and what came behind it is stored as well."""
    files = formatted()
    machine = Machine(files, CONFIG)
    for entry_id in range(20):
        assert machine.add(LEDGER, [entry_id], size=900) is OK
    assert machine.add(LEDGER, [20], size=LARGE) is OK
    held = machine.held(LEDGER)
    files, left = lost(files), failures

    def plan(operation: Operation) -> Fault | None:
        nonlocal left
        if operation.kind != "create" or "entries-" not in operation.path.name or not left:
            return None
        left -= 1
        return Fault(errno.ENOSPC)

    config = small_config(write_once_bytes=1000, write_cache_bytes=cache_bytes)
    again = Machine(FaultFileSystem(files, plan), config)
    assert again.held(LEDGER) == held and not left
    assert (again.bookie.stats().ledger_storage.cache_bytes == 0) is (failures == 1)
    assert Machine(lost(files), config).held(LEDGER) == held
    again.flush()
    again.flush()
    assert again.bookie.stats().ledger_storage.cache_bytes == 0
    assert Machine(lost(files), config).held(LEDGER) == held


def test_end_of_a_ledger_whose_last_run_is_not_durable_is_above_what_is_lacking() -> None:
    """Damage took the row of the last run that is: its entries are neither here nor denied."""
    files = formatted()
    machine = Machine(files, CONFIG)
    for entry_id in (0, 1):
        assert machine.add(LEDGER, [entry_id], size=LARGE) is OK
    machine.flush()
    store = machine.bookie._storage.store_of(LedgerId(LEDGER))
    damaged = store.index.rows(LedgerId(LEDGER))[-1].location
    files.damage(journal_path(RUN_LOG, damaged.run_log_file), damaged.offset + 100, b"~")
    machine.bookie._storage.scrubber.run_once()
    assert store.lacking.last_entry(LedgerId(LEDGER)) == 1
    machine.start_add(LEDGER, [2], size=LARGE)
    machine.bookie.flush()
    cut = Machine(lost(files), CONFIG)
    assert end_of(cut).last_entry == 1
