"""What a scrub puts on the list: which entries, in which log; and what all scrubs say together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index import memory_index
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.index.memory_index import MemoryIndex
from bookie_server.storage.ledgers import pacing
from bookie_server.storage.ledgers.directory_scrub import DirectoryScrub, Position, ScrubCounts
from bookie_server.storage.ledgers.entry_log import EntryLogReader
from bookie_server.storage.ledgers.lacking import NO_LOG, Lack, Lacking
from bookie_server.storage.ledgers.scrub import Scrubber
from spark_ledger.errors import CorruptionError
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId

DIRECTORY = Path("/ledgers")
L = LedgerId(2)
BAD, GOOD = BlockLocation(1, 4096, 100), BlockLocation(1, 8192, 100)


def row(first: int, last: int, location: BlockLocation, *, sparse: bool = False) -> IndexRow:
    return IndexRow(EntryId(first), EntryId(last), location, sparse)


def lack(first: int, last: int, log_id: int = 1) -> Lack:
    return Lack(L, EntryId(first), EntryId(last), log_id)


class Directory:
    """A directory with rows of one ledger, some of whose blocks cannot be read."""

    def __init__(self, *rows: IndexRow, last_entry: int = -1) -> None:
        files = MemoryFileSystem()
        files.mkdir(DIRECTORY)
        self.index = MemoryIndex(files, DIRECTORY / "index")
        update = self.index.begin()
        for each in rows:
            update.put_row(L, each)
        update.put_ledger_record(L, LedgerRecord(last_entry=EntryId(last_entry)))
        update.commit()
        self.bad: set[BlockLocation] = {BAD}
        self.before_read: Callable[[], None] = lambda: None
        self.lacking = Lacking(files, DIRECTORY, self.index)
        reader = EntryLogReader(files, DIRECTORY)
        self.scrub = DirectoryScrub(
            files, DIRECTORY, self.index, reader, self.read_block, self.lacking
        )

    def read_block(self, ledger_id: LedgerId, wanted: IndexRow) -> EntryRun:
        self.before_read()
        if wanted.location in self.bad:
            raise CorruptionError("wrong checksum")
        return EntryRun(ledger_id, wanted.first_entry, None, [1], b"x")

    def run(self) -> tuple[Lack, ...]:
        """What is lacking after a pass."""
        self.scrub.run(threading.Lock(), lambda _byte_count: None)
        return self.lacking.of(L)


@pytest.mark.parametrize(
    ("rows", "lacks"),
    [
        ([row(0, 2, BAD), row(10, 12, GOOD)], [lack(0, 2)]),
        ([row(0, 9, BAD, sparse=True), row(5, 6, GOOD)], [lack(0, 4)]),
        (
            [row(0, 9, BAD, sparse=True), row(5, 5, GOOD), row(6, 9, BAD, sparse=True)],
            [lack(0, 4), lack(6, 9)],
        ),
        ([row(0, 4, GOOD), row(5, 9, BAD)], [lack(5, 9)]),
    ],
    ids=["gap behind it", "ends in the next row", "goes on behind a row", "last one"],
)
def test_row_lacks_the_entries_up_to_its_block_s_end_or_the_next_row(
    rows: list[IndexRow], lacks: list[Lack]
) -> None:
    """One more would be asked of others for ever; one less would be denied."""
    directory = Directory(*rows)
    assert directory.run() == tuple(lacks)
    assert [each.location for each in directory.index.rows(L)] == [GOOD] * (len(rows) - len(lacks))


def test_block_that_was_copied_meanwhile_is_lacking_where_it_is_now() -> None:
    """That log stays; the one that it was in is gone."""
    copy = BlockLocation(7, 4096, 100)
    directory = Directory(row(0, 4, BAD))
    directory.bad.add(copy)

    def move() -> None:
        directory.before_read = lambda: None
        update = directory.index.begin()
        assert update.move_row(L, row(0, 4, BAD), row(0, 4, copy))
        update.commit()

    directory.before_read = move
    assert directory.run() == (lack(0, 4, log_id=7),)
    assert not directory.index.rows(L) and directory.lacking.logs() == {7}


@pytest.mark.parametrize(
    ("reads", "is_bad"),
    [
        (["fails", "good"], False),
        (["moves", "good"], False),
        (["moves", "fails", "good"], False),
        (["fails", "moves", "fails", "good"], False),
        (["fails", "fails"], True),
        (["moves", "fails", "fails"], True),
    ],
)
def test_block_is_damaged_if_two_reads_fail_where_it_is(reads: list[str], is_bad: bool) -> None:
    """A disk may fail once, and a copy may be made meanwhile, again and again."""
    directory = Directory(row(0, 4, BAD))
    numbers = iter(range(len(reads)))

    def before_read() -> None:
        number = next(numbers)
        (now,) = directory.index.rows(L)
        directory.bad = set() if reads[number] == "good" else {now.location}
        if reads[number] == "moves":
            update = directory.index.begin()
            update.move_row(L, now, now._replace(location=BlockLocation(10 + number, 4096, 100)))
            update.commit()

    directory.before_read = before_read
    assert bool(directory.run()) is is_bad
    assert directory.scrub.counts.bad_blocks == is_bad and next(numbers, None) is None


def test_row_that_goes_while_it_is_read_is_neither_damaged_nor_read() -> None:
    directory = Directory(row(0, 4, GOOD), row(5, 9, BAD))

    def delete() -> None:
        if directory.scrub.counts.blocks == 1:
            update = directory.index.begin()
            update.delete_row(L, row(5, 9, BAD))
            update.commit()

    directory.before_read = delete
    assert directory.run() == ()
    assert directory.scrub.counts.blocks == 1, "nor is the row before it, once more"


@pytest.mark.parametrize(("named", "recorded"), [(9, 4), (4, 9), (-1, 9), (9, -1)])
def test_ledger_that_does_not_add_up_lacks_up_to_the_highest_that_is_known(
    monkeypatch: pytest.MonkeyPatch, named: int, recorded: int
) -> None:
    directory = Directory(row(0, 4, GOOD), last_entry=recorded)

    def damaged(*_of: object) -> None:
        raise CorruptionError("rows do not add up")

    monkeypatch.setattr(MemoryIndex, "rows", damaged)
    dropped = {L: EntryId(named), LedgerId(99): EntryId(5)}
    monkeypatch.setattr(memory_index._MemoryUpdate, "drop_damaged", lambda _update: dropped)
    assert directory.run() == (lack(0, 9, NO_LOG),)
    assert directory.lacking.ledgers() == [L], "no record: only a damaged key has named the other"


def test_index_is_not_healed_before_what_goes_is_on_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = Directory(row(0, 4, GOOD))
    commits: list[int] = []
    commit = memory_index._MemoryUpdate.commit

    def noted(update: memory_index._MemoryUpdate) -> None:
        commits.append(directory.lacking.count)
        commit(update)

    monkeypatch.setattr(memory_index._MemoryUpdate, "commit", noted)
    monkeypatch.setattr(memory_index._MemoryUpdate, "drop_damaged", lambda _update: {L: EntryId(4)})
    directory.scrub.position = Position(must_heal=True, is_running=True)
    directory.run()
    assert commits == [1]


def test_pass_that_is_begun_anew_says_when_the_last_one_ended() -> None:
    directory = Directory(row(0, 4, GOOD))
    directory.scrub.position = Position(ledger_id=7, entry_id=3, is_running=True, ended_at=5.0)
    directory.scrub.begin_anew()
    assert directory.scrub.counts.ended_at == 5.0
    directory.run()
    assert directory.scrub.counts.blocks == 1, "also what the unfinished one had read"


# -- all directories ------------------------------------------------------------------------------


class Scrub:
    """Stands for the scrub of a directory."""

    def __init__(self, counts: ScrubCounts, *, due: bool = True) -> None:
        self.counts = counts
        self.due = due
        self.error: OSError | None = None
        self.runs = 0

    def is_due(self, _interval_s: float) -> bool:
        return self.due

    def run(self, _lock: threading.Lock, pace: Callable[[int], None]) -> None:
        self.runs += 1
        pace(100)
        if self.error is not None:
            raise self.error


def scrubber_of(*scrubs: Scrub) -> Scrubber:
    return Scrubber(
        scrubs,  # type: ignore[arg-type]
        threading.Lock(),
        bytes_per_s=1000,
        interval_s=10.0,
        on_fatal=lambda message: pytest.fail(message),
    )


def test_all_is_verified_when_the_directory_that_is_behind_was() -> None:
    counts = [
        ScrubCounts(ended_at=50.0, bad_blocks=1, bad_ledgers=2, lacking=3, refetched=4),
        ScrubCounts(ended_at=40.0, bad_blocks=10, bad_ledgers=20, lacking=30, refetched=40),
    ]
    stats = scrubber_of(*map(Scrub, counts)).stats
    assert (stats.ended_at, stats.bad, stats.lacking, stats.refetched) == (40.0, 33, 33, 44)
    assert scrubber_of(Scrub(counts[0]), Scrub(ScrubCounts())).stats.ended_at == 0, "never"


def test_directory_that_fails_or_is_not_due_holds_up_no_other() -> None:
    first, second, third = (Scrub(ScrubCounts(), due=number != 1) for number in range(3))
    scrubber = scrubber_of(first, second, third)
    first.error = OSError("the first disk")
    third.error = OSError("the third disk")
    with pytest.raises(OSError, match="the first disk"):
        scrubber._pass(lambda each: each.is_due(1.0), lambda _bytes: None)
    assert [each.runs for each in (first, second, third)] == [1, 0, 1]
    assert scrubber.stats.last_failure == "the first disk"
    first.error = third.error = None
    scrubber.run_once()
    assert [each.runs for each in (first, second, third)] == [2, 1, 2]
    assert scrubber.stats.last_failure == ""


def test_scrub_keeps_to_its_rate_over_all_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    scrubs = [Scrub(ScrubCounts()) for _ in range(3)]
    scrubber = scrubber_of(*scrubs)
    now, waits = [1000.0], list[float]()

    class Clock:
        def monotonic(self) -> float:
            return now[0]

        def wait(self, timeout_s: float) -> bool:
            waits.append(timeout_s)
            return False  # it takes no time: what is owed adds up

    monkeypatch.setattr(pacing, "time", Clock())
    monkeypatch.setattr(scrubber._pacer, "_stop", Clock())
    scrubber._pass(lambda _each: True, scrubber._pace)
    assert waits == pytest.approx([0.1, 0.2, 0.3])
    now[0] += 3600
    waits.clear()
    scrubber._pass(lambda _each: True, scrubber._pace)
    assert waits == pytest.approx([0.1, 0.2, 0.3]), "a rest earns no burst"
