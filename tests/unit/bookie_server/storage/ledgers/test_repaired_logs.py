"""A log that could not be copied is copied once copies of its damaged blocks came (rule S20)."""

from __future__ import annotations

import pytest

from bookie_server.storage.ledgers.compaction import DirectoryUse
from bookie_server.storage.ledgers.entry_log import log_path
from bookie_server.storage.ledgers.lacking import NO_LOG, Lack
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.ledgers.test_compaction import (
    EVEN,
    compact,
    delete,
    files_of,
    logs,
    mixed,
)
from tests.unit.bookie_server.storage.ledgers.test_compaction import small as small
from tests.unit.bookie_server.storage.support import Machine, expected

IDS = range(10)
LOG = 1


def use_of(machine: Machine) -> DirectoryUse:
    return machine.bookie.stats().ledger_storage.compaction.directories[0]


def with_a_bad_log(machine: Machine, how: str) -> None:
    """Ledgers 4 and 6 in one log; that of 6 is damaged, and compaction has met it."""
    mixed(machine, rounds=1)
    delete(machine, 2)
    storage = machine.bookie._storage
    if how == "block":
        (row,) = storage._stores[0].index.rows(LedgerId(6))
        files_of(machine).damage(log_path(EVEN, LOG), row.location.offset + 100, b"~")
    else:
        files_of(machine).remove(log_path(EVEN, LOG))
    storage._stores[0]._reader.close()
    compact(machine)
    assert use_of(machine).damaged_logs == 1


@pytest.mark.parametrize("looked_between", [False, True])
@pytest.mark.parametrize("how", ["block", "log"])
def test_log_counts_as_damaged_until_copies_came(
    small: Machine, how: str, looked_between: bool
) -> None:
    with_a_bad_log(small, how)
    small.bookie._storage.scrubber.run_once()
    if looked_between:
        compact(small)
        assert use_of(small).damaged_logs == (how == "block"), "no row names one that is gone"
    for ledger_id in small.bookie.lacking.ledgers():
        assert small.add(ledger_id, IDS, recovery=True) is BookieStatus.OK
        small.flush()
        assert small.bookie.lacking.refetched(small.bookie.lacking.of(ledger_id)) == 1
    compact(small)
    assert LOG not in logs(small)[0]
    assert use_of(small).damaged_logs == 0
    for held in (4, 6):
        assert small.held(held) == expected(held, IDS)


def test_log_that_cannot_be_copied_is_tried_again_once_a_damaged_index_was_healed(
    small: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be the index that was damaged, and not the log."""
    with_a_bad_log(small, "block")
    lacking = small.bookie._storage._stores[0].lacking
    lacks = [Lack(LedgerId(each), EntryId(0), EntryId(9), NO_LOG) for each in (4, 6)]
    lacking.add(lacks)
    compact(small)
    caplog.clear()
    lacking.remove(lacks)
    for _again in range(3):
        compact(small)
    assert len([each for each in caplog.records if "stays" in each.message]) == 1


def test_damaged_log_counts_no_more_once_its_ledgers_are_deleted(small: Machine) -> None:
    with_a_bad_log(small, "block")
    delete(small, 4, 6)
    compact(small)
    assert (use_of(small).damaged_logs, logs(small)[0]) == (0, [])
