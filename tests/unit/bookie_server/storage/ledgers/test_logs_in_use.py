"""Which logs are in use, which ids were used, and what is held of a log that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_server.storage.blocks import encode_run
from bookie_server.storage.journal.waiting import RunPlace
from bookie_server.storage.ledgers.entry_log import log_ids, log_path
from bookie_server.storage.ledgers.write_cache import CachedRun, WriteCache
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.ledgers.test_compaction import (
    EVEN,
    compact,
    delete,
    files_of,
    logs,
    mixed,
)
from tests.unit.bookie_server.storage.support import (
    Machine,
    expected,
    formatted,
    make_run,
    small_config,
)

CONFIG = small_config(entry_log_bytes=5300, write_once_bytes=0)


@pytest.mark.parametrize("deleted", [(2, 4), (2, 4, 6)])
def test_log_that_is_read_until_it_goes_is_not_kept_open_by_the_bookie(
    deleted: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has found its row a moment ago opens it as late as can be: it would take its space
    for as long as the bookie runs."""
    machine = Machine(formatted(), CONFIG)
    mixed(machine)
    files, reader = files_of(machine), machine.bookie._storage._stores[0]._reader
    real, removed = files.remove, list[int]()

    def remove(path: Path) -> None:
        for log_id in log_ids(files, EVEN):
            if path == log_path(EVEN, log_id):
                reader.open_log(log_id)
                removed.append(log_id)
        real(path)

    delete(machine, *deleted)
    monkeypatch.setattr(files, "remove", remove)
    compact(machine)
    assert removed == [1, 2, 3]
    assert reader._files.keys() <= set(log_ids(files, EVEN))


def test_id_of_a_log_that_is_gone_is_not_used_again_after_a_restart() -> None:
    """A reader with a row of before would find another block there (rule S4)."""
    machine = Machine(formatted(), CONFIG)
    mixed(machine)
    delete(machine, 2, 4, 6)
    compact(machine)
    assert logs(machine)[0] == []
    machine.close()
    again = Machine(files_of(machine), CONFIG)
    assert again.add(8, [0]) is BookieStatus.OK
    again.flush()
    assert logs(again)[0] == [4]


def test_log_that_was_removed_is_held_open_by_nobody() -> None:
    """Its blocks would stay on the disk until the process ends."""
    machine = Machine(formatted(), CONFIG)
    mixed(machine)
    for ledger_id in (2, 4, 6):
        assert len(machine.held(ledger_id)) == 30
    reader = machine.bookie._storage._stores[0]._reader
    assert reader._files.keys() == {1, 2, 3}
    delete(machine, 2, 4)
    compact(machine)
    assert machine.held(6) == expected(6, range(30))
    assert reader._files.keys() <= set(logs(machine)[0])


def test_logs_that_one_flush_has_filled_are_freed_as_all_others() -> None:
    machine = Machine(formatted(), small_config(entry_log_bytes=9000, write_once_bytes=0))
    ledgers = (2, 4, 6, 8)
    for ledger_id in ledgers:
        assert machine.add(ledger_id, [0], size=6000) is BookieStatus.OK
    machine.flush()
    assert len(logs(machine)[0]) > 1
    delete(machine, *ledgers)
    compact(machine)
    assert logs(machine)[0] == []


@pytest.mark.parametrize("kind", ["active", "placed", "frozen"])
def test_ledger_that_is_forgotten_counts_no_more(kind: str) -> None:
    """A count that stays would have adds wait, or flushes come, for nothing."""
    cache = WriteCache()
    place = RunPlace(0) if kind == "placed" else None
    for ledger_id in (2, 4):
        for first in (0, 10, 5):
            run = make_run(ledger_id, range(first, first + 8))
            cache.add(CachedRun(run, NO_ENTRY, encode_run(run, NO_ENTRY), place))
        if ledger_id == 2:
            counts = cache.byte_count, cache.run_count
    if kind == "frozen":
        cache.freeze()
    cache.forget(frozenset({LedgerId(4), LedgerId(6)}))
    assert (cache.byte_count, cache.run_count) == counts
    assert cache.find(LedgerId(4), EntryId(3)) is None and cache.runs_of(LedgerId(4)) == []
    assert len(cache.runs_of(LedgerId(2))) == 3
    run = make_run(4, [0])
    cache.add(CachedRun(run, NO_ENTRY, encode_run(run, NO_ENTRY)))
    assert cache.run_count == counts[1], "until it is remembered"
    cache.remember()
    cache.add(CachedRun(run, NO_ENTRY, encode_run(run, NO_ENTRY)))
    assert cache.run_count == counts[1] + 1
