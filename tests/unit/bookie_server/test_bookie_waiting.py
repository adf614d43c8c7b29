"""Adds that wait for room keep their place: nobody is served before them once there is room."""

from __future__ import annotations

import pytest

from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.support import Machine, formatted

LEDGER = 7
ENTRY_BYTES = 4096


def fill(machine: Machine) -> int:
    """Add entries until the ledger's directory takes no more; the next entry id."""
    storage = machine.bookie._storage
    store = storage.store_of(LedgerId(LEDGER))
    for entry_id in range(100):
        if storage.is_full(LedgerId(LEDGER)):
            return entry_id
        if store.cache.active_bytes >= 4 * ENTRY_BYTES and not store.cache.is_frozen:
            store._freeze(machine.bookie._journal.durable_mark)
        assert machine.add(LEDGER, [entry_id], size=ENTRY_BYTES) is BookieStatus.OK
    raise AssertionError("the cache never fills")


def test_the_caches_of_all_directories_share_what_is_allowed() -> None:
    machine = Machine(formatted())  # 64 KiB for two generations in each of two directories
    fill(machine)
    assert machine.bookie.stats().engine.cache_bytes <= 2 * (16 * 1024 + ENTRY_BYTES + 100)


def test_an_add_that_finds_room_waits_behind_those_that_wait() -> None:
    """The flush has made room, and the service thread has not heard of it yet."""
    machine = Machine(formatted())
    first = fill(machine)
    waiting = machine.start_add(LEDGER, [first], size=ENTRY_BYTES)
    machine.bookie._storage.flush()
    assert not machine.bookie._storage.is_full(LedgerId(LEDGER))
    later = machine.start_add(LEDGER, [first + 1], size=ENTRY_BYTES)
    machine.settle()
    assert (waiting, later) == ([], []), "the later one was served first"
    machine.flush()
    assert (waiting, later) == ([(BookieStatus.OK, "")], [(BookieStatus.OK, "")])
    assert sorted(machine.held(LEDGER)) == list(range(first + 2))


def test_adds_that_still_wait_are_refused_when_the_bookie_closes() -> None:
    machine = Machine(formatted())
    first = fill(machine)
    waiting = machine.start_add(LEDGER, [first], size=ENTRY_BYTES)
    machine.close()
    assert waiting == [(BookieStatus.IO_ERROR, "the bookie is shutting down")]


def test_a_flush_is_asked_for_as_soon_as_it_is_needed() -> None:
    """Not only at the next interval: until then nobody could add."""
    machine = Machine(formatted())
    first = fill(machine)
    wanted = machine.bookie._storage._wanted
    assert wanted.is_set(), "the cache is full"
    machine.start_add(LEDGER, [first], size=ENTRY_BYTES)
    wanted.clear()
    machine.bookie.on_flushed()  # of another directory
    assert wanted.is_set()
    assert machine.bookie.stats().adds_waiting == 1, "there is no room for it yet"


def test_after_a_flush_that_works_a_full_cache_is_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_store: DirectoryStore, _mark: Mark) -> bool:
        raise OSError("no room")

    machine = Machine(formatted())
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "flush", fail)
        with pytest.raises(OSError, match="no room"):
            machine.flush()
    assert machine.bookie.stats().failure == "no room"
    machine.flush()
    assert machine.bookie.stats().failure == ""
    first = fill(machine)
    assert machine.start_add(LEDGER, [first], size=ENTRY_BYTES) == [], "it waits"


def test_an_add_that_is_refused_for_want_of_room_holds_no_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else no stream would be read again, however much room there is later."""

    def fail(_store: DirectoryStore, _mark: Mark) -> bool:
        raise OSError("no room")

    machine = Machine(formatted())
    first = fill(machine)
    waiting = machine.start_add(LEDGER, [first], size=ENTRY_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "flush", fail)
        with pytest.raises(OSError, match="no room"):
            machine.bookie._storage.flush()
    refused = machine.start_add(LEDGER, [first + 1], size=ENTRY_BYTES)
    assert refused == [(BookieStatus.IO_ERROR, "flush fails: no room")]
    assert machine.bookie.append_bytes_in_flight == ENTRY_BYTES, "of the one that waits"
    machine.bookie.on_flushed()
    assert waiting == [(BookieStatus.IO_ERROR, "flush fails: no room")]
    assert machine.bookie.append_bytes_in_flight == 0
