"""A write that fails once costs no space for good, and no entry (rules S3 and S19)."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.vfs import TEMPORARY_SUFFIX
from bookie_server.storage.ledgers import directory_space
from bookie_server.storage.ledgers.entry_log import EntryLogWriter, log_ids, log_path
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.ledgers.test_compaction import (
    EVEN,
    compact,
    delete,
    mixed,
)
from tests.unit.bookie_server.storage.support import Machine, expected, formatted, small_config

CHANGES = {"create", "pwritev", "fdatasync", "rename", "remove", "sync_directory"}


def flush(machine: Machine) -> None:
    for ledger_id in (4, 6):
        assert machine.add(ledger_id, range(30, 40)) is BookieStatus.OK
    machine.flush()


@pytest.mark.parametrize("work", [flush, compact])
def test_log_of_work_that_failed_at_any_step_goes_once_nothing_names_it(
    work: Callable[[Machine], None],
) -> None:
    """Also one that a commit which failed may have named: the next commit ends the doubt."""
    steps_left = 0

    def plan(operation: Operation) -> Fault | None:
        nonlocal steps_left
        if operation.kind not in CHANGES or not operation.path.is_relative_to(EVEN):
            return None
        steps_left -= 1
        return Fault(errno.EIO) if steps_left == 0 else None

    for step in itertools.count(1):
        files = FaultFileSystem(formatted(), plan)
        machine = Machine(files, small_config(entry_log_bytes=5300, write_once_bytes=0))
        mixed(machine)
        delete(machine, 2)
        steps_left = step
        try:
            work(machine)
        except OSError:
            machine.settle()
        if steps_left > 0:
            assert step > 5, "a commit alone takes five"
            return
        assert machine.add(8, [0]) is BookieStatus.OK
        machine.flush()
        kept = range(40 if work is flush else 30)
        assert machine.held(6) == expected(6, kept)
        unfinished = [name for name in files.list(EVEN) if name.endswith(TEMPORARY_SUFFIX)]
        assert not unfinished, f"step {step}: on a full disk each attempt would leave another"
        delete(machine, 4, 6)
        compact(machine)
        index = machine.bookie._storage._stores[0].index
        assert set(log_ids(files, EVEN)) == set(index.log_use() or ()), f"step {step}"
        assert machine.held(8) == expected(8, [0])


def small(machine: Machine) -> None:
    """As ``flush``, with a journal that may have failed."""
    for ledger_id in (4, 6):
        machine.start_add(ledger_id, range(30, 40))
        machine.settle()
    machine.flush()


def large(machine: Machine) -> None:
    """Runs for run logs and journal, with rolls of both."""
    for number in range(4):
        for ledger_id in (4, 6, 5):
            ids = range(40 + 3 * number, 43 + 3 * number)
            machine.start_add(ledger_id, ids, size=6 * KIB)
            machine.start_add(ledger_id + 6, [number], size=3 * KIB)
            machine.settle()
    machine.flush()


@pytest.mark.parametrize("work", [small, compact, large])
def test_file_whose_write_or_sync_failed_is_never_written_again(
    work: Callable[[Machine], None],
) -> None:
    """A later sync of it proves nothing of what the failed one covered (rule S3)."""
    steps_left = 0
    failed: Path | None = None

    def plan(operation: Operation) -> Fault | None:
        nonlocal steps_left, failed
        if operation.path == failed:
            if operation.kind in {"create", "remove", "rename"}:
                failed = None  # another file of the name, or none
            writes = operation.kind in {"pwritev", "fdatasync"}
            assert not writes, f"step {step}: {operation} behind a failure"
        if operation.kind in {"pwritev", "fdatasync"}:
            steps_left -= 1
            if steps_left == 0:
                failed = operation.path
                return Fault(errno.EIO)
        return None

    for step in itertools.count(1):
        failed = None
        files = FaultFileSystem(formatted(), plan)
        settings = {"entry_log_bytes": 5300, "write_cache_bytes": 1024 * KIB}
        settings["write_once_bytes"] = 4 * KIB if work is large else 0
        machine = Machine(files, small_config(**settings))
        mixed(machine)
        delete(machine, 2)
        steps_left = step
        for _ in range(2):
            with suppress(OSError):
                work(machine)
            machine.settle()
        with suppress(OSError):
            machine.bookie.close()
        if steps_left > 0:
            break
    assert step > 5, "there was something to write"


@pytest.mark.parametrize("work", [flush, compact])
def test_failure_behind_which_nothing_can_be_removed_is_the_one_that_is_told(
    work: Callable[[Machine], None],
) -> None:
    """A second error, while what was begun is left, says nothing of the cause; and what stays goes
    once it can be removed."""
    steps_left = 0
    fails = False

    def plan(operation: Operation) -> Fault | None:
        nonlocal steps_left, fails
        if not operation.path.is_relative_to(EVEN):
            return None
        if operation.kind == "remove" and fails:
            return Fault(errno.EACCES)
        if operation.kind in CHANGES - {"remove"}:
            steps_left -= 1
            if steps_left == 0:
                fails = True
                return Fault(errno.EIO)
        return None

    for step in itertools.count(1):
        fails = False
        files = FaultFileSystem(formatted(), plan)
        machine = Machine(files, small_config(entry_log_bytes=5300, write_once_bytes=0))
        mixed(machine)
        delete(machine, 2)
        steps_left = step
        try:
            work(machine)
        except OSError as error:
            assert error.errno == errno.EIO, f"step {step}: {error}"
            machine.settle()
        if steps_left > 0:
            break
        fails = False
        assert machine.add(8, [0]) is BookieStatus.OK
        machine.flush()
        delete(machine, 4, 6)
        compact(machine)
        index = machine.bookie._storage._stores[0].index
        assert set(log_ids(files, EVEN)) == set(index.log_use() or ()), f"step {step}"
        assert machine.held(8) == expected(8, [0])
    assert step > 5, "a commit alone takes five"


def test_copy_that_fails_behind_its_first_rows_keeps_these_and_gives_the_rest_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = formatted()
    machine = Machine(files, small_config(entry_log_bytes=5300, write_once_bytes=0))
    mixed(machine)
    delete(machine, 2, 4)
    real, named = EntryLogWriter.sync, list[int]()

    def sync(writer: EntryLogWriter) -> None:
        if named:
            writer.write_buffered()
            raise OSError(errno.EIO, "Input/output error")
        real(writer)
        named.append(writer.size)

    with monkeypatch.context() as patch:
        patch.setattr(directory_space, "COMPACTION_ROWS_AT_ONCE", 1)
        patch.setattr(EntryLogWriter, "sync", sync)
        patch.setattr(machine.bookie._storage.compactor, "_log_bytes", MIB)
        with pytest.raises(OSError, match="Input/output"):
            compact(machine)
    copy = files.open(log_path(EVEN, log_ids(files, EVEN)[-1]))
    assert copy.size() - copy.hole_bytes() == named[0] < copy.size()
    assert machine.held(6) == expected(6, range(30))
    compact(machine)
    assert machine.held(6) == expected(6, range(30))
