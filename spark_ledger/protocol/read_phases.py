"""What a reader can be doing, and which event takes it from one phase to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from spark_ledger.protocol.events import EntriesRead, ReadEnded, Tick


class Phase(Enum):
    """What the reader is doing: SPECULATING means that several replicas are asked at once."""

    READING = auto()
    SPECULATING = auto()
    ENDED = auto()


TRANSITIONS: Final[Mapping[Phase, Mapping[Phase, tuple[type, ...]]]] = {
    Phase.READING: {
        Phase.SPECULATING: (Tick,),
        Phase.ENDED: (EntriesRead, ReadEnded),
    },
    Phase.SPECULATING: {
        Phase.READING: (EntriesRead, ReadEnded),
        Phase.ENDED: (EntriesRead,),
    },
    Phase.ENDED: {},
}
"""Where a reader may go from each phase, and the events that may take it there. Every change of
phase is checked against it.

A reader that fails comes from READING always: it has asked one replica after the other until the
last of them has ended, speculation or not.
"""
