"""A bookie takes copies of a ledger whose key the sender does not know, and nothing else of it."""

from __future__ import annotations

import asyncio

import pytest

from bookie_server.core.copies import CopyGrant, grant_of
from bookie_server.first_contact import CopyAnswer, NoLedgers
from bookie_server.ledger_keys import MetadataKeys
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.bookie_api import Refusal
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.repair_locks import RepairLock, lock_path
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from spark_ledger.wire.frame import access_key_hash
from spark_ledger.wire.shown_keys import copy_key, hash_as_key
from tests.listed import listed
from tests.unit.bookie_server.storage.support import Machine, expected, formatted, make_run

OK, UNAUTHORIZED = BookieStatus.OK, BookieStatus.UNAUTHORIZED
KEY = b"the key of the ledger"
COPIES = copy_key(b"c" * 24)
L = LedgerId(7)


@pytest.fixture
def machine() -> Machine:
    made = Machine(formatted())
    made.keys.learn(7, KEY)
    made.keys.grants[7] = CopyGrant(access_key_hash(COPIES), access_key_hash(KEY), EntryId(9))
    return made


def test_copy_of_who_holds_the_lock_is_stored_under_the_ledgers_own_key(machine: Machine) -> None:
    assert machine.add(7, [3, 4], key=COPIES, recovery=True) is OK
    assert machine.held(7) == expected(7, [3, 4])
    assert machine.add(7, [10], key=KEY) is OK, "the record has the ledger's key"
    assert machine.add(7, [5], key=COPIES, recovery=True) is OK, "also with a record"
    assert machine.fence(7, key=KEY) is OK
    assert machine.add(7, [6], key=COPIES, recovery=True) is OK, "copies pass a fence"


@pytest.mark.parametrize("known", [False, True])
def test_copy_key_of_another_lock_stores_nothing(machine: Machine, *, known: bool) -> None:
    if known:
        assert machine.add(7, [0], key=KEY) is OK
    held = machine.held(7)
    assert machine.add(7, [3], key=copy_key(b"x" * 24), recovery=True) is UNAUTHORIZED
    machine.keys.grants.clear()
    assert machine.add(7, [3], key=COPIES, recovery=True) is UNAUTHORIZED, "the lock is gone"
    assert machine.held(7) == held
    assert machine.bookie.append_bytes_in_flight == 0


def test_entry_that_is_not_final_is_not_copied(machine: Machine) -> None:
    assert machine.add(7, [9, 10], key=COPIES, recovery=True) is UNAUTHORIZED
    assert machine.held(7) == {}


def test_copy_key_appends_and_fences_nothing(machine: Machine) -> None:
    assert machine.add(7, [0], key=KEY) is OK
    assert machine.add(7, [3], key=COPIES) is UNAUTHORIZED, "not a recovery's"
    assert machine.fence(7, key=COPIES) is UNAUTHORIZED
    assert not machine.is_fenced(7)


def test_copy_of_an_older_ledger_with_the_same_id_is_refused(machine: Machine) -> None:
    machine.keys.hashes[L] = access_key_hash(b"older")
    assert machine.add(7, [0], key=b"older") is OK
    assert machine.add(7, [3], key=COPIES, recovery=True) is UNAUTHORIZED


def test_hash_of_the_key_tells_a_reader_whether_it_is_the_same_ledger(machine: Machine) -> None:
    assert machine.add(7, [0], key=KEY) is OK
    shown = hash_as_key(access_key_hash(KEY))
    assert machine.bookie.end_of_ledger(L, access_key=shown).status is OK
    other = hash_as_key(access_key_hash(b"older"))
    assert machine.bookie.end_of_ledger(L, access_key=other).status is UNAUTHORIZED
    assert machine.add(7, [1], key=shown) is UNAUTHORIZED, "to know the hash is no right to add"
    assert machine.add(7, [1], key=shown, recovery=True) is UNAUTHORIZED


def test_whoever_knows_the_hash_of_the_key_changes_nothing(machine: Machine) -> None:
    """Everybody who reads the metadata does."""
    assert machine.add(7, [0], key=KEY) is OK
    shown = hash_as_key(access_key_hash(KEY))
    answers: list[BookieStatus] = []
    machine.bookie.write_last_confirmed(
        L, EntryId(0), access_key=shown, done=lambda status, _message: answers.append(status)
    )
    assert answers == [UNAUTHORIZED] and machine.lac(7) == -1
    assert machine.fence(7, key=shown) is UNAUTHORIZED
    assert not machine.is_fenced(7), "its writer goes on"


def test_bookie_without_metadata_takes_no_copies() -> None:
    machine = Machine(formatted(), keys=NoLedgers())
    assert machine.add(7, [0], key=COPIES, recovery=True) is UNAUTHORIZED


def test_copies_that_wait_for_their_grant_are_refused_when_the_bookie_closes() -> None:
    class Silent(NoLedgers):
        def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
            """The metadata store does not answer."""

    machine = Machine(formatted(), keys=Silent())
    answers: list[BookieStatus] = []
    for entry in (3, 4):
        machine.bookie.add(
            make_run(7, [entry]),
            access_key=COPIES,
            recovery=True,
            last_add_confirmed=EntryId(-1),
            done=lambda status, _message: answers.append(status),
        )
    assert answers == [] and machine.bookie.stats().append_bytes_in_flight > 0
    machine.close()
    assert answers == [BookieStatus.IO_ERROR] * 2
    assert machine.bookie.append_bytes_in_flight == 0


def ledger(*, closed: bool) -> LedgerMetadata:
    bookies = (BookieId("a"),)
    state, last = (LedgerState.CLOSED, 30) if closed else (LedgerState.OPEN, -1)
    return LedgerMetadata(
        L,
        Quorums(1, 1, 1),
        (Fragment(EntryId(0), bookies), Fragment(EntryId(20), (BookieId("b"),))),
        state=state,
        last_entry_id=EntryId(last),
        access_key_hash=access_key_hash(KEY),
    )


def test_last_fragment_of_an_open_ledger_is_not_final() -> None:
    assert grant_of(ledger(closed=False), b"").final_end == 19
    assert grant_of(ledger(closed=True), b"").final_end == 30


def test_grant_is_read_from_the_lock_and_the_metadata() -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        keys = MetadataKeys(store)

        async def grant() -> CopyGrant | Refusal:
            found = asyncio.get_running_loop().create_future()
            keys.look_up_copy(L, found.set_result)
            answer: CopyGrant | Refusal = await found
            return answer

        assert isinstance(await grant(), Refusal), "no such ledger"
        await LedgerStore(store).create(ledger(closed=True))
        assert await grant() == CopyGrant(b"", access_key_hash(KEY), EntryId(30), is_closed=True)
        await store.create(lock_path(L), encode_node(RepairLock(key_hash=b"h")), ephemeral=True)
        assert await grant() == CopyGrant(b"h", access_key_hash(KEY), EntryId(30), is_closed=True)
        await store.delete(lock_path(L))
        await store.create(lock_path(L), b"")  # a worker of an older version
        refusal = await grant()
        assert isinstance(refusal, Refusal) and refusal.status is BookieStatus.IO_ERROR

    asyncio.run(main())


# -- ledgers that are given back -------------------------------------------------------------------


def closed(machine: Machine) -> None:
    """Let the metadata say that the ledger is closed, to who copies it and to who adds."""
    machine.keys.closed.add(L)
    machine.keys.grants[7] = machine.keys.grants[7]._replace(is_closed=True)


def test_ledger_that_is_being_given_back_is_vouched_for_by_nobody(machine: Machine) -> None:
    """Neither a new copy nor an old one counts until it is gone (rule G9)."""
    closed(machine)
    busy = BookieStatus.TOO_MANY_REQUESTS
    assert machine.add(7, [0, 1], key=COPIES, recovery=True) is OK
    assert listed(machine.bookie, L) == [(0, 1)]
    machine.bookie.giving_back.begin([L])
    assert listed(machine.bookie, L) is None
    assert machine.add(7, [2], key=COPIES, recovery=True) is busy
    machine.bookie.giving_back.end([L])
    assert listed(machine.bookie, L) == [(0, 1)], "nothing was deleted after all"
    assert machine.add(7, [2], key=COPIES, recovery=True) is OK


def test_writer_that_missed_the_close_is_fenced_also_where_the_fence_was_given_back(
    machine: Machine,
) -> None:
    """Two such bookies would confirm to it what nobody reads (rule P25)."""
    assert machine.add(7, [0, 1], key=KEY) is OK
    assert machine.fence(7, key=KEY) is OK
    machine.settle()
    machine.bookie.flush()
    closed(machine)
    machine.bookie.delete_ledgers([L])
    assert machine.add(7, [2], key=KEY) is BookieStatus.FENCED
    assert machine.add(7, [0, 1], key=COPIES, recovery=True) is OK, "a copy comes back"
    assert machine.is_fenced(7)
    assert machine.add(7, [2], key=KEY) is BookieStatus.FENCED


@pytest.mark.parametrize("step", ["commit", "flush"])
def test_key_of_a_closed_ledger_is_never_on_the_disk_without_its_fence(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The journal thread takes what is queued at any moment, and so does a checkpoint what is in
    memory: a kill behind it leaves a record with the fence, or none (rule P25)."""
    files = formatted()
    machine = Machine(files)
    machine.keys.grants[7] = CopyGrant(access_key_hash(COPIES), access_key_hash(KEY), EntryId(9))
    closed(machine)
    left: list[MemoryFileSystem] = []
    owner, name = (
        (machine.bookie._journal, "append")
        if step == "commit"
        else (machine.bookie._storage, "set_ledger_record")
    )
    real = getattr(owner, name)

    def then(*given: object, **named: object) -> None:
        real(*given, **named)
        machine.bookie.commit_pending()
        if step == "flush":
            machine.bookie.flush()
        left.append(files.crash_clone(None))

    monkeypatch.setattr(owner, name, then)
    assert machine.add(7, [0, 1], key=COPIES, recovery=True) is OK
    assert left
    for files_left in left:
        record = Machine(files_left).bookie._storage.ledger_record(L)
        assert record is None or record.fenced


def test_fence_that_a_kill_has_taken_comes_with_the_next_copy(machine: Machine) -> None:
    """As an older version left it: the key alone was durable (rule P25)."""
    assert machine.add(7, [0, 1], key=KEY) is OK
    closed(machine)
    assert machine.add(7, [2, 3], key=COPIES, recovery=True) is OK
    assert machine.is_fenced(7)
    assert machine.add(7, [4], key=KEY) is BookieStatus.FENCED
    again = Machine(machine.bookie._storage._stores[0]._file_system.crash_clone(None))  # type: ignore[attr-defined]
    assert again.is_fenced(7) and again.held(7) == expected(7, range(4))
