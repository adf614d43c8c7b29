"""A bookie answers by the rules: keys, fences, order, durability, reads, waiting, faults."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from bookie_server.bookie import Bookie
from bookie_server.core.answers import ReadOutcome
from bookie_server.opening import open_bookie
from bookie_server.storage.blocks import RUN_FRAMES_BYTES_MAX
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.ledgers.entry_log import LOG_HEADER_BYTES, log_ids, log_path
from spark_ledger.limits import MIB
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Answer,
    Machine,
    expected,
    formatted,
    make_run,
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


# -- adds ----------------------------------------------------------------------------------------


def test_an_add_is_answered_once_it_is_durable(machine: Machine, files: MemoryFileSystem) -> None:
    answers = machine.start_add(7, [0, 1])
    assert machine.bookie.append_bytes_in_flight == 80
    assert not answers
    assert machine.held(7) == expected(7, [0, 1]), "reads see it before it is durable"
    assert machine.bookie.commit_pending()
    assert not answers, "the completion runs where post puts it"
    machine.settle()
    assert answers == [(OK, "")] and machine.bookie.append_bytes_in_flight == 0
    assert Machine(files.crash_clone(None)).held(7) == expected(7, [0, 1])


def test_an_add_that_was_not_synced_is_gone_after_a_crash(
    machine: Machine, files: MemoryFileSystem
) -> None:
    machine.start_add(7, [0, 1])
    assert Machine(files.crash_clone(None)).held(7) == {}


def test_too_large_runs_are_refused(machine: Machine) -> None:
    answers: list[Answer] = []
    size = RUN_FRAMES_BYTES_MAX + 1
    machine.bookie.add(
        EntryRun(L, EntryId(0), None, [size], bytes(size)),
        access_key=b"",
        recovery=False,
        last_add_confirmed=EntryId(-1),
        done=lambda status, message: answers.append((status, message)),
    )
    assert answers[0][0] is BookieStatus.BAD_REQUEST and "ledger 7" in answers[0][1]
    assert machine.held(7) == {} and machine.bookie.append_bytes_in_flight == 0


def test_entries_come_back_through_flush_and_restart(
    machine: Machine, files: MemoryFileSystem
) -> None:
    assert machine.add(7, [0, 1, 2], lac=1) is OK
    assert machine.add(8, [5], lac=4) is OK
    machine.flush()
    assert machine.add(7, [3, 4], lac=2) is OK
    for one in (machine, Machine(files.crash_clone(None))):
        assert one.held(7) == expected(7, range(5))
        assert one.held(8) == expected(8, [5])
        assert (one.lac(7), one.lac(8)) == (2, 4)
        end = one.bookie.end_of_ledger(L, access_key=b"")
        assert (end.last_entry, end.fenced) == (4, False)
    machine.close()
    again = Machine(files)
    assert again.held(7) == expected(7, range(5))
    assert again.bookie.stats().engine.ledgers == 2


def test_the_same_entry_sent_again_is_stored_once(
    machine: Machine, files: MemoryFileSystem
) -> None:
    for chosen in ([0, 1, 2], [1, 2, 3], [0, 1, 2, 3, 4, 5], [9], [4, 8, 9, 11]):
        assert machine.add(7, chosen, recovery=True) is OK
        assert machine.add(7, chosen, recovery=True) is OK
    everything = expected(7, [0, 1, 2, 3, 4, 5, 8, 9, 11])
    assert machine.held(7) == everything
    machine.flush()
    assert machine.held(7) == everything
    rows = machine.bookie._storage.store_of(L).index.rows(L)
    assert sum(row.location.length for row in rows) < 9 * 40 + len(rows) * 100, "once"
    for chosen in ([6, 7], [0, 10, 12], [3, 10]):
        assert machine.add(7, chosen, recovery=True) is OK
        machine.flush()
    assert machine.held(7) == expected(7, range(13))
    assert Machine(files.crash_clone(None)).held(7) == expected(7, range(13))


# -- keys and fences -----------------------------------------------------------------------------


def test_the_first_contact_decides_the_key(machine: Machine, files: MemoryFileSystem) -> None:
    assert machine.add(7, [0], key=b"secret") is OK
    for one in (machine, Machine(files.crash_clone(None))):
        for wrong in (b"", b"other"):
            assert one.add(7, [1], key=wrong) is BookieStatus.UNAUTHORIZED
            assert one.add(7, [1], key=wrong, recovery=True) is BookieStatus.UNAUTHORIZED
            assert one.fence(7, key=wrong) is BookieStatus.UNAUTHORIZED
            assert key_status(one.bookie, L, wrong) is BookieStatus.UNAUTHORIZED
        assert not one.is_fenced(7), "a wrong password fences nothing"
        assert key_status(one.bookie, L, b"secret") is OK
        assert one.held(7) == expected(7, [0]), "plain reads need no key"
        end = one.bookie.end_of_ledger(L, access_key=b"other")
        assert end.status is BookieStatus.UNAUTHORIZED and end.last_entry == -1
    assert key_status(machine.bookie, LedgerId(8), b"any") is OK


def test_a_ledger_without_password_stays_one(machine: Machine) -> None:
    assert machine.add(7, [0]) is OK
    assert machine.add(7, [1], key=b"key") is BookieStatus.UNAUTHORIZED


def test_a_fence_stops_the_writer_and_lets_recovery_pass(
    machine: Machine, files: MemoryFileSystem
) -> None:
    assert machine.add(7, [0]) is OK
    assert machine.fence(7) is OK
    for one in (machine, Machine(files.crash_clone(None))):
        assert one.add(7, [1]) is BookieStatus.FENCED
        assert one.is_fenced(7)
        assert one.add(7, [1], recovery=True) is OK
        assert one.fence(7) is OK


def test_a_fence_is_answered_once_it_is_durable(machine: Machine, files: MemoryFileSystem) -> None:
    first = machine.start_fence(7)
    second = machine.start_fence(7)
    assert machine.start_add(7, [0])[0][0] is BookieStatus.FENCED, "it counts at once"
    assert not first and not second, "neither is durable"
    assert not Machine(files.crash_clone(None)).is_fenced(7)
    machine.bookie.commit_pending()
    assert Machine(files.crash_clone(None)).is_fenced(7)
    machine.settle()
    assert first == second == [(OK, "")]
    assert machine.start_fence(7) == [(OK, "")], "durable already: at once"
    assert machine.bookie.stats().journal.records == 1


def test_an_add_before_the_fence_is_kept(machine: Machine) -> None:
    add = machine.start_add(7, [0])
    fence = machine.start_fence(7)
    assert machine.held(7) == expected(7, [0]), "the fencing read sees it"
    machine.settle()
    assert add == fence == [(OK, "")]


def test_unknown_ledgers_are_fenced_with_their_key(
    machine: Machine, files: MemoryFileSystem
) -> None:
    assert machine.fence(7, key=b"secret") is OK
    for one in (machine, Machine(files.crash_clone(None))):
        end = one.bookie.end_of_ledger(L, access_key=b"secret")
        assert end == (OK, -1, -1, True, "")
        assert one.add(7, [0], key=b"secret") is BookieStatus.FENCED
        assert one.add(7, [0], key=b"other", recovery=True) is BookieStatus.UNAUTHORIZED
        assert one.bookie.list_entries(L) == []


def test_a_checkpoint_without_entries_keeps_fence_and_lac(
    machine: Machine, files: MemoryFileSystem
) -> None:
    """The journal is trimmed by the checkpoint, so the index must have them."""
    for ledger_id in (7, 8):
        assert machine.add(ledger_id, [0]) is OK
    machine.flush()
    assert machine.fence(7) is OK
    written: list[Answer] = []
    machine.bookie.write_last_confirmed(
        LedgerId(8), EntryId(5), access_key=b"", done=lambda *answer: written.append(answer)
    )
    machine.settle()
    machine.flush()
    for _restart in range(2):  # each starts a new journal file and drops the one before
        machine = Machine(files := files.crash_clone(None))
    assert machine.is_fenced(7) and not machine.is_fenced(8)
    assert machine.lac(8) == 5 and written == [(OK, "")]


# -- last add confirmed --------------------------------------------------------------------------


def test_the_last_add_confirmed_only_grows(machine: Machine) -> None:
    assert machine.add(7, [5, 6], lac=4) is OK
    assert machine.add(7, [2, 3], lac=1, recovery=True) is OK
    end = machine.bookie.end_of_ledger(L, access_key=b"")
    assert (end.last_add_confirmed, end.last_entry) == (4, 6)
    answers: list[Answer] = []
    for lac in (6, 3):
        machine.bookie.write_last_confirmed(
            L, EntryId(lac), access_key=b"", done=lambda *answer: answers.append(answer)
        )
        machine.settle()
        assert machine.lac(7) == 6
    assert answers == [(OK, "")] * 2
    machine.bookie.write_last_confirmed(
        L, EntryId(9), access_key=b"wrong", done=lambda *answer: answers.append(answer)
    )
    assert answers[-1][0] is BookieStatus.UNAUTHORIZED and machine.lac(7) == 6


def test_watchers_hear_of_growth_and_of_the_fence(machine: Machine) -> None:
    heard: list[str] = []
    cancel = machine.bookie.watch_last_confirmed(L, lambda: heard.append("a"))
    others = [
        machine.bookie.watch_last_confirmed(L, lambda: (heard.append("b"), cancel())),  # type: ignore[func-returns-value]
        machine.bookie.watch_last_confirmed(LedgerId(8), lambda: heard.append("other")),
    ]
    machine.add(7, [0], lac=-1)
    assert heard == [], "it did not grow"
    machine.add(7, [1], lac=0)
    assert heard == ["a", "b"]
    machine.bookie.write_last_confirmed(
        L, EntryId(1), access_key=b"", done=lambda *_answer: heard.append("done")
    )
    assert heard == ["a", "b", "b"]
    machine.settle()
    fence = machine.start_fence(7)
    assert heard[-1] == "done", "not before it is durable"
    machine.settle()
    assert heard[-1] == "b" and fence
    cancel()
    assert len(machine.bookie._watchers) == 2
    for each in others:
        each()
    assert not machine.bookie._watchers


# -- reads ---------------------------------------------------------------------------------------


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


def test_ranges(filled: Machine) -> None:
    outcome = read(filled, 0, 9)
    assert (outcome.status, ids(outcome)) == (OK, list(range(10)))
    frames = b"".join(run.frames for run in outcome.runs)
    assert frames == b"".join(expected(7, range(10)).values())
    assert ids(read(filled, 3, 7)) == [3, 4, 5, 6, 7]
    assert ids(read(filled, 1, 9, stride=3)) == [1, 4, 7]
    assert ids(read(filled, 9, 9)) == [9]
    assert filled.bookie.list_entries(L) == [(0, 9), (20, 29)]


def test_stripes(filled: Machine) -> None:
    for first, found in ((0, [0, 3, 6]), (1, [1, 4, 7])):
        outcome = read(filled, first, 8, stride=3, ledger_id=8)
        assert (outcome.status, ids(outcome)) == (OK, found)
    outcome = read(filled, 0, 8, ledger_id=8)
    assert (outcome.status, outcome.entry_id, ids(outcome)) == (
        BookieStatus.NO_SUCH_ENTRY,
        2,
        [0, 1],
    )
    assert filled.bookie.list_entries(LedgerId(8)) == [(0, 1), (3, 4), (6, 7)]


def test_byte_limits(filled: Machine) -> None:
    assert ids(read(filled, 0, 9, max_bytes=1)) == [0], "at least one"
    assert ids(read(filled, 0, 9, max_bytes=40)) == [0]
    assert ids(read(filled, 0, 9, max_bytes=279)) == [0, 1, 2, 3, 4, 5]
    assert ids(read(filled, 0, 9, max_bytes=280)) == [0, 1, 2, 3, 4, 5, 6]
    assert ids(read(filled, 0, 9, stride=2, max_bytes=130)) == [0, 2, 4]


def test_what_is_missing(filled: Machine) -> None:
    outcome = read(filled, 8, 25)
    assert (outcome.status, outcome.entry_id) == (BookieStatus.NO_SUCH_ENTRY, 10)
    assert ids(outcome) == [8, 9] and "ledger 7 entry 10" in outcome.message
    outcome = read(filled, 30, 30)
    assert (outcome.status, outcome.runs) == (BookieStatus.NO_SUCH_ENTRY, [])
    outcome = read(filled, 0, 0, ledger_id=99)
    assert (outcome.status, outcome.runs) == (BookieStatus.NO_SUCH_LEDGER, [])
    assert filled.bookie.list_entries(LedgerId(99)) is None
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
def test_what_cannot_be_read_is_never_missing(files: MemoryFileSystem, harm: str) -> None:
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


# -- waiting for room ----------------------------------------------------------------------------


def fill(machine: Machine) -> int:
    """Add entries of 4 KiB until the directory of ledger 7 is full; the next entry id."""
    store = machine.bookie._storage.store_of(L)
    for entry_id in range(100):
        if machine.bookie._storage.is_full(L):
            return entry_id
        if store.cache.active_bytes >= 16 * 1024 and not store.cache.is_frozen:
            store._freeze(machine.bookie._journal.durable_mark)
        assert machine.add(7, [entry_id], size=4096) is OK
    pytest.fail("the cache never fills")


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


def test_adds_are_refused_when_no_flush_works(files: MemoryFileSystem) -> None:
    failing = False

    def plan(operation: Operation) -> Fault | None:
        in_ledgers = operation.path.parent in LEDGERS
        return Fault(errno.ENOSPC) if failing and in_ledgers else None

    machine = Machine(FaultFileSystem(files, plan))
    count = fill(machine)
    waiting = machine.start_add(7, [count])
    failing = True
    with pytest.raises(OSError, match="No space"):
        machine.flush()
    machine.bookie.on_flushed()
    assert waiting[0][0] is BookieStatus.IO_ERROR and "No space" in waiting[0][1]
    assert machine.start_add(7, [count])[0][0] is BookieStatus.IO_ERROR
    assert "No space" in machine.bookie.stats().failure
    failing = False
    machine.flush()
    assert machine.add(7, [count], size=4096) is OK
    machine.flush()
    assert sorted(machine.held(7)) == list(range(count + 1))
    assert sorted(Machine(files.crash_clone(None)).held(7)) == list(range(count + 1))


# -- the real thing ------------------------------------------------------------------------------


def test_threads_and_a_real_disk(tmp_path: Path) -> None:
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
                for first, last in bookie.list_entries(LedgerId(ledger_id)) or []:
                    outcome = bookie.read(
                        LedgerId(ledger_id), first, last, stride=1, max_bytes=1 << 30
                    )
                    if outcome.status is not OK:
                        failures.append(f"{ledger_id} {first}-{last}: {outcome}")

    bookie = open_bookie(config, post=posted.put, on_fatal=failures.append)
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
    again = open_bookie(config, post=posted.put, on_fatal=failures.append)
    for ledger_id in range(4):
        assert again.list_entries(LedgerId(ledger_id)) == [(0, 999)]
        outcome = again.read(
            LedgerId(ledger_id), EntryId(0), EntryId(999), stride=1, max_bytes=1 << 30
        )
        frames = b"".join(run.frames for run in outcome.runs)
        assert frames == b"".join(expected(ledger_id, range(1000), 500).values())
    again.close()
