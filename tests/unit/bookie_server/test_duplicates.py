"""An entry that comes again: the same bytes are acknowledged, others never, wherever it is held."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.base import IndexRow
from bookie_server.storage.ledgers.entry_log import LOG_HEADER_BYTES, log_path
from spark_ledger.errors import CorruptionError
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Answer,
    Machine,
    expected,
    formatted,
    make_run,
    small_config,
)

OK, CONFLICT = BookieStatus.OK, BookieStatus.ENTRY_CONFLICT


@pytest.fixture
def files() -> MemoryFileSystem:
    return formatted()


def send(machine: Machine, run: EntryRun, *, recovery: bool = False) -> Answer:
    """Add a run and wait."""
    answers: list[Answer] = []
    machine.bookie.add(
        run,
        access_key=b"",
        recovery=recovery,
        last_add_confirmed=EntryId(-1),
        done=lambda status, message: answers.append((status, message)),
    )
    machine.settle()
    (answer,) = answers
    return answer


def with_other_entry(run: EntryRun, entry_id: int) -> EntryRun:
    """The run with other bytes, as many, for one of its entries."""
    frames = [
        bytes(frame[::-1]) if found == entry_id else bytes(frame) for found, frame in run.split()
    ]
    return EntryRun(run.ledger_id, run.first_entry, run.entry_ids, run.sizes, b"".join(frames))


Place = Callable[[Machine, MemoryFileSystem], tuple[Machine, MemoryFileSystem]]


def in_cache(machine: Machine, files: MemoryFileSystem) -> tuple[Machine, MemoryFileSystem]:
    return machine, files


def in_index(machine: Machine, files: MemoryFileSystem) -> tuple[Machine, MemoryFileSystem]:
    machine.flush()
    return machine, files


def half_flushed(machine: Machine, files: MemoryFileSystem) -> tuple[Machine, MemoryFileSystem]:
    machine.flush()
    assert machine.add(7, [20, 21]) is OK
    return machine, files


def replayed(_machine: Machine, files: MemoryFileSystem) -> tuple[Machine, MemoryFileSystem]:
    after = files.crash_clone(None)
    return Machine(after), after


PLACES = pytest.mark.parametrize("place", [in_cache, in_index, half_flushed, replayed])
SHAPES = pytest.mark.parametrize(
    ("held", "sent"),
    [
        pytest.param([[0, 1, 2, 3]], [0, 1, 2, 3], id="same-run"),
        pytest.param([[0, 1], [2, 3]], [1, 2], id="over-a-border"),
        pytest.param([[0, 1, 2, 3]], [2, 3, 4, 5], id="goes-on-behind"),
        pytest.param([[0, 3, 6]], [0, 3, 6], id="lane"),
        pytest.param([[0, 3, 6]], [1, 3, 5], id="lane-among"),
        pytest.param([[5, 6]], [3, 4, 5], id="begins-before"),
    ],
)


@PLACES
@SHAPES
@pytest.mark.parametrize("recovery", [False, True])
def test_add_of_a_held_entry_with_other_bytes_is_refused_and_changes_nothing(
    place: Place,
    files: MemoryFileSystem,
    held: list[list[int]],
    sent: Sequence[int],
    *,
    recovery: bool,
) -> None:
    machine = Machine(files)
    assert all(machine.add(7, ids) is OK for ids in held)
    machine, files = place(machine, files)
    before = machine.held(7)
    for entry_id in set(sent) & set(before):
        status, message = send(
            machine, with_other_entry(make_run(7, sent), entry_id), recovery=recovery
        )
        assert status is CONFLICT and f"ledger 7 entry {entry_id}" in message
        assert machine.held(7) == before and machine.bookie.append_bytes_in_flight == 0
    machine.flush()
    assert machine.held(7) == before


@PLACES
@SHAPES
def test_add_of_a_held_entry_with_the_same_bytes_is_acknowledged(
    place: Place,
    files: MemoryFileSystem,
    held: list[list[int]],
    sent: Sequence[int],
) -> None:
    machine = Machine(files)
    assert all(machine.add(7, ids) is OK for ids in held)
    machine, files = place(machine, files)
    before = machine.held(7)
    assert send(machine, make_run(7, sent)) == (OK, "")
    assert Machine(files.crash_clone(None)).held(7) == before | expected(7, sent)
    machine.flush()
    assert machine.held(7) == before | expected(7, sent)
    assert Machine(files.crash_clone(None)).held(7) == before | expected(7, sent)


@PLACES
def test_run_that_is_held_whole_goes_to_the_journal_and_not_to_the_cache(
    place: Place, files: MemoryFileSystem
) -> None:
    machine = Machine(files)
    assert machine.add(7, [0, 1]) is OK and machine.add(7, [2, 3], lac=1) is OK
    machine, files = place(machine, files)
    before = machine.bookie.stats()
    assert machine.add(7, [1, 2], lac=2) is OK  # a repetition may know more
    after = machine.bookie.stats()
    assert after.ledger_storage.cache_bytes == before.ledger_storage.cache_bytes
    assert after.journal.records == before.journal.records + 1
    assert machine.lac(7) == 2 and Machine(files.crash_clone(None)).lac(7) == 2


def test_run_that_is_held_and_not_durable_yet_is_acknowledged_with_it(
    files: MemoryFileSystem,
) -> None:
    machine = Machine(files)
    first, again = machine.start_add(7, [0, 1]), machine.start_add(7, [0, 1])
    assert not first and not again
    machine.settle()
    assert [status for status, _ in first + again] == [OK, OK]


@pytest.mark.parametrize("size", [40, 4000], ids=["small part", "large part"])
@pytest.mark.parametrize("flushes", [False, True])
def test_part_of_a_large_run_that_is_not_durable_yet_outlives_a_power_cut(
    files: MemoryFileSystem, size: int, *, flushes: bool
) -> None:
    config = small_config(write_once_bytes=100)
    machine = Machine(files, config)
    machine.start_add(7, [0, 1, 2, 3], size=size)
    again = machine.start_add(7, [2], size=size)
    if flushes:
        machine.bookie.flush()  # before anything is durable: the mark covers nothing of it
    machine.settle()
    assert [status for status, _ in again] == [OK]
    machine.flush()
    restarted = Machine(files.crash_clone(None), config)
    assert restarted.held(7) == expected(7, [0, 1, 2, 3], size)


def test_entry_of_another_size_is_refused(files: MemoryFileSystem) -> None:
    machine = Machine(files)
    assert machine.add(7, [0], size=40) is OK
    assert machine.add(7, [0], size=41) is CONFLICT
    assert machine.held(7) == expected(7, [0], size=40)


def test_held_entry_that_cannot_be_read_is_an_io_error(files: MemoryFileSystem) -> None:
    machine = Machine(files)
    assert machine.add(7, [0, 1]) is OK
    machine.flush()
    files.damage(log_path(LEDGERS[1], 1), LOG_HEADER_BYTES + 80, b"\xff\xff")
    assert send(machine, make_run(7, [0, 1]))[0] is BookieStatus.IO_ERROR


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize(
    ("held", "asks_max"),
    [
        pytest.param([5000], 2, id="later-fragment"),
        pytest.param([0, 1999, 2002, 5000], 2, id="around"),
        pytest.param([3999, 5000], 2000, id="its-last-one"),
        pytest.param([2100, 5000], 128 + 2, id="one-of-them"),
        pytest.param([10, 2100, 5000], 128 + 2, id="one-behind-others"),
    ],
)
def test_run_of_which_little_is_held_is_not_looked_for_entry_by_entry(
    files: MemoryFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    held: list[int],
    asks_max: int,
    *,
    flushes: bool,
) -> None:
    """Repair copies an older fragment to a bookie of the next one: thousands of entries in a run,
    and a look into the index for each of them keeps the service for a second."""
    machine = Machine(files)
    for each in held:
        assert machine.add(7, [each]) is OK
        if flushes:
            machine.flush()
    run = make_run(7, range(2000, 4000) if held[0] != 0 else [2000, 2001])
    before = machine.held(7)
    for each in set(held) & set(run.ids()):
        assert send(machine, with_other_entry(run, each), recovery=True)[0] is CONFLICT
    index, asked = machine.bookie._storage.store_of(LedgerId(7)).index, list[EntryId]()
    row_at = index.row_at

    def counted(ledger_id: LedgerId, entry_id: EntryId) -> IndexRow | None:
        asked.append(entry_id)
        return row_at(ledger_id, entry_id)

    monkeypatch.setattr(index, "row_at", counted)
    assert send(machine, run, recovery=True) == (OK, "")
    assert len(asked) <= asks_max
    assert machine.held(7) == before | expected(7, run.ids())
    machine.flush()
    assert Machine(files.crash_clone(None)).held(7) == before | expected(7, run.ids())


def test_new_entries_of_a_writer_ask_no_index(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(files)
    assert machine.add(7, [0, 1]) is OK
    monkeypatch.setattr(machine.bookie._storage, "run_with", None)
    assert machine.add(7, [2, 3]) is OK
    assert machine.add(7, [7, 9]) is OK


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), CorruptionError("rotten")])
def test_entry_that_cannot_be_compared_now_is_refused_and_compared_later(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    machine = Machine(files)
    run = make_run(2, range(5))
    assert send(machine, run)[0] is OK
    machine.flush()

    def fails(*_of: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(machine.bookie._storage, "run_with", fails)
        status, message = send(machine, with_other_entry(run, 3))
        assert status is BookieStatus.IO_ERROR and str(error) in message
    assert send(machine, with_other_entry(run, 3))[0] is CONFLICT
    assert send(machine, run)[0] is OK
    assert machine.bookie.append_bytes_in_flight == 0
