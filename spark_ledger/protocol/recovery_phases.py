"""Where a recovery can be, and which event takes it from one phase to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    BookiesChosen,
    EntriesRead,
    LastConfirmedAnswer,
    LengthRead,
    LengthUnknown,
    MetadataConflict,
    MetadataFailed,
    MetadataWritten,
    ReadEnded,
    Start,
    Tick,
)


class Phase(Enum):
    """Where recovery is."""

    MARKING = auto()
    FENCING = auto()
    PROVING = auto()
    READING = auto()
    MEASURING = auto()
    CLOSING = auto()
    ENDED = auto()


TRANSITIONS: Final[Mapping[Phase, Mapping[Phase, tuple[type, ...]]]] = {
    Phase.MARKING: {
        Phase.FENCING: (Start, MetadataWritten, MetadataConflict),
        Phase.ENDED: (Start, MetadataConflict, MetadataFailed),
    },
    Phase.FENCING: {
        Phase.PROVING: (LastConfirmedAnswer,),
        Phase.READING: (LastConfirmedAnswer,),
        Phase.ENDED: (LastConfirmedAnswer,),
    },
    Phase.PROVING: {
        Phase.READING: (LengthRead, LengthUnknown),
    },
    Phase.READING: {
        Phase.MEASURING: (ReadEnded, AddAcknowledged, BookiesChosen),
        Phase.CLOSING: (ReadEnded,),
        Phase.ENDED: (EntriesRead, ReadEnded, AddFailed, BookiesChosen, Tick),
    },
    Phase.MEASURING: {
        Phase.CLOSING: (LengthRead,),
        Phase.ENDED: (LengthUnknown,),
    },
    Phase.CLOSING: {
        Phase.ENDED: (MetadataWritten, MetadataConflict, MetadataFailed),
    },
    Phase.ENDED: {},
}
"""Where a recovery may go from each phase, and the events that may take it there. Every change of
phase is checked against it.

It only goes forward. A recovery that cannot go on fails and is started again by whoever wants the
ledger: what it fenced and wrote back stays, so the next one has less to do. READING leads straight
to CLOSING when the ledger is empty: then there is nothing to measure. PROVING is left out when no
bookie knows of anything confirmed. EntriesRead can end READING
where lanes differ: the lane that it moves on may leave another one, whose replicas have all ended
without enough denials, as the lane that has come least far (rule P14).
"""
