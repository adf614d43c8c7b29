"""Ledgers in memory for tests of streams: instant or held-back confirmation, failures to order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence

from spark_ledger.client.counters import ClientCounters
from spark_ledger.client.timer import Timer
from spark_ledger.errors import (
    FencedError,
    LedgerClosedError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotFoundError,
    ReadBeyondConfirmedError,
)
from spark_ledger.metadata.base import Create, Delete, Operation
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.metadata.unsettled import UNNAMED_PATH, id_path
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    Entry,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
    ReplicaHint,
)

_INCARNATIONS = itertools.count()


def unnamed_path(ledger_id: LedgerId) -> str:
    return id_path(UNNAMED_PATH, ledger_id)


class FakeLedger:
    def __init__(self, ledger_id: int, quorums: Quorums, custom: Mapping[str, str]) -> None:
        self.ledger_id = LedgerId(ledger_id)
        self.incarnation = b"%016d" % next(_INCARNATIONS)
        self.payloads: list[bytes] = []
        self.closed = False
        self.tree: MemoryTree | None = None
        self.path = ledger_path(self.ledger_id)
        bookies = tuple(BookieId(f"b{n}") for n in range(quorums.ensemble_size))
        self.metadata = LedgerMetadata(
            ledger_id=self.ledger_id,
            quorums=quorums,
            fragments=(Fragment(EntryId(0), bookies),),
            custom_metadata=dict(custom),
        )


class FakeWriter:
    def __init__(self, owner: FakeLedgers, ledger: FakeLedger) -> None:
        self._owner = owner
        self._ledger = ledger
        self._failed: LedgerError | None = None
        self._held: list[tuple[asyncio.Future[int], int]] = []

    @property
    def ledger_id(self) -> LedgerId:
        return self._ledger.ledger_id

    @property
    def incarnation(self) -> bytes:
        return self._ledger.incarnation

    @property
    def last_add_pushed(self) -> EntryId:
        return EntryId(len(self._ledger.payloads) - 1)

    @property
    def is_closed(self) -> bool:
        return self._ledger.closed or self._failed is not None

    @property
    def is_left_open(self) -> bool:
        taken_over = isinstance(self._failed, FencedError)
        return self._failed is not None and not taken_over

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        if self._failed is not None:
            raise self._failed
        if self._ledger.closed:
            raise LedgerClosedError(f"ledger {self.ledger_id} is closed")
        assert isinstance(payload, bytes)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._owner.appends += 1
        self._ledger.payloads.append(payload)
        self._held.append((future, len(self._ledger.payloads) - 1))
        if self._owner.fail_append_at == self._owner.appends:
            self._failed = self._owner.append_error
        if not self._owner.hold:
            asyncio.get_running_loop().call_soon(self.deliver)
        return future

    def deliver(self) -> None:
        """Confirm, or fail, everything that is held."""
        held, self._held = self._held, []
        for future, entry_id in held:
            if future.done():
                continue  # nobody waits any more
            if self._failed is not None:
                future.set_exception(self._failed)
            else:
                future.set_result(entry_id)

    async def wait_for_room(self) -> None:
        self._owner.room_waits += 1
        await asyncio.sleep(0)

    async def close(self) -> None:
        self._ledger.closed = True
        if self._failed is not None:
            raise self._failed


class FakeReader:
    def __init__(self, owner: FakeLedgers, ledger: FakeLedger) -> None:
        self._owner = owner
        self._ledger = ledger
        self.is_closed = ledger.closed

    async def read_batches(
        self, first: int, last: int, *, unconfirmed: bool = False, replica_hint: ReplicaHint = 0
    ) -> AsyncGenerator[list[Entry], None]:
        if not unconfirmed and not self.is_closed:
            raise ReadBeyondConfirmedError(f"entry {last} is not confirmed")
        self._owner.reads.append((self._ledger.ledger_id, first, last))
        for start in range(first, last + 1, self._owner.entries_per_chunk):
            await asyncio.sleep(0)
            self._owner.chunks_read += 1
            ids = range(start, min(start + self._owner.entries_per_chunk, last + 1))
            yield [self._entry(entry_id) for entry_id in ids]

    def _entry(self, entry_id: int) -> Entry:
        ledger_id = self._ledger.ledger_id
        if ledger_id not in self._owner.ledgers:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        if entry_id >= len(self._ledger.payloads):
            raise NoSuchEntryError(f"ledger {ledger_id} has no entry {entry_id}")
        payload = self._ledger.payloads[entry_id]
        return Entry(ledger_id, EntryId(entry_id), payload, EntryId(entry_id - 1), 0)


class FakeNaming:
    """Of ledgers that nobody else deletes."""

    def __init__(self, owner: FakeLedgers) -> None:
        self._owner = owner

    def unsettled(self, ledger_ids: Iterable[LedgerId]) -> list[LedgerId]:
        return []

    async def operations(
        self, ledger_ids: Sequence[LedgerId], whose: Collection[tuple[LedgerId, bytes]] = ()
    ) -> list[Operation]:
        return [Delete(unnamed_path(each)) for each in ledger_ids if self._owner.is_unnamed(each)]

    def checks(self, ledger_ids: Iterable[LedgerId]) -> list[Operation]:
        return []

    def deletes(self, ledger_ids: Iterable[LedgerId]) -> list[Operation]:
        return [Delete(ledger_path(each)) for each in ledger_ids]

    def named(self, ledger_ids: Iterable[LedgerId]) -> None:
        pass


class FakeDeleting:
    """Deletes ledgers of an owner."""

    def __init__(self, owner: FakeLedgers) -> None:
        self._owner = owner

    async def delete(self, ledger_id: LedgerId, checks: Sequence[Operation] = ()) -> None:
        await self._owner.delete_ledger(ledger_id, checks)

    async def delete_unnamed(self, ledger_id: LedgerId, incarnation: bytes) -> None:
        ledger = self._owner._ledgers.get(ledger_id)
        if ledger is None or ledger.incarnation != incarnation:
            return
        if self._owner.is_unnamed(ledger_id):
            await self._owner.store.delete(unnamed_path(ledger_id))
            await self._owner.delete_ledger(ledger_id)


class FakeLedgers:
    """Implements ``stream.ledgers.Ledgers``; public attributes steer it and count."""

    def __init__(self, store: MemoryMetadataStore | None = None) -> None:
        self.store = store or MemoryMetadataStore()
        self._ledgers: dict[int, FakeLedger] = {}
        self.writers: list[FakeWriter] = []
        self.appends = 0
        self.counters = ClientCounters()
        self.room_waits = 0
        self.hold = False
        self.fail_append_at = -1
        self.append_error: LedgerError = LedgerError("no")
        self.entries_per_chunk = 3
        self.reads: list[tuple[int, int, int]] = []
        self.chunks_read = 0
        self.deleted: list[int] = []
        self.closed_later: list[int] = []
        self.bookies = 3
        self._timers: dict[asyncio.AbstractEventLoop, Timer] = {}

    @property
    def ledgers(self) -> dict[int, FakeLedger]:
        """Those that were not deleted, also by a transaction: then their nodes are gone."""
        for ledger_id, ledger in list(self._ledgers.items()):
            if ledger.tree and ledger.path not in ledger.tree._nodes:
                del self._ledgers[ledger_id]
                self.deleted.append(ledger_id)
        return self._ledgers

    @ledgers.setter
    def ledgers(self, shared: dict[int, FakeLedger]) -> None:
        self._ledgers = shared

    @property
    def _tree(self) -> MemoryTree | None:
        """The metadata, where they are in memory: each ledger has a node there."""
        tree: MemoryTree | None = getattr(self.store, "tree", None)
        return tree

    def is_unnamed(self, ledger_id: LedgerId) -> bool:
        """Whether it was made until it is named, and no transaction has named it."""
        return self._tree is not None and unnamed_path(ledger_id) in self._tree._nodes

    @property
    def naming(self) -> FakeNaming:
        return FakeNaming(self)

    @property
    def deletions(self) -> FakeDeleting:
        return FakeDeleting(self)

    def has_bookies_for(self, ensemble_size: int) -> bool:
        return self.bookies >= ensemble_size

    def registered_bookies(self) -> list[BookieInfo]:
        return []

    @property
    def timer(self) -> Timer:
        loop = asyncio.get_running_loop()
        if loop not in self._timers:
            self._timers[loop] = Timer()
        return self._timers[loop]

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        custom_metadata: Mapping[str, str] | None = None,
        until_named: bool = False,
    ) -> FakeWriter:
        quorums = Quorums(ensemble_size, write_quorum, ack_quorum)
        ledger = FakeLedger(len(self.writers) + 100, quorums, custom_metadata or {})
        ledger.tree = self._tree
        if ledger.tree is not None:
            ledger.tree.make_parents(ledger.path)
            ledger.tree.apply([Create(ledger.path, b"")])
            if until_named:
                unnamed = unnamed_path(ledger.ledger_id)
                ledger.tree.make_parents(unnamed)
                ledger.tree.apply([Create(unnamed, ledger.incarnation)])
        self._ledgers[ledger.ledger_id] = ledger
        writer = FakeWriter(self, ledger)
        self.writers.append(writer)
        return writer

    async def open_unconfirmed(self, ledger_id: int) -> FakeReader:
        return FakeReader(self, self._ledger(ledger_id))

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._ledger(ledger_id).metadata

    def close_later(self, ledger_id: LedgerId) -> None:
        self.closed_later.append(ledger_id)

    async def delete_ledger(self, ledger_id: int, checks: Sequence[Operation] = ()) -> None:
        path = ledger_path(LedgerId(ledger_id))
        if checks:
            await self.store.transaction(checks)
        self.deleted.append(ledger_id)
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None and ledger.tree is self._tree is not None:
            with contextlib.suppress(NotFoundError):
                await self.store.delete(path)
        self._ledgers.pop(ledger_id, None)

    def _ledger(self, ledger_id: int) -> FakeLedger:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return self.ledgers[ledger_id]
