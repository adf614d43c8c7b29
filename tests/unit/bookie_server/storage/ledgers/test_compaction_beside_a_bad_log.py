"""One log that cannot be read, given back or removed holds up no other (rules S19, S20 and S25)."""

from __future__ import annotations

import errno
from typing import NamedTuple

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.index.base import IndexRow
from bookie_server.storage.ledgers.entry_log import log_ids, log_path
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.ledgers.test_compaction import EVEN, compact, delete, mixed
from tests.unit.bookie_server.storage.support import Machine, expected, formatted, small_config

BAD = 1


class Case(NamedTuple):
    """``kind`` of operation fails on the first of three logs, with these ledgers deleted."""

    kind: str
    deleted: tuple[int, ...]


CASES = [
    Case("pread", (2, 4)),
    Case("open", (2, 4)),
    Case("open", (2, 4, 6)),
    Case("remove", (2, 4)),
    Case("remove", (2, 4, 6)),
    Case("punch", (2, 4)),
]


def rows_of(machine: Machine, ledger_id: int) -> list[IndexRow]:
    return machine.bookie._storage._stores[0].index.rows(LedgerId(ledger_id))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_that_fails_at_each_pass_holds_up_no_other_and_goes_once_it_works(case: Case) -> None:
    """Until the scrub finds it, which may take weeks, each pass would end there."""
    fails = False

    def plan(operation: Operation) -> Fault | None:
        is_hit = operation.kind == case.kind and operation.path == log_path(EVEN, BAD)
        return Fault(errno.EIO) if fails and is_hit else None

    files = FaultFileSystem(formatted(), plan)
    settings = {"entry_log_bytes": 60 * KIB, "write_cache_bytes": 512 * KIB}
    machine = Machine(files, small_config(write_once_bytes=0, **settings))
    mixed(machine, size=2 * KIB)
    assert log_ids(files, EVEN) == [1, 2, 3]
    delete(machine, *case.deleted)
    machine.bookie._storage._stores[0]._reader.close()
    fails = True
    for _ in range(2):
        try:
            compact(machine)
        except OSError as error:
            assert error.errno == errno.EIO
        assert not {2, 3} & set(log_ids(files, EVEN)), "they are as if the first one were well"
        if case.kind != "punch":  # what is not given back in place is given back by a copy
            assert BAD in log_ids(files, EVEN)
    fails = False
    compact(machine)
    assert BAD not in log_ids(files, EVEN)
    if 6 not in case.deleted:
        assert machine.held(6) == expected(6, range(30), 2 * KIB)
    stats = machine.bookie.stats().ledger_storage.compaction
    assert (stats.removed_logs, stats.last_failure) == (3, "")
    assert stats.directories[0].damaged_logs == 0, "a disk that failed once is no damage"


def test_log_of_copies_that_rots_is_tried_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each pass after it would read and copy what lies before the rotten block, to no avail."""
    files = formatted()
    machine = Machine(files, small_config(entry_log_bytes=5300, write_once_bytes=0))
    mixed(machine)
    delete(machine, 2)
    for _ in range(2):  # by the second one it is known what is alive in the copies
        compact(machine)
    rotten = rows_of(machine, 6)[-1].location
    assert rotten.log_id > 3, "a log of copies"
    files.damage(log_path(EVEN, rotten.log_id), rotten.offset + 100, b"~")
    delete(machine, 4)
    copied = []
    for _ in range(3):
        compact(machine)
        copied.append(machine.bookie.stats().ledger_storage.compaction.copied_bytes)
    assert copied[1] == copied[2], "nothing is copied again"
    assert len([record for record in caplog.records if "stays" in record.message]) == 1
    assert rotten.log_id in log_ids(files, EVEN)
    outcome = machine.bookie.read(LedgerId(6), EntryId(0), EntryId(0), stride=1, max_bytes=1)
    assert outcome.status is BookieStatus.OK, "what is whole is read wherever it is now"
