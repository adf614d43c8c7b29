"""LedgerSource: where a query over a raw ledger starts and ends, its triggers, its partitions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from connector.options import read_options
from connector.read import ledger_source
from connector.read.ledger_source import LedgerSource
from connector.read.offsets import OffsetJson
from spark_ledger.errors import (
    ConfigurationError,
    DataLossError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    ReadBeyondConfirmedError,
)
from spark_ledger.limits import MIB
from spark_ledger.limits.client import TAIL_METADATA_WAIT_S
from spark_ledger.limits.connector import LEDGER_LOOKED_S
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    Entry,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)

Source = LedgerSource
BOOKIES = tuple(BookieId(f"b{n}") for n in range(4))


class Ledger:
    """A reader of ledger 5. It knows what is confirmed as of its last refresh."""

    is_closed = False

    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)
        self.last_add_confirmed = -1
        self.refreshes = 0

    metadata_away = False
    is_deleted = False

    @property
    def metadata(self) -> LedgerMetadata:
        """Two fragments, the second from entry 12 on."""
        return LedgerMetadata(
            LedgerId(5),
            Quorums(3, 3, 2),
            (Fragment(EntryId(0), BOOKIES[:3]), Fragment(EntryId(12), BOOKIES[1:4])),
        )

    def refresh(self) -> None:
        if self.metadata_away:
            raise MetadataUnavailableError("no ZooKeeper answered")
        if self.is_deleted:
            raise NoSuchLedgerError("there is no ledger 5")
        self.refreshes += 1
        self.refresh_confirmed()

    def refresh_confirmed(self) -> None:
        self.last_add_confirmed = len(self.sizes) - 1

    def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[Entry]:
        assert 0 <= first <= last and not (unconfirmed and self.is_closed)
        if last > self.last_add_confirmed and not unconfirmed:
            raise ReadBeyondConfirmedError(f"entry {last} of ledger 5 is not confirmed")
        return [
            Entry(LedgerId(5), EntryId(n), b"", EntryId(n - 1), sum(self.sizes[: n + 1]))
            for n in range(first, last + 1)
        ]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(ledger_source, "POLL_WAIT_S", 0.0)
    return Clock()


def source(ledger: Ledger, clock: Clock, *, streaming: bool = True, **options: str) -> Source:
    checked = read_options(
        {"metadata": "zk://h/l", "ledgerId": "5", **options}, streaming=streaming
    )
    bookies = [BookieInfo(bookie, "h:1") for bookie in BOOKIES]
    return LedgerSource(checked, ledger, clock=clock, bookies=lambda: bookies)  # type: ignore[arg-type]


def offset(entry: int) -> OffsetJson:
    return {"entry": entry, "ledger": 5}


def drain(reader: Source, start: OffsetJson) -> list[object]:
    ends: list[object] = []
    while (end := reader.latest_offset(start, unlimited=False)) != start:
        ends.append(end["entry"])
        start = end
    return ends


@pytest.mark.parametrize("closed", [True, False])
def test_ledger_deleted_under_a_query_fails_it_in_a_sentence(clock: Clock, closed: bool) -> None:
    ledger = Ledger(1, 1)
    reader = source(ledger, clock)
    assert drain(reader, offset(0)) == [2]
    ledger.is_closed, ledger.is_deleted = closed, True
    clock.now += LEDGER_LOOKED_S
    with pytest.raises(DataLossError, match="ledger 5 was deleted while this query was reading"):
        reader.latest_offset(offset(2), unlimited=False)


def test_closed_ledger_needs_no_metadata_to_be_waited_at(clock: Clock) -> None:
    ledger = Ledger(1, 1)
    reader = source(ledger, clock)
    assert drain(reader, offset(0)) == [2]
    ledger.is_closed, ledger.metadata_away = True, True
    for _ in range(3):
        clock.now += TAIL_METADATA_WAIT_S
        assert drain(reader, offset(2)) == []


def test_positions_are_resolved_against_the_confirmed_end(clock: Clock) -> None:
    ledger = Ledger(1, 1, 1)
    assert source(ledger, clock).initial_offset() == offset(0)
    assert source(ledger, clock, startingPosition="latest").initial_offset() == offset(3)
    assert source(ledger, clock, startingPosition='{"entry": 3}').initial_offset() == offset(3)
    with pytest.raises(ConfigurationError, match=r"entry 4 .* the last confirmed entry is 2"):
        source(ledger, clock, startingPosition='{"entry": 4}').initial_offset()
    assert source(ledger, clock, streaming=False).final_offset() == offset(3)
    assert source(
        ledger, clock, streaming=False, endingPosition='{"entry": 1}'
    ).final_offset() == offset(1)


def test_empty_ledger_starts_and_ends_at_entry_0(clock: Clock) -> None:
    reader = source(Ledger(), clock)
    assert reader.initial_offset() == reader.newest_offset() == offset(0)
    assert reader.latest_offset(offset(0), unlimited=False) == offset(0)


def test_start_at_latest_stays_while_the_ledger_grows(clock: Clock) -> None:
    ledger = Ledger(1, 1)
    reader = source(ledger, clock, startingPosition="latest")
    assert reader.initial_offset() == offset(2)
    ledger.sizes += [1, 1]
    assert reader.initial_offset() == offset(2)
    assert reader.latest_offset(offset(2), unlimited=False) == offset(4)


def test_open_ledger_is_refreshed_and_a_closed_one_is_not(clock: Clock) -> None:
    ledger = Ledger(1)
    reader = source(ledger, clock)
    assert drain(reader, offset(0)) == [1]
    ledger.sizes += [1, 1]
    assert drain(reader, offset(1)) == [3]
    ledger.is_closed, before = True, ledger.refreshes
    assert drain(reader, offset(3)) == []
    assert ledger.refreshes == before


def test_closed_ledger_is_looked_for_now_and_then_and_not_at_each_trigger(clock: Clock) -> None:
    ledger = Ledger(1)
    reader = source(ledger, clock)
    assert drain(reader, offset(0)) == [1]
    ledger.is_closed, looked = True, []
    for _ in range(8):
        clock.now += LEDGER_LOOKED_S / 4
        before = ledger.refreshes
        assert drain(reader, offset(1)) == []
        looked.append(ledger.refreshes - before)
    assert looked == [0, 0, 0, 1, 0, 0, 0, 1]


def test_limited_triggers_go_through_the_whole_ledger(clock: Clock) -> None:
    ledger = Ledger(*[1] * 7)
    assert drain(source(ledger, clock, maxRowsPerTrigger="3"), offset(0)) == [3, 6, 7]
    assert drain(source(ledger, clock, maxRowsPerTrigger="3"), offset(5)) == [7]
    limited = source(ledger, clock, maxRowsPerTrigger="3", minRowsPerTrigger="2")
    assert limited.latest_offset(offset(0), unlimited=True) == offset(7)


def test_available_now_ends_at_its_start_and_waits_for_no_minimum(clock: Clock) -> None:
    ledger = Ledger(1, 1, 1)
    reader = source(ledger, clock, minRowsPerTrigger="2", maxRowsPerTrigger="2")
    reader.pin_target()
    ledger.sizes += [1] * 10
    assert drain(reader, offset(0)) == [2, 3]


def test_available_now_of_an_empty_ledger_takes_nothing_that_comes_later(clock: Clock) -> None:
    ledger = Ledger()
    reader = source(ledger, clock)
    reader.pin_target()
    ledger.sizes += [1, 1]
    assert drain(reader, offset(0)) == []


def test_minimum_rows_hold_in_each_trigger_until_the_delay(clock: Clock) -> None:
    ledger = Ledger()
    reader = source(ledger, clock, minRowsPerTrigger="3", maxTriggerDelay="60s")
    for first in (0, 3, 6):
        ledger.sizes += [1, 1]
        clock.now += 59
        assert drain(reader, offset(first)) == []
        ledger.sizes += [1]
        assert drain(reader, offset(first)) == [first + 3]
    ledger.sizes += [1]
    clock.now += 60
    assert drain(reader, offset(9)) == [10]


@pytest.mark.parametrize(("waited_s", "pause_s"), [(0.0, 1.0), (59.0, 1.0), (59.75, 0.25)])
def test_trigger_with_too_few_entries_waits_no_longer_than_its_delay(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, waited_s: float, pause_s: float
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(ledger_source, "POLL_WAIT_S", 1.0)
    reader = source(Ledger(1), clock, minRowsPerTrigger="3", maxTriggerDelay="60s")
    monkeypatch.setattr(ledger_source, "time", SimpleNamespace(sleep=slept.append))
    clock.now += waited_s
    assert reader.latest_offset(offset(0), unlimited=False) == offset(0)
    assert slept == [pause_s]


def test_trigger_without_news_takes_what_comes_while_it_waits(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(1)
    reader = source(ledger, clock)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        ledger.sizes += [1, 1]

    monkeypatch.setattr(ledger_source, "time", SimpleNamespace(sleep=sleep))
    assert reader.latest_offset(offset(0), unlimited=False) == offset(1)
    assert slept == [], "there was news"
    assert reader.latest_offset(offset(1), unlimited=False) == offset(3)
    assert len(slept) == 1


def test_trigger_that_takes_all_waits_for_no_least_entries(clock: Clock) -> None:
    reader = source(Ledger(1, 1, 1), clock, minRowsPerTrigger="100", maxRowsPerTrigger="200")
    assert reader.latest_offset(offset(0), unlimited=True) == offset(3)


def test_lag_counts_the_entries_behind_the_micro_batch(clock: Clock) -> None:
    ledger = Ledger(1, 1, 1)
    reader = source(ledger, clock, maxRowsPerTrigger="2")
    assert reader.newest_offset() == offset(0), "before the first micro-batch nothing is known"
    assert reader.latest_offset(offset(0), unlimited=False) == offset(2)
    assert reader.newest_offset() == {**offset(3), "rowsBehind": 1}
    assert reader.latest_offset(offset(2), unlimited=False) == offset(3)
    assert reader.newest_offset() == {**offset(3), "rowsBehind": 0}
    behind = source(Ledger(1), clock)
    behind.pin_target()
    assert behind.latest_offset(offset(4), unlimited=False) == offset(4)
    assert behind.newest_offset() == {**offset(1), "rowsBehind": 0}, "a server that lags"


def test_plan_has_as_many_partitions_as_the_bytes_of_its_range_need(clock: Clock) -> None:
    ledger = Ledger(*[MIB] * 20)
    reader = source(ledger, clock, maxBytesPerPartition="4m")
    parts = [(p.first_entry, p.last_entry) for p in reader.plan(offset(0), offset(20))]
    assert parts == [(0, 3), (4, 7), (8, 11), (12, 15), (16, 19)]
    parts = [(p.first_entry, p.last_entry) for p in reader.plan(offset(12), offset(20))]
    assert parts == [(12, 15), (16, 19)]
    hints = [p.replica_hint for p in reader.plan(offset(0), offset(20))]
    assert hints == [0, 1, 2, 3, 4]
    assert reader.plan(offset(7), offset(7)) == []
    (single,) = source(ledger, clock).plan(offset(19), offset(20))
    assert (single.first_entry, single.last_entry) == (19, 19)


@pytest.mark.parametrize(("start", "known"), [(0, 1), (2, 1), (0, 3), (2, 3)])
def test_plan_ends_where_the_offset_says_though_this_reader_knows_of_less(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, start: int, known: int
) -> None:
    """The bookie that told the driver before its restart what is confirmed may be down since."""
    ledger = Ledger(1, 1, 1)

    def know_less() -> None:
        ledger.last_add_confirmed = known - 1

    monkeypatch.setattr(ledger, "refresh", know_less)
    (part,) = source(ledger, clock).plan(offset(start), offset(3))
    assert (part.first_entry, part.last_entry) == (start, 2)
    know_less()
    ledger.is_closed = True
    if known < 3:
        with pytest.raises(ReadBeyondConfirmedError):
            source(ledger, clock).plan(offset(start), offset(3))
    else:
        source(ledger, clock).plan(offset(start), offset(3))


def test_plan_names_the_bookies_of_each_partition(clock: Clock) -> None:
    ledger = Ledger(*[MIB] * 20)
    reader = source(ledger, clock, maxBytesPerPartition="4m")
    parts = reader.plan(offset(0), offset(20))
    assert [part.reads.order[0] for part in parts] == ["b0", "b1", "b2", "b3", "b1"]
    assert [read.size_bytes for part in parts for read in part.reads.parts] == [4 * MIB] * 5
    (across,) = source(ledger, clock).plan(offset(8), offset(20))
    assert [read[1:] for read in across.reads.parts] == [(0, "b1", 4 * MIB), (12, "b1", 8 * MIB)]


def test_small_micro_batches_do_not_all_ask_the_same_bookie(clock: Clock) -> None:
    reader = source(Ledger(*[1] * 12), clock)
    asked = [
        part.reads.order[0]
        for first in range(12)
        for part in reader.plan(offset(first), offset(first + 1))
    ]
    assert len(asked) == 12 and set(asked) == set(BOOKIES[:3])


def test_checkpoint_of_another_ledger_is_refused(clock: Clock) -> None:
    with pytest.raises(ConfigurationError, match="belongs to ledger 6"):
        source(Ledger(1), clock).latest_offset({"entry": 0, "ledger": 6}, unlimited=False)


def test_stream_goes_on_while_the_metadata_are_away_as_long_as_entries_come(clock: Clock) -> None:
    ledger = Ledger(1)
    reader = source(ledger, clock)
    ledger.metadata_away = True
    position = offset(0)
    for entry in range(1, 5):
        position = reader.latest_offset(position, unlimited=False)
        assert position == offset(entry)
        ledger.sizes.append(1)
        clock.now += TAIL_METADATA_WAIT_S - 1


def test_stream_ends_when_the_metadata_are_away_and_nothing_comes(clock: Clock) -> None:
    ledger = Ledger()
    reader = source(ledger, clock)
    ledger.metadata_away = True
    assert reader.latest_offset(offset(0), unlimited=False) == offset(0)
    clock.now += TAIL_METADATA_WAIT_S + 1
    with pytest.raises(MetadataUnavailableError):
        reader.latest_offset(offset(0), unlimited=False)
    ledger.metadata_away = False
    assert reader.latest_offset(offset(0), unlimited=False) == offset(0)
    ledger.metadata_away = True
    assert reader.latest_offset(offset(0), unlimited=False) == offset(0), "it counts anew"
