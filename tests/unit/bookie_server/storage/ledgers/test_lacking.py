"""The list of what is lacking is as it was when it cannot be written, and is never longer than it
may be (rule S22)."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import write_file_durably
from bookie_server.storage.index import memory_index
from bookie_server.storage.index.base import IndexRow
from bookie_server.storage.ledgers import lacking
from bookie_server.storage.ledgers.directory_scrub import ScrubCounts
from bookie_server.storage.ledgers.lacking import (
    LACKING_NAME,
    NO_LOG,
    Lack,
    Lacking,
    LackingLedgers,
    TooMuchLackingError,
)
from bookie_server.storage.ledgers.pacing import Stopped
from spark_ledger.errors import CorruptionError
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.crash.disk import after_kill
from tests.unit.bookie_server.storage.ledgers.test_scrub import (
    CONFIG,
    files_of,
    flip,
    rows_of,
    scrub,
)
from tests.unit.bookie_server.storage.ledgers.test_scrub import machine as machine
from tests.unit.bookie_server.storage.support import LacksNoted, Machine

DIRECTORY = Path("/ledgers")


def lack(ledger_id: int, first: int = 0) -> Lack:
    return Lack(LedgerId(ledger_id), EntryId(first), EntryId(first + 9), 1)


def listed(found: Lacking) -> list[Lack]:
    return [each for ledger_id in found.ledgers() for each in found.of(ledger_id)]


@pytest.fixture
def files() -> MemoryFileSystem:
    made = MemoryFileSystem()
    made.mkdir(DIRECTORY)
    return made


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda of: of.add([lack(2), lack(3, 10), lack(3)]), [lack(2), lack(3), lack(3, 10)]),
        (lambda of: of.remove([lack(2)]), [lack(3)]),
    ],
    ids=["add", "remove"],
)
def test_list_whose_change_fails_at_any_step_is_as_it_was(
    files: MemoryFileSystem, change: Callable[[Lacking], None], after: list[Lack]
) -> None:
    """Else rows go, or copies are not awaited, of which the disk says otherwise."""
    steps_left = 0

    def plan(_operation: Operation) -> Fault | None:
        nonlocal steps_left
        steps_left -= 1
        return Fault(errno.EIO) if steps_left == 0 else None

    faulty = FaultFileSystem(files, plan)
    before = [lack(2), lack(3)]
    found = Lacking(faulty, DIRECTORY, LacksNoted())
    found.add(before)
    for step in itertools.count(1):
        steps_left = step
        try:
            change(found)
        except OSError:
            assert listed(found) == before and found.refetched == 0
        else:
            break
    assert step > 4 and listed(found) == after and found.refetched == (len(after) == 1)
    assert listed(Lacking(files.crash_clone(None), DIRECTORY, LacksNoted())) == after


def test_list_above_its_bound_takes_no_more_and_gets_shorter(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Lacking(files, DIRECTORY, LacksNoted())
    monkeypatch.setattr(lacking, "LACKING_MAX", 4)
    found.add(map(lack, range(4)))
    for bound in (4, 2):  # the second one is that of another program
        monkeypatch.setattr(lacking, "LACKING_MAX", bound)
        with pytest.raises(TooMuchLackingError, match="replace the disk"):
            found.add([lack(9)])
        found.add([lack(0)])  # it is listed
        assert listed(found) == [lack(0), lack(1), lack(2), lack(3)]
    for left in (3, 2, 1):
        found.remove([lack(left)])
        assert listed(found) == list(map(lack, range(left)))
    found.add([lack(9)])
    assert listed(found) == [lack(0), lack(9)]


@pytest.mark.parametrize("fails", [False, True])
def test_index_that_does_not_add_up_is_healed_once_and_again_if_that_failed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Each time takes the lock that adds wait for."""
    healed = 0

    def damaged(*_of: object) -> None:
        raise CorruptionError("rows do not add up")

    def drop_damaged(_update: object) -> dict[LedgerId, EntryId]:
        nonlocal healed
        healed += 1
        return {LedgerId(2): EntryId(39)}

    monkeypatch.setattr(memory_index._MemoryUpdate, "drop_damaged", drop_damaged)
    with monkeypatch.context() as patch:
        patch.setattr(memory_index.MemoryIndex, "rows", damaged)
        if fails:
            patch.setattr(Lacking, "add", damaged)
            with pytest.raises(CorruptionError):
                scrub(machine)
        else:
            scrub(machine)
    for _ in range(2):
        scrub(machine)
        assert healed == 1 + fails
    lacks = machine.bookie.lacking.of(LedgerId(2))
    assert lacks == (Lack(LedgerId(2), EntryId(0), EntryId(39), NO_LOG),)


def test_index_that_does_not_add_up_is_healed_also_after_a_restart_within_the_pass(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass is over with the ledger: what follows at its end must not be forgotten."""
    assert machine.add(4, range(5)) is BookieStatus.OK
    machine.flush()
    rows = memory_index.MemoryIndex.rows

    def rows_of_4(index: memory_index.MemoryIndex, ledger_id: LedgerId) -> list[IndexRow]:
        if ledger_id == 2:
            raise CorruptionError("rows do not add up")
        return rows(index, ledger_id)

    def stopped(_byte_count: int) -> None:
        raise Stopped

    storage = machine.bookie._storage
    with monkeypatch.context() as patch:
        patch.setattr(memory_index.MemoryIndex, "rows", rows_of_4)
        with pytest.raises(Stopped):
            storage._stores[0].scrub.run(storage._flush_lock, stopped)
    assert not machine.bookie.lacking.of(LedgerId(2)), "the pass has not come to its end"
    monkeypatch.setattr(
        memory_index._MemoryUpdate, "drop_damaged", lambda _update: {LedgerId(2): EntryId(39)}
    )
    again = Machine(after_kill(files_of(machine)), CONFIG)
    scrub(again)
    lacks = again.bookie.lacking.of(LedgerId(2))
    assert lacks == (Lack(LedgerId(2), EntryId(0), EntryId(39), NO_LOG),)


def test_two_that_change_the_list_at_once_both_have_their_way(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stretch that one of them dropped would be denied, and not asked for again."""
    found = Lacking(files, DIRECTORY, LacksNoted())
    found.add([lack(1), lack(2)])
    other = threading.Thread(target=lambda: found.add([lack(3)]))
    entered, change = threading.Event(), found._change

    def noted(how: Callable[[list[Lack]], list[Lack]]) -> None:
        entered.set()
        change(how)

    def slowly(*of: Any) -> None:
        if threading.current_thread() is not other:
            monkeypatch.setattr(found, "_change", noted)
            other.start()
            assert entered.wait(10)
            time.sleep(0.02)  # by then it would have read the list of before
        write_file_durably(*of)

    monkeypatch.setattr(lacking, "write_file_durably", slowly)
    found.remove([lack(1)])
    other.join(10)
    assert listed(found) == [lack(2), lack(3)] == listed(Lacking(files, DIRECTORY, LacksNoted()))


@pytest.mark.parametrize("restarts", [False, True])
def test_index_that_cannot_be_healed_holds_up_no_reading(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """Damage elsewhere would be found too late; and once it can be healed that comes first."""
    can_heal = False
    rows = memory_index.MemoryIndex.rows
    healed: list[int] = []

    def rows_of_2(index: memory_index.MemoryIndex, ledger_id: LedgerId) -> list[IndexRow]:
        if ledger_id == 4 and not healed:
            raise CorruptionError("rows do not add up")
        return rows(index, ledger_id)

    def drop_damaged(_update: object) -> dict[LedgerId, EntryId]:
        if not can_heal:
            raise OSError(errno.EIO, "the index cannot be written")
        healed.append(sum(each.blocks for each in counts()))
        return {}

    def counts() -> tuple[ScrubCounts, ...]:
        return machine.bookie.stats().ledger_storage.scrub.directories

    assert machine.add(4, range(5)) is BookieStatus.OK
    machine.flush()
    monkeypatch.setattr(memory_index.MemoryIndex, "rows", rows_of_2)
    monkeypatch.setattr(memory_index._MemoryUpdate, "drop_damaged", drop_damaged)
    for number in (1, 2, 3):
        with pytest.raises(OSError, match="cannot be written"):
            scrub(machine)
        assert counts()[0].blocks == 4 * number and counts()[0].ended_at == 0
        assert machine.bookie._storage._stores[0].scrub.is_due(3600)
    if restarts:
        machine = Machine(after_kill(files_of(machine)), CONFIG)
    can_heal, before = True, counts()[0].blocks
    stats = scrub(machine)
    assert healed == [before], "before anything was read"
    assert stats.directories[0].blocks == before + 5 and stats.ended_at > 0


@pytest.mark.parametrize("how", ["list", "index", "full list"])
def test_damage_that_cannot_be_taken_out_holds_up_no_reading_and_is_found_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def fails(*_of: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    for ledger_id in (3, 4):
        assert machine.add(ledger_id, range(5)) is BookieStatus.OK
    machine.flush()
    flip(machine, rows_of(machine, 2)[1].location)
    flip(machine, rows_of(machine, 4)[0].location)
    with monkeypatch.context() as patch:
        if how == "list":
            patch.setattr(lacking, "write_file_durably", fails)
        elif how == "index":
            patch.setattr(memory_index._MemoryUpdate, "commit", fails)
        else:
            patch.setattr(lacking, "LACKING_MAX", 0)
        for number in (1, 2):
            with pytest.raises(OSError, match=r"no space|replace the disk"):
                scrub(machine)
            stats = machine.bookie.stats().ledger_storage.scrub
            assert [each.blocks for each in stats.directories] == [5 * number, number]
            assert stats.directories[0].bad_blocks == 2 * number, "also behind the first one"
            assert stats.last_failure and stats.directories[0].ended_at == 0
            assert stats.directories[1].ended_at > 0, "of a disk that is well"
            assert machine.bookie._storage._stores[0].scrub.is_due(3600)
    stats = scrub(machine)
    assert not stats.last_failure and stats.ended_at > 0 and stats.lacking == 2
    assert not machine.bookie._storage._stores[0].scrub.is_due(3600)
    assert [row.first_entry for row in rows_of(machine, 2)] == [0, 20, 30]


def test_damage_that_could_not_be_taken_out_is_found_also_after_a_restart_within_the_pass(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass is behind it: what it owes must not wait for the next one, which is a week away."""
    assert machine.add(4, range(5)) is BookieStatus.OK
    machine.flush()
    flip(machine, rows_of(machine, 2)[1].location)
    storage = machine.bookie._storage
    left = [4]

    def pace(_byte_count: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(lacking, "LACKING_MAX", 0)
        with pytest.raises(Stopped):
            storage._stores[0].scrub.run(storage._flush_lock, pace)
    again = Machine(after_kill(files_of(machine)), CONFIG)
    assert again.bookie._storage._stores[0].scrub.position.ledger_id > 2
    scrub(again)
    directory = again.bookie._storage._stores[0].scrub
    assert directory.is_due(3600) and directory.counts.ended_at == 0
    assert scrub(again).lacking == 1 and not directory.is_due(3600)


def test_stretches_that_came_back_are_counted_once(files: MemoryFileSystem) -> None:
    found = Lacking(files, DIRECTORY, LacksNoted())
    found.add([lack(2), lack(3)])
    written = files.identity(DIRECTORY / LACKING_NAME)
    found.remove([lack(9)])
    assert found.refetched == 0 and files.identity(DIRECTORY / LACKING_NAME) == written
    found.remove([lack(2), lack(2), lack(9)])
    found.remove([lack(2), lack(3)])
    assert found.refetched == 2 and not listed(found)


def test_stretches_of_ledgers_in_several_directories_each_leave_their_own_list() -> None:
    files = MemoryFileSystem()
    lists = []
    for name in ("a", "b", "c"):
        files.mkdir(DIRECTORY / name)
        lists.append(Lacking(files, DIRECTORY / name, LacksNoted()))
    for number, found in enumerate(lists):
        found.add([lack(number), lack(number + 3), lack(number + 3, 20)])
    together = LackingLedgers(lists, lambda _lack: [])
    assert together.ledgers() == [0, 1, 2, 3, 4, 5], "ascending over all directories"
    together.refetched([lack(1), lack(3), lack(5, 20), lack(4), lack(3, 20)])
    assert [listed(found) for found in lists] == [[lack(0)], [lack(4, 20)], [lack(2), lack(5)]]
    assert [found.refetched for found in lists] == [2, 2, 1]
    assert together.of(LedgerId(4)) == (lack(4, 20),)


@pytest.mark.parametrize("entry_id", [10, 19])
@pytest.mark.parametrize("comes", ["back", "away"])
def test_entry_that_comes_back_or_is_found_damaged_during_a_read_is_not_denied(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, entry_id: int, comes: str
) -> None:
    """The list is asked before the index and after it: in between either may change (rule S22)."""
    store = machine.bookie._storage._stores[0]
    stretch = Lack(LedgerId(2), EntryId(10), EntryId(19), 1)
    if comes == "back":
        store.lacking.add([stretch])

    def read(*_of: object, **_options: object) -> None:
        (store.lacking.remove if comes == "back" else store.lacking.add)([stretch])

    monkeypatch.setattr(store, "read", read)
    outcome = machine.bookie.read(
        LedgerId(2), EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=1
    )
    assert outcome.status is BookieStatus.IO_ERROR and "awaits a copy" in outcome.message
