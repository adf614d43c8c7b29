"""A write that fails once costs no space for good, and no entry (rules S3 and S19)."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.ledgers.entry_log import log_ids
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
        delete(machine, 4, 6)
        compact(machine)
        index = machine.bookie._storage._stores[0].index
        assert set(log_ids(files, EVEN)) == set(index.log_use() or ()), f"step {step}"
        assert machine.held(8) == expected(8, [0])
