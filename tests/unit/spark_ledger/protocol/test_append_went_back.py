"""A writer whose ledger went back: its metadata are those of a store restored from a backup."""

from __future__ import annotations

import pytest

from spark_ledger.errors import AddOutcomeUnknownError, MetadataRestoredError
from spark_ledger.protocol.append_phases import Phase
from spark_ledger.protocol.events import Done, Failed, FailEntries, WriteMetadata
from spark_ledger.types import LedgerMetadata, LedgerState
from tests.unit.spark_ledger.protocol.append_driver import Writer, change_of_index_1
from tests.unit.spark_ledger.protocol.ledgers import ledger, one, only

CHANGED = (0, "b0 b1 b2"), (2, "b0 b3 b2")
BEFORE = ledger((3, 3, 2), CHANGED[0])
AFTER = ledger((3, 3, 2), *CHANGED)
OTHER = AFTER.with_changes(incarnation=b"another ledger's")
MOVED = ledger((3, 3, 2), (0, "b0 b1 b5"), CHANGED[1])
CLOSED_HERE = {"state": LedgerState.CLOSED, "last_entry_id": 2, "length": 30}

WENT_BACK = pytest.mark.parametrize(
    ("stored", "version"),
    [
        (BEFORE, 4),
        (BEFORE, 9),
        (AFTER, 4),
        (MOVED, 5),
        (OTHER, 9),
        (OTHER.with_changes(**CLOSED_HERE), 9),
        (BEFORE.with_changes(**CLOSED_HERE), 9),
    ],
    ids=[
        "older",
        "without a fragment",
        "lower",
        "another of the version",
        "another ledger",
        "another ledger, closed",
        "closed without a fragment",
    ],
)


def writer_behind_a_change() -> Writer:
    """It has version 5, two fragments, and entries 0 to 2 are confirmed."""
    writer = Writer()
    writer.add(2)
    writer.ack_all()
    writer.add()
    writer.written(change_of_index_1(writer))
    writer.ack_all()
    assert writer.machine.last_add_confirmed == 2
    assert [f.first_entry for f in writer.machine.metadata.fragments] == [0, 2]
    return writer


@WENT_BACK
def test_writer_whose_change_meets_metadata_that_went_back_stops(
    stored: LedgerMetadata, version: int
) -> None:
    """A change on top of them would give confirmed entries to bookies that do not hold them."""
    writer = writer_behind_a_change()
    writer.add()
    writer.fail(0)
    one(writer.choose(i0="b4"), WriteMetadata)
    commands = writer.conflict(stored, version)
    error = one(commands, FailEntries).error
    assert isinstance(error, AddOutcomeUnknownError)
    assert isinstance(error.__cause__, MetadataRestoredError)
    assert "`ledger cluster restored`" in str(error)
    assert not only(commands, WriteMetadata) and writer.machine.phase is Phase.CLOSED


@WENT_BACK
def test_close_that_meets_metadata_that_went_back_fails(
    stored: LedgerMetadata, version: int
) -> None:
    writer = writer_behind_a_change()
    one(writer.close(), WriteMetadata)
    commands = writer.conflict(stored, version)
    assert isinstance(one(commands, Failed).error, MetadataRestoredError)
    assert not only(commands, WriteMetadata) and writer.machine.phase is Phase.CLOSED


@pytest.mark.parametrize(
    ("stored", "version"),
    [(AFTER, 5), (MOVED, 6), (ledger((3, 3, 2), *CHANGED, (3, "b0 b4 b2")), 6)],
    ids=["not written", "an older fragment was repaired", "written, and a reply lost"],
)
def test_change_that_meets_what_may_follow_its_metadata_goes_on(
    stored: LedgerMetadata, version: int
) -> None:
    writer = writer_behind_a_change()
    writer.add()
    writer.fail(0)
    one(writer.choose(i0="b4"), WriteMetadata)
    commands = writer.conflict(stored, version)
    assert writer.machine.error is None
    assert one(commands, WriteMetadata).metadata.fragments[:-1] == stored.fragments[:2]


def test_close_that_meets_its_own_end_is_done() -> None:
    writer = writer_behind_a_change()
    one(writer.close(), WriteMetadata)
    assert one(writer.conflict(MOVED.with_changes(**CLOSED_HERE), 9), Done).metadata.is_closed
