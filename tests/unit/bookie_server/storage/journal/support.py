"""A journal of fences without a thread, and what can be read back from its files."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.journal.changes import decode_change, fence_body
from bookie_server.storage.journal.files import JournalBatch, read_batches
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.journal.replay import START_OF_JOURNAL
from bookie_server.storage.records import BATCH_ALIGNMENT, FILE_HEADER_BYTES, RecordType
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId

DIRECTORY = Path("/journal")
START = START_OF_JOURNAL._replace(file_number=1)


def journal_directory() -> MemoryFileSystem:
    """A file system with an empty directory for a journal."""
    files = MemoryFileSystem()
    files.mkdir(DIRECTORY)
    return files


class Writer:
    """A journal of fences whose posts wait until they are run."""

    def __init__(
        self,
        files: FileSystem,
        end: Mark = START_OF_JOURNAL,
        file_bytes: int = 68 * KIB,
        clock: Callable[[], float] = time.perf_counter,
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
            clock=clock,
        )

    def append(self, *ledgers: int) -> None:
        """Queue a fence of each ledger."""
        for ledger in ledgers:
            body = fence_body(LedgerId(ledger))
            self.journal.append(RecordType.FENCE, body, partial(self._done, ledger))

    def _done(self, ledger: int, status: BookieStatus, _message: str) -> None:
        assert ledger not in self.answers, "answered twice"
        self.answers[ledger] = status

    def run_posted(self) -> int:
        """Run what was posted to the service thread; how many calls that was."""
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


def ledgers_of(batch: JournalBatch) -> list[int]:
    """The ledgers that the batch fences."""
    changes = [decode_change(*record) for record in batch.records]
    assert all(changes)
    return [change.ledger_id for change in changes if change]


def read(files: FileSystem, start: Mark = START) -> list[list[int]]:
    """The fenced ledgers of each batch behind ``start``."""
    return [ledgers_of(batch) for batch in read_batches(files, DIRECTORY, start)]


def end_of(files: FileSystem) -> Mark:
    """The mark of the last batch."""
    return [batch.end for batch in read_batches(files, DIRECTORY, START)][-1]


def batch_offset(number: int) -> int:
    """Where the batch is, counted from 1: each of these tests' batches takes one block."""
    return FILE_HEADER_BYTES + BATCH_ALIGNMENT * (number - 1)
