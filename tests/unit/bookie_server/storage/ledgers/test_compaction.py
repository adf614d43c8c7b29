"""What dead entries take is given back, and nothing that is alive is lost (rules S19 and S20)."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.journal.files import journal_numbers
from bookie_server.storage.ledgers.compaction import Compactor
from bookie_server.storage.ledgers.directory_space import DirectorySpace
from bookie_server.storage.ledgers.entry_log import EntryLogReader, EntryLogWriter, log_ids
from bookie_server.storage.ledgers.lacking import NO_LOG, Lack
from bookie_server.storage.ledgers.pacing import Stopped
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.crash.disk import after_kill
from tests.listed import listed
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)

EVEN = LEDGERS[0]
CONFIG = small_config(write_once_bytes=4 * KIB, write_cache_bytes=2048 * KIB)


def delete(machine: Machine, *ledger_ids: int) -> None:
    machine.keys.missing.update(map(LedgerId, ledger_ids))
    machine.bookie.delete_ledgers(map(LedgerId, ledger_ids))


def compact(machine: Machine, *, full: bool = True) -> None:
    machine.bookie._storage.compactor.run_once(full=full, paced=False)


def files_of(machine: Machine) -> MemoryFileSystem:
    files = machine.bookie._storage._stores[0]._file_system
    assert isinstance(files, MemoryFileSystem)
    return files


def logs(machine: Machine) -> tuple[list[int], list[int]]:
    """Entry logs, and files of the run log, of the even ledgers."""
    files = files_of(machine)
    return log_ids(files, EVEN), journal_numbers(files, EVEN)


def mixed(machine: Machine, *, size: int = 40, rounds: int = 3) -> None:
    """Entries of ledgers 2, 4 and 6 in the same logs."""
    for number in range(rounds):
        for ledger_id in (2, 4, 6):
            ids = range(10 * number, 10 * number + 10)
            assert machine.add(ledger_id, ids, size=size) is BookieStatus.OK
        machine.flush()


@pytest.fixture
def machine() -> Machine:
    return Machine(formatted(), CONFIG)


@pytest.fixture
def small() -> Machine:
    """A log of its own for each flush, and all in entry logs."""
    return Machine(formatted(), small_config(entry_log_bytes=5300, write_once_bytes=0))


def test_log_without_live_entries_is_removed(small: Machine) -> None:
    mixed(small)
    assert logs(small)[0] == [1, 2, 3]
    delete(small, 2, 4, 6)
    compact(small, full=False)
    assert logs(small)[0] == []
    stats = small.bookie.stats().ledger_storage.compaction
    assert (stats.removed_logs, stats.copied_bytes) == (3, 0) and stats.removed_bytes > 3 * 4096
    assert small.add(8, [0]) is BookieStatus.OK
    small.flush()
    assert logs(small)[0] == [4], "an id is used once"


def test_log_that_is_being_written_stays() -> None:
    machine = Machine(formatted(), small_config(entry_log_bytes=MIB))
    mixed(machine)
    delete(machine, 2, 4, 6)
    compact(machine)
    assert logs(machine)[0] == [1]
    assert machine.add(8, [0]) is BookieStatus.OK
    machine.flush()
    assert logs(machine)[0] == [1] and machine.held(8) == expected(8, [0])


def test_half_dead_logs_are_copied_and_removed(small: Machine) -> None:
    mixed(small)
    delete(small, 2, 4)
    compact(small, full=False)
    assert min(logs(small)[0]) > 3
    assert small.held(6) == expected(6, range(30))
    stats = small.bookie.stats().ledger_storage.compaction
    assert stats.removed_logs == 3 and stats.copied_bytes > 30 * 40
    for full in (False, True):
        compact(small, full=full)
    assert small.bookie.stats().ledger_storage.compaction.copied_bytes == stats.copied_bytes
    small.close()
    again = Machine(files_of(small), small_config(write_once_bytes=0))
    assert again.held(6) == expected(6, range(30))
    assert again.held(2) == {}


def test_files_of_the_run_log_go_once_the_mark_is_behind_them(machine: Machine) -> None:
    for number in range(8):
        for ledger_id in (2, 4):
            ids = range(3 * number, 3 * number + 3)
            assert machine.add(ledger_id, ids, size=6 * KIB) is BookieStatus.OK
    machine.flush()
    before = logs(machine)[1]
    assert len(before) > 3
    delete(machine, 2)
    compact(machine)
    assert logs(machine)[1] == before[-1:], "the file in use stays"
    assert machine.held(4) == expected(4, range(24), 6 * KIB)
    for restart in range(2):
        machine.close()
        machine = Machine(files_of(machine), CONFIG)
        assert machine.held(4) == expected(4, range(24), 6 * KIB)
        assert machine.add(6, [restart], size=6 * KIB) is BookieStatus.OK
    delete(machine, 4)
    machine.flush()
    compact(machine)
    assert machine.held(4) == {} and listed(machine.bookie, LedgerId(4)) is None


def test_trimmed_run_log_without_its_index_is_refused(machine: Machine) -> None:
    for number in range(8):
        assert machine.add(2, [number], size=12 * KIB) is BookieStatus.OK
    machine.flush()
    delete(machine, 2)
    compact(machine)
    files = files_of(machine)
    assert journal_numbers(files, EVEN)[0] > 1
    machine.close()
    files.remove(EVEN / "index" / "index.json")
    with pytest.raises(Exception, match="trimmed"):
        Machine(files, CONFIG)


def test_sparse_blocks_and_gaps_that_were_filled_survive(small: Machine) -> None:
    assert small.add(2, [0, 10, 20, 30]) is BookieStatus.OK
    assert small.add(4, range(50)) is BookieStatus.OK
    small.flush()
    assert small.add(2, [5, 6, 15], recovery=True) is BookieStatus.OK
    small.flush()
    delete(small, 4)
    compact(small)
    assert small.held(2) == expected(2, [0, 5, 6, 10, 15, 20, 30])
    compact(small)
    assert small.held(2) == expected(2, [0, 5, 6, 10, 15, 20, 30])
    missing = small.bookie.read(LedgerId(2), EntryId(7), EntryId(7), stride=1, max_bytes=1)
    assert missing.status is BookieStatus.NO_SUCH_ENTRY


def test_rotten_block_keeps_its_log_and_is_told_once(
    small: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    mixed(small, rounds=1)
    location = small.bookie._storage._stores[0].index.rows(LedgerId(6))[0].location
    path = EVEN / "entries-0000000001.log"
    files_of(small).damage(path, location.offset + 100, b"~")
    delete(small, 2, 4)
    for _again in range(3):
        compact(small)
    assert 1 in logs(small)[0]
    assert [r.message for r in caplog.records if "stays" in r.message] != []
    assert len([r for r in caplog.records if "stays" in r.message]) == 1
    assert small.bookie.stats().ledger_storage.compaction.directories[0].damaged_logs == 1
    answer = small.bookie.read(LedgerId(6), EntryId(0), EntryId(0), stride=1, max_bytes=1)
    assert answer.status is BookieStatus.IO_ERROR, "it is not denied"


@pytest.mark.parametrize("at", [24, 3, RECORD_HEADER_BYTES, RECORD_HEADER_BYTES + 20])
def test_block_whose_header_is_rotten_keeps_its_log(small: Machine, at: int) -> None:
    mixed(small, rounds=1)
    location = small.bookie._storage._stores[0].index.rows(LedgerId(6))[0].location
    files_of(small).damage(EVEN / "entries-0000000001.log", location.offset + at, b"~")
    delete(small, 2, 4)
    compact(small)
    assert 1 in logs(small)[0]
    answer = small.bookie.read(LedgerId(6), EntryId(0), EntryId(0), stride=1, max_bytes=1)
    assert answer.status is BookieStatus.IO_ERROR


def test_no_space_for_the_copy_leaves_the_old_log_and_no_other(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(small)
    delete(small, 2, 4)

    def full(*_of: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for broken in ("write_buffered", "sync"):
        with monkeypatch.context() as patch:
            patch.setattr(EntryLogWriter, broken, full)
            with pytest.raises(OSError, match="No space"):
                compact(small)
        assert logs(small)[0] == [1, 2, 3]
        assert "No space" in small.bookie.stats().ledger_storage.compaction.last_failure
    compact(small)
    assert small.held(6) == expected(6, range(30))
    assert small.bookie.stats().ledger_storage.compaction.last_failure == ""


def test_log_of_a_commit_that_may_have_happened_stays_until_the_next_one(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the index may be the new one, though the commit failed."""
    mixed(small)
    delete(small, 2, 4)
    files = files_of(small)
    sync_directory = files.sync_directory

    def fails(path: Path) -> None:
        if path.name == "index":
            raise OSError(errno.EIO, "Input/output error")
        sync_directory(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", fails)
        with pytest.raises(OSError, match="Input/output"):
            compact(small)
    compact_nothing = small.bookie._storage._stores[0].space.survey(threading.Lock())
    assert [log.log_id for log in compact_nothing] == [1, 2, 3]
    assert small.held(6) == expected(6, range(30))
    for crashed in (files.crash_clone(None), after_kill(files)):
        again = Machine(crashed, small_config(write_once_bytes=0))
        assert again.held(6) == expected(6, range(30))


def test_read_that_began_before_the_copy_is_answered(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the row, and opens the log after it was removed."""
    mixed(small)
    delete(small, 2, 4)
    compact_later = [lambda: compact(small)]
    read = EntryLogReader.read

    def late(self: EntryLogReader, *args: object, **options: object) -> object:
        if compact_later:
            compact_later.pop()()
        return read(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(EntryLogReader, "read", late)
    assert small.held(6) == expected(6, range(30))
    assert min(logs(small)[0]) > 3


def test_list_that_began_before_the_copy_is_answered(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small.add(6, [0, 5, 9]) is BookieStatus.OK
    assert small.add(2, range(30)) is BookieStatus.OK
    small.flush()
    delete(small, 2)
    compact_later = [lambda: compact(small)]
    read = EntryLogReader.read

    def late(self: EntryLogReader, *args: object, **options: object) -> object:
        if compact_later:
            compact_later.pop()()
        return read(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(EntryLogReader, "read", late)
    assert listed(small.bookie, LedgerId(6)) == [(0, 0), (5, 5), (9, 9)]


def test_log_that_is_really_missing_is_an_error_and_no_endless_search(small: Machine) -> None:
    mixed(small)
    files_of(small).remove(EVEN / "entries-0000000002.log")
    small.bookie._storage._stores[0]._reader.close()
    answer = small.bookie.read(LedgerId(6), EntryId(10), EntryId(10), stride=1, max_bytes=1)
    assert answer.status is BookieStatus.IO_ERROR and "missing" in answer.message
    compact(small)
    assert small.bookie.stats().ledger_storage.compaction.directories[0].damaged_logs == 1


def test_log_with_a_rotten_header_keeps_no_other_log_from_being_copied(small: Machine) -> None:
    mixed(small)
    first, *others = logs(small)[0]
    files_of(small).damage(EVEN / f"entries-{first:010}.log", 2, b"~")
    small.bookie._storage._stores[0]._reader.close()
    delete(small, 2, 4)
    compact(small)
    left = logs(small)[0]
    assert first in left, "what is alive in it is not given up"
    assert not set(left).intersection(others), "each was copied"
    assert small.bookie.stats().ledger_storage.compaction.directories[0].damaged_logs == 1


def test_ledger_deleted_while_its_block_is_copied_stays_deleted(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(small)
    delete(small, 2)
    sync = EntryLogWriter.sync

    def late(self: EntryLogWriter) -> None:
        monkeypatch.undo()
        delete(small, 4)
        sync(self)

    monkeypatch.setattr(EntryLogWriter, "sync", late)
    compact(small)
    compact(small)
    assert small.held(4) == {} and small.held(6) == expected(6, range(30))
    assert small.bookie._storage._stores[0].index.rows(LedgerId(4)) == []


def test_gap_filled_while_its_block_is_copied_keeps_the_old_log_for_the_next_pass(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small.add(6, [0, 5, 9]) is BookieStatus.OK
    assert small.add(8, range(30)) is BookieStatus.OK
    small.flush()
    assert logs(small)[0] == [1]
    delete(small, 8)
    sync = EntryLogWriter.sync

    def late(self: EntryLogWriter) -> None:
        monkeypatch.undo()
        assert small.add(6, [2], recovery=True) is BookieStatus.OK
        small.bookie._storage._stores[0].flush(None)
        sync(self)

    monkeypatch.setattr(EntryLogWriter, "sync", late)
    compact(small)
    assert 1 in logs(small)[0], "a row of the flush names it"
    assert small.held(6) == expected(6, [0, 2, 5, 9])
    compact(small)
    assert 1 not in logs(small)[0]
    assert small.held(6) == expected(6, [0, 2, 5, 9])


@pytest.mark.parametrize("whole_index", [False, True])
@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (EntryLogReader, "open_log"),
        (EntryLogReader, "read_block"),
        (EntryLogWriter, "sync"),
        (DirectorySpace, "_move"),
    ],
)
def test_log_that_is_found_damaged_while_it_is_copied_stays_until_copies_came(
    small: Machine, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, whole_index: bool
) -> None:
    """At any step: the scrub goes by its own cadence."""
    mixed(small)
    delete(small, 2)
    first, real = logs(small)[0][0], getattr(owner, step)
    lacking = small.bookie._storage._stores[0].lacking
    lack = Lack(LedgerId(4), EntryId(0), EntryId(9), NO_LOG if whole_index else first)

    def found(*given: object) -> object:
        outcome = real(*given)
        monkeypatch.undo()
        lacking.add([lack])
        return outcome

    monkeypatch.setattr(owner, step, found)
    compact(small)
    assert lacking.count == 1 and first in logs(small)[0]
    compact(small)
    assert first in logs(small)[0], "who looks for what is left of the block finds it"
    lacking.remove([lack])
    compact(small)
    assert first not in logs(small)[0]
    for ledger_id in (4, 6):
        assert small.held(ledger_id) == expected(ledger_id, range(30))


@pytest.mark.parametrize("failing", [0, 1])
def test_directory_that_cannot_be_looked_at_keeps_its_own_figures(
    small: Machine, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    mixed(small)
    small.add(3, range(5), size=900)
    small.flush()
    compact(small)
    before = small.bookie.stats().ledger_storage.compaction.directories
    assert before[0] != before[1]

    def survey(_lock: threading.Lock) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(small.bookie._storage._stores[failing].space, "survey", survey)
    with pytest.raises(OSError, match="Input/output"):
        compact(small)
    after = small.bookie.stats().ledger_storage.compaction
    assert after.directories == before and "Input/output" in after.last_failure


def test_orphans_of_a_crash_are_removed(small: Machine) -> None:
    """A log of copies that no commit named, and a log whose removal was not durable."""
    mixed(small)
    files = files_of(small)
    old = files.open(EVEN / "entries-0000000001.log").pread(MIB, 0)
    delete(small, 2, 4)
    compact(small)
    again = files.create(EVEN / "entries-0000000001.log")
    again.pwritev([old], 0)
    compact(small)
    assert min(logs(small)[0]) > 3
    assert small.held(6) == expected(6, range(30))


def test_compaction_stops_in_the_middle_and_loses_nothing(small: Machine) -> None:
    mixed(small)
    delete(small, 2, 4)
    storage = small.bookie._storage
    space = storage._stores[0].space

    def no_more(_bytes: int) -> None:
        raise Stopped

    first = space.survey(storage._flush_lock)[0]
    with pytest.raises(Stopped):
        space.compact(first, storage._flush_lock, no_more, MIB)
    space.finish()
    assert small.held(6) == expected(6, range(30))
    compact(small)
    assert small.held(6) == expected(6, range(30))


def test_rate_zero_copies_nothing_and_removes_whole_logs() -> None:
    settings_ = {"entry_log_bytes": 5300, "write_once_bytes": 0, "compaction_bytes_per_s": 0}
    machine = Machine(formatted(), small_config(**settings_))
    mixed(machine)
    delete(machine, 2, 4)
    compact(machine)
    assert logs(machine)[0] == [1, 2, 3]
    delete(machine, 6)
    compact(machine)
    assert logs(machine)[0] == []


def test_thread_compacts_after_a_deletion_and_ends(small: Machine) -> None:
    mixed(small)
    compactor: Compactor = small.bookie._storage.compactor
    compactor.start()
    try:
        delete(small, 2, 4, 6)
        done = threading.Event()
        for _wait in range(200):
            if compactor.stats.removed_logs == 3:
                break
            done.wait(0.05)
        assert compactor.stats.removed_logs == 3
    finally:
        compactor.stop()
    assert compactor._thread is not None and not compactor._thread.is_alive()


def test_compactor_that_stops_does_not_wait_for_its_rate() -> None:
    settings_ = {"entry_log_bytes": 5300, "write_once_bytes": 0, "compaction_bytes_per_s": 1}
    machine = Machine(formatted(), small_config(**settings_))
    mixed(machine)
    compactor = machine.bookie._storage.compactor
    delete(machine, 2, 4)
    compactor.start()
    for _wait in range(1000):
        if compactor._pacer.busy_until > time.monotonic() + 60:
            break
        time.sleep(0.01)
    before = time.monotonic()
    compactor.stop()
    assert time.monotonic() - before < 20, "at this rate one block takes minutes"
    assert machine.held(6) == expected(6, range(30))
