"""When the disks are looked at, and what a look has others do."""

from __future__ import annotations

import errno

import pytest

from bookie_server.core.disk_space import Space
from bookie_server.storage.disks import DiskWatch
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Machine,
    formatted,
    small_config,
)
from tests.unit.bookie_server.test_full_disks import DIRECTORIES, LAYOUTS, Site, exhaust


def asked(disks: DiskWatch) -> bool:
    """Whether somebody has asked for a look since this was asked last."""
    was, wanted = disks._wanted.is_set(), disks._wanted
    wanted.clear()
    return was


@pytest.mark.parametrize(("reserve", "between"), [(0, MIB), (16 * MIB, 2 * MIB)])
def test_disks_are_looked_at_whenever_so_much_was_taken_in(reserve: int, between: int) -> None:
    """A writer can fill the reserve between two looks of the cadence."""
    disks = Machine(formatted(), small_config(disk_reserve_bytes=reserve)).bookie.disks
    for _again in range(3):
        disks.wrote(between - 1)
        assert not asked(disks)
        disks.wrote(1)
        assert asked(disks)


def test_adds_count_for_the_next_look_also_those_that_wait_or_are_refused() -> None:
    machine = Machine(formatted())
    taken: list[int] = []
    machine.bookie.disks.wrote = taken.append  # type: ignore[method-assign,assignment]
    assert machine.add(2, [0], size=1000) is BookieStatus.OK
    assert machine.add(2, [1], size=500, key=b"wrong") is BookieStatus.UNAUTHORIZED
    assert taken == [1000, 500]


@pytest.mark.parametrize("above", [True, False])
def test_journal_that_was_refused_is_tried_again_only_below_the_marks(above: bool) -> None:
    """Above them what comes free is for others; below it a flush follows, which moves the marks."""
    site = Site(LAYOUTS[1])
    site.add(6)
    exhaust(site)
    bookie = site.machine.bookie
    journal, storage = bookie._journal, bookie._storage
    storage._wanted.clear()
    if not above:
        site.free()
    bookie.disks.check()
    assert journal._retries is not above
    assert storage._wanted.is_set() is not above


def test_quota_of_the_journal_that_is_lifted_is_noticed_by_a_look() -> None:
    """The disk says all the while that it has room: only the attempt tells."""
    refuses = True

    def plan(operation: Operation) -> Fault | None:
        in_journal = operation.path.parent == JOURNAL
        hit = in_journal and refuses and operation.kind in ("create", "preallocate")
        return Fault(errno.EDQUOT) if hit else None

    machine = Machine(FaultFileSystem(formatted(), plan))
    bookie = machine.bookie
    assert machine.add(2, [0]) is BookieStatus.READ_ONLY
    bookie.disks.check()
    states = bookie.disks.states
    assert "disk full" in states.reason and not states.journal.above_marks
    bookie._storage._wanted.clear()
    refuses = False
    bookie.disks.check()
    assert bookie._storage._wanted.is_set(), "files are prepared, and marks move"
    machine.settle()
    machine.flush()
    assert not bookie.disks.states.reason and not machine.fatal
    assert machine.add(2, [0]) is BookieStatus.OK


@pytest.mark.parametrize("failing", DIRECTORIES)
def test_disk_that_does_not_answer_keeps_the_state_that_it_had(
    monkeypatch: pytest.MonkeyPatch, failing: object
) -> None:
    files = formatted()
    space = MemoryFileSystem.space
    full = {JOURNAL: Space(100 * MIB, 50 * MIB), LEDGERS[0]: Space(90 * MIB, 80 * MIB)}
    full[LEDGERS[1]] = Space(80 * MIB, 10 * KIB)
    fails = False

    def answer(_files: MemoryFileSystem, directory: object) -> Space:
        if fails and directory == failing:
            raise OSError(errno.EIO, "Input/output error")
        return full.get(directory) or space(_files, directory)  # type: ignore[call-overload,arg-type]

    monkeypatch.setattr(MemoryFileSystem, "space", answer)
    disks = Machine(files, small_config(disk_reserve_bytes=MIB)).bookie.disks
    disks.check()
    before = disks.states
    assert before.ledgers[1].above_marks and not before.journal.above_marks
    fails = True
    disks.check()
    assert disks.states == before


def test_disk_that_was_freed_is_looked_at_again_soon_and_once() -> None:
    """By then a flush and a new file have worked, or have not."""
    site = Site(LAYOUTS[0])
    disks = site.machine.bookie.disks
    site.fill()
    assert not disks._looks_again
    site.free()
    disks.check()
    assert disks._looks_again
    disks.check()
    assert not disks._looks_again
