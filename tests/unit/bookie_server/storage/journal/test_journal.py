"""The journal: group commit, durable before told, sticky failure, rolling, torn tail or damage."""

from __future__ import annotations

import errno
import itertools
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.journal.changes import decode_change, fence_body
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.journal_files import (
    JournalBatch,
    journal_numbers,
    journal_path,
    read_batches,
    read_file_header,
)
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.journal.replay import START_OF_JOURNAL
from bookie_server.storage.records import FILE_HEADER_BYTES, RecordType
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId

DIRECTORY = Path("/journal")
START = START_OF_JOURNAL._replace(file_number=1)


class Writer:
    """A journal of fences whose posts wait until they are run."""

    def __init__(
        self, files: FileSystem, end: Mark = START_OF_JOURNAL, file_bytes: int = 64 * KIB
    ) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.fatal: list[str] = []
        self.answers: dict[int, BookieStatus] = {}
        salts = itertools.count(1000 * end.file_number + 1)
        self.journal = Journal(
            files,
            DIRECTORY,
            end=end,
            file_bytes=file_bytes,
            batch_bytes_max=100,
            post=self.posted.append,
            on_fatal=self.fatal.append,
            new_salt=lambda: next(salts),
        )

    def append(self, *ledgers: int) -> None:
        for ledger in ledgers:
            body = fence_body(LedgerId(ledger))
            self.journal.append(RecordType.FENCE, body, partial(self._done, ledger))

    def _done(self, ledger: int, status: BookieStatus, _message: str) -> None:
        assert ledger not in self.answers, "answered twice"
        self.answers[ledger] = status

    def run_posted(self) -> int:
        count = len(self.posted)
        while self.posted:
            self.posted.popleft()()
        return count

    def write(self, *ledgers: int) -> None:
        """One batch per ledger."""
        for ledger in ledgers:
            self.append(ledger)
            self.journal.commit_pending()
        self.run_posted()


@pytest.fixture
def files() -> MemoryFileSystem:
    memory = MemoryFileSystem()
    memory.mkdir(DIRECTORY)
    return memory


def ledgers_of(batch: JournalBatch) -> list[int]:
    changes = [decode_change(*record) for record in batch.records]
    assert all(changes)
    return [change.ledger_id for change in changes if change]


def read(files: FileSystem, start: Mark = START) -> list[list[int]]:
    return [ledgers_of(batch) for batch in read_batches(files, DIRECTORY, start)]


def end_of(files: FileSystem) -> Mark:
    return [batch.end for batch in read_batches(files, DIRECTORY, START)][-1]


def test_what_is_queued_is_one_batch_with_one_sync_and_one_post(files: MemoryFileSystem) -> None:
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


def test_a_batch_is_bounded(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.append(*range(30))
    while writer.journal.commit_pending():
        pass
    assert [len(batch) for batch in read(files)] == [12, 12, 6], "at most 100 bytes of 8"


def test_nothing_is_told_before_the_sync(files: MemoryFileSystem) -> None:
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
def test_a_failure_is_final(files: MemoryFileSystem, kind: str, part: float) -> None:
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


def test_a_failure_answers_what_is_queued_behind_it(files: MemoryFileSystem) -> None:
    failing = False
    writer = Writer(FaultFileSystem(files, lambda _op: Fault(errno.EIO) if failing else None))
    writer.append(*range(30))
    failing = True
    writer.journal.commit_pending()
    writer.run_posted()
    assert set(writer.answers.values()) == {BookieStatus.IO_ERROR}
    assert len(writer.answers) == 30


def test_files_roll_and_become_spares(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(*range(40))
    assert journal_numbers(files, DIRECTORY) == [1, 2, 3], "15 batches of 4 KiB in 64 KiB"
    assert all(files.open(journal_path(DIRECTORY, n)).size() == 64 * KIB for n in (1, 2, 3))
    assert read(files.crash_clone(None)) == [[ledger] for ledger in range(40)]
    mark = writer.journal.durable_mark
    assert mark.file_number == 3
    writer.journal.remove_before(3)
    assert list(files.crash_clone(None).list(DIRECTORY)) == [
        "journal-0000000000000001.free",
        "journal-0000000000000002.free",
        "journal-0000000000000003.log",
    ]
    writer.write(*range(40, 80))
    assert journal_numbers(files, DIRECTORY) == [3, 4, 5, 6]
    assert read(files, mark) == [[ledger] for ledger in range(40, 80)]
    writer.journal.remove_before(6)
    names = files.list(DIRECTORY)
    assert len([name for name in names if name.endswith(".free")]) == 2, "no more are kept"


def test_what_a_spare_held_is_no_record(files: MemoryFileSystem) -> None:
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


def test_a_new_journal_never_writes_to_an_old_file(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(1, 2)
    before = files.open(journal_path(DIRECTORY, 1)).pread(1 << 20, 0)
    again = Writer(files, end_of(files))
    again.write(3)
    assert files.open(journal_path(DIRECTORY, 1)).pread(1 << 20, 0) == before
    assert read(files) == [[1], [2], [3]]


def test_reading_starts_at_the_mark(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(1, 2)
    mark = writer.journal.durable_mark
    writer.write(3)
    assert read(files, mark) == [[3]]
    files.damage(journal_path(DIRECTORY, 1), FILE_HEADER_BYTES + 5, b"XX")
    assert read(files, mark) == [[3]], "what lies before the mark is not needed"


def batch_offset(number: int) -> int:
    """Where the batch is: each takes one alignment unit."""
    return FILE_HEADER_BYTES + 4096 * (number - 1)


@pytest.mark.parametrize("place", [0, 8, 20, 26, 33, 60])
def test_a_damaged_last_batch_is_a_torn_tail(files: MemoryFileSystem, place: int) -> None:
    Writer(files).write(1, 2, 3)
    files.damage(journal_path(DIRECTORY, 1), batch_offset(3) + place, b"\xa5")
    assert read(files) == [[1], [2]]
    again = Writer(files, end_of(files))
    again.write(4)
    assert read(files) == [[1], [2], [4]], "the tail stays cut once there is a newer file"


@pytest.mark.parametrize("place", [0, 8, 20, 26, 33, 60])
@pytest.mark.parametrize("content", [b"\xa5", bytes(4096 - 60)])
def test_damage_before_the_last_batch_refuses(
    files: MemoryFileSystem, place: int, content: bytes
) -> None:
    Writer(files).write(1, 2, 3)
    files.damage(journal_path(DIRECTORY, 1), batch_offset(2) + place, content)
    with pytest.raises(CorruptionError) as caught:
        read(files)
    assert str(journal_path(DIRECTORY, 1)) in str(caught.value)
    assert f"offset {batch_offset(2)}" in str(caught.value)


def test_damage_at_the_end_of_a_file_that_is_not_the_last_refuses(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(*range(16))
    assert journal_numbers(files, DIRECTORY) == [1, 2]
    files.damage(journal_path(DIRECTORY, 1), batch_offset(15), bytes(4096))
    with pytest.raises(CorruptionError, match=f"batch 15 at offset {batch_offset(15)}"):
        read(files)


def test_missing_renamed_and_cut_files_refuse(files: MemoryFileSystem) -> None:
    writer = Writer(files)
    writer.write(*range(40))
    second, third = journal_path(DIRECTORY, 2), journal_path(DIRECTORY, 3)
    clone = files.crash_clone(None)
    clone.remove(journal_path(DIRECTORY, 1))
    with pytest.raises(CorruptionError, match=r"0000000001\.log is missing"):
        read(clone)
    clone = files.crash_clone(None)
    clone.remove(second)
    with pytest.raises(CorruptionError, match="begins with batch 31"):
        read(clone)
    clone = files.crash_clone(None)
    clone.rename(third, second)
    with pytest.raises(CorruptionError, match="says it is file 3"):
        read(clone)
    clone = files.crash_clone(None)
    clone.open(second, writable=True).truncate(batch_offset(4))
    with pytest.raises(CorruptionError, match="has 16384 bytes, but was made with 65536"):
        read(clone)
    clone = files.crash_clone(None)
    clone.damage(second, 9, b"\xff")
    with pytest.raises(CorruptionError, match="damaged file header"):
        read(clone)
    clone = files.crash_clone(None)
    clone.open(third, writable=True).truncate(FILE_HEADER_BYTES)
    with pytest.raises(CorruptionError, match="it was cut"):
        read(clone, writer.journal.durable_mark)


def test_every_flipped_byte_is_harmless_or_named(files: MemoryFileSystem) -> None:
    """Exhaustive rot of a small journal: a wrong record is never returned."""
    Writer(files).write(1, 2, 3)
    path = journal_path(DIRECTORY, 1)
    data = files.open(path).pread(1 << 20, 0)
    whole = [[1], [2], [3]]
    places = [p for p in range(batch_offset(4)) if data[p] or p % 512 == 0 or p % 4096 < 120]
    outcomes: set[str] = set()
    for place in places:
        clone = files.crash_clone(None)
        clone.damage(path, place, bytes([data[place] ^ 0x41]))
        try:
            found = read(clone)
        except CorruptionError:
            outcomes.add("refused")
            continue
        outcomes.add(f"{len(found)} batches")
        assert found == whole or (found == whole[:2] and place >= batch_offset(3)), place
    assert outcomes == {"refused", "3 batches", "2 batches"}


def test_a_thread_commits(tmp_path: Path) -> None:
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
