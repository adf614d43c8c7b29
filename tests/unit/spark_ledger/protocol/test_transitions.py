"""The phases of the machines: each table lists exactly the changes that some history takes.

README.md draws the tables, so one that names a change which cannot happen would mislead readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import ModuleType

import pytest

from spark_ledger.errors import LedgerError, NoSuchEntryError
from spark_ledger.protocol import append, read, recovery
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.events import Abandon, LengthUnknown
from spark_ledger.protocol.read import ReadMachine
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.types import BookieStatus, EntryId, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import ledger
from tests.unit.spark_ledger.protocol.reader_driver import Reader
from tests.unit.spark_ledger.protocol.recovery_driver import MARKED, NO, OPEN, Recoverer

Change = tuple[Enum, Enum]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Change]]:
    """Collects the changes of phase that the machines of this test make."""
    changes: set[Change] = set()
    for machine in (AppendMachine, ReadMachine, RecoveryMachine):
        monkeypatch.setattr(machine, "_enter", _recorded(machine._enter, changes))
    yield changes


def _recorded(enter: Callable[..., None], changes: set[Change]) -> Callable[..., None]:
    def enter_and_record(machine: AppendMachine, phase: append.Phase) -> None:
        before = machine.phase
        enter(machine, phase)
        changes.add((before, phase))

    return enter_and_record


def changes_of(table: Mapping[append.Phase, frozenset[append.Phase]]) -> set[Change]:
    return {(before, after) for before, all_after in table.items() for after in all_after}


# -- writer ----------------------------------------------------------------------------------------


def writer_with_an_entry() -> Writer:
    writer = Writer()
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


def close_it(writer: Writer) -> None:
    writer.close()
    writer.metadata_failed()


def test_writer_takes_every_change_of_its_table(taken: set[Change]) -> None:
    writer_with_an_entry().fail(1, BookieStatus.FENCED)
    choosing().choose()
    choosing().fail(2, BookieStatus.FENCED)
    repaired = ledger((3, 3, 2), (0, "b0 b1 b2")).with_changes(creation_token="repaired meanwhile")
    changing().conflict(repaired)
    changing().metadata_failed()
    writer = writer_with_an_entry()
    writer.written(change_of_index_1(writer))
    for writer in (writer_with_an_entry(), choosing(), changing()):
        close_it(writer)
    assert taken == changes_of(append.TRANSITIONS)


@pytest.mark.parametrize(
    "begin", [Writer, choosing, changing], ids=["writing", "choosing", "changing"]
)
def test_writer_abandoned_in_any_phase_ends(begin: Callable[[], Writer]) -> None:
    writer = begin()
    in_flight, error = LedgerError("in flight"), LedgerError("abandoned")
    writer.machine.handle(Abandon(in_flight, error), 0.0)
    assert writer.machine.phase is append.Phase.CLOSED and writer.machine.error is error
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


def test_recovery_takes_every_change_of_its_table(taken: set[Change]) -> None:
    Recoverer(OPEN.with_changes(state=LedgerState.CLOSED))
    Recoverer(MARKED).lac(0, -1, BookieStatus.UNAUTHORIZED)
    reading().end(0, BookieStatus.UNAUTHORIZED, 0)
    empty = reading()
    for index in (0, 1):
        empty.end(index, NO, 0)
    unreadable = LengthUnknown(NoSuchEntryError("entry 3"))
    measuring().machine.handle(unreadable, 0.0)
    measured = measuring()
    measured.length(30)
    measured.written(MARKED.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(3)))
    assert taken == changes_of(recovery.TRANSITIONS)  # type: ignore[arg-type]


# -- reader ----------------------------------------------------------------------------------------


def test_reader_takes_every_change_of_its_table(taken: set[Change]) -> None:
    Reader().bring(1, 9)
    for last in (5, 9):
        reader = Reader()
        reader.tick(1.0)
        reader.bring(2, last, 1.0)
    assert taken == changes_of(read.TRANSITIONS)  # type: ignore[arg-type]


# -- all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [append, read, recovery], ids=["append", "read", "recovery"])
def test_every_phase_can_be_reached_from_the_first(module: ModuleType) -> None:
    table, phases = module.TRANSITIONS, list(module.Phase)
    assert list(table) == phases, "the table has every phase, in order"
    reached, following = {phases[0]}, [phases[0]]
    while following:
        new = table[following.pop()] - reached
        reached |= new
        following.extend(new)
    assert reached == set(phases)


def test_change_that_is_not_in_the_table_is_refused() -> None:
    writer = writer_with_an_entry()
    with pytest.raises(AssertionError, match=r"goes from Phase\.WRITING to Phase\.CHANGING"):
        writer.machine._enter(append.Phase.CHANGING)
