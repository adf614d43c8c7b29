"""What a writer can be doing, and which event takes it from one phase to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from spark_ledger.protocol.events import (
    Abandon,
    AddFailed,
    Append,
    BookiesChosen,
    Close,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataUnread,
    MetadataWritten,
    Tick,
)


class Phase(Enum):
    """What the writer is doing. CHOOSING and CHANGING are one ensemble change; LAC stays while it
    is CHANGING."""

    WRITING = auto()
    CHOOSING = auto()
    CHANGING = auto()
    CLOSING = auto()
    CLOSED = auto()


ENDING: Final = (Phase.CLOSING, Phase.CLOSED)
"""The phases in which no entry is taken or confirmed any more."""

_CHANGE_ENDS: Final = (BookiesChosen, MetadataWritten, MetadataConflict)
"""What can end an ensemble change. The failures that are left decide in the same step whether the
writer stays in WRITING, changes its ensemble again, or gives up (rules P8 and P10)."""

_STOPS: Final = (MetadataRead, MetadataUnread, Abandon)
"""What can stop a writer in any phase but CLOSING: a fence that the metadata confirm, or cannot
deny (rule P18), and its own end."""

TRANSITIONS: Final[Mapping[Phase, Mapping[Phase, tuple[type, ...]]]] = {
    Phase.WRITING: {
        Phase.CHOOSING: (Append, AddFailed, Tick, MetadataRead, *_CHANGE_ENDS),
        Phase.CLOSING: (Close, AddFailed, Tick, MetadataRead, *_CHANGE_ENDS),
        Phase.CLOSED: _STOPS,
    },
    Phase.CHOOSING: {
        Phase.WRITING: (BookiesChosen,),
        Phase.CHANGING: (BookiesChosen,),
        Phase.CLOSING: (BookiesChosen, Close),
        Phase.CLOSED: _STOPS,
    },
    Phase.CHANGING: {
        Phase.WRITING: (MetadataFailed, *_CHANGE_ENDS),
        Phase.CHANGING: (MetadataConflict,),
        Phase.CLOSING: (MetadataConflict, MetadataFailed, Close),
        Phase.CLOSED: (MetadataConflict, MetadataFailed, *_STOPS),
    },
    Phase.CLOSING: {
        Phase.CLOSED: (MetadataWritten, MetadataConflict, MetadataFailed, Abandon),
    },
    Phase.CLOSED: {},
}
"""Where a writer may go from each phase, and the events that may take it there. Every change of
phase is checked against it.

The way back to WRITING leads through the end of a change only, and nothing leads back from CLOSING:
a ledger whose close was asked for may be closed already (rule P17). CHANGING follows itself when
the compare-and-set lost against a repair of an older fragment and is done again. BookiesChosen ends
a change without a metadata write when it replaces nobody, or puts a failed bookie back at its own
index from the same entry on (rule P10). So does MetadataFailed when the metadata have no room.
"""
