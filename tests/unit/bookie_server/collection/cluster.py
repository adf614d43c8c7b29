"""A bookie's ledgers without a bookie, and the metadata of a small cluster."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bookie_server.collection.collecting import CollectionConfig
from bookie_server.collection.collector import CollectorConfig, LedgerCollector
from bookie_server.giving_back import GivingBack
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.ledger_ids import raise_counter
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import Interpose, MemoryMetadataStore, MemoryTree
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)

BOOKIE, OTHER = BookieId("bookie-1"), BookieId("bookie-2")
BYTES = 100


class Held(NamedTuple):
    ledger_id: LedgerId
    access_key_hash: bytes


class Shelf:
    """Implements ``Holder``: ledgers in memory."""

    def __init__(self) -> None:
        self.keys: dict[int, bytes] = {}
        self.deleted: list[int] = []
        self.deleted_as_named: list[int] = []
        self.deleted_as_reused: list[int] = []
        self.giving_back = GivingBack()
        self.before_delete: Callable[[], None] = lambda: None
        self.before_page: Callable[[], None] = lambda: None
        self.after_page: Callable[[], None] = lambda: None

    def held_ledgers(self, after: int, limit: int) -> list[Held]:
        self.before_page()
        ids = sorted(each for each in self.keys if each > after)[:limit]
        page = [Held(LedgerId(each), self.keys[each]) for each in ids]
        self.after_page()
        return page

    def delete_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, named: bool = False, reused: bool = False
    ) -> int:
        self.before_delete()
        ids = list(ledger_ids)
        for each in ids:
            del self.keys[each]
        self.deleted += ids
        self.deleted_as_named += ids if named else []
        self.deleted_as_reused += ids if reused else []
        return BYTES * len(ids)

    def next_ledger_id(self) -> int:
        return max(self.keys, default=0) + 1


class World:
    """One bookie, its disk and the metadata. Made on a loop."""

    def __init__(self, interpose: Interpose | None = None) -> None:
        self.tree = MemoryTree()
        self.store = MemoryMetadataStore(self.tree, interpose=interpose)
        self.operator = MemoryMetadataStore(self.tree)
        self.files = MemoryFileSystem()
        self.files.mkdir(Path("/ledgers"))
        self.shelf = Shelf()
        self.new_ledgers = 0
        self.is_full = False
        self.interval_s = 100.0
        self.whole_interval_s = 1e6
        self.sign_pause_s = 15.0
        self.why_not = ""

    def collector(self, **each: object) -> LedgerCollector:
        """The bookie's collector; a second one is another start of its process."""
        settings = {"pause_s": 1.0, "listed_at_least": 3, **each}
        return LedgerCollector(
            self.shelf,
            self.store,
            BOOKIE,
            CollectorConfig(
                interval_s=self.interval_s,
                full_interval_s=10.0,
                mark_s=5.0,
                sign_pause_s=self.sign_pause_s,
                whole_interval_s=self.whole_interval_s,
                each=CollectionConfig(**settings),  # type: ignore[arg-type]
            ),
            files=self.files,
            directory=Path("/ledgers"),
            run_on_disk=_at_once,
            new_ledgers=lambda: self.new_ledgers,
            is_full=lambda: self.is_full,
            why_not=lambda: self.why_not,
            draw=random.Random(1),
        )

    async def make(self, *ledger_ids: int, key: bytes = b"k" * 32) -> None:
        """Ledgers that the bookie holds and the metadata name."""
        for each in ledger_ids:
            await self.name(each, key=key)
            self.shelf.keys[each] = key
            self.new_ledgers += 1

    async def name(
        self, ledger_id: int, *, key: bytes = b"k" * 32, bookie_id: BookieId = BOOKIE
    ) -> None:
        """A ledger that the metadata name."""
        await raise_counter(self.operator, ledger_id + 1)
        await LedgerStore(self.operator).create(
            LedgerMetadata(
                ledger_id=LedgerId(ledger_id),
                quorums=Quorums(1, 1, 1),
                fragments=[Fragment(EntryId(0), (bookie_id,))],
                access_key_hash=key,
            )
        )

    async def move(self, *ledger_ids: int, to: BookieId = OTHER, is_closed: bool = True) -> None:
        """Have the metadata name another bookie for these."""
        ledgers = LedgerStore(self.operator)
        for each in ledger_ids:
            ledger = await ledgers.read(LedgerId(each))
            moved = replace(
                ledger.value,
                fragments=[Fragment(EntryId(0), (to,))],
                state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
                last_entry_id=EntryId(9 if is_closed else -1),
            )
            await ledgers.compare_and_set(moved, ledger.version)

    async def delete(self, *ledger_ids: int) -> None:
        """Delete ledgers as their users do."""
        for each in ledger_ids:
            await LedgerStore(self.operator).delete(LedgerId(each))

    async def spoil(self, ledger_id: int) -> None:
        """Have a ledger's node hold no ledger."""
        path = ledger_path(LedgerId(ledger_id))
        node = await self.operator.get(path)
        await self.operator.transaction([Put(path, b"?", node.version)])


async def _at_once(work: Callable[[], None]) -> None:
    work()
