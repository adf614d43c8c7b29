"""What a bookie says that it holds, a part at a time: repair and `ledger cluster status` count on
it, so nothing may be left out between two parts."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from bookie_server import reads
from bookie_server.bookie import Bookie
from bookie_server.service import lists
from bookie_server.service.lists import list_error, next_part
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.limits.bookie import JOURNAL_STALLED_S
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import status_to_wire
from tests.unit.bookie_server.storage.support import JOURNAL, Machine, formatted, small_config


@pytest.fixture
def machine() -> Machine:
    machine = Machine(formatted())
    for ledger_id in (0, 2, 3, 4, 7):
        assert machine.add(ledger_id, [0]) is BookieStatus.OK
    machine.flush()
    return machine


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_ledgers_are_listed_from_the_one_that_is_asked_for_and_none_is_left_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(lists, "BOOKIE_LEDGERS_PER_ANSWER", limit)
    found: list[int] = []
    first = 0
    while True:
        request = pb.ListEntriesRequest(ledgers=True, ledger_id=first)
        part, behind = next_part(machine.bookie, request, 0)
        assert part.has_ledgers and behind is None and len(part.ledger_ids) <= limit
        if not part.ledger_ids:
            break
        found += part.ledger_ids
        first = part.ledger_ids[-1] + 1
    assert found == [0, 2, 3, 4, 7]
    request = pb.ListEntriesRequest(ledgers=True, ledger_id=3)
    assert next_part(machine.bookie, request, 0)[0].ledger_ids[0] == 3


@pytest.mark.parametrize("one_page", [True, False])
def test_entries_are_listed_in_pages_and_the_last_one_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, one_page: bool
) -> None:
    monkeypatch.setattr(reads, "BOOKIE_RANGES_PER_PAGE", 2)
    wanted = [(0, 0)]
    for entry_id in (5, 10, 15, 20):
        assert machine.add(2, [entry_id, entry_id + 1], recovery=True) is BookieStatus.OK
        machine.flush()
        wanted.append((entry_id, entry_id + 1))
    request = pb.ListEntriesRequest(ledger_id=2, one_page=one_page)
    found: list[tuple[int, int]] = []
    first: int | None = 0
    while first is not None:
        part, behind = next_part(machine.bookie, request, first)
        assert len(part.ranges) <= 2 and not part.has_ledgers
        found += [(each.first_entry, each.last_entry) for each in part.ranges]
        if one_page:
            assert behind is None, "the client asks for the next one"
            behind = part.next_entry or None
        first = behind
    assert found == wanted


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output"), CorruptionError("rotten")])
@pytest.mark.parametrize("ledgers", [True, False])
def test_list_that_cannot_be_read_is_an_error_and_no_denial(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, ledgers: bool, error: Exception
) -> None:
    def fails(*_of: object) -> None:
        raise error

    monkeypatch.setattr(Bookie, "held_ledgers", fails)
    monkeypatch.setattr(Bookie, "entry_page", fails)
    request = pb.ListEntriesRequest(ledger_id=2, ledgers=ledgers)
    part, behind = next_part(machine.bookie, request, 0)
    assert part.status == status_to_wire(BookieStatus.IO_ERROR) and part.message == str(error)
    assert part.has_ledgers is ledgers and behind is None


def test_what_a_journal_that_stalls_has_not_synced_is_not_listed(machine: Machine) -> None:
    """It is in memory only: a check of copies that counts it is the last one for a week. What
    recoveries and readers are told stays the same (rules P12 and P13)."""
    now = [100.0]
    machine.bookie._journal._clock = lambda: now[0]
    answers = machine.start_add(2, [1])
    request = pb.ListEntriesRequest(ledger_id=2)
    now[0] += 0.9 * JOURNAL_STALLED_S
    assert len(next_part(machine.bookie, request, 0)[0].ranges) == 1, "its sync may take a moment"
    now[0] += 0.2 * JOURNAL_STALLED_S
    part, behind = next_part(machine.bookie, request, 0)
    assert part.status == status_to_wire(BookieStatus.IO_ERROR) and "ledger 2" in part.message
    assert not part.ranges and behind is None and not answers
    read = machine.bookie.read(LedgerId(2), EntryId(0), EntryId(1), stride=1, max_bytes=1000)
    assert read.status is BookieStatus.OK and sum(run.count for run in read.runs) == 2
    other = next_part(machine.bookie, pb.ListEntriesRequest(ledger_id=4), 0)[0]
    assert other.status == status_to_wire(BookieStatus.OK) and other.ranges, "all of it is stored"
    machine.settle()
    part, _ = next_part(machine.bookie, request, 0)
    assert [(each.first_entry, each.last_entry) for each in part.ranges] == [(0, 1)]


def test_what_a_journal_without_room_has_refused_is_not_listed_before_a_flush_has_it() -> None:
    """It is in memory only, for as long as the disk is full, and a kill takes it away. What was
    synced, or flushed, is listed all the same."""
    allowed = 1000

    def plan(operation: Operation) -> Fault | None:
        nonlocal allowed
        if operation.kind != "preallocate" or operation.path.parent != JOURNAL:
            return None
        allowed -= 1
        return Fault(errno.ENOSPC) if allowed < 0 else None

    config = small_config(
        write_once_bytes=0, journal_batch_bytes_max=200 * KIB, write_cache_bytes=1024 * KIB
    )
    files = formatted()
    machine = Machine(FaultFileSystem(files, plan), config)
    assert machine.add(2, [0]) is BookieStatus.OK
    request = pb.ListEntriesRequest(ledger_id=2)
    allowed = 1
    assert machine.add(2, range(1, 40), size=3 * KIB) is BookieStatus.READ_ONLY
    assert machine.bookie.stall is None, "who adds was told why"
    part, behind = next_part(machine.bookie, request, 0)
    assert part.status == status_to_wire(BookieStatus.IO_ERROR) and "disk full" in part.message
    assert not part.ranges and behind is None
    assert len(Machine(files.crash_clone(None), config).held(2)) == 1
    with suppress(OSError):
        machine.flush()
    allowed = 1000
    part, _ = next_part(machine.bookie, request, 0)
    assert [(each.first_entry, each.last_entry) for each in part.ranges] == [(0, 39)]
    assert len(Machine(files.crash_clone(None), config).held(2)) == 40


def test_journal_that_only_has_no_room_for_more_hides_nothing(machine: Machine) -> None:
    """All that memory has is synced, as nothing was added since."""
    assert machine.add(2, [1]) is BookieStatus.OK
    machine.bookie._journal._no_room = "disk full"
    part, _ = next_part(machine.bookie, pb.ListEntriesRequest(ledger_id=2), 0)
    assert [(each.first_entry, each.last_entry) for each in part.ranges] == [(0, 1)]


def test_what_a_journal_that_failed_did_not_sync_is_not_listed(machine: Machine) -> None:
    """The process ends, but answers for as long as it drains."""
    assert machine.add(2, [1]) is BookieStatus.OK
    machine.bookie._journal._fail([], OSError(errno.EIO, "Input/output error"))
    part, _ = next_part(machine.bookie, pb.ListEntriesRequest(ledger_id=2), 0)
    assert part.status == status_to_wire(BookieStatus.IO_ERROR) and "must restart" in part.message
    assert not part.ranges


def test_ledger_that_is_not_known_is_denied_and_nonsense_is_named(machine: Machine) -> None:
    part, behind = next_part(machine.bookie, pb.ListEntriesRequest(ledger_id=9), 0)
    assert part.status == status_to_wire(BookieStatus.NO_SUCH_LEDGER) and behind is None
    assert "ledger 9 " in part.message
    assert list_error(pb.ListEntriesRequest(ledger_id=0, first_entry=0)) == ""
    assert "-1" in list_error(pb.ListEntriesRequest(ledger_id=-1))
    assert "-2" in list_error(pb.ListEntriesRequest(first_entry=-2))
