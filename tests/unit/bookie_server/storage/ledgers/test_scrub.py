"""Damage is found by those who look, denied to nobody, and made good by copies (rule S22)."""

from __future__ import annotations

import errno
import itertools
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import write_file_durably
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.ledgers import directory_scrub
from bookie_server.storage.ledgers.directory_scrub import POSITION_NAME
from bookie_server.storage.ledgers.entry_log import EntryLogReader, block_path
from bookie_server.storage.ledgers.lacking import LACKING_NAME
from bookie_server.storage.ledgers.pacing import Stopped
from bookie_server.storage.ledgers.scrub import ScrubStats
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.crash.disk import after_kill
from tests.listed import listed
from tests.unit.bookie_server.storage.support import (
    LEDGERS,
    Machine,
    expected,
    formatted,
    make_run,
    small_config,
)

EVEN = LEDGERS[0]
CONFIG = small_config(write_once_bytes=4 * KIB, write_cache_bytes=2048 * KIB)


def files_of(machine: Machine) -> MemoryFileSystem:
    files = machine.bookie._storage._stores[0]._file_system
    assert isinstance(files, MemoryFileSystem)
    return files


def rows_of(machine: Machine, ledger_id: int) -> list[IndexRow]:
    return machine.bookie._storage.store_of(LedgerId(ledger_id)).index.rows(LedgerId(ledger_id))


def flip(
    machine: Machine,
    location: BlockLocation,
    at: int = RECORD_HEADER_BYTES + 60,
    *,
    directory: Path = EVEN,
) -> None:
    path = block_path(directory, location)
    byte = files_of(machine).open(path).pread(1, location.offset + at)[0]
    files_of(machine).damage(path, location.offset + at, bytes([byte ^ 4]))


def scrub(machine: Machine) -> ScrubStats:
    machine.bookie._storage.scrubber.run_once()
    return machine.bookie.stats().ledger_storage.scrub


def status_of(machine: Machine, ledger_id: int, entry_id: int) -> BookieStatus:
    outcome = machine.bookie.read(
        LedgerId(ledger_id), EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=1 << 20
    )
    return outcome.status


def compact(machine: Machine) -> None:
    machine.bookie._storage.compactor.run_once(full=True, paced=False)


@pytest.fixture
def machine() -> Machine:
    """Ledger 2: three small runs in entry logs, and one in the run log."""
    machine = Machine(formatted(), CONFIG)
    for number in range(3):
        assert machine.add(2, range(10 * number, 10 * number + 10)) is BookieStatus.OK
        machine.flush()
    assert machine.add(2, range(30, 40), size=600) is BookieStatus.OK
    machine.flush()
    return machine


def test_scrub_of_good_blocks_counts_them_and_says_when_it_ended(machine: Machine) -> None:
    assert machine.bookie.stats().ledger_storage.scrub.ended_at == 0
    stats = scrub(machine)
    even = stats.directories[0]
    assert (even.blocks, even.bad_blocks, stats.lacking) == (4, 0, 0)
    assert even.byte_count > 30 * 40 + 10 * 600 and stats.ended_at > 0
    machine.close()
    again = Machine(files_of(machine), CONFIG)
    assert again.bookie.stats().ledger_storage.scrub.ended_at == stats.ended_at


def test_pass_that_ended_by_a_clock_that_was_ahead_puts_off_no_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrub(machine)
    directory = machine.bookie._storage.scrubber._scrubs[0]
    ended_at = directory.position.ended_at
    for now, is_due in ((1, False), (3_599, False), (3_600, True), (-1, True)):
        monkeypatch.setattr(time, "time", lambda now=now: ended_at + now)
        assert directory.is_due(3_600) is is_due, now


@pytest.mark.parametrize("number", [1, 3], ids=["entry log", "run log"])
@pytest.mark.parametrize("at", [3, RECORD_HEADER_BYTES + 60], ids=["header", "body"])
def test_damaged_block_is_an_error_until_a_copy_comes(
    machine: Machine, number: int, at: int
) -> None:
    row = rows_of(machine, 2)[number]
    flip(machine, row.location, at)
    stats = scrub(machine)
    assert (stats.directories[0].bad_blocks, stats.lacking) == (1, 1)
    lost = range(10 * number, 10 * number + 10)
    others = [each for each in range(40) if each not in lost]
    held = listed(machine.bookie, LedgerId(2)) or []
    assert [each for first, last in held for each in range(first, last + 1)] == others
    for entry_id in lost:
        assert status_of(machine, 2, entry_id) is BookieStatus.IO_ERROR
    assert status_of(machine, 2, 40) is BookieStatus.NO_SUCH_ENTRY

    machine.close()
    again = Machine(files_of(machine), CONFIG)
    assert status_of(again, 2, lost[0]) is BookieStatus.IO_ERROR, "a restart forgets nothing"
    size = 600 if number == 3 else 40
    assert again.add(2, lost, size=size, recovery=True) is BookieStatus.OK
    again.flush()
    lacks = again.bookie.lacking.of(LedgerId(2))
    again.bookie.lacking.refetched(lacks)
    wanted = expected(2, range(30)) | expected(2, range(30, 40), 600)
    assert again.held(2) == wanted
    stats = scrub(again)
    assert (stats.bad, stats.lacking, stats.refetched) == (0, 0, 1)


@pytest.mark.parametrize("damaged", [1, 3], ids=["one block", "all blocks"])
def test_log_with_a_damaged_block_stays_until_the_copy_is_here(
    machine: Machine, damaged: int
) -> None:
    rows = rows_of(machine, 2)[:damaged]
    path = block_path(EVEN, rows[0].location)
    for row in rows:
        flip(machine, row.location)
    scrub(machine)
    machine.close()
    again = Machine(files_of(machine), CONFIG)
    compact(again)
    assert files_of(again).exists(path)
    again.bookie.lacking.refetched(again.bookie.lacking.of(LedgerId(2)))
    for _ in range(2):  # the live blocks of the log are copied, then it goes
        compact(again)
    assert not files_of(again).exists(path)


def test_damaged_file_header_is_found_although_the_log_is_open(machine: Machine) -> None:
    assert len(machine.held(2)) == 40  # all logs are open now
    location = rows_of(machine, 2)[0].location
    files_of(machine).damage(block_path(EVEN, location), 3, b"\0")
    stats = scrub(machine)
    assert (
        stats.directories[0].bad_blocks == 3 and status_of(machine, 2, 0) is BookieStatus.IO_ERROR
    )


def test_bytes_that_nothing_names_are_not_damage(machine: Machine) -> None:
    location = rows_of(machine, 2)[0].location
    machine.bookie.delete_ledgers([LedgerId(2)])
    flip(machine, location)
    assert scrub(machine).bad == 0


def test_scrub_goes_on_after_a_restart_where_it_was(machine: Machine) -> None:
    scrubbed = machine.bookie._storage._stores[0].scrub
    lock = machine.bookie._storage._flush_lock
    flip(machine, rows_of(machine, 2)[0].location)
    seen: list[int] = []

    def pace(byte_count: int) -> None:
        seen.append(byte_count)
        if len(seen) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        scrubbed.run(lock, pace)
    assert machine.bookie.stats().ledger_storage.scrub.lacking == 1, "what was found is listed"
    again = Machine(after_kill(files_of(machine)), CONFIG)
    stats = scrub(again)
    assert stats.directories[0].blocks == 2 and stats.bad == 0
    assert scrub(again).directories[0].blocks == 2 + 3, "the next pass reads everything"


@pytest.mark.parametrize(
    "content", [b"#", b"", b"\xff\xff", b'{"format_version": 2}', b'{"ledger_id": -1}', b"[" * 9000]
)
def test_position_that_cannot_be_read_begins_the_pass_anew(
    machine: Machine, content: bytes
) -> None:
    """It says what to read next, and nothing else: no start is refused for it."""
    scrub(machine)
    machine.close()
    files = files_of(machine)
    write_file_durably(files, EVEN / POSITION_NAME, content)
    again = Machine(files, CONFIG)
    assert again.bookie.stats().ledger_storage.scrub.ended_at == 0
    stats = scrub(again)
    assert stats.directories[0].blocks == 4 and stats.ended_at > 0


def test_pass_that_fails_at_any_step_denies_nothing_and_is_ended_by_the_next() -> None:
    """Between the list, its file and the index there is no moment at which damage is denied."""
    changes = {"create", "pwritev", "fdatasync", "rename", "sync_directory"}
    steps_left = 0

    def plan(operation: Operation) -> Fault | None:
        nonlocal steps_left
        if operation.kind not in changes or operation.path.name.startswith(POSITION_NAME):
            return None
        steps_left -= 1
        return Fault(errno.EIO) if steps_left == 0 else None

    for step in itertools.count(1):
        inner = formatted()
        machine = Machine(FaultFileSystem(inner, plan), CONFIG)
        for first in (0, 5):
            assert machine.add(2, range(first, first + 5)) is BookieStatus.OK
            machine.flush()
        location = rows_of(machine, 2)[0].location
        path, at = block_path(EVEN, location), location.offset + RECORD_HEADER_BYTES + 60
        byte = inner.open(path).pread(1, at)[0]
        inner.damage(path, at, bytes([byte ^ 4]))
        steps_left = step
        with suppress(OSError):
            scrub(machine)
        if steps_left > 0:
            break
        assert status_of(machine, 2, 0) is BookieStatus.IO_ERROR, f"step {step}"
        scrub(machine)
        assert [lack.first for lack in machine.bookie.lacking.of(LedgerId(2))] == [0]
        assert [row.first_entry for row in rows_of(machine, 2)] == [5], "a copy has room"
        assert machine.add(2, range(5), recovery=True) is BookieStatus.OK
        assert machine.held(2) == expected(2, range(10))
    assert step > 8, "the list takes four steps, the commit some"


def test_pass_that_cannot_note_how_far_it_is_goes_on_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk that is full may be the one with damage."""
    monkeypatch.setattr(directory_scrub, "SCRUB_SAVED_S", 0.0)

    def plan(operation: Operation) -> Fault | None:
        return Fault(errno.ENOSPC) if operation.path.name.startswith(POSITION_NAME) else None

    machine = Machine(FaultFileSystem(formatted(), plan), CONFIG)
    for ledger_id in (2, 4):
        assert machine.add(ledger_id, range(5)) is BookieStatus.OK
    machine.flush()
    stats = scrub(machine)
    assert stats.directories[0].blocks == 2 and stats.ended_at > 0 and not stats.last_failure


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENOMEM])
def test_block_is_blamed_for_errors_of_its_sectors_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = machine.bookie._storage._stores[0]
    row = rows_of(machine, 2)[1]
    read = EntryLogReader.read

    def fails(reader: EntryLogReader, location: BlockLocation, *, entries: int = 0) -> EntryRun:
        if location == row.location:
            raise OSError(number, "cannot be read")
        return read(reader, location, entries=entries)

    is_damage = number != errno.ENOMEM
    with monkeypatch.context() as patch:
        patch.setattr(EntryLogReader, "read", fails)
        if is_damage:
            scrub(machine)
        else:
            with pytest.raises(OSError, match="cannot be read"):
                scrub(machine)
    lacks = machine.bookie.lacking.of(LedgerId(2))
    assert [(lack.first, lack.last) for lack in lacks] == ([(10, 19)] if is_damage else [])
    blocks = store.scrub.counts.blocks
    assert scrub(machine).directories[0].blocks == blocks + 3, "the next pass goes on"


def test_damaged_list_of_what_is_lacking_refuses_to_serve(machine: Machine) -> None:
    flip(machine, rows_of(machine, 2)[0].location)
    scrub(machine)
    machine.close()
    files_of(machine).damage(EVEN / LACKING_NAME, 12, b"#")
    with pytest.raises(CorruptionError, match=LACKING_NAME):
        Machine(files_of(machine), CONFIG)


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes_are_all_found_by_one_pass_refilled_and_never_served(seed: int) -> None:
    draw = random.Random(seed)
    machine = Machine(formatted(), CONFIG)
    written: dict[int, dict[int, bytes]] = {}
    for number in range(40):
        ledger_id = draw.choice([2, 4, 6])
        first = len(written.setdefault(ledger_id, {}))
        size = draw.choice([20, 700])
        ids = range(first, first + draw.randint(1, 12))
        assert machine.add(ledger_id, ids, size=size) is BookieStatus.OK
        written[ledger_id] |= expected(ledger_id, ids, size)
        if number % 7 == 6:
            machine.flush()
    machine.flush()
    rows = [(each, row) for each in written for row in rows_of(machine, each)]
    hurt = draw.sample(rows, len(rows) // 2)
    for _, row in hurt:
        flip(machine, row.location, draw.randrange(row.byte_count))
    stats = scrub(machine)
    assert stats.directories[0].bad_blocks == len(hurt)
    for ledger_id, frames in written.items():
        for entry_id, frame in frames.items():
            outcome = machine.bookie.read(
                LedgerId(ledger_id), EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=1
            )
            lost = any(
                each == ledger_id and row.first_entry <= entry_id <= row.last_entry
                for each, row in hurt
            )
            if lost:
                assert outcome.status is BookieStatus.IO_ERROR
                run = make_run(ledger_id, [entry_id], len(frame))
                assert machine.add(ledger_id, run.ids(), size=len(frame), recovery=True) is (
                    BookieStatus.OK
                )
            else:
                assert outcome.runs[0].frames == frame
    machine.flush()
    for ledger_id in machine.bookie.lacking.ledgers():
        machine.bookie.lacking.refetched(machine.bookie.lacking.of(ledger_id))
    assert {each: machine.held(each) for each in written} == written
    assert scrub(machine).directories[0].bad_blocks == len(hurt)
