"""For which batches the service thread waits in place, and which are left to the journal thread."""

from __future__ import annotations

import errno
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import File, FileSystem
from bookie_server.storage.journal.changes import fence_body
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.replay import START_OF_JOURNAL
from bookie_server.storage.records import RecordType
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.journal.support import DIRECTORY, journal_directory, read


@pytest.fixture
def files() -> MemoryFileSystem:
    return journal_directory()


class Gathering:
    """A journal with its thread. Appends are made in batches, and each notes who answered it."""

    def __init__(
        self,
        files: FileSystem,
        *,
        sync_s: float = 0.0002,
        clock: Iterator[float] | None = None,
        post: Callable[[Callable[[], None]], None] = lambda run: run(),
    ) -> None:
        self.answered_by: list[str] = []
        self.statuses: list[BookieStatus] = []
        self.fatal: list[str] = []
        self._answered = threading.Semaphore(0)
        # Unless told otherwise, each look at the clock takes as long as a sync.
        now = clock or map(sync_s.__mul__, itertools.count())
        self.journal = Journal(
            files,
            DIRECTORY,
            end=START_OF_JOURNAL,
            file_bytes=256 * KIB,
            batch_bytes_max=1 << 20,
            post=post,
            on_fatal=self.fatal.append,
            clock=lambda: next(now),
        )
        self.journal.start()

    def append(self, first: int, count: int = 1) -> None:
        """Append together, and wait for the answers."""
        with self.journal.batch():
            for ledger in range(first, first + count):
                self.append_alone(ledger)
        for _ in range(count):
            assert self._answered.acquire(timeout=10), "an append without an answer"

    def append_alone(self, ledger: int) -> None:
        """Append, and do not wait."""
        self.journal.append(RecordType.FENCE, fence_body(LedgerId(ledger)), self._done)

    def _done(self, status: BookieStatus, _message: str) -> None:
        self.statuses.append(status)
        self.answered_by.append(threading.current_thread().name)
        self._answered.release()

    @property
    def in_place(self) -> int:
        """How many appends the appending thread committed."""
        return self.answered_by.count(threading.current_thread().name)


def test_small_batch_on_a_resting_disk_is_committed_in_place(
    files: MemoryFileSystem,
) -> None:
    gathering = Gathering(files)
    batches = 0
    while gathering.in_place < 9:
        gathering.append(3 * batches, 3)
        batches += 1
        assert batches < 60, "nothing is committed in place"
    gathering.journal.close()
    assert gathering.statuses == [BookieStatus.OK] * 3 * batches
    assert gathering.answered_by[:3] == ["journal"] * 3, "how fast the disk is was not known yet"
    assert read(files) == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(batches)]


def test_slow_disk_is_left_to_the_journal_thread(files: MemoryFileSystem) -> None:
    gathering = Gathering(files, sync_s=0.003)
    for number in range(40):
        gathering.append(number)
    gathering.journal.close()
    assert gathering.answered_by == ["journal"] * 40


def test_wait_that_took_longer_than_a_sync_is_the_last_one_for_a_while(
    files: MemoryFileSystem,
) -> None:
    """A disk that is quick, and a thread that waits for the interpreter: each message of many
    clients would stop the loop for that long, and all others with it."""
    is_late, late_s = False, 0.0

    def plan(operation: Operation) -> None:
        nonlocal late_s
        if is_late and operation.kind == "pwritev":
            late_s += 0.01

    def time_at(look: int) -> float:
        return 0.0002 * look + late_s

    clock = map(time_at, itertools.count())  # a generator could be asked by two threads at once
    gathering = Gathering(FaultFileSystem(files, plan), clock=clock)
    numbers = itertools.count()
    while not gathering.in_place:
        gathering.append(next(numbers))
    is_late = True
    gathering.append(next(numbers))
    is_late = False
    assert gathering.answered_by[-1] == threading.current_thread().name, "it is not known before"
    in_place = gathering.in_place
    for _ in range(20):
        gathering.append(next(numbers))
    assert gathering.in_place == in_place, "the journal thread is waited for again"
    late_s += 50 * 0.015
    for _ in range(20):
        gathering.append(next(numbers))
    gathering.journal.close()
    assert gathering.in_place > in_place, "nothing is committed in place for ever"


def test_busy_disk_is_left_to_the_journal_thread(files: MemoryFileSystem) -> None:
    def only_syncs_take_time() -> Iterator[float]:
        yield from (0.0, 0.001)
        for number in itertools.count(1):
            looked_at_rest = before_sync = number * 0.001
            yield from (looked_at_rest, before_sync, before_sync + 0.001)

    gathering = Gathering(files, clock=only_syncs_take_time())
    for number in range(40):
        gathering.append(number)
    gathering.journal.close()
    assert gathering.answered_by == ["journal"] * 40


def test_rolling_is_left_to_the_journal_thread(files: MemoryFileSystem) -> None:
    gathering = Gathering(files)
    creators: list[str] = []
    create = files.create

    def watched(path: Path, *, direct: bool = False) -> File:
        creators.append(threading.current_thread().name)
        return create(path, direct=direct)

    files.create = watched  # type: ignore[method-assign]
    for number in range(200):
        gathering.append(number)
    gathering.journal.close()
    assert gathering.in_place
    assert creators and set(creators) == {"journal"}
    assert read(files) == [[number] for number in range(200)]


def test_append_while_the_journal_thread_syncs_waits_for_it(files: MemoryFileSystem) -> None:
    syncing, go_on = threading.Event(), threading.Event()
    blocked = False

    def plan(operation: Operation) -> None:
        if blocked and operation.kind == "fdatasync":
            syncing.set()
            assert go_on.wait(10)

    gathering = Gathering(FaultFileSystem(files, plan))
    number = 0
    while not gathering.in_place:
        gathering.append(number)
        number += 1
    blocked = True
    gathering.append_alone(number)
    assert syncing.wait(10)
    in_place = gathering.in_place
    with gathering.journal.batch():
        gathering.append_alone(number + 1)
    assert len(gathering.statuses) == number, "it waits for the batch before it"
    go_on.set()
    gathering.journal.close()
    assert gathering.statuses == [BookieStatus.OK] * (number + 2)
    assert gathering.in_place == in_place
    assert read(files) == [[ledger] for ledger in range(number + 2)]


def test_large_batch_is_left_to_the_journal_thread(files: MemoryFileSystem) -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    is_open = True

    def post(run: Callable[[], None]) -> None:
        run() if is_open else posted.put(run)

    gathering = Gathering(files, post=post)
    number = 0
    while not gathering.in_place:
        gathering.append(number)
        number += 1
    is_open = False  # as with a loop, whose turn has not ended
    count = 64 * KIB // 8 + 1
    with gathering.journal.batch():
        for ledger in range(count):
            gathering.append_alone(number + ledger)
    assert len(gathering.statuses) == number, "nothing of it is completed in place"
    gathering.journal.close()
    while not posted.empty():
        posted.get()()
    assert gathering.statuses == [BookieStatus.OK] * (number + count)


def test_failed_commit_in_place_is_final(files: MemoryFileSystem) -> None:
    failing = False

    def plan(operation: Operation) -> Fault | None:
        return Fault(errno.EIO) if failing and operation.kind == "fdatasync" else None

    gathering = Gathering(FaultFileSystem(files, plan))
    number = 0
    while not gathering.in_place:
        gathering.append(number)
        number += 1
        assert number < 1000
    failing = True
    gathering.append(number)
    failing = False
    gathering.append(number + 1)
    gathering.journal.close()
    assert gathering.statuses == [BookieStatus.OK] * number + [BookieStatus.IO_ERROR] * 2
    assert len(gathering.fatal) == 1
    assert read(files.crash_clone(None)) == [[ledger] for ledger in range(number)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bug_in_a_commit_in_place_answers_its_waiters(files: MemoryFileSystem) -> None:
    def broken(operation: Operation) -> None:
        assert not is_broken or operation.kind != "fdatasync", "a bug"

    is_broken = False
    gathering = Gathering(FaultFileSystem(files, broken))
    number = 0
    while not gathering.in_place:
        gathering.append(number)
        number += 1
        assert number < 1000
    is_broken = True
    gathering.append(number)
    is_broken = False
    assert gathering.statuses == [BookieStatus.OK] * number + [BookieStatus.IO_ERROR]
    assert len(gathering.fatal) == 1
    gathering.journal.close()


def test_batch_that_a_bug_ends_wakes_the_journal_and_is_not_the_last_one(
    files: MemoryFileSystem,
) -> None:
    """One message of one client must not leave all others without an answer."""
    gathering = Gathering(files)
    with pytest.raises(KeyError), gathering.journal.batch():
        gathering.append_alone(1)
        raise KeyError
    assert gathering._answered.acquire(timeout=10), "what was appended before is committed"
    gathering.append_alone(2)
    assert gathering._answered.acquire(timeout=10), "and so is what comes alone"
    gathering.append(3, 2)
    gathering.journal.close()
    assert read(files) == [[1], [2], [3, 4]]


def test_append_from_a_completion_in_place_is_committed(files: MemoryFileSystem) -> None:
    """The journal's thread sleeps then, and has to be woken."""
    gathering = Gathering(files)
    answered_by: list[str] = []
    for number in range(60):

        def answered(_status: BookieStatus, _message: str, ledger: int = number) -> None:
            answered_by.append(threading.current_thread().name)
            gathering.append_alone(1000 + ledger)

        with gathering.journal.batch():
            gathering.journal.append(RecordType.FENCE, fence_body(LedgerId(number)), answered)
        assert gathering._answered.acquire(timeout=10), "nobody commits it"
    gathering.journal.close()
    assert threading.current_thread().name in answered_by, "nothing was committed in place"
    assert read(files) == [[ledger] for number in range(60) for ledger in (number, 1000 + number)]


def test_disk_that_hangs_does_not_stop_the_service_thread(files: MemoryFileSystem) -> None:
    """A sync that takes long is waited for elsewhere, and the journal says for how long."""
    go_on = threading.Event()
    hangs = False

    def plan(operation: Operation) -> None:
        if hangs and operation.kind == "fdatasync":
            assert go_on.wait(10), "the service thread waits for a disk that hangs"

    gathering = Gathering(FaultFileSystem(files, plan))
    number = 0
    while not gathering.in_place:
        gathering.append(number)
        number += 1
    assert gathering.journal.unsynced_s == 0
    hangs = True
    with gathering.journal.batch():
        gathering.append_alone(number)
    with gathering.journal.batch():
        gathering.append_alone(number + 1)
    waited_s = gathering.journal.unsynced_s
    assert 0 < waited_s < gathering.journal.unsynced_s, "it grows"
    assert len(gathering.statuses) == number
    go_on.set()
    for _ in range(2):
        assert gathering._answered.acquire(timeout=10), "it is answered once it is durable"
    gathering.journal.close()
    assert gathering.journal.unsynced_s == 0
    assert gathering.statuses == [BookieStatus.OK] * (number + 2)
    assert gathering.answered_by[-2:] == ["journal"] * 2
    assert read(files) == [[ledger] for ledger in range(number + 2)]


def test_completion_in_place_never_overtakes_an_older_one(files: MemoryFileSystem) -> None:
    """The loop has not come to the older batch's completion yet: an acknowledgement covers all
    entries before it, and one that came later would take its place (rule P3)."""
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    is_open = True

    def post(run: Callable[[], None]) -> None:
        run() if is_open else posted.put(run)

    gathering = Gathering(files, post=post)
    number = 0
    while not gathering.in_place:
        gathering.append(number)
        number += 1
    order: list[str] = []
    is_open = False
    body = fence_body(LedgerId(number))
    gathering.journal.append(RecordType.FENCE, body, lambda _s, _m: order.append("older"))
    older = posted.get(timeout=10)
    until = time.monotonic() + 10
    while not gathering.journal._sleeping:
        assert time.monotonic() < until, "the journal thread has nothing to do"
    with gathering.journal.batch():
        body = fence_body(LedgerId(number + 1))
        gathering.journal.append(RecordType.FENCE, body, lambda _s, _m: order.append("newer"))
    older()
    posted.get(timeout=10)()
    gathering.journal.close()
    assert order == ["older", "newer"]
