"""The journal's and the flush thread between any two steps of the service thread: nothing is lost.

Races seldom show in tests with real threads. So most tests here use none, and run the work of the
other threads before and after each step of interest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from bookie_server.bookie import Bookie
from bookie_server.opening import open_bookie
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.base import IndexUpdate
from bookie_server.storage.index.memory_index import MemoryIndex
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.entry_log import EntryLogWriter
from bookie_server.storage.ledgers.write_cache import WriteCache
from spark_ledger.limits import MIB
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.listed import listed
from tests.unit.bookie_server.storage.support import (
    BOOKIE_ID,
    JOURNAL,
    Answer,
    KnownKeys,
    Machine,
    expected,
    formatted,
    make_run,
    small_config,
)

OK = BookieStatus.OK
L = LedgerId(8)
"""It lives in the first directory, which is flushed first."""

KEY = b"key of the ledger"


@pytest.fixture
def files() -> MemoryFileSystem:
    return formatted()


class Between:
    """Runs ``act`` before and after the methods it was put around, and never within itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._acts = True
        self.act: Callable[[], object] = lambda: None
        self.times = 0

    def at_each_place(self, scenario: Callable[[Callable[[], None]], None]) -> int:
        """Run a scenario again and again: ``act`` comes at its first place, then at its second,
        and so on. How many places there are. The scenario calls ``begin`` where they begin, with
        its ``act`` set, and ``stop`` where they end."""
        place, places = 0, 1

        def begin() -> None:
            act = self.act
            self.times, self._acts = 0, False
            self.act = lambda: act() if self.times == place else None

        while place < places:
            scenario(begin)
            place, places = place + 1, self.times
        return places

    def stop(self) -> None:
        """No more places."""
        self._acts = True

    def always(self) -> None:
        """Have ``act`` come at every place from now on."""
        self._acts = False

    def around(self, kind: type[Any], name: str) -> None:
        original = getattr(kind, name)

        def method(instance: object, *values: object, **options: object) -> object:
            self._run()
            result = original(instance, *values, **options)
            self._run()
            return result

        self._monkeypatch.setattr(kind, name, method)

    def _run(self) -> None:
        if self._acts:
            return
        self._acts = True
        try:
            self.act()
            self.times += 1
        finally:
            self._acts = False


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    return Between(monkeypatch)


# -- changes: memory comes before the journal ------------------------------------------------------


def add(machine: Machine) -> None:
    machine.start_add(L, [0, 1], lac=0)


def add_with_key(machine: Machine) -> None:
    machine.start_add(L, [0, 1], key=KEY, lac=0)


def fence(machine: Machine) -> None:
    machine.start_fence(L)


def fence_with_key(machine: Machine) -> None:
    machine.start_fence(L, key=KEY)


def confirm(machine: Machine) -> None:
    machine.keys.learn(L, KEY)
    machine.bookie.write_last_confirmed(
        L, EntryId(5), access_key=KEY, done=lambda _status, _message: None
    )


@pytest.mark.parametrize("change", [add, add_with_key, fence, fence_with_key, confirm])
def test_checkpoint_in_the_middle_of_a_change_loses_nothing_of_it(
    change: Callable[[Machine], None], between: Between
) -> None:
    """A checkpoint covers what the journal holds by what memory holds. A change that reached the
    journal first could be covered without being stored, and its journal file removed."""
    for kind, name in (
        (WriteCache, "add"),
        (DirectoryStore, "set_ledger_record"),
        (Journal, "append"),
    ):
        between.around(kind, name)

    def scenario(begin: Callable[[], None]) -> None:
        machine = Machine(files := formatted())

        def checkpoint() -> None:
            machine.bookie.commit_pending()
            machine.bookie.flush()

        between.act = checkpoint
        begin()
        change(machine)
        between.stop()
        machine.bookie.commit_pending()
        before = machine.bookie.end_of_ledger(L, access_key=b"")
        assert before.status is OK
        after = Machine(files.crash_clone(None))
        assert after.bookie.end_of_ledger(L, access_key=b"") == before
        assert after.held(L) == machine.held(L)
        for key in (b"", KEY):
            assert key_status(after.bookie, L, key) is key_status(machine.bookie, L, key)

    assert between.at_each_place(scenario) >= 4


@pytest.mark.parametrize("kept_ledger_records", [100, 0])
def test_change_during_the_commit_of_a_flush_is_stored_by_the_next_flush(
    between: Between,
    files: MemoryFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    kept_ledger_records: int,
) -> None:
    monkeypatch.setattr(
        "bookie_server.storage.ledgers.directory_store._LEDGER_RECORDS_MAX", kept_ledger_records
    )
    indexes: list[MemoryIndex] = []
    machine = Machine(files, open_index=_kept(files, indexes))
    machine.add(L, [0])
    answers: list[list[tuple[BookieStatus, str]]] = []

    def others_run() -> None:
        if not answers:
            answers.append(machine.start_fence(L))
            answers.append(machine.start_add(L, [1], recovery=True, lac=0))
            assert not machine.bookie.stats().adds_waiting, "there is room"
            machine.bookie.commit_pending()

    between.act = others_run
    between.around(type(_update(indexes)), "commit")
    between.always()
    machine.flush()
    assert answers == [[(OK, "")], [(OK, "")]]
    assert machine.is_fenced(L) and machine.lac(L) == 0
    machine.flush()
    after = Machine(files.crash_clone(None))
    assert after.is_fenced(L) and after.lac(L) == 0
    assert after.held(L) == expected(L, [0, 1])


def test_checkpoint_during_a_sync_covers_nothing_that_is_being_synced(
    between: Between, files: MemoryFileSystem
) -> None:
    """What is being written is in memory, and goes into the log with the rest. But where a power
    cut left one directory with a mark that covers it, the journal would look as if it had lost it.
    """
    clones: list[MemoryFileSystem] = []
    running: list[Machine] = []

    def plan(operation: Operation) -> Fault | None:
        if running and operation.path.parent == JOURNAL:
            machine = running.pop()
            between.always()
            machine.bookie.flush()
            between.stop()
            running.append(machine)
        return None

    indexes: list[MemoryIndex] = []
    machine = Machine(FaultFileSystem(files, plan), open_index=_kept(files, indexes))
    between.act = lambda: clones.append(files.crash_clone(None))
    between.around(type(_update(indexes)), "commit")
    for entry_id in range(4):
        running.append(machine)
        assert machine.add(L, [entry_id]) is OK
        running.clear()
        assert machine.add(L + 1, [entry_id]) is OK
    assert len(clones) >= 8, "before and after commits"
    for clone in clones:
        held = Machine(clone).held(L)
        assert held == expected(L, sorted(held))


def test_flush_waits_for_the_flush_that_is_running(
    between: Between, files: MemoryFileSystem
) -> None:
    """The flush thread's and that of whoever closes, or asks for one."""
    indexes: list[MemoryIndex] = []
    machine = Machine(files, open_index=_kept(files, indexes))
    machine.add(L, [0])
    others: list[threading.Thread] = []

    def another() -> None:
        if not others:
            others.append(threading.Thread(target=machine.bookie.flush))
            others[0].start()
            others[0].join(0.2)
            assert others[0].is_alive(), "it waits for this one"

    between.act = another
    between.around(type(_update(indexes)), "commit")
    between.always()
    machine.flush()
    others[0].join(10)
    assert not others[0].is_alive()
    assert machine.held(L) == expected(L, [0])


# -- reads: an entry is in the cache until it is in the index --------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
def test_flush_in_the_middle_of_a_read_hides_no_entry(between: Between, *, flushed: bool) -> None:
    """The cache is asked before the index: the other way round, an entry that moves from one to
    the other meanwhile is in neither, and a bookie would deny what it holds."""
    for kind, name in (
        (WriteCache, "find"),
        (WriteCache, "runs_of"),
        (MemoryIndex, "row_at"),
        (MemoryIndex, "rows"),
        (MemoryIndex, "ledger_record"),
    ):
        between.around(kind, name)

    def scenario(begin: Callable[[], None]) -> None:
        machine = Machine(formatted())
        assert machine.add(L, [0, 1]) is OK
        if flushed:
            machine.flush()
        assert machine.add(L, [2, 5]) is OK
        between.act = machine.bookie.flush
        begin()
        ranges = listed(machine.bookie, L)
        found = machine.bookie.read(L, EntryId(0), EntryId(2), stride=1, max_bytes=MIB)
        end = machine.bookie.end_of_ledger(L, access_key=b"")
        between.stop()
        assert ranges == [(0, 2), (5, 5)]
        assert [entry_id for run in found.runs for entry_id in run.ids()] == [0, 1, 2], found
        assert (found.status, end.last_entry) == (OK, 5)

    assert between.at_each_place(scenario) >= 4


def test_every_entry_is_readable_at_each_step_of_a_flush(
    between: Between, files: MemoryFileSystem
) -> None:
    indexes: list[MemoryIndex] = []
    machine = Machine(files, open_index=_kept(files, indexes))
    machine.add(L, [0, 1])
    machine.flush()
    machine.add(L, [2, 3])

    def look() -> None:
        assert machine.held(L) == expected(L, [0, 1, 2, 3])

    between.act = look
    for kind, name in (
        (WriteCache, "freeze"),
        (WriteCache, "drop_frozen"),
        (EntryLogWriter, "append"),
        (EntryLogWriter, "sync"),
        (type(_update(indexes)), "commit"),
    ):
        between.around(kind, name)
    between.always()
    machine.flush()
    assert between.times >= 10


def test_fence_is_seen_at_each_step_of_a_flush(between: Between, files: MemoryFileSystem) -> None:
    """The index has the ledger as it was before, until the flush has committed."""
    indexes: list[MemoryIndex] = []
    machine = Machine(files, open_index=_kept(files, indexes))
    assert machine.add(L, [0]) is OK
    machine.flush()
    assert machine.add(L, [1], lac=0) is OK
    assert machine.fence(L) is OK
    refusals: list[BookieStatus] = []

    def look() -> None:
        assert machine.is_fenced(L) and machine.lac(L) == 0
        assert machine.bookie.end_of_ledger(L, access_key=b"").last_entry == 1
        refusals.extend(status for status, _message in machine.start_add(L, [2]))

    between.act = look
    for kind, name in (
        (WriteCache, "freeze"),
        (WriteCache, "drop_frozen"),
        (EntryLogWriter, "sync"),
        (type(_update(indexes)), "put_ledger_record"),
        (type(_update(indexes)), "commit"),
    ):
        between.around(kind, name)
    between.always()
    machine.flush()
    assert refusals == [BookieStatus.FENCED] * between.times
    assert between.times >= 10


def _kept(files: MemoryFileSystem, indexes: list[MemoryIndex]) -> Callable[[Path], MemoryIndex]:
    def open_index(path: Path) -> MemoryIndex:
        indexes.append(MemoryIndex(files, path))
        return indexes[-1]

    return open_index


def _update(indexes: list[MemoryIndex]) -> IndexUpdate:
    update = indexes[0].begin()
    update.abort()
    return update


def test_flush_thread_moves_entries_out_of_memory(tmp_path: Path) -> None:
    """Nobody but the bookie's own thread flushes a bookie that serves."""
    journal, ledgers = tmp_path / "j", (tmp_path / "l0", tmp_path / "l1")
    format_directories(PosixFileSystem(), journal, ledgers, cluster_id="c", bookie_id=BOOKIE_ID)
    config = small_config(
        journal_directory=journal, ledger_directories=ledgers, flush_interval_s=0.02
    )
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    answers: list[BookieStatus] = []
    bookie = open_bookie(config, post=posted.put, keys=KnownKeys(), on_fatal=lambda message: None)
    flushes = bookie.stats().ledger_storage.flushes
    for ledger in (L, LedgerId(L + 1)):
        bookie.add(
            make_run(ledger, [0]),
            access_key=b"",
            recovery=False,
            last_add_confirmed=NO_ENTRY,
            done=lambda status, _message: answers.append(status),
        )

    def has_flushed() -> bool:
        """A flush lets the cache go first, and is counted then."""
        stats = bookie.stats().ledger_storage
        return not stats.cache_bytes and stats.flushes > flushes

    deadline = time.monotonic() + 20
    while not has_flushed() or len(answers) < 2:
        assert time.monotonic() < deadline, bookie.stats()
        with suppress(Empty):
            posted.get(timeout=0.05)()
    assert answers == [OK, OK]
    bookie.close()


def test_flush_that_fails_wakes_whoever_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused then, and their writers go on with other bookies."""
    journal, ledgers = tmp_path / "j", (tmp_path / "l0", tmp_path / "l1")
    format_directories(PosixFileSystem(), journal, ledgers, cluster_id="c", bookie_id=BOOKIE_ID)
    config = small_config(journal_directory=journal, ledger_directories=ledgers)
    bookie = open_bookie(config, post=lambda _: None, keys=KnownKeys(), on_fatal=lambda _: None)
    failed, told = threading.Event(), threading.Event()

    def fails() -> None:
        failed.set()
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(bookie._storage, "flush", fails)
        patch.setattr(bookie._storage, "_on_flushed", told.set)
        bookie._storage.request_flush()
        assert failed.wait(10) and told.wait(10)
    bookie.close()


def test_bookie_with_threads_on_a_real_disk_keeps_everything(tmp_path: Path) -> None:
    journal, ledgers = tmp_path / "j", (tmp_path / "l0", tmp_path / "l1")
    cookie = format_directories(PosixFileSystem(), journal, ledgers, cluster_id="c")
    config = StorageConfig(
        journal,
        ledgers,
        BookieId(cookie.bookie_id),
        write_cache_bytes=256 * 1024,
        journal_file_bytes=1 << 20,
        flush_interval_s=0.02,
    )
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    answers: list[Answer] = []
    failures: list[str] = []
    stop = threading.Event()

    def read_all_the_time(bookie: Bookie) -> None:
        while not stop.is_set():
            for ledger_id in range(4):
                for first, last in listed(bookie, LedgerId(ledger_id)) or []:
                    outcome = bookie.read(
                        LedgerId(ledger_id), first, last, stride=1, max_bytes=1 << 30
                    )
                    if outcome.status is not OK:
                        failures.append(f"{ledger_id} {first}-{last}: {outcome}")

    bookie = open_bookie(config, post=posted.put, keys=KnownKeys(), on_fatal=failures.append)
    reader = threading.Thread(target=read_all_the_time, args=(bookie,))
    reader.start()
    for number in range(400):
        first = number // 4 * 10
        bookie.add(
            make_run(number % 4, range(first, first + 10), 500),
            access_key=b"",
            recovery=False,
            last_add_confirmed=EntryId(first - 1),
            done=lambda status, message: answers.append((status, message)),
        )
        while bookie.append_bytes_in_flight > 100_000:
            posted.get(timeout=10)()
    while len(answers) < 400:
        posted.get(timeout=10)()
    stop.set()
    reader.join()
    bookie.close()
    assert answers == [(OK, "")] * 400 and not failures
    again = open_bookie(config, post=posted.put, keys=KnownKeys(), on_fatal=failures.append)
    for ledger_id in range(4):
        assert listed(again, LedgerId(ledger_id)) == [(0, 999)]
        outcome = again.read(
            LedgerId(ledger_id), EntryId(0), EntryId(999), stride=1, max_bytes=1 << 30
        )
        frames = b"".join(run.frames for run in outcome.runs)
        assert frames == b"".join(expected(ledger_id, range(1000), 500).values())
    again.close()
