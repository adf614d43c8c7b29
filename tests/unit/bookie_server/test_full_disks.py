"""Full disks, in five layouts: filled by a stranger, gone on, restarted, freed again.

Throughout everything acknowledged can be read, nothing that is refused was promised, and when there
is space again the bookie takes adds by itself.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from bookie_server.opening import open_bookie
from bookie_server.storage.fs.memory_fs import MemoryDisk, MemoryFileSystem
from bookie_server.storage.index.memory_index import MemoryIndex
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Machine,
    expected,
    formatted,
    small_config,
)

OK, READ_ONLY = BookieStatus.OK, BookieStatus.READ_ONLY
SIZE = 4000 * KIB
RESERVE = 400 * KIB
FENCED = 20
"""Ledgers from here on are only fenced."""


class Layout(NamedTuple):
    """Which directories are on which disk; ``filled`` are the numbers of those that fill up."""

    name: str
    disks: tuple[tuple[int, ...], ...]
    filled: tuple[int, ...]


DIRECTORIES = (JOURNAL, *LEDGERS)
LAYOUTS = (
    Layout("one disk for all", ((0, 1, 2),), (0,)),
    Layout("journal alone", ((0,), (1, 2)), (0,)),
    Layout("ledgers alone", ((0,), (1, 2)), (1,)),
    Layout("one of two ledger directories", ((0,), (1,), (2,)), (2,)),
    Layout("journal beside one ledger directory", ((0, 1), (2,)), (0,)),
)


class Site:
    """A bookie on disks of a limited size, which a stranger fills and frees."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.files = formatted()
        self.files.disks = tuple(
            MemoryDisk(SIZE, [DIRECTORIES[number] for number in numbers])
            for numbers in layout.disks
        )
        self.config = small_config(disk_reserve_bytes=RESERVE, write_cache_bytes=256 * KIB)
        self.machine = Machine(self.files, self.config)
        self.entries: dict[int, list[int]] = {6: [], 7: []}
        self.fenced: set[int] = set()

    @property
    def filled(self) -> list[MemoryDisk]:
        return [self.files.disks[number] for number in self.layout.filled]

    def fill(self, *, left: int = 0) -> None:
        for disk in self.filled:
            disk.others_bytes += self.files._free_bytes(disk) - left
        self.machine.bookie.disks.check()

    def free(self) -> None:
        for disk in self.filled:
            disk.others_bytes = 0

    def add(self, ledger: int, *, recovery: bool = False, size: int = 1000) -> BookieStatus:
        entry = len(self.entries[ledger])
        answer = self.machine.add(ledger, [entry], recovery=recovery, size=size)
        if answer is OK:
            self.entries[ledger].append(entry)
        return answer

    def fence(self, ledger: int) -> BookieStatus:
        answer = self.machine.fence(ledger)
        if answer is OK:
            self.fenced.add(ledger)
        return answer

    def flush(self) -> None:
        """As the flush thread does: what fails is tried again later."""
        try:
            self.machine.flush()
        except OSError:
            self.machine.bookie.on_flushed()
        self.machine.settle()

    def restart(self) -> None:
        """After a kill."""
        files = self.files.crash_clone(None)
        self.files, self.machine = files, Machine(files, self.config)
        assert not self.machine.fatal

    def check(self) -> None:
        """Everything that was promised is there."""
        for ledger, entries in self.entries.items():
            found = self.machine.held(ledger)
            assert found.items() >= expected(ledger, entries, 1000).items(), ledger
        for ledger in self.fenced:
            assert self.machine.is_fenced(ledger)
        assert not self.machine.fatal

    def full_ledgers(self) -> list[int]:
        """Of the two ledgers, those that a writer cannot add to."""
        if any(0 in self.layout.disks[number] for number in self.layout.filled):
            return [6, 7]
        numbers = [at for number in self.layout.filled for at in self.layout.disks[number]]
        return [ledger for ledger in (6, 7) if 1 + ledger % 2 in numbers]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.name.replace(" ", "-"))
def site(request: pytest.FixtureRequest) -> Site:
    return Site(request.param)


def test_disks_that_fill_up_lose_nothing_and_end_nothing(site: Site) -> None:
    for ledger in (6, 7) * 10:
        assert site.add(ledger) is OK
    site.fill(left=RESERVE - KIB)
    full = site.full_ledgers()
    for round_number in range(3):
        for ledger in (6, 7):
            expected_answer = READ_ONLY if ledger in full else OK
            assert site.add(ledger) is expected_answer, f"ledger {ledger}"
            assert site.add(ledger, recovery=True) is OK, "from the reserve"
        assert site.fence(FENCED + round_number) is OK
        site.flush()
        site.check()
        site.restart()
        site.check()
    is_whole = set(full) == {6, 7}
    assert bool(site.machine.bookie.disks.states.reason) == is_whole
    site.free()
    site.machine.bookie.disks.check()
    site.flush()
    site.machine.bookie.disks.check()
    assert not site.machine.bookie.disks.states.reason
    for ledger in (6, 7):
        assert site.add(ledger) is OK
    site.flush()
    site.restart()
    site.check()


def test_disks_that_fill_up_refuse_in_time_and_not_for_ever(site: Site) -> None:
    """Recovery adds until nothing goes in any more, in memory or journal; then space returns."""
    for ledger in (6, 7):
        assert site.add(ledger) is OK
    site.fill()
    answers: set[BookieStatus] = set()
    for number in range(400):
        ledger = 6 + number % 2
        answers.add(site.add(ledger, recovery=True))
        if number % 40 == 0:
            site.fence(FENCED + number)
        if number % 60 == 0:
            site.flush()
        if number % 97 == 96:
            site.check()
            site.restart()
    assert answers <= {OK, READ_ONLY}
    if site.layout.name == "one disk for all":
        assert READ_ONLY in answers, "memory or journal are at their end"
    site.check()
    site.restart()
    site.check()
    site.free()
    site.machine.bookie.disks.check()
    site.flush()
    site.machine.bookie.disks.check()
    site.machine.settle()
    assert site.add(6) is OK and site.add(7) is OK and site.fence(FENCED + 1) is OK
    site.restart()
    site.check()


def test_space_between_the_marks_changes_nothing() -> None:
    """Hysteresis: a bookie above the high mark stays read-only until clearly more is free."""
    site = Site(LAYOUTS[0])
    bookie = site.machine.bookie
    site.fill(left=RESERVE + 10 * KIB)
    assert not bookie.disks.states.reason
    site.fill(left=RESERVE - KIB)
    assert "disk full" in bookie.disks.states.reason
    assert site.add(6) is READ_ONLY
    site.fill(left=RESERVE + 10 * KIB)
    assert "disk full" in bookie.disks.states.reason, "not clearly more than before"
    assert site.add(6) is READ_ONLY
    site.fill(left=2 * RESERVE)
    assert not bookie.disks.states.reason
    assert site.add(6) is OK


def test_refused_fence_is_never_called_durable() -> None:
    """It holds in memory, its record has not been written, and a second recovery asks."""
    site = Site(LAYOUTS[1])
    site.add(6)
    exhaust(site)
    fences = [site.machine.start_fence(FENCED), site.machine.start_fence(FENCED)]
    site.machine.settle()
    assert [answers[0][0] for answers in fences] == [READ_ONLY] * 2
    site.restart()
    assert not site.machine.is_fenced(FENCED)


def test_fence_that_met_the_full_disk_in_the_queue_is_repeated() -> None:
    """The journal learns that there is no room only when it rolls: memory has the fence by then."""
    site = Site(LAYOUTS[1])
    machine = site.machine
    site.add(6)
    _take_spares(site)
    while journal_room(machine) >= 5000:
        site.add(6, recovery=True)
    assert not machine.bookie._journal.no_room
    add = machine.start_add(6, [900], recovery=True, size=9000)
    fence = machine.start_fence(FENCED)
    machine.settle()
    assert [add[0][0], fence[0][0]] == [READ_ONLY, READ_ONLY] and not machine.fatal
    assert machine.bookie.append_bytes_in_flight == 0
    assert machine.fence(FENCED) is READ_ONLY, "it is not durable"
    site.free()
    machine.bookie.disks.check()
    machine.settle()
    assert site.fence(FENCED) is OK
    site.restart()
    site.check()
    assert 900 in site.machine.held(6), "what memory had is written first"


def journal_room(machine: Machine) -> int:
    journal = machine.bookie._journal
    return journal._logs.journal.file_bytes - journal.durable_mark.offset - 4096


def _take_spares(site: Site) -> None:
    """Fill the journal's disk, and use the prepared file up."""
    site.fill()
    journal = site.machine.bookie._journal
    while journal._logs.journal.supply._spares:
        site.add(6, recovery=True)


def exhaust(site: Site) -> None:
    """Until the journal has no room for a record any more."""
    _take_spares(site)
    while not site.machine.bookie._journal.no_room:
        site.add(6, recovery=True, size=1000)


def test_waiters_of_a_roll_without_space_are_told_and_the_journal_goes_on() -> None:
    site = Site(LAYOUTS[1])
    site.add(6)
    exhaust(site)
    held = site.machine.held(6)
    for _again in range(3):
        assert site.add(6) is READ_ONLY and site.add(6, recovery=True) is READ_ONLY
    lac: list[BookieStatus] = []
    site.machine.bookie.write_last_confirmed(
        LedgerId(6), EntryId(0), access_key=b"", done=lambda status, _text: lac.append(status)
    )
    assert lac == [READ_ONLY]
    assert site.machine.held(6) == held, "what is refused beforehand changes nothing"
    site.check()
    site.machine.close()


def test_start_without_space_for_a_journal_serves_reads_and_writes_nothing() -> None:
    site = Site(LAYOUTS[0])
    for _entry in range(5):
        site.add(6)
    exhaust(site)
    names = site.files.list(JOURNAL)
    site.restart()
    site.check()
    assert site.files.list(JOURNAL) == names
    assert "disk full" in site.machine.bookie.disks.states.reason
    assert site.add(6) is READ_ONLY
    assert site.fence(FENCED) is READ_ONLY
    site.free()
    site.machine.bookie.disks.check()
    site.machine.settle()
    site.flush()
    assert site.add(6) is OK and site.fence(FENCED) is OK
    site.restart()
    site.check()


def test_first_start_of_a_bookie_on_a_full_disk() -> None:
    files = formatted()
    disk = MemoryDisk(SIZE, DIRECTORIES)
    files.disks = (disk,)
    disk.others_bytes = files._free_bytes(disk)
    config = small_config(disk_reserve_bytes=RESERVE)
    machine = Machine(files, config)
    assert machine.add(6, [0]) is READ_ONLY and machine.fence(6) is READ_ONLY
    machine.close()
    machine = Machine(files, config)
    disk.others_bytes = 0
    machine.bookie.disks.check()
    machine.flush()
    assert machine.add(6, [0]) is OK
    assert Machine(files.crash_clone(None), config).held(6) == expected(6, [0])


def test_announced_space_is_that_of_the_fullest_ledger_disk_when_disks_were_last_asked() -> None:
    """The service loop reads it: a disk that hangs must not stop that."""
    files = formatted()
    journal, *ledgers = (MemoryDisk(SIZE, [directory]) for directory in DIRECTORIES)
    files.disks = (journal, *ledgers)
    disks = Machine(files).bookie.disks
    disks.check()

    def fullest() -> int:
        return min(files.space(directory).free_bytes for directory in DIRECTORIES[1:])

    before = disks.states.free_bytes
    assert before == fullest()
    ledgers[-1].others_bytes = SIZE // 2
    assert disks.states.free_bytes == before, "no disk was asked"
    disks.check()
    assert before > disks.states.free_bytes == fullest() > 0
    journal.others_bytes = SIZE
    disks.check()
    assert disks.states.free_bytes == fullest() > 0, "entries are not kept there"


def test_journal_has_its_next_file_before_it_needs_it() -> None:
    files = formatted()
    machine = Machine(files, small_config(disk_reserve_bytes=0))
    assert any(name.endswith(".free") for name in files.list(JOURNAL)), "prepared at the start"
    files.disks = (MemoryDisk(0, [JOURNAL]),)  # full: no byte more
    for entry in range(20):  # more than one file of 64 KiB
        assert machine.add(6, [entry], recovery=True) is OK
    assert machine.bookie.stats().journal.file_number == 2
    assert Machine(files.crash_clone(None)).held(6) == expected(6, range(20))


def test_flush_that_cannot_trim_the_journal_says_so(
    monkeypatch: pytest.MonkeyPatch, files: MemoryFileSystem | None = None
) -> None:
    """It raised, and the failure that others see kept its old value."""
    machine = Machine(files or formatted())

    def fail(_number: int) -> None:
        raise OSError("the journal cannot be trimmed")

    with monkeypatch.context() as patch:
        patch.setattr(machine.bookie._journal, "remove_before", fail)
        with pytest.raises(OSError, match="cannot be trimmed"):
            machine.flush()
    assert machine.bookie.stats().failure == "the journal cannot be trimmed"
    machine.flush()
    assert machine.bookie.stats().failure == ""


def test_journal_file_begun_on_a_full_disk_is_missed_when_it_is_lost() -> None:
    """No mark names it, as no flush found space, and no older file does: it is noted."""
    site = Site(LAYOUTS[2])
    assert site.add(6) is OK
    site.flush()
    site.fill()
    site.restart()
    assert site.add(6, recovery=True) is OK
    site.restart()
    site.check()
    newest = max(name for name in site.files.list(JOURNAL) if name.endswith(".log"))
    assert site.add(6, recovery=True) is OK
    files = site.files.crash_clone(None)
    later = max(name for name in files.list(JOURNAL) if name.endswith(".log"))
    files.remove(JOURNAL / later)
    with pytest.raises(CorruptionError, match=later):
        Machine(files, site.config)
    assert later >= newest


def test_key_of_a_ledger_that_was_refused_is_written_before_its_entries() -> None:
    site = Site(LAYOUTS[1])
    machine = site.machine
    _take_spares(site)
    while journal_room(machine) >= 5000:
        site.add(6, recovery=True)
    add = machine.start_add(8, [0], recovery=True, size=9000, key=b"secret")
    machine.settle()
    assert add[0][0] is READ_ONLY
    site.free()
    machine.bookie.disks.check()
    machine.flush()
    machine.bookie.disks.check()
    assert machine.add(8, [1], key=b"secret") is OK
    site.restart()
    assert site.machine.add(8, [2], key=b"other") is BookieStatus.UNAUTHORIZED
    assert set(site.machine.held(8)) == {0, 1}


def test_states_are_told_when_they_change_and_only_then() -> None:
    told: list[bool] = []
    files = formatted()
    disk = MemoryDisk(SIZE, DIRECTORIES)
    files.disks = (disk,)
    config = small_config(disk_reserve_bytes=RESERVE)
    bookie = open_bookie(
        config,
        post=lambda call: call(),
        on_fatal=lambda message: pytest.fail(message),
        on_state_changed=lambda: told.append(True),
        file_system=files,
        open_index=lambda path: MemoryIndex(files, path),
        threads=False,
    )
    bookie.disks.check()
    assert not told
    disk.others_bytes = files._free_bytes(disk) - KIB
    for _again in range(3):
        bookie.disks.check()
    assert len(told) == 1
    disk.others_bytes = 0
    for _again in range(3):
        bookie.disks.check()
    assert len(told) == 2


def test_writer_on_a_full_disk_hears_of_the_fence_first() -> None:
    """A writer that hears of a full disk only goes on with another bookie."""
    site = Site(LAYOUTS[0])
    assert site.add(6) is OK
    site.fill(left=RESERVE - KIB)
    assert site.add(6) is READ_ONLY
    assert site.machine.fence(6) is OK
    assert site.add(6) is BookieStatus.FENCED
    assert site.add(6, recovery=True) is OK
    assert site.machine.bookie.append_bytes_in_flight == 0


def test_disk_that_does_not_answer_counts_as_it_did_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full or not: writers neither leave nor come back for a question that failed."""

    def unanswered(_files: MemoryFileSystem, directory: Path) -> NoReturn:
        raise OSError(errno.EIO, "the disk does not answer", str(directory))

    disks = site.machine.bookie.disks
    for is_full in (False, True, False):
        if is_full:
            site.fill()
        else:
            site.free()
            for _ in range(3):  # what was refused is tried again
                disks.check()
                site.flush()
        before, full = disks.states, [bool(disks.reason(LedgerId(each))) for each in (6, 7)]
        assert any(full) is is_full
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "space", unanswered)
            for _ in range(3):
                disks.check()
                assert disks.states == before
                for ledger, refused in zip((6, 7), full, strict=True):
                    assert site.add(ledger) is (READ_ONLY if refused else OK)
    site.check()


def test_journal_without_room_on_a_disk_that_never_looked_full_goes_on_once_there_is_some() -> None:
    """As with a quota: what the disk says of itself crosses no mark, before and after."""
    files = formatted()
    config = small_config(disk_reserve_bytes=0, disk_high_water_mark=1.0, disk_low_water_mark=1.0)
    machine = Machine(files, config)
    disk = MemoryDisk(SIZE, [JOURNAL])
    files.disks = (disk,)
    disk.others_bytes = files._free_bytes(disk) - KIB  # less than a file, and above no mark
    entry = 0
    while machine.add(6, [entry], recovery=True) is OK:
        entry += 1
        assert entry < 100
    for _look in range(2):
        machine.bookie.disks.check()
        machine.settle()
        assert not machine.bookie.disks.states.journal.above_marks
        assert machine.add(6, [entry], recovery=True) is READ_ONLY
    disk.others_bytes = 0
    machine.bookie.disks.check()
    machine.settle()
    machine.flush()
    assert machine.add(8, [0]) is OK and machine.held(6).keys() >= set(range(entry))
