"""Writing a journal: group commit, durable before told, sticky failure, files and spares."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.journal import waiting
from bookie_server.storage.journal.changes import fence_body
from bookie_server.storage.journal.files import (
    journal_numbers,
    journal_path,
    read_batches,
    read_file_header,
)
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.replay import START_OF_JOURNAL
from bookie_server.storage.records import RecordType
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.journal.support import (
    DIRECTORY,
    START,
    Writer,
    end_of,
    journal_directory,
    ledgers_of,
    read,
)


@pytest.fixture
def files() -> MemoryFileSystem:
    return journal_directory()


def test_commit_writes_what_is_queued_as_one_batch_with_one_sync(files: MemoryFileSystem) -> None:
    syncs: list[Operation] = []
    counting = FaultFileSystem(
        files, lambda op: syncs.append(op) if op.kind == "fdatasync" else None
    )
    writer = Writer(counting)
    syncs.clear()
    writer.append(1, 2, 3)
    assert writer.journal.bytes_in_flight == 24
    assert writer.journal.commit_pending()
    assert not writer.answers, "completions run where post puts them"
    assert (len(syncs), writer.run_posted()) == (1, 1)
    assert writer.answers == dict.fromkeys((1, 2, 3), BookieStatus.OK)
    assert writer.journal.bytes_in_flight == 0
    assert not writer.journal.commit_pending(), "nothing is queued"
    assert read(files.crash_clone(None)) == [[1, 2, 3]]
    stats = writer.journal.stats()
    assert (stats.records, stats.batches, stats.bytes_written) == (3, 1, 4096)


def test_batch_is_bounded_in_bytes(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.append(*range(30))
    while writer.journal.commit_pending():
        pass
    assert [len(batch) for batch in read(files)] == [12, 12, 6], "at most 100 bytes of 8"


def test_batch_is_bounded_in_records(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it are answered in one turn: of the smallest records that would take half a second."""
    monkeypatch.setattr(waiting, "_BATCH_RECORDS_MAX", 3)
    writer = Writer(files)
    writer.append(*range(7))
    size = writer.journal.bytes_in_flight // 7
    for done in (3, 6, 7):
        assert writer.journal.commit_pending()
        writer.run_posted()
        assert list(writer.answers) == list(range(done))
        assert writer.journal.bytes_in_flight == (7 - done) * size
    assert not writer.journal.commit_pending()
    assert read(files.crash_clone(None)) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("bound", ["bytes", "records"])
def test_records_that_belong_together_are_in_one_batch_also_at_its_bound(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A batch is cut between two requests, never within one."""
    if bound == "records":
        monkeypatch.setattr(waiting, "_BATCH_RECORDS_MAX", 3)
    writer = Writer(files)
    writer.append(*range(1, 1 + (11 if bound == "bytes" else 2)))  # of 8 bytes, and 100 in a batch
    before = [(RecordType.FENCE, fence_body(LedgerId(each))) for each in (50, 51)]
    answers: list[BookieStatus] = []
    writer.journal.append(
        RecordType.FENCE,
        fence_body(LedgerId(52)),
        lambda status, _message: answers.append(status),
        before=before,
    )
    writer.append(53)
    assert writer.journal.bytes_in_flight == 8 * (15 if bound == "bytes" else 6)
    while writer.journal.commit_pending():
        pass
    writer.run_posted()
    first, second = read(files)
    assert first[-3:] == [50, 51, 52] and second == [53]
    assert answers == [BookieStatus.OK] and writer.journal.bytes_in_flight == 0


def test_completion_runs_only_after_the_sync(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    seen: list[list[list[int]]] = []
    body = fence_body(LedgerId(1))
    writer.journal.append(
        RecordType.FENCE, body, lambda *_: seen.append(read(files.crash_clone(None)))
    )
    writer.journal.commit_pending()
    writer.run_posted()
    assert seen == [[[1]]]


@pytest.mark.parametrize("kind", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_failed_write_or_sync_is_never_retried(
    files: MemoryFileSystem, kind: str, part: float
) -> None:
    failing = False

    def plan(operation: Operation) -> Fault | None:
        return Fault(errno.EIO, part) if failing and operation.kind == kind else None

    writer = Writer(FaultFileSystem(files, plan))
    writer.write(1)
    writer.append(2, 3)
    failing = True
    writer.journal.commit_pending()
    failing = False  # a second sync would succeed, and lie
    writer.append(4)
    assert not writer.journal.commit_pending()
    writer.run_posted()
    assert writer.answers[1] is BookieStatus.OK
    assert [writer.answers[ledger] for ledger in (2, 3, 4)] == [BookieStatus.IO_ERROR] * 3
    assert len(writer.fatal) == 1 and str(DIRECTORY) in writer.fatal[0]
    assert writer.journal.failure == writer.fatal[0]
    assert writer.journal.bytes_in_flight == 0
    assert read(files.crash_clone(None)) == [[1]]


def test_failed_batch_fails_what_is_queued_behind_it(files: MemoryFileSystem) -> None:
    failing = False
    writer = Writer(FaultFileSystem(files, lambda _op: Fault(errno.EIO) if failing else None))
    writer.append(*range(30))
    failing = True
    writer.journal.commit_pending()
    writer.run_posted()
    assert set(writer.answers.values()) == {BookieStatus.IO_ERROR}
    assert len(writer.answers) == 30


def test_full_files_roll_and_become_spares(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(*range(40))
    assert journal_numbers(files, DIRECTORY) == [1, 2, 3], "15 batches of 4 KiB in 68 KiB"
    assert all(files.open(journal_path(DIRECTORY, n)).size() == 68 * KIB for n in (1, 2, 3))
    assert read(files.crash_clone(None)) == [[ledger] for ledger in range(40)]
    mark = writer.journal.durable_mark
    assert mark.file_number == 3
    writer.journal.remove_before(3)
    assert list(files.crash_clone(None).list(DIRECTORY)) == [
        "journal-0000000000000001.free",
        "journal-0000000000000002.free",
        "journal-0000000000000003.log",
        "journal.newest",
    ]
    writer.write(*range(40, 80))
    assert journal_numbers(files, DIRECTORY) == [3, 4, 5, 6]
    assert read(files, mark) == [[ledger] for ledger in range(40, 80)]
    writer.journal.remove_before(6)
    names = files.list(DIRECTORY)
    assert len([name for name in names if name.endswith(".free")]) == 2, "no more are kept"


def test_old_records_of_a_spare_are_not_read(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(*range(20))
    writer.journal.remove_before(2)
    writer.write(*range(20, 34))
    assert journal_numbers(files, DIRECTORY) == [2, 3]
    end = writer.journal.durable_mark
    writer.journal.close()
    assert end == [batch.end for batch in read_batches(files, DIRECTORY, START._replace(
        file_number=2, sequence=15, chain=chain_before(files, 2)))][-1]  # fmt: skip


def chain_before(files: FileSystem, number: int) -> int:
    return read_file_header(files.open(journal_path(DIRECTORY, number)), number).chain


def test_new_journal_never_writes_to_an_old_file(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(1, 2)
    before = files.open(journal_path(DIRECTORY, 1)).pread(1 << 20, 0)
    again = Writer(files, end_of(files))
    again.write(3)
    assert files.open(journal_path(DIRECTORY, 1)).pread(1 << 20, 0) == before
    assert read(files) == [[1], [2], [3]]


def test_journal_thread_commits_what_is_appended(tmp_path: Path) -> None:
    done = threading.Event()
    statuses: list[BookieStatus] = []

    def answer(status: BookieStatus, _message: str) -> None:
        statuses.append(status)
        if len(statuses) == 500:
            done.set()

    journal = Journal(
        PosixFileSystem(),
        tmp_path,
        end=START_OF_JOURNAL,
        file_bytes=64 * KIB,
        batch_bytes_max=1 << 20,
        post=lambda run: run(),
        on_fatal=lambda message: pytest.fail(message),
    )
    journal.start()
    for ledger in range(500):
        journal.append(RecordType.FENCE, fence_body(LedgerId(ledger)), answer)
    assert done.wait(10)
    journal.close()
    journal.close()
    assert set(statuses) == {BookieStatus.OK}
    found = [ledgers_of(batch) for batch in read_batches(PosixFileSystem(), tmp_path, START)]
    assert sum(found, []) == list(range(500))  # noqa: RUF017
    with pytest.raises(AssertionError, match="closed"):
        journal.append(RecordType.FENCE, fence_body(LedgerId(1)), answer)


def test_close_commits_what_is_queued(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.append(1, 2)
    writer.journal.close()
    writer.run_posted()
    assert writer.answers == {1: BookieStatus.OK, 2: BookieStatus.OK}
    assert read(files.crash_clone(None)) == [[1, 2]]


def test_close_waits_for_the_sync_in_progress() -> None:
    files = journal_directory()
    syncing, go_on = threading.Event(), threading.Event()

    def plan(operation: Operation) -> None:
        if operation.kind == "fdatasync" and threading.current_thread().name == "journal":
            syncing.set()
            assert go_on.wait(10)

    writer = Writer(FaultFileSystem(files, plan))
    writer.journal.start()
    writer.append(1)
    assert syncing.wait(10)
    closing = threading.Thread(target=writer.journal.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive(), "the file is in use"
    go_on.set()
    closing.join(10)
    writer.run_posted()
    assert writer.answers == {1: BookieStatus.OK} and not writer.fatal


def test_every_file_has_its_own_salt() -> None:
    """A client that knew the salt could send bytes that pass for records of the file."""
    salts: list[int] = []
    for _journal in range(3):
        files = journal_directory()
        journal = Journal(
            files,
            DIRECTORY,
            end=START_OF_JOURNAL,
            file_bytes=16 * KIB,
            batch_bytes_max=100,
            post=lambda call: call(),
            on_fatal=lambda _message: None,
        )
        writer = Writer.__new__(Writer)
        writer.journal, writer.answers = journal, {}
        for ledger in range(1, 7):
            writer.append(ledger)
            journal.commit_pending()
        salts += [salt_of(files, number) for number in journal_numbers(files, DIRECTORY)]
    assert len(salts) >= 6 and len(set(salts)) == len(salts)
    assert max(salts) >= 2**40, "of 64 random bits"


def salt_of(files: MemoryFileSystem, number: int) -> int:
    path: Path = journal_path(DIRECTORY, number)
    return read_file_header(files.open(path), number).salt


@pytest.mark.parametrize("seed", range(10))
def test_time_without_a_sync_counts_while_anybody_waits(files: MemoryFileSystem, seed: int) -> None:
    """Since the last sync, or since it was asked for something. What is queued behind a batch waits
    too, and comes when nobody appends any more: then only this says that the disk hangs (S15)."""
    draw, now = random.Random(seed), [100.0]
    writer, appended, since = Writer(files, clock=lambda: now[0]), 0, None
    for _step in range(60):
        now[0] += draw.random()
        if draw.random() < 0.5:
            count = draw.randint(1, 30)  # up to 12 make a batch
            writer.append(*range(appended, appended + count))
            appended += count
            since = now[0] if since is None else since
        else:
            writer.journal.commit_pending()
            writer.run_posted()
            since = now[0] if len(writer.answers) < appended else None
        waited_s = 0.0 if since is None else now[0] - since
        assert writer.journal.unsynced_s == pytest.approx(waited_s), f"seed {seed}"
        now[0] += 1.0
        waited_s += 0.0 if since is None else 1.0
        assert writer.journal.unsynced_s == pytest.approx(waited_s), f"seed {seed}"
