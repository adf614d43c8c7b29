"""The phases of the machines: each table lists exactly the changes that some history takes.

A change is (phase, event, phase). README.md draws the tables, so one that names a change which
cannot happen would mislead readers; a run that takes one which is not in its table fails at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import ModuleType

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchEntryError,
)
from spark_ledger.protocol import append, append_phases, read_phases, recovery_phases
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.append_phases import Phase
from spark_ledger.protocol.events import (
    Abandon,
    Append,
    LengthUnknown,
    MetadataFailed,
    WriteMetadata,
)
from spark_ledger.protocol.read import ReadMachine
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.types import BookieStatus, EntryId, LedgerMetadata, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import LIMITS, Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import fragment, ledger, one
from tests.unit.spark_ledger.protocol.reader_driver import DOWN, Reader
from tests.unit.spark_ledger.protocol.recovery_driver import (
    MARKED,
    NO,
    OPEN,
    Recoverer,
    found_one,
)

Change = tuple[Enum, type, Enum]

CLOSED_EMPTY = OPEN.with_changes(state=LedgerState.CLOSED)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Change]]:
    """Collects the changes of phase that the machines of this test make."""
    changes: set[Change] = set()
    for machine in (AppendMachine, ReadMachine, RecoveryMachine):
        monkeypatch.setattr(machine, "_enter", _recorded(machine._enter, changes))
    yield changes


def _recorded(enter: Callable[..., None], changes: set[Change]) -> Callable[..., None]:
    def enter_and_record(machine: AppendMachine, phase: Phase) -> None:
        before = machine.phase
        enter(machine, phase)
        changes.add((before, type(machine._event), phase))

    return enter_and_record


def changes_of(module: ModuleType) -> set[Change]:
    """Every change that the table of a machine allows."""
    table: Mapping[Enum, Mapping[Enum, tuple[type, ...]]] = module.TRANSITIONS
    return {
        (before, event, after)
        for before, changes in table.items()
        for after, events in changes.items()
        for event in events
    }


# -- writer ----------------------------------------------------------------------------------------

CRASHED = Abandon(LedgerError("in flight"), LedgerError("abandoned"))


def writer_with_an_entry(quorums: tuple[int, int, int] = (3, 3, 2)) -> Writer:
    writer = Writer(quorums)
    writer.add()
    return writer


def choosing() -> Writer:
    writer = writer_with_an_entry()
    writer.fail(1)
    return writer


def changing() -> Writer:
    writer = writer_with_an_entry()
    change_of_index_1(writer)
    return writer


def closing() -> tuple[Writer, LedgerMetadata]:
    """A writer that is closing its ledger, and what it writes."""
    writer = writer_with_an_entry()
    return writer, one(writer.close(), WriteMetadata).metadata


def writer_whose_bookie_1_returned() -> Writer:
    """Both bookies are needed, and bookie 1 is back after a failure; only bookie 0 answers."""
    writer = writer_with_an_entry((2, 2, 2))
    writer.fail(1)
    writer.choose(i1="b1")
    writer.ack(0, 0)
    return writer


def changing_one_of_two() -> tuple[Writer, LedgerMetadata]:
    """Both bookies are needed and both failed, and only one of them could be replaced."""
    writer = writer_with_an_entry((2, 2, 2))
    writer.fail(1)
    writer.fail(0)
    writer.choose()
    return writer, one(writer.choose(i0="b3"), WriteMetadata).metadata


def abandon(writer: Writer) -> None:
    writer.machine.handle(CRASHED, writer.now)


def choose_again() -> None:
    """Runs in which another bookie has failed by the end of a change, or before the next add."""
    writer = choosing()
    writer.fail(2)
    writer.choose()
    for answer in (Writer.written, Writer.conflict):
        writer = writer_with_an_entry()
        wanted = change_of_index_1(writer)
        writer.fail(2)
        answer(writer, wanted)
    late = writer_with_an_entry()
    late.ack_all()
    late.fail(1)
    late.add()
    writer_with_an_entry().tick(5.0)


def give_up() -> None:
    """Runs in which too few bookies are left."""
    writer_whose_bookie_1_returned().fail(1)
    writer_whose_bookie_1_returned().tick(LIMITS.stalled_wait_s)
    writer = choosing()
    writer.fail(2)
    writer.choose()
    writer.choose()
    for answer in (Writer.written, Writer.conflict):
        writer, wanted = changing_one_of_two()
        answer(writer, wanted)


def look_whether_a_fence_is_real() -> None:
    """Runs in which it is not, and the bookie that spoke of it is replaced, or nobody can."""
    writer = writer_with_an_entry()
    writer.fail(1, BookieStatus.FENCED)
    writer.looked(writer.first)
    writer = writer_with_an_entry()
    writer.fail(1, BookieStatus.FENCED)
    writer.fail(0, BookieStatus.FENCED)
    writer.looked(writer.first)
    writer.looked(writer.first)
    writer.choose()
    writer = writer_whose_bookie_1_returned()
    writer.fail(1, BookieStatus.FENCED)
    writer.looked(writer.first)


def reach_the_most_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in which the fragments that are allowed are used up, by this writer and by another."""
    for choose_first in (False, True):
        writer = writer_with_an_entry((3, 3, 2) if choose_first else (2, 2, 2))
        writer.ack_all()
        writer.add()
        writer.fail(1)
        if choose_first:
            writer.choose(i1="b3")
        with monkeypatch.context() as patched:
            patched.setattr(append, "FRAGMENTS_MAX", 1)
            if choose_first:
                writer.conflict(writer.first.with_changes(fragments=(fragment(0, "b7 b1 b2"),)))
            else:
                writer.choose(i1="b3")
    changing().metadata_failed(ConfigurationError("too large"))
    changing_one_of_two()[0].metadata_failed(ConfigurationError("too large"))


def test_writer_takes_every_change_of_its_table(
    taken: set[Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_again()
    give_up()
    look_whether_a_fence_is_real()
    reach_the_most_fragments(monkeypatch)
    for begin in (writer_with_an_entry, choosing, changing):
        writer = begin()
        writer.fail(2, BookieStatus.FENCED)
        writer.looked(None)
        writer = begin()
        writer.fail(2, BookieStatus.FENCED)
        writer.cannot_look(LedgerError("damaged"))
        begin().close()
        abandon(begin())
    choosing().choose(i1="b1")  # nothing to write: its own index, from the same entry on
    repaired = ledger((3, 3, 2), (0, "b0 b1 b2")).with_changes(creation_token="repaired meanwhile")
    changing().conflict(repaired)
    changing().conflict(OPEN.with_changes(state=LedgerState.IN_RECOVERY))
    changing().metadata_failed()
    for answer in (Writer.written, Writer.conflict):
        writer, closed = closing()
        answer(writer, closed)
    closing()[0].metadata_failed()
    abandon(closing()[0])
    assert taken == changes_of(append_phases)


@pytest.mark.parametrize(
    "begin", [Writer, choosing, changing], ids=["writing", "choosing", "changing"]
)
def test_writer_abandoned_in_any_phase_ends(begin: Callable[[], Writer]) -> None:
    writer = begin()
    in_flight, error = LedgerError("in flight"), LedgerError("abandoned")
    writer.machine.handle(Abandon(in_flight, error), 0.0)
    assert writer.machine.phase is Phase.CLOSED and writer.machine.error is error
    writer.machine.handle(Abandon(in_flight, LedgerError("again")), 0.0)
    assert writer.machine.error is error, "the first reason stays"


# -- recovery --------------------------------------------------------------------------------------


def reading(last_confirmed: int = -1) -> Recoverer:
    recoverer = Recoverer(OPEN)
    recoverer.written(MARKED)
    recoverer.fenced(last_confirmed)
    return recoverer


def measuring() -> Recoverer:
    recoverer = reading(3)
    for index in (0, 1):
        recoverer.end(index, NO, 4)
    return recoverer


def found_and_stored_once() -> Recoverer:
    """Entry 0 is the last one; bookie 0 has it back, and one more is needed."""
    recoverer = found_one()
    recoverer.ack(0, "b0", 0)
    return recoverer


def written_back_to_two() -> Recoverer:
    """Both bookies are needed, and bookie 1 is back after a failure; only bookie 0 answers."""
    recoverer = Recoverer(ledger((2, 2, 2), (0, "b0 b1"), state=LedgerState.IN_RECOVERY))
    recoverer.lac(0, -1)
    recoverer.bring(0, 0)
    recoverer.fail(1, "b1")
    recoverer.choose(i1="b1")
    recoverer.ack(0, "b0", 0)
    return recoverer


def metadata_failed(recoverer: Recoverer) -> None:
    recoverer.machine.handle(MetadataFailed(MetadataUnavailableError("gone")), recoverer.now)


def learn_the_end() -> None:
    """Runs that end READING because the end is known and stored."""
    empty = reading()
    for index in (0, 1):
        empty.end(index, NO, 0)
    measuring()
    found_and_stored_once().ack(2, "b2", 0)
    during_a_change = found_and_stored_once()
    during_a_change.fail(1, "b1")
    during_a_change.ack(2, "b2", 0)
    during_a_change.choose()


def fail_to_learn_the_end() -> None:
    """Runs that end READING without knowing the end, or without storing what was found."""
    refused = reading()
    for index in (0, 1, 2):
        refused.end(index, BookieStatus.UNAUTHORIZED, 0)
    striped = Recoverer(ledger((3, 2, 2), (0, "b0 b1 b2"), state=LedgerState.IN_RECOVERY))
    striped.fenced()
    for index in (1, 2):
        striped.end(index, DOWN, 1, lane=1)
    striped.bring(0, 0, lane=0)  # now entry 1 decides, and nobody can tell of it
    written_back_to_two().fail(1, "b1")
    written_back_to_two().tick(5.0)
    without_replacement = written_back_to_two()
    without_replacement.fail(0, "b0")
    without_replacement.choose()
    without_replacement.choose()


def test_recovery_takes_every_change_of_its_table(taken: set[Change]) -> None:
    Recoverer(CLOSED_EMPTY)
    Recoverer(OPEN).conflict(CLOSED_EMPTY)
    Recoverer(OPEN).conflict(MARKED)
    metadata_failed(Recoverer(OPEN))
    reading()
    reading(3)
    unproved = Recoverer(MARKED)
    for index in (0, 1):
        unproved.lac(index, 5)
    unproved.machine.handle(LengthUnknown(NoSuchEntryError("entry 5")), 0.0)
    refused = Recoverer(MARKED)
    for index in (0, 1, 2):
        refused.lac(index, -1, BookieStatus.UNAUTHORIZED)
    learn_the_end()
    fail_to_learn_the_end()
    unreadable = LengthUnknown(NoSuchEntryError("entry 3"))
    measuring().machine.handle(unreadable, 0.0)
    closed = MARKED.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(3))
    for close in (
        lambda recoverer: recoverer.written(closed),
        lambda recoverer: recoverer.conflict(closed),
        metadata_failed,
    ):
        measured = measuring()
        measured.length(30)
        close(measured)
    assert taken == changes_of(recovery_phases)


# -- reader ----------------------------------------------------------------------------------------


def speculating() -> Reader:
    reader = Reader()
    reader.tick(1.0)
    return reader


def test_reader_takes_every_change_of_its_table(taken: set[Change]) -> None:
    Reader().bring(1, 9)
    unreachable = Reader()
    for index in (1, 2, 0):
        unreachable.end(index, DOWN)
    speculating().bring(2, 5, 1.0)
    speculating().bring(2, 9, 1.0)
    speculating().end(2, DOWN, now=1.0)
    busy = Reader()
    for index in (1, 2, 0):
        busy.end(index, BookieStatus.TOO_MANY_REQUESTS)
    busy.tick(1.0)
    assert taken == changes_of(read_phases)


# -- all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [append_phases, read_phases, recovery_phases],
    ids=["append", "read", "recovery"],
)
def test_every_phase_can_be_reached_from_the_first(module: ModuleType) -> None:
    table, phases = module.TRANSITIONS, list(module.Phase)
    assert list(table) == phases, "the table has every phase, in order"
    reached, following = {phases[0]}, [phases[0]]
    while following:
        new = table[following.pop()].keys() - reached
        reached |= new
        following.extend(new)
    assert reached == set(phases)


def test_change_that_is_not_in_the_table_is_refused() -> None:
    writer = writer_with_an_entry()
    with pytest.raises(AssertionError, match=r"goes from Phase\.WRITING to Phase\.CHANGING"):
        writer.machine._enter(Phase.CHANGING)


def test_change_by_an_event_that_the_table_does_not_name_is_refused() -> None:
    writer = writer_with_an_entry()
    writer.machine._event = Append([10])
    with pytest.raises(AssertionError, match=r"Append\(sizes=\[10\]\) leads to Phase\.CLOSED"):
        writer.machine._enter(Phase.CLOSED)
