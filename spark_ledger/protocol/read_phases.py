"""What a reader can be doing, and which event takes it from one phase to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from spark_ledger.protocol.events import EntriesRead, ReadEnded, Tick


class Phase(Enum):
    """What the reader is doing: SPECULATING means that several replicas are asked at once, WAITING
    that none is, because those that may have the entry are busy."""

    READING = auto()
    SPECULATING = auto()
    WAITING = auto()
    ENDED = auto()


TRANSITIONS: Final[Mapping[Phase, Mapping[Phase, tuple[type, ...]]]] = {
    Phase.READING: {
        Phase.SPECULATING: (Tick,),
        Phase.WAITING: (ReadEnded,),
        Phase.ENDED: (EntriesRead, ReadEnded),
    },
    Phase.SPECULATING: {
        Phase.READING: (EntriesRead, ReadEnded),
        Phase.ENDED: (EntriesRead,),
    },
    Phase.WAITING: {
        Phase.READING: (Tick,),
    },
    Phase.ENDED: {},
}
"""Where a reader may go from each phase, and the events that may take it there. Every change of
phase is checked against it.

A reader that fails comes from READING always: it has asked one replica after the other until the
last of them has ended, speculation or not.
"""
