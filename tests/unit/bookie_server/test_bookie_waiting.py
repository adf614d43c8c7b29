"""Adds that find the write cache full wait in order, and are refused if no flush works."""

from __future__ import annotations

import errno

import pytest

from bookie_server.core import admission
from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.write_cache import CachedRun
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import LEDGERS, Machine, formatted, small_config

LEDGER = 7
ENTRY_BYTES = 4096
L = LedgerId(7)
OK = BookieStatus.OK
SMALL = small_config(write_cache_bytes=64 * KIB)


@pytest.fixture
def files() -> MemoryFileSystem:
    return formatted()


@pytest.fixture
def machine(files: MemoryFileSystem) -> Machine:
    return Machine(files, SMALL)


def fill(machine: Machine) -> int:
    """Add entries until the ledger's directory takes no more; the next entry id."""
    storage = machine.bookie._storage
    store = storage.store_of(LedgerId(LEDGER))
    for entry_id in range(100):
        if storage.is_full(LedgerId(LEDGER)):
            return entry_id
        if store.cache.active_bytes >= 4 * ENTRY_BYTES and not store.cache.is_frozen:
            store._freeze(machine.bookie._journal.durable_mark, None)
        assert machine.add(LEDGER, [entry_id], size=ENTRY_BYTES) is BookieStatus.OK
    raise AssertionError("the cache never fills")


def test_the_caches_of_all_directories_share_what_is_allowed() -> None:
    machine = Machine(formatted(), SMALL)  # 64 KiB for two generations in each of two directories
    fill(machine)
    assert machine.bookie.stats().ledger_storage.cache_bytes <= 2 * (16 * 1024 + ENTRY_BYTES + 100)


def test_adds_wait_for_room_in_order(machine: Machine) -> None:
    count = fill(machine)
    waiting = [machine.start_add(7, [count + i], size=4096) for i in range(3)]
    recovery = machine.start_add(7, [500], recovery=True)
    other = machine.start_add(7, [600])
    machine.settle()
    assert not any(waiting) and machine.bookie.stats().adds_waiting == 5
    assert machine.bookie.append_bytes_in_flight == 3 * 4096 + 80
    fence = machine.fence(7)
    assert fence is OK, "a fence needs no room"
    machine.flush()
    machine.flush()
    assert [answer[0][0] for answer in waiting] == [BookieStatus.FENCED] * 3
    assert recovery == [(OK, "")] and other[0][0] is BookieStatus.FENCED
    assert machine.bookie.append_bytes_in_flight == 0
    assert sorted(machine.held(7)) == [*range(count), 500]


def test_add_that_finds_room_waits_behind_adds_that_wait() -> None:
    """The flush has made room, and the service thread has not heard of it yet."""
    machine = Machine(formatted(), SMALL)
    first = fill(machine)
    waiting = machine.start_add(LEDGER, [first], size=ENTRY_BYTES)
    machine.bookie._storage.flush()
    assert not machine.bookie._storage.is_full(LedgerId(LEDGER))
    later = machine.start_add(LEDGER, [first + 1], size=ENTRY_BYTES)
    machine.settle()
    assert (waiting, later) == ([], []), "the later one was served first"
    machine.flush()
    assert (waiting, later) == ([(BookieStatus.OK, "")], [(BookieStatus.OK, "")])
    assert sorted(machine.held(LEDGER)) == list(range(first + 2))


def test_adds_are_refused_when_no_flush_works(files: MemoryFileSystem) -> None:
    failing = False

    def plan(operation: Operation) -> Fault | None:
        in_ledgers = operation.path.parent in LEDGERS
        return Fault(errno.ENOSPC) if failing and in_ledgers else None

    machine = Machine(FaultFileSystem(files, plan), SMALL)
    count = fill(machine)
    waiting = machine.start_add(7, [count])
    failing = True
    with pytest.raises(OSError, match="No space"):
        machine.flush()
    machine.bookie.on_flushed()
    assert waiting[0][0] is BookieStatus.READ_ONLY and "No space" in waiting[0][1]
    assert machine.start_add(7, [count])[0][0] is BookieStatus.READ_ONLY
    refused = machine.start_add(7, [count], recovery=True)
    assert refused[0][0] is BookieStatus.READ_ONLY, "no room in memory for a recovery either"
    assert machine.bookie.stats().failure == "", "a full disk is no failure"
    assert "No space" in machine.bookie.disks.states.reason
    failing = False
    machine.flush()
    assert machine.add(7, [count], size=4096) is OK
    machine.flush()
    assert sorted(machine.held(7)) == list(range(count + 1))
    assert sorted(Machine(files.crash_clone(None)).held(7)) == list(range(count + 1))


def test_adds_that_still_wait_are_refused_when_the_bookie_closes() -> None:
    machine = Machine(formatted(), SMALL)
    first = fill(machine)
    waiting = machine.start_add(LEDGER, [first], size=ENTRY_BYTES)
    machine.close()
    assert waiting == [(BookieStatus.IO_ERROR, "the bookie is shutting down")]


def test_flush_is_requested_as_soon_as_the_cache_is_full() -> None:
    """Not only at the next interval: until then nobody could add."""
    machine = Machine(formatted(), SMALL)
    first = fill(machine)
    wanted = machine.bookie._storage._wanted
    assert wanted.is_set(), "the cache is full"
    machine.start_add(LEDGER, [first], size=ENTRY_BYTES)
    wanted.clear()
    machine.bookie.on_flushed()  # of another directory
    assert wanted.is_set()
    assert machine.bookie.stats().adds_waiting == 1, "there is no room for it yet"


def test_add_waits_again_after_a_flush_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_store: DirectoryStore, *_marks: Mark | None) -> bool:
        raise OSError("no room")

    machine = Machine(formatted(), SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "flush", fail)
        with pytest.raises(OSError, match="no room"):
            machine.flush()
    assert machine.bookie.stats().failure == "no room"
    machine.flush()
    assert machine.bookie.stats().failure == ""
    first = fill(machine)
    assert machine.start_add(LEDGER, [first], size=ENTRY_BYTES) == [], "it waits"


def test_add_refused_without_room_releases_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else no stream would be read again, however much room there is later."""

    def fail(_store: DirectoryStore, *_marks: Mark | None) -> bool:
        raise OSError("no room")

    machine = Machine(formatted(), SMALL)
    first = fill(machine)
    waiting = machine.start_add(LEDGER, [first], size=ENTRY_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "flush", fail)
        with pytest.raises(OSError, match="no room"):
            machine.bookie._storage.flush()
    refused = machine.start_add(LEDGER, [first + 1], size=ENTRY_BYTES)
    assert refused == [(BookieStatus.IO_ERROR, "flush fails: no room")]
    assert machine.bookie.append_bytes_in_flight == ENTRY_BYTES, "of the one that waits"
    machine.bookie.on_flushed()
    assert waiting == [(BookieStatus.IO_ERROR, "flush fails: no room")]
    assert machine.bookie.append_bytes_in_flight == 0


def test_adds_behind_many_waiting_bytes_are_told_so_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence would be taken for a failure; nothing was decided, so the client sends it again."""
    monkeypatch.setattr(admission, "BOOKIE_WAITING_BYTES_MAX", 2 * ENTRY_BYTES)
    first = fill(machine)
    waiting = [machine.start_add(LEDGER, [first + i], size=ENTRY_BYTES) for i in range(3)]
    machine.settle()
    assert [len(answer) for answer in waiting] == [0, 0, 1]
    assert waiting[2][0][0] is BookieStatus.TOO_MANY_REQUESTS
    machine.flush()
    machine.flush()
    assert [answer[0][0] for answer in waiting[:2]] == [OK, OK]
    assert machine.add(LEDGER, [first + 2], size=ENTRY_BYTES) is OK
    assert machine.bookie._waiting.size_bytes == 0


def test_adds_that_waited_are_made_in_the_order_in_which_they_came(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledgement covers all entries before it (rule P3)."""
    first = fill(machine)
    for entry_id in range(first, first + 4):
        machine.start_add(LEDGER, [entry_id], size=40)
    made: list[int] = []
    keep = machine.bookie._storage.add

    def noted(run: CachedRun, record: LedgerRecord, *, is_held: bool) -> None:
        made.append(run.run.first_entry)
        keep(run, record, is_held=is_held)

    monkeypatch.setattr(machine.bookie._storage, "add", noted)
    machine.flush()
    machine.flush()
    assert made == list(range(first, first + 4))
    assert machine.bookie._waiting.size_bytes == 0


def test_adds_that_wait_go_on_some_at_a_time_and_others_have_a_turn_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All at once the service loop would stand still for as long as they take."""
    monkeypatch.setattr("bookie_server.bookie.ADDS_GO_ON_AT_ONCE", 2)
    machine = Machine(formatted(), SMALL)
    first = fill(machine)
    waiting = [machine.start_add(LEDGER, [first + i]) for i in range(5)]
    machine.bookie.flush()
    left = []
    while machine.posted:
        machine.posted.popleft()()
        left.append(machine.bookie.stats().adds_waiting)
        if len(left) == 1:
            waiting.append(machine.start_add(LEDGER, [first + 5]))  # behind those that wait
    assert left == [3, 2, 0], "two of each turn, and the one that came in between"
    assert not any(waiting), "nothing is durable yet"
    machine.settle()
    assert waiting == [[(OK, "")]] * 6
    assert sorted(machine.held(LEDGER)) == list(range(first + 6))


def test_adds_that_waited_are_committed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, each would wake the journal, and wait for a sync of its own."""
    machine = Machine(formatted(), SMALL)
    first = fill(machine)
    for i in range(3):
        machine.start_add(LEDGER, [first + i])
    journal = machine.bookie._journal
    in_batch: list[bool] = []
    append = journal.append

    def watched(*record: object) -> None:
        in_batch.append(journal._in_batch)
        append(*record)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "append", watched)
    machine.flush()
    assert in_batch == [True] * 3
