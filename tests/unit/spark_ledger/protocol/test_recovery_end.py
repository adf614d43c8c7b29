"""A recovery that has ended: nothing that still arrives makes it speak again."""

from __future__ import annotations

import pytest

from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.protocol.events import (
    AddAcknowledged,
    BookiesChosen,
    EntriesRead,
    Event,
    Failed,
    LastConfirmedAnswer,
    LengthRead,
    MetadataConflict,
    MetadataFailed,
    MetadataWritten,
    Tick,
)
from spark_ledger.protocol.recovery import Phase
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.unit.spark_ledger.protocol.ledgers import one
from tests.unit.spark_ledger.protocol.test_recovery import MARKED, OPEN, Recoverer

AWAY = MetadataFailed(MetadataUnavailableError("away"))


@pytest.mark.parametrize(
    "late",
    [
        AWAY,
        MetadataWritten(MARKED, 9),
        MetadataConflict(OPEN, 9),
        LastConfirmedAnswer(2, BookieStatus.OK, EntryId(5)),
        EntriesRead(0, 0, EntryId(3)),
        AddAcknowledged(0, BookieId("b0"), EntryId(3)),
        BookiesChosen({0: BookieId("b7")}),
        LengthRead(7),
        Tick(),
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("reading", [True, False])
def test_what_comes_late_changes_nothing(late: Event, reading: bool) -> None:
    recoverer = Recoverer()
    if reading:
        recoverer.fenced()
    one(recoverer.machine.handle(AWAY, 0.0), Failed)
    assert recoverer.machine.handle(late, 100.0) == []
    assert recoverer.machine.phase is Phase.ENDED
