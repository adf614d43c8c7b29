"""All operations that are swept."""

from __future__ import annotations

from tests.unit.sweeps.base import Operation
from tests.unit.sweeps.duties import DUTIES
from tests.unit.sweeps.keeping import (
    KeepABookieRegistered,
    KeepAKeeper,
    KeepAnOwner,
    RepairALedger,
    RunAKeeper,
    StartABookie,
)
from tests.unit.sweeps.ledgers import RecoverALedger, ReplaceABookie, TailALedger, WriteALedger
from tests.unit.sweeps.streams import (
    AppendALongList,
    AppendRows,
    AppendRowsWithoutAName,
    AppendToTwoStreams,
    CreateAStream,
    DeleteAStream,
    MergeASchema,
    ReadRows,
    SealCommits,
    TailRows,
)

OPERATIONS: tuple[type[Operation], ...] = (
    WriteALedger,
    RecoverALedger,
    ReplaceABookie,
    TailALedger,
    AppendRows,
    AppendRowsWithoutAName,
    AppendALongList,
    SealCommits,
    ReadRows,
    TailRows,
    MergeASchema,
    CreateAStream,
    DeleteAStream,
    RunAKeeper,
    KeepAKeeper,
    KeepAnOwner,
    KeepABookieRegistered,
    StartABookie,
    RepairALedger,
    AppendToTwoStreams,
    *DUTIES,
)

OVERTAKEN = tuple(each for each in OPERATIONS if each.overtake is not Operation.overtake)
"""Those that somebody else may do at the same time, as keepers that follow each other."""
