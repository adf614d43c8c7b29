"""Whether this bookie holds the entries of an add already, and whether they are the same ones.

An entry has one frame for ever (rule P2), so whoever sends an entry again sends the same bytes.
Other bytes under the same id are another entry: that of a ledger whose id was given twice, of a
client with a bug, of an attacker. To acknowledge it would be a promise that reads do not keep,
since the first one stays (rules P3 and S8).
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_server.storage.ledgers.slicing import part_of
from spark_ledger.bookie_api import Refusal
from spark_ledger.errors import CorruptionError
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId

RunWith = Callable[[LedgerId, EntryId], EntryRun | None]
"""The run that holds an entry of a ledger; see ``LedgerStorage.run_with``."""

MayHold = Callable[[LedgerId, EntryId, EntryId], bool]
"""Whether entries from one to another one of a ledger may be held. Raises as
``LedgerStorage.run_with``."""


def compare_with_held(
    run_with: RunWith, may_hold: MayHold, run: EntryRun, last_entry: EntryId
) -> bool | Refusal:
    """Whether each entry of a run is held already; a refusal if one is held with other bytes.

    ``last_entry`` is the highest entry that is held of the ledger. What cannot be read cannot be
    compared, and nothing is acknowledged that was not.

    Behind an entry that is not held it is asked whether any other one may be, and again behind
    twice as many: repair copies thousands in a run, and most often none of them is held.
    """
    held: dict[EntryId, memoryview] = {}
    is_whole = True
    missed, asks_at = 0, 1
    for entry_id, frame in run.split():
        if entry_id > last_entry:
            return False
        if entry_id not in held:
            try:
                found = run_with(run.ledger_id, entry_id)
                if found is None:
                    missed += 1
                    if missed == asks_at:
                        asks_at *= 2
                        if not may_hold(run.ledger_id, entry_id, run.last_entry):
                            return False
            except (OSError, CorruptionError) as error:
                return Refusal(BookieStatus.IO_ERROR, str(error))
            held = {} if found is None else dict(part_of(found, entry_id, run.last_entry).split())
        if entry_id not in held:
            is_whole = False
        elif held[entry_id] != frame:
            return Refusal(
                BookieStatus.ENTRY_CONFLICT,
                f"ledger {run.ledger_id} entry {entry_id} is held here with other bytes: its id "
                "was given to two entries",
            )
    return is_whole
