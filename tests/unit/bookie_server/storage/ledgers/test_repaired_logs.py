"""A log that could not be copied is copied once copies of its damaged blocks came (rule S20), and
one that may have what a healed index has lost stays until then (rule S24)."""

from __future__ import annotations

from typing import NoReturn

import pytest

from bookie_server.storage.ledgers import directory_space
from bookie_server.storage.ledgers.compaction import DirectoryUse
from bookie_server.storage.ledgers.entry_log import log_path
from bookie_server.storage.ledgers.lacking import NO_LOG, Lack
from spark_ledger.limits import KIB
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
from tests.unit.bookie_server.storage.support import Machine, expected, formatted, small_config

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


# -- behind a healed index -------------------------------------------------------------------------


def lost(*ledgers: int) -> list[Lack]:
    """What a healed index has lost: all of these ledgers, wherever it was."""
    return [Lack(LedgerId(each), EntryId(0), EntryId(9), NO_LOG) for each in ledgers]


def with_logs_of(machine: Machine, *ledgers: int) -> list[int]:
    """A log for each of these ledgers, which are deleted then."""
    before = logs(machine)[0]
    for each in ledgers:
        assert machine.add(each, IDS, size=500) is BookieStatus.OK
        machine.flush()
    delete(machine, *ledgers)
    return [each for each in logs(machine)[0] if each not in before]


def test_only_logs_that_have_blocks_of_a_ledger_that_a_healed_index_lost_stay(
    small: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy may never come. What retention deletes meanwhile must not fill the disk."""
    lacking = small.bookie._storage._stores[0].lacking
    stays, goes = with_logs_of(small, 4, 6)
    lacking.add(lost(4))
    for ledger_id in (8, 10):
        with_logs_of(small, ledger_id)
        compact(small)
        assert logs(small)[0] == [stays], f"{goes} and what came later is free of ledger 4"
    compact(small)
    assert len([each for each in caplog.records if "of ledger 4" in each.message]) == 1
    lacking.remove(lost(4))
    compact(small)
    assert logs(small)[0] == []


def taken(machine: Machine, log_id: int) -> int:
    file = files_of(machine).open(log_path(EVEN, log_id))
    return file.size() - file.hole_bytes()


def test_log_of_a_healed_index_is_neither_copied_nor_cut_and_others_are() -> None:
    machine = Machine(formatted(), small_config(entry_log_bytes=64 * KIB, write_once_bytes=0))
    for ledgers in ((2, 4), (6, 8), (10,)):
        for each in ledgers:
            size = 4000 if each in (2, 6) else 3000
            assert machine.add(each, IDS, size=size) is BookieStatus.OK
        machine.flush()
    assert logs(machine)[0] == [1, 2, 3]
    before = taken(machine, 1)
    machine.bookie._storage._stores[0].lacking.add(lost(4))
    delete(machine, 2, 6)
    for _again in range(2):
        compact(machine)
        assert taken(machine, 1) == before
    stats = machine.bookie.stats().ledger_storage.compaction
    assert 30 * KIB < stats.given_back_bytes < 45 * KIB, "of ledger 6"
    assert 30 * KIB > stats.copied_bytes > 20 * KIB, "of ledger 8"
    delete(machine, 8)
    compact(machine)
    assert logs(machine)[0] == [1, 3]
    assert machine.held(4) == expected(4, IDS, 3000)


def test_ledger_that_is_lost_later_is_looked_for_again(small: Machine) -> None:
    lacking = small.bookie._storage._stores[0].lacking
    of_4, of_6 = with_logs_of(small, 4, 6)
    lacking.add(lost(4, 6))
    compact(small)
    assert logs(small)[0] == [of_4, of_6]
    lacking.remove(lost(6))
    compact(small)
    assert logs(small)[0] == [of_4], "copies of 6 came"
    (of_8,) = with_logs_of(small, 8)
    lacking.add(lost(8))
    compact(small)
    assert logs(small)[0] == [of_4, of_8]


def test_logs_that_stay_are_read_once(small: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at what is dead would read all of them."""
    with_logs_of(small, 4)
    small.bookie._storage._stores[0].lacking.add(lost(4))
    compact(small)

    def read_again(*given: object) -> NoReturn:
        raise AssertionError(f"read again: {given}")

    monkeypatch.setattr(directory_space, "scan_blocks", read_again)
    compact(small)
    assert len(logs(small)[0]) == 1


def test_log_that_cannot_be_read_stays_while_a_healed_index_lacks_anything(small: Machine) -> None:
    (log_id,) = with_logs_of(small, 6)
    small.bookie._storage._stores[0].lacking.add(lost(4))
    files_of(small).damage(log_path(EVEN, log_id), 10, b"~~~~")
    small.bookie._storage._stores[0]._reader.close()
    for _again in range(2):
        compact(small)
        assert logs(small)[0] == [log_id]
    small.bookie._storage._stores[0].lacking.remove(lost(4))
    compact(small)
    assert logs(small)[0] == []
