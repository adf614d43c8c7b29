"""A bookie over faults and restarts: final failures, marks, lost and damaged files, power cuts."""

from __future__ import annotations

import errno
import threading

import pytest
from google_crc32c import value as crc32c_value

from bookie_server.storage.blocks import Block
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import TEMPORARY_SUFFIX
from bookie_server.storage.journal.files import journal_numbers, journal_path
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.ledgers.entry_log import log_ids, log_path
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from bookie_server.storage.records import RecordType
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Answer,
    Machine,
    expected,
    formatted,
    small_config,
)

OK = BookieStatus.OK
L = LedgerId(7)


@pytest.fixture
def files() -> MemoryFileSystem:
    return formatted()


@pytest.fixture
def machine(files: MemoryFileSystem) -> Machine:
    return Machine(files)


def test_nothing_is_answered_ok_after_a_journal_failure(files: MemoryFileSystem) -> None:
    failing = False

    def plan(operation: Operation) -> Fault | None:
        return Fault(errno.EIO) if failing and operation.kind == "fdatasync" else None

    machine = Machine(FaultFileSystem(files, plan))
    assert machine.add(7, [0]) is OK
    assert machine.fence(9) is OK
    failing = True
    add, fence = machine.start_add(7, [1]), machine.start_fence(8)
    machine.settle()
    failing = False
    assert [answers[0][0] for answers in (add, fence)] == [BookieStatus.IO_ERROR] * 2
    assert len(machine.fatal) == 1 and "restart" in machine.fatal[0]
    assert machine.add(7, [2]) is BookieStatus.IO_ERROR
    for ledger_id in (7, 8, 9):
        assert machine.fence(ledger_id) is BookieStatus.IO_ERROR
    answers: list[Answer] = []
    machine.bookie.write_last_confirmed(
        L, EntryId(0), access_key=b"", done=lambda *answer: answers.append(answer)
    )
    assert answers[0][0] is BookieStatus.IO_ERROR
    assert machine.bookie.append_bytes_in_flight == 0
    machine.close()
    again = Machine(files.crash_clone(None))
    assert again.held(7) == expected(7, [0])


@pytest.mark.leaves_open("thread", reason="a bookie that has failed ends its process")
def test_thread_that_ends_by_a_bug_is_fatal(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    for class_name, method in ((LedgerStorage, "flush"), (Journal, "commit_pending")):
        machine = Machine(files)
        with monkeypatch.context() as patch:
            patch.setattr(class_name, method, raise_bug)
            part = machine.bookie._storage if method == "flush" else machine.bookie._journal
            add = machine.start_add(7, [0])
            part.start()
            machine.bookie._storage.request_flush()
            assert part._thread is not None
            part._thread.join(10)
            while machine.posted:
                machine.posted.popleft()()
        assert len(machine.fatal) == 1 and "ended unexpectedly" in machine.fatal[0]
        assert not add or add[0][0] is BookieStatus.IO_ERROR
        files = files.crash_clone(None)


@pytest.mark.parametrize("error", [OSError("no room"), CorruptionError("damaged")])
def test_flush_thread_survives_a_failed_flush(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    storage = machine.bookie._storage
    tried = threading.Semaphore(0)
    working = LedgerStorage.flush

    def fail(_storage: LedgerStorage) -> None:
        tried.release()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(LedgerStorage, "flush", fail)
        storage.start()
        for _again in range(2):
            storage.request_flush()
            assert tried.acquire(timeout=10)
    assert LedgerStorage.flush is working
    machine.close()
    assert not machine.fatal


def raise_bug(*_arguments: object) -> None:
    raise AssertionError("a bug")


def test_each_directory_is_replayed_from_its_own_mark(files: MemoryFileSystem) -> None:
    """One directory flushes, the other cannot: the journal keeps what the other lacks."""
    failing = False

    def plan(operation: Operation) -> Fault | None:
        in_second = LEDGERS[1] in operation.path.parents
        return Fault(errno.ENOSPC) if failing and in_second and operation.kind != "pread" else None

    machine = Machine(FaultFileSystem(files, plan), small_config(write_cache_bytes=512 * KIB))
    failing = True
    for entry_id in range(40):  # more than one journal file
        assert machine.add(6, [entry_id]) is OK
        assert machine.add(7, [entry_id], recovery=True) is OK
        if entry_id % 10 == 9:
            with pytest.raises(OSError, match="No space"):
                machine.flush()
    assert machine.fence(7) is OK
    again = Machine(files.crash_clone(None))
    assert again.held(6) == expected(6, range(40))
    assert again.held(7) == expected(7, range(40))
    assert again.is_fenced(7)


def test_changes_of_a_ledger_are_replayed_in_order(
    machine: Machine, files: MemoryFileSystem
) -> None:
    assert machine.add(7, range(5), lac=3, key=b"secret") is OK
    assert machine.fence(7, key=b"secret") is OK
    again = Machine(files.crash_clone(None))
    end = again.bookie.end_of_ledger(L, access_key=b"secret")
    assert end == (OK, 3, 4, True, "")
    machine.bookie.write_last_confirmed(
        L, EntryId(4), access_key=b"secret", done=lambda *_answer: None
    )
    machine.settle()
    again = Machine(files.crash_clone(None))
    assert again.bookie.end_of_ledger(L, access_key=b"secret") == (OK, 4, 4, True, "")
    assert key_status(again.bookie, L, b"other") is BookieStatus.UNAUTHORIZED


def test_replay_of_more_than_the_cache_flushes_in_between(
    machine: Machine, files: MemoryFileSystem
) -> None:
    for entry_id in range(50):  # 200 KiB, and 32 KiB for each directory
        assert machine.add(7, [entry_id], size=4096) is OK
    for entry_id in range(50):
        assert machine.add(6, [entry_id]) is OK
    again = Machine(files.crash_clone(None), small_config(write_cache_bytes=64 * KIB))
    assert again.held(7) == expected(7, range(50), 4096)
    assert again.held(6) == expected(6, range(50))
    assert len(again.bookie._storage.store_of(L).index.rows(L)) > 3


@pytest.mark.parametrize("record_type", [RecordType.FENCE, RecordType.RUN])
def test_record_that_is_not_understood_is_refused(
    machine: Machine, files: MemoryFileSystem, record_type: RecordType
) -> None:
    body = Block((b"new",), 3, crc32c_value(b"new"))
    machine.bookie._journal.append(record_type, body, lambda *_answer: None)
    machine.settle()
    with pytest.raises(CorruptionError, match="written by a newer version"):
        Machine(files.crash_clone(None))


def test_entry_logs_are_never_written_after_a_restart(
    machine: Machine, files: MemoryFileSystem
) -> None:
    for start in range(3):
        for entry_id in range(4 * start, 4 * start + 4):
            assert machine.add(7, [entry_id], size=4096) is OK
            machine.flush()
        before = log_ids(files, LEDGERS[1])
        machine.close()
        sizes = [files.open(log_path(LEDGERS[1], each)).size() for each in before]
        machine = Machine(files)
        for entry_id in range(4 * start + 4):
            outcome = machine.bookie.read(
                L, EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=1
            )
            assert outcome.status is OK
        assert machine.add(7, [100 + start]) is OK
        machine.flush()
        assert log_ids(files, LEDGERS[1]) == [*before, before[-1] + 1]
        assert sizes == [files.open(log_path(LEDGERS[1], each)).size() for each in before]


@pytest.mark.parametrize("error", [OSError("no room"), CorruptionError("damaged")])
def test_other_directories_are_flushed_when_one_fails(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for ledger_id in (6, 7):
        assert machine.add(ledger_id, [0]) is OK
    storage = machine.bookie._storage
    broken, sound = storage.store_of(LedgerId(6)), storage.store_of(LedgerId(7))

    def fail(*_marks: Mark | None) -> bool:
        raise error

    monkeypatch.setattr(broken, "flush", fail)
    with pytest.raises(type(error)):
        machine.flush()
    assert sound.cache.byte_count == 0 and broken.cache.byte_count > 0
    assert machine.bookie.stats().failure == str(error)


def test_unfinished_files_are_removed_at_the_start(files: MemoryFileSystem) -> None:
    for directory in (JOURNAL, *LEDGERS):
        files.create(directory / f"left{TEMPORARY_SUFFIX}").close()
    assert Machine(files).add(7, [0]) is OK
    for directory in (JOURNAL, *LEDGERS):
        assert not files.exists(directory / f"left{TEMPORARY_SUFFIX}")


def test_flush_trims_the_journal(machine: Machine, files: MemoryFileSystem) -> None:
    for entry_id in range(40):
        machine.add(7, [entry_id])
    assert len(journal_numbers(files, JOURNAL)) == 3
    machine.flush()
    assert len(journal_numbers(files, JOURNAL)) == 1
    machine.close()
    assert Machine(files).held(7) == expected(7, range(40))


def test_lost_journal_file_is_refused(machine: Machine, files: MemoryFileSystem) -> None:
    machine.add(7, [0])
    number = journal_numbers(files, JOURNAL)[-1]
    files.remove(journal_path(JOURNAL, number))
    files.sync_directory(JOURNAL)
    with pytest.raises(CorruptionError, match=rf"{number:016d}\.log is missing"):
        Machine(files.crash_clone(None))


@pytest.mark.parametrize("flushes", [0, 1])
def test_newest_journal_file_of_several_is_missing_refuses_to_serve(
    machine: Machine, files: MemoryFileSystem, flushes: int
) -> None:
    """It was made after the last checkpoint: no mark names it, and what it held is nowhere else."""
    for _ in range(flushes):
        machine.add(6, [0])
        machine.flush()
    for entry_id in range(20):
        machine.add(7, [entry_id])
    older, newest = journal_numbers(files, JOURNAL)[-2:]
    files.remove(journal_path(JOURNAL, newest))
    files.sync_directory(JOURNAL)
    with pytest.raises(CorruptionError, match=rf"{newest:016d}\.log is missing"):
        Machine(files.crash_clone(None))
    assert journal_numbers(files, JOURNAL)[-1] == older, "the marks name an older file"


def test_journal_file_that_only_one_directory_names_is_missing_refuses_to_serve(
    files: MemoryFileSystem,
) -> None:
    """The other directory is behind, in an older file whose tail looks torn."""
    assert Machine(files).add(7, [0]) is OK
    files = files.crash_clone(None)
    begun = journal_path(JOURNAL, 2)

    def plan(operation: Operation) -> Fault | None:
        is_second = LEDGERS[1] in operation.path.parents
        return Fault(errno.EIO) if is_second and files.exists(begun) else None

    with pytest.raises(ConfigurationError, match="Input/output"):
        Machine(FaultFileSystem(files, plan))
    files.remove(begun)
    files.sync_directory(JOURNAL)
    with pytest.raises(CorruptionError, match=rf"{begun.name} is missing"):
        Machine(files.crash_clone(None))


@pytest.mark.parametrize("lost", [1, 2])
def test_journal_that_ends_before_a_directory_is_refused(
    files: MemoryFileSystem, lost: int
) -> None:
    """Zeros at its end are not a torn tail if another directory proves they were synced."""
    failing = False

    def plan(operation: Operation) -> Fault | None:
        return Fault(errno.EIO) if failing and LEDGERS[1] in operation.path.parents else None

    machine = Machine(FaultFileSystem(files, plan))
    assert machine.add(7, [0]) is OK
    assert machine.add(6, [0]) is OK
    failing = True
    with pytest.raises(OSError, match="Input/output"):
        machine.flush()
    path = journal_path(JOURNAL, journal_numbers(files, JOURNAL)[-1])
    files.damage(path, (3 - lost) * 4096, bytes(lost * 4096))
    with pytest.raises(CorruptionError, match=f"but ledger directory {LEDGERS[0]} holds batch 2"):
        Machine(files.crash_clone(None))


def test_lost_index_is_replayed_or_refused(files: MemoryFileSystem) -> None:
    """The journal can stand in for an empty index only while it still has its first file."""
    for ledger_count, message in ((1, ""), (40, "index was lost")):
        files = formatted()
        machine = Machine(files)
        for entry_id in range(ledger_count):
            assert machine.add(7, [entry_id]) is OK
        machine.close()
        files.remove(LEDGERS[1] / "index" / "index.json")
        if message:
            with pytest.raises(CorruptionError, match=f"{LEDGERS[1]}.*{message}"):
                Machine(files)
        else:
            assert Machine(files).held(7) == expected(7, [0])


def test_lost_index_and_journal_are_refused(files: MemoryFileSystem) -> None:
    machine = Machine(files)
    for ledger_id in (6, 7):
        assert machine.add(ledger_id, [0]) is OK
    machine.close()
    files.remove(LEDGERS[1] / "index" / "index.json")
    for number in journal_numbers(files, JOURNAL):
        files.remove(journal_path(JOURNAL, number))
    with pytest.raises(CorruptionError, match=f"{LEDGERS[1]}.*index was lost"):
        Machine(files)


def test_full_entry_logs_are_finished(machine: Machine, files: MemoryFileSystem) -> None:
    for entry_id in range(12):
        machine.add(7, [entry_id], size=4000)
        machine.flush()
    machine.close()
    Machine(files)
    logs = log_ids(files, LEDGERS[1])
    assert len(logs) == 4


# -- power cuts while a bookie starts --------------------------------------------------------------


class Killed(BaseException):
    """The process is gone; what it wrote is in the page cache."""


def killed_before_a_sync(adds: int) -> MemoryFileSystem:
    """Disk and page cache of a bookie that was killed between write and sync of its last batch.

    ``adds`` batches of each of two ledgers were acknowledged before.
    """
    files = formatted()
    kills = False

    def plan(operation: Operation) -> Fault | None:
        if kills and operation.path.parent == JOURNAL and operation.kind == "fdatasync":
            raise Killed
        return None

    machine = Machine(FaultFileSystem(files, plan))
    for entry in range(adds):
        for ledger in (7, 8):  # of both directories
            assert machine.add(ledger, [entry], size=6000) is BookieStatus.OK
    kills = True
    machine.start_add(7, [adds], size=6000)
    machine.start_add(8, [adds], size=6000)
    with pytest.raises(Killed):
        machine.bookie.commit_pending()
    for lock in machine.bookie._locks:  # the kernel does that
        lock.release()
    return files


@pytest.mark.parametrize("adds", [1, 6])
def test_power_cut_at_any_moment_of_the_start_loses_nothing(adds: int) -> None:
    """The page cache shows the batch that was not synced, so the start takes it in. If the power
    goes in the middle of that, one directory may have it and the other not. The journal must still
    have it then, or it could not bring both to the same batch."""
    files = killed_before_a_sync(adds)
    assert (len(journal_numbers(files, JOURNAL)) > 1) == (adds > 1)
    clones: list[MemoryFileSystem] = []

    def plan(_operation: Operation) -> Fault | None:
        clones.append(files.crash_clone(None))
        return None

    machine = Machine(FaultFileSystem(files, plan))
    for ledger in (7, 8):
        assert machine.held(ledger) == expected(ledger, range(adds + 1), 6000)
    assert len(clones) > 20
    for clone in clones:
        again = Machine(clone)
        for ledger in (7, 8):
            held = again.held(ledger)
            assert held == expected(ledger, sorted(held), 6000)
            assert sorted(held)[:adds] == list(range(adds)), "what was acknowledged"


def test_file_whose_name_a_kill_left_unsynced_is_durable_before_a_mark_names_it() -> None:
    """The start sees the file, and on a full disk no next one is made before marks are stored."""
    files = formatted()

    def kill(operation: Operation) -> Fault | None:
        if operation.path == JOURNAL and operation.kind == "sync_directory" and acknowledged:
            raise Killed
        return None

    acknowledged = 0
    machine = Machine(FaultFileSystem(files, kill))
    with pytest.raises(Killed):
        while acknowledged < 100:
            assert machine.add(7, [acknowledged], size=6000) is OK
            acknowledged += 1
    durable = files.crash_clone(None)
    assert len(journal_numbers(durable, JOURNAL)) < len(journal_numbers(files, JOURNAL))
    for lock in machine.bookie._locks:  # the kernel does that
        lock.release()
    clones: list[MemoryFileSystem] = []

    def full(operation: Operation) -> Fault | None:
        clones.append(files.crash_clone(None))
        is_file = operation.kind == "create" and operation.path.parent == JOURNAL
        return Fault(errno.ENOSPC) if is_file else None

    Machine(FaultFileSystem(files, full)).flush()
    for clone in clones:
        held = Machine(clone).held(7)
        assert sorted(held)[:acknowledged] == list(range(acknowledged))


def test_key_of_a_copy_that_was_made_again_comes_behind_the_fence_of_the_former() -> None:
    """The checkpoint lies between the first key and the fence; the first copy was given back."""
    files, key = formatted(), b"key"
    machine = Machine(files)
    assert machine.add(7, [0], key=key) is OK
    machine.flush()
    assert machine.fence(7, key=key) is OK
    machine.bookie.delete_ledgers([L])
    assert machine.add(7, [0], key=key, recovery=True) is OK
    again = Machine(files.crash_clone(None))
    assert again.held(7) == expected(7, [0]) and again.is_fenced(7)
    again.keys.learn(7, key)
    assert again.add(7, [1], key=b"another") is BookieStatus.UNAUTHORIZED
    assert again.add(7, [1], key=key, recovery=True) is OK
