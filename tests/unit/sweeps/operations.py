"""All operations that are swept."""

from __future__ import annotations

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

OPERATIONS = (
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
