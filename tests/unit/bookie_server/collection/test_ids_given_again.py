"""A lost ledger whose id a restored ZooKeeper has given again, and the new one (rules G2, S17)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from bookie_server.core.copies import CopyGrant
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.base import LogUse
from bookie_server.storage.ledgers import directory_store
from spark_ledger.metadata.collection import CollectionOrder, PassReport
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import access_key_hash
from spark_ledger.wire.shown_keys import copy_key
from tests.unit.bookie_server.collection.cluster import World
from tests.unit.bookie_server.storage.support import (
    Answer,
    Machine,
    expected,
    formatted,
    small_config,
)
from tests.unit.virtual_time import run_in_virtual_time

L, NEIGHBOUR = LedgerId(2), LedgerId(4)
STAYS = LedgerId(3)
"""In another directory than these."""
OLD, NEW = b"o" * 20, b"n" * 20
OK, BUSY = BookieStatus.OK, BookieStatus.TOO_MANY_REQUESTS
CHANGES = ["add", "recovery", "copy", "fence", "last confirmed"]


def config() -> Any:
    return small_config(write_once_bytes=0)


def with_the_lost_ledger(files: MemoryFileSystem) -> Machine:
    machine = Machine(files, config())
    for entry in range(3):  # rows of their own
        assert machine.add(L, [entry], key=OLD) is OK
        machine.flush()
    machine.keys.hashes[L] = access_key_hash(NEW)
    return machine


def send(machine: Machine, what: str) -> list[Answer]:
    """Of the new ledger; the answers, once there are any."""
    if what == "fence":
        return machine.start_fence(L, key=NEW)
    if what == "last confirmed":
        answers: list[Answer] = []
        machine.bookie.write_last_confirmed(
            L,
            EntryId(5),
            access_key=NEW,
            done=lambda status, message: answers.append((status, message)),
        )
        return answers
    if what == "copy":
        key = copy_key(b"c" * 24)
        machine.keys.grants[L] = CopyGrant(access_key_hash(key), access_key_hash(NEW), EntryId(9))
        return machine.start_add(L, [0], key=key, recovery=True)
    return machine.start_add(L, [0], key=NEW, recovery=what == "recovery")


def collected(machine: Machine, *others: LedgerId) -> PassReport:
    """A pass that an operator ordered, over metadata in which the id is that of the new ledger, as
    those of ``others`` are."""
    found: list[PassReport] = []

    async def main() -> None:
        world = World()
        world.shelf = machine.bookie  # type: ignore[assignment]
        for ledger_id in (L, *others):
            await world.name(ledger_id, key=access_key_hash(NEW))
        await world.name(NEIGHBOUR, key=access_key_hash(OLD))
        order = CollectionOrder(token="a", accept_restored=True)
        found.append(await world.collector().run_pass(order))

    run_in_virtual_time(main())
    machine.settle()
    return found[0]


@pytest.mark.parametrize("what", CHANGES)
def test_change_of_the_new_ledger_while_the_lost_one_goes_is_answered_only_if_it_stays(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is let in by the metadata once memory has forgotten the lost one, and would go with it."""
    monkeypatch.setattr(directory_store, "DELETED_ROWS_AT_ONCE", 1)
    files = formatted()
    machine = with_the_lost_ledger(files)
    store, answers = machine.bookie._storage.store_of(L), list[list[Answer]]()
    delete_some = store.delete_some

    def step(*of: Any) -> tuple[int, LogUse]:
        answers.append(send(machine, what))
        machine.settle()
        return delete_some(*of)

    monkeypatch.setattr(store, "delete_some", step)
    report = collected(machine)
    assert (report.aborted, report.deleted) == ("", 1)
    assert [[status for status, _ in each] for each in answers] == [[BUSY]] * len(answers) != []
    assert not machine.held(L)
    later = send(machine, what)
    machine.settle()
    assert [status for status, _ in later] == [OK]
    for _restarted in range(2):
        assert machine.is_fenced(L) is (what == "fence")
        assert machine.held(L) == ({} if what in ("fence", "last confirmed") else expected(L, [0]))
        machine.flush()
        machine = Machine(files.crash_clone(None), config())


@pytest.mark.parametrize("is_in_the_index", [True, False])
def test_kill_behind_the_deletion_brings_nothing_of_the_lost_ledger_to_the_new_one(
    *, is_in_the_index: bool
) -> None:
    """The journal still had its last entries: they would be read as those of the new ledger."""
    files = formatted()
    machine = with_the_lost_ledger(files)
    answers = machine.start_add(L, [3], key=OLD)
    machine.keys.hashes[L] = access_key_hash(NEW)
    if is_in_the_index:  # and its batch comes behind the mark of this flush
        machine.bookie.flush()
    machine.settle()
    assert answers == [(OK, "")]
    assert collected(machine).deleted == 1
    assert machine.add(L, [0], key=NEW) is OK
    after = Machine(files.crash_clone(None), config())
    after.keys.hashes[L] = access_key_hash(NEW)
    assert after.held(L) == expected(L, [0])
    assert after.add(L, [1], key=NEW) is OK
    assert after.add(L, [2], key=OLD) is BookieStatus.UNAUTHORIZED


def full(*_of: object) -> bool:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_lost_ledger_stays_as_it_is_if_its_directory_cannot_be_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = with_the_lost_ledger(formatted())
    assert machine.add(L, [3], key=OLD) is OK
    with monkeypatch.context() as patch:
        patch.setattr(machine.bookie._storage.store_of(L), "flush", full)
        report = collected(machine)
    assert "No space" in report.aborted and report.deleted == 0
    assert machine.held(L) == expected(L, range(4))
    assert machine.add(L, [0], key=NEW) is BookieStatus.UNAUTHORIZED, "and not busy for ever"
    assert collected(machine).deleted == 1


def test_lost_ledgers_go_though_another_directory_cannot_be_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a full disk it is deletions that make room, also those of one batch with what stays."""
    machine = with_the_lost_ledger(formatted())
    machine.keys.hashes.clear()
    for ledger_id in (STAYS, NEIGHBOUR):
        assert machine.add(ledger_id, [0], key=OLD) is OK
    machine.flush()
    machine.keys.hashes.update(dict.fromkeys((L, STAYS), access_key_hash(NEW)))
    with monkeypatch.context() as patch:
        patch.setattr(machine.bookie._storage.store_of(STAYS), "flush", full)
        assert machine.add(STAYS, [1], key=OLD) is OK
        report = collected(machine, STAYS)
    assert "No space" in report.aborted
    assert not machine.held(L)
    assert machine.held(STAYS) == expected(STAYS, range(2))
    assert machine.held(NEIGHBOUR) == expected(NEIGHBOUR, [0])
    with monkeypatch.context() as patch:
        patch.setattr(machine.bookie._storage.store_of(L), "flush", full)
        report = collected(machine, STAYS)
    assert (report.aborted, report.deleted) == ("", 1)
    assert not machine.held(STAYS)


def test_ledgers_that_the_metadata_do_not_have_at_all_are_refused_by_them_at_once() -> None:
    """Nobody has to come again, and a full disk, which takes no flush, gets room."""

    async def main() -> None:
        world = World()
        await world.make(1, 2, 3)
        await world.delete(2)
        going: list[bool] = []
        world.shelf.before_delete = lambda: going.append(2 in world.shelf.giving_back)
        report = await world.collector().run_pass()
        assert (report.aborted, report.deleted, going) == ("", 1, [False])
        assert world.shelf.deleted_as_reused == []

    run_in_virtual_time(main())
