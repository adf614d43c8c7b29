"""One pass: what the bookie holds, what the metadata name, and what is deleted then.

The order of everything here is a rule (``README.md``): the bookie's own ledgers are read before the
metadata (G1), each ledger is looked at twice with a pause between (G3), the last look comes after
the history was proved (G4) and right before the deletion, and anything unexpected ends the pass
(G5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from bookie_server.collection.mark import HistoryMark, OnDisk, PassAbortedError, on_disk
from bookie_server.core.collection import Cause, Seen, absent, is_garbage, seen, too_many
from bookie_server.giving_back import GivingBack
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    NotFoundError,
)
from spark_ledger.limits.collection import (
    COLLECTION_BATCH,
    COLLECTION_DELETES_PER_S,
    COLLECTION_FREELY,
    COLLECTION_LISTED_AT_LEAST,
    COLLECTION_PAGE,
    COLLECTION_PAUSE_S,
    COLLECTION_READS_PER_S,
    COLLECTION_SHARE_MAX,
)
from spark_ledger.limits.metadata import METADATA_READS_IN_FLIGHT_MAX
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.ledger_ids import next_counted
from spark_ledger.metadata.ledger_pages import by_page, page_of
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.types import BookieId, LedgerId, Versioned

T = TypeVar("T")


class Held(Protocol):
    """A ledger that the bookie holds."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def access_key_hash(self) -> bytes: ...


class Holder(Protocol):
    """The bookie, as its garbage collection sees it. Any thread; may wait for the disk."""

    def held_ledgers(self, after: int, limit: int) -> Sequence[Held]:
        """Ledgers above ``after``, ascending."""

    def delete_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, named: bool = False, reused: bool = False
    ) -> int:
        """Forget these ledgers, durably (rule G7); the bytes that they had. ``named``: they are
        named elsewhere, and one of which anything is in memory only stays (rule G9). ``reused``:
        others have their ids, and one that a replay could bring back stays (rule G2)."""

    @property
    def giving_back(self) -> GivingBack:
        """Those of which nothing is vouched for, and nothing taken. On the loop of the metadata
        store."""

    def next_ledger_id(self) -> int:
        """An id above all ledgers that were heard of here."""


@dataclass(frozen=True, slots=True)
class CollectionConfig:
    """How far one pass may go, and how fast."""

    pause_s: float = COLLECTION_PAUSE_S
    share_max: float = COLLECTION_SHARE_MAX
    freely: int = COLLECTION_FREELY
    deletes_per_s: float = COLLECTION_DELETES_PER_S
    page: int = COLLECTION_PAGE
    batch: int = COLLECTION_BATCH
    listed_at_least: int = COLLECTION_LISTED_AT_LEAST
    reads_per_s: float = COLLECTION_READS_PER_S
    """Nodes of ledgers that are read one by one."""


@dataclass(slots=True)
class Found:
    """What a pass has seen and done so far."""

    held: int = 0
    candidates: int = 0
    kept: int = 0
    deleted: int = 0
    freed_bytes: int = 0


class _Candidate(NamedTuple):
    held: Held
    first: Seen


class Pass:
    """One pass of one bookie, on the loop of the metadata store. Used once."""

    def __init__(
        self,
        holder: Holder,
        store: MetadataStore,
        mark: HistoryMark | None,
        bookie_id: BookieId,
        config: CollectionConfig,
        run_on_disk: OnDisk,
        *,
        why_not: Callable[[], str] = str,
        reads_all: bool = False,
        kept_below: int = 0,
        dry_run: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``mark``: None only for a dry run that looks at whatever history there is.
        ``why_not``: why the bookie should be left alone now; empty if it need not.
        ``reads_all``: read the node of each ledger, and not only the lists of them.
        ``kept_below``: keep copies of these ledgers that are named elsewhere (rule G9)."""
        assert mark is not None or dry_run, "nothing is deleted without a proof of the history"
        self._holder = holder
        self._store = store
        self._mark = mark
        self._bookie_id = bookie_id
        self._config = config
        self._run_on_disk = run_on_disk
        self._why_not = why_not
        self._reads_all = reads_all
        self._kept_below = kept_below
        self._dry_run = dry_run
        self._sleep = sleep
        self._connection = store.connections
        self._candidates: list[_Candidate] = []
        self._elsewhere: list[Held] = []
        self._failed: OSError | PassAbortedError | None = None
        """Why the disk has kept something that was to go."""
        self.found = Found()

    async def run(self) -> None:
        """Look, wait, look again, delete.

        Raises PassAbortedError, OSError and what the metadata store raises: what is deleted by then
        was garbage, and the next pass does the rest.
        """
        await self._prove()
        await self._look()
        self._refuse_too_many()
        if self._dry_run or not (self._candidates or self._elsewhere):
            return
        await self._sleep(self._config.pause_s)
        for kind in (Seen.ABSENT, Seen.OTHER):
            of_kind = [each for each in self._candidates if each.first is kind]
            for batch in _parts(of_kind, self._config.batch):
                await self._delete(batch, is_given_again=kind is Seen.OTHER)
                await self._sleep(len(batch) / self._config.deletes_per_s)
        for held in _parts(self._elsewhere, METADATA_READS_IN_FLIGHT_MAX):
            await self._give_back(held)
            await self._sleep(len(held) / self._config.deletes_per_s)
        if self._failed is not None:
            raise self._failed

    # -- the first look ----------------------------------------------------------------------------

    async def _look(self) -> None:
        after = -1
        while page := await self._held_above(after):
            after = page[-1].ledger_id
            self.found.held += len(page)
            by_id = {each.ledger_id: each for each in page}
            # No older than the page: a list of before could lack a ledger that is new (rule G1).
            await self._prove()
            for ids in by_page(list(by_id)):
                await self._compare([by_id[each] for each in ids])
        self.found.candidates = len(self._candidates) + len(self._elsewhere)

    async def _held_above(self, after: int) -> Sequence[Held]:
        limit = self._config.page
        return await on_disk(self._run_on_disk, lambda: self._holder.held_ledgers(after, limit))

    async def _compare(self, held: Sequence[Held]) -> None:
        """Compare ledgers that one node lists with that list, or one by one if they are few."""
        if self._reads_all or len(held) < self._config.listed_at_least:
            for each, look in zip(held, await self._look_at(held), strict=True):
                if look is Seen.ELSEWHERE:
                    # Elsewhere may be "not here yet": a copy that is being made, longer than the
                    # pause between two passes, would never be named (rule G9).
                    if each.ledger_id < self._kept_below:
                        self.found.kept += 1
                    elif self._reads_all:
                        self._elsewhere.append(each)
                elif look is not Seen.NAMED:
                    self._candidates.append(_Candidate(each, look))
            return
        listed = await page_of(self._store, held[0].ledger_id)
        missing = frozenset(absent([each.ledger_id for each in held], listed))
        self._candidates += [
            _Candidate(each, Seen.ABSENT) for each in held if each.ledger_id in missing
        ]

    def _refuse_too_many(self) -> None:
        config, count, held = self._config, len(self._candidates), self.found.held
        if not self._dry_run and too_many(
            count, held, share_max=config.share_max, freely=config.freely
        ):
            raise PassAbortedError(
                Cause.TOO_MANY,
                f"the metadata lack {count} of the {held} ledgers that this bookie holds, more "
                f"than share_max = {config.share_max:g} allows in one pass; nothing was deleted. "
                "If they were deleted on purpose, run `ledger bookies collect --share 1`",
            )

    # -- the second look ---------------------------------------------------------------------------

    async def _delete(self, batch: Sequence[_Candidate], *, is_given_again: bool) -> None:
        """Look once more at each of the candidates, and delete them. ``is_given_again``: the
        metadata have others of their ids, and let the bookie take these once the record of the
        lost one is gone."""
        reason = self._why_not()
        if reason:
            raise PassAbortedError(Cause.DISK, reason)
        await self._prove()
        ledger_ids = [each.held.ledger_id for each in batch]
        delete = partial(self._holder.delete_ledgers, ledger_ids, reused=is_given_again)
        with self._holder.giving_back.going(ledger_ids if is_given_again else ()):
            await self._look_again(batch)
            await self._let_go(len(batch), delete)

    async def _let_go(self, count: int, delete: Callable[[], int]) -> None:
        """Delete so many ledgers. What a full disk or damage keeps is told at the end of the pass:
        it keeps nothing else, and each pass would meet it again (rule G5)."""
        try:
            self.found.freed_bytes += await on_disk(self._run_on_disk, delete)
        except (OSError, PassAbortedError) as error:
            self._failed = self._failed or error
        else:
            self.found.deleted += count

    async def _look_again(self, batch: Sequence[_Candidate]) -> None:
        looks = await self._look_at([each.held for each in batch])
        for (held, first), second in zip(batch, looks, strict=True):
            if not is_garbage(first, second):
                raise PassAbortedError(
                    Cause.CHANGED,
                    f"ledger {held.ledger_id} was {first.value} at the first look, and is "
                    f"{second.value} at the second: what ZooKeeper lists cannot be relied on",
                )
        self._refuse_another_connection()

    async def _look_at(self, held: Sequence[Held]) -> list[Seen]:
        looks: list[Seen] = []
        for part in _parts(held, METADATA_READS_IN_FLIGHT_MAX):
            looks += await asyncio.gather(*(self._look_at_one(each) for each in part))
            await self._sleep(len(part) / self._config.reads_per_s)
        return looks

    async def _look_at_one(self, held: Held) -> Seen:
        """Read a ledger's node, no older than this call."""
        return (await self._read(held))[0]

    async def _read(self, held: Held) -> tuple[Seen, Versioned[bytes] | None]:
        path = ledger_path(held.ledger_id)
        try:
            node = await self._store.get_latest(path)
        except NotFoundError:
            return seen(held.access_key_hash, None, self._bookie_id), None
        try:
            ledger = decode_ledger(path, held.ledger_id, node.value)
        except (CorruptionError, ConfigurationError):
            return Seen.NAMED, node  # there is a node, and nobody can tell whose
        return seen(held.access_key_hash, ledger, self._bookie_id), node

    # -- copies of closed ledgers that are named elsewhere (rule G9) -------------------------------

    async def _give_back(self, batch: Sequence[Held]) -> None:
        """Vouch for them no more, outdate who counted on them, and delete them, in this order."""
        reason = self._why_not()
        if reason:
            raise PassAbortedError(Cause.DISK, reason)
        await self._prove()
        ledger_ids = [each.ledger_id for each in batch]
        with self._holder.giving_back.going(ledger_ids):
            outdated = await asyncio.gather(*(self._outdate(each) for each in batch))
            self._refuse_another_connection()
            going = [each for each, done in zip(ledger_ids, outdated, strict=True) if done]
            await self._let_go(len(going), lambda: self._holder.delete_ledgers(going, named=True))

    async def _outdate(self, held: Held) -> bool:
        """Write a ledger's node as it is, so that nobody's change that was begun before succeeds;
        whether it still names this bookie nowhere, and its ledger may go."""
        second, node = await self._read(held)
        if second is not Seen.ELSEWHERE or node is None:
            return False
        try:
            await self._store.put(ledger_path(held.ledger_id), node.value, node.version)
        except (ConflictError, NotFoundError):
            return False  # it has just changed, and the next pass looks again
        return True

    # -- what holds for the whole pass -------------------------------------------------------------

    async def _prove(self) -> None:
        """Whoever answers has the history that this bookie knows, and is up to date (rule G4)."""
        if self._mark is None:
            return
        await self._mark.check()
        held_below = await on_disk(self._run_on_disk, self._holder.next_ledger_id)
        counted = await next_counted(self._store)
        if counted < held_below:
            raise PassAbortedError(
                Cause.RESTORED,
                f"the next ledger id is {counted}, and this bookie knows ledger {held_below - 1}: "
                "ZooKeeper was restored from a backup; run `ledger cluster restored`",
            )
        self._refuse_another_connection()

    def _refuse_another_connection(self) -> None:
        """ZooKeeper can be restored between two connections, never within one (rule G5)."""
        if self._store.connections != self._connection:
            raise PassAbortedError(
                Cause.METADATA,
                "the connection to ZooKeeper broke during the pass; the next pass begins anew",
            )


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
