"""Frees the space of dropped commits: their ledgers, then manifests, then the root says so.

The order is that of rules T17 and T18. A step may be cut off anywhere, done twice, and begun by
two at once: what it found is found again, and a deletion is a transaction that checks who may.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    DataLossError,
    LedgerError,
    MetadataRestoredError,
    NotFoundError,
)
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.limits.stream import (
    DROPPED_PER_STEP,
    DROPPING_LEDGERS_MAX,
    LOOKS_AT_ONCE,
    MERGED_LEDGERS_PER_SWEEP,
)
from spark_ledger.metadata.base import Check, Operation, Put
from spark_ledger.stream.commit.commit_log import CommitLog, NamedLedgers
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.manifest.format import encode_root
from spark_ledger.stream.manifest.tree import ManifestRoot
from spark_ledger.stream.model import Head, StreamConfig
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.packs.format import encode_packs
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.packs.store import PackStore
from spark_ledger.stream.retention.deletions import Deletions
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.names import ReadNames, names_of, read_names
from spark_ledger.types import TAG_STREAM_ID, LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)

_FORMER: Final = -1
"""Below the level of leaves: the ledgers that these have left."""

Listing = Callable[[Sequence[LedgerId]], Awaitable[Versioned[StreamConfig]]]
"""Puts ledgers on the list of the configuration, in place of those there; the version with them.
Raises ConflictError if the configuration changed meanwhile."""


class Reclaimed(NamedTuple):
    """What a step did."""

    ledgers: int
    """Deleted."""
    commits: int
    """Of which nothing is left."""
    is_done: bool
    """Whether nothing that could be deleted now is left."""


class Reclaimer:
    """Gives back the space of one stream's dropped commits. Bound to one event loop."""

    def __init__(
        self,
        nodes: StreamNodes,
        log: CommitLog,
        listing: Listing,
        deletions: Deletions,
        names: LiveNames,
        packs: PackStore,
        packs_upto: int | None = None,
    ) -> None:
        """``packs_upto``: what the first so many packs have replaced may go; None: of all."""
        self._nodes = nodes
        self._log = log
        self._listing = listing
        self._deletions = deletions
        self._names = names
        self._store = packs
        self._packs_upto = packs_upto
        self._packs = Packs()
        self._deleted = 0
        self._behind: int | None = None
        """Where the rows of commits go on behind one whose ledger cannot be deleted yet."""
        self._is_late = False
        """Some ledgers were not recovered: there was no time."""

    async def step(self, upto: int, may_go_on: Callable[[], bool] = lambda: True) -> Reclaimed:
        """Give back the space of commits below ``upto``, which were dropped, or of some of them, as
        long as there is time.

        Raises ConflictError if the configuration, the root or a ledger changed meanwhile, and what
        the metadata store and bookies raise: a later step begins where this one did.
        """
        is_last = True  # also if it fails
        try:
            found = await self._step(upto, may_go_on)
            is_last = found.is_done
        finally:
            if is_last and not self._is_late:
                self._names.tried.clear()
        return found

    async def _step(self, upto: int, may_go_on: Callable[[], bool]) -> Reclaimed:
        self._deleted = 0
        await self._log.manifests.read_root(latest=True)
        before = self._log.manifests.versioned
        head = (await self._nodes.head(latest=True)).value
        if head.stream_id != self._log.manifests.stream_id:
            raise self._nodes.no_such_stream()  # another stream of the same name (rule T7)
        assert upto <= head.earliest_commit, "they were dropped"
        first = 0 if before is None else before.value.dropped
        if first or upto:  # programs that do not know it are out, and no list of before is left
            config = await self._listing(())
            packs = (await self._store.read()).value if config.value.has_packs else Packs()
            self._packs = self._long_made(packs)
        if before is None:  # of the former format: now it has a root
            return Reclaimed(0, 0, is_done=upto == 0)
        if self._behind is not None:
            return await self._step_behind(self._behind, upto, head, may_go_on)
        root = before.value
        end = min(upto, first + DROPPED_PER_STEP)
        if first >= end and not any(root.is_dropped(page) for page in root.pages()):
            return Reclaimed(0, 0, is_done=True)
        if not may_go_on():
            return Reclaimed(0, 0, is_done=False)
        named, wait, end = await self._free_rows(first, end, head, may_go_on)
        # What is left, because its writer has it open, is found again from its first commit on.
        dropped = min(wait, default=max(first, end))
        lists = {each.segment_list: n for n, each in named.items() if n < dropped}
        left = await self._delete_all(each for each in lists if each is not None)
        dropped = min((n for each, n in lists.items() if each in left), default=dropped)
        for ledgers in await self._pages_below(root, dropped):
            if await self._delete_all(ledgers):
                dropped = root.dropped
                break  # what leads to it stays
        await self._write_root(before, root.trimmed(dropped))
        # If the root stays, what can go behind it goes.
        self._names.were_looked_at(first, end)
        self._behind = end if dropped < end < upto else None
        return Reclaimed(self._deleted, dropped - first, is_done=end >= upto)

    async def _step_behind(
        self, behind: int, upto: int, head: Head, may_go_on: Callable[[], bool]
    ) -> Reclaimed:
        """Delete ledgers of rows behind a commit that waits, perhaps for ever: its ledger is open,
        or nobody can read what it names. What leads to them stays (rule T18): these commits are
        looked at again when the root comes to them.

        A later visit goes on where the last one was, and looks again only where some were left.
        """
        names = self._names
        again = [each for each in names.left_at if each >= behind]
        start = min(again, default=max(behind, names.looked_upto))
        end = min(upto, start + DROPPED_PER_STEP)
        if start < end:
            _, wait, end = await self._free_rows(start, end, head, may_go_on)
            first = sorted(wait)[:1]
            names.were_looked_at(start, end)
            names.left_at.update(first)
            names.looked_upto = max(names.looked_upto, end)
        self._behind = end if end < upto else None
        return Reclaimed(self._deleted, 0, is_done=end >= upto)

    async def _free_rows(
        self, first: int, end: int, head: Head, may_go_on: Callable[[], bool]
    ) -> tuple[dict[int, NamedLedgers], set[int], int]:
        """Delete the ledgers of rows of dropped commits: what these name, which of them wait, and
        the end of those for which there was time."""
        named, unread = await self._named(first, end)
        live, names = range(end, head.next_commit), self._names
        left, rest = await self._delete_rows(named, live, names, head, may_go_on)
        wait = {n for n, each in named.items() if each.rows & left}.union(unread)
        if rest:
            end = min(n for n, each in named.items() if each.rows & rest)
            names.left_at.add(end)
        return named, {n for n in wait if n < end}, end

    async def _named(self, first: int, end: int) -> ReadNames:
        """The ledgers that dropped commits name, and which of these commits cannot be read."""
        found = ReadNames({}, {})
        step = (await self._log.manifests.root()).leaf_commits
        start = first
        while start < end:
            behind = min(start - start % step + step, end)
            part = await read_names(self._log, range(start, behind))
            found.named.update(part.named)
            found.unread.update(part.unread)
            start = behind
        for number, error in found.unread.items():
            self._tell(f"what dropped commit {number} names is left", error)
        return found

    def _tell(self, what: str, error: LedgerError) -> None:
        """Say what stays, once for each damaged node, however many commits it keeps."""
        if str(error) not in self._names.told:
            logger.warning("stream %r: %s: %s", self._nodes.name, what, error)
        self._names.told.add(str(error))

    async def free_packed(self, may_go_on: Callable[[], bool] = lambda: True) -> int:
        """Delete the former ledgers of commits in packs, as long as there is time, and packs of
        dropped commits (rule T25); how many ledgers. No dropped commits may be half deleted then.

        Raises as ``step``.
        """
        self._deleted = 0
        await self._log.manifests.read_root(latest=True)
        before = self._log.manifests.versioned
        assert before is not None, "a stream with packs has a root (rule T26)"
        dropped = before.value.dropped
        packs = await self._store.read()
        gone = [pack for pack in packs.value.packs if pack.end <= dropped]
        if gone:
            left = await self._delete_all(pack.ledger_id for pack in gone)
            gone = [pack for pack in gone if pack.ledger_id not in left]
        if gone:
            packs = await self._write_packs(packs, packs.value.without(gone))
        for pack in self._long_made(packs.value).packs:
            if pack.is_freed:
                continue
            if not may_go_on():
                break
            self._packs = self._long_made(packs.value)
            head = (await self._nodes.head(latest=True)).value
            named, unread = await self._named(max(pack.first, dropped), pack.end)
            live = range(dropped, head.next_commit)
            left, rest = await self._delete_rows(named, live, LiveNames(), head, may_go_on)
            if not left and not rest and not unread:
                packs = await self._write_packs(packs, packs.value.freed(pack))
        return self._deleted

    def _long_made(self, packs: Packs) -> Packs:
        """Those packs whose commits need their former ledgers no more, also if ZooKeeper is
        restored (rule T25)."""
        return packs if self._packs_upto is None else packs.of_first(self._packs_upto)

    async def free_merged(self, upto: int, may_go_on: Callable[[], bool] = lambda: True) -> int:
        """Delete the ledgers that leaves of commits below ``upto`` have left (rule T12), or some of
        them, as long as there is time; how many ledgers.

        Raises as ``step``.
        """
        self._deleted = 0
        manifests = self._log.manifests
        root = await manifests.read_root(latest=True)
        freed = root.freed
        if freed >= upto:
            return 0
        pages = [page for page in root.pages() if page.level]
        while pages and pages[0].first < upto and self._deleted < MERGED_LEDGERS_PER_SWEEP:
            if not may_go_on():
                break
            page = pages.pop(0)
            end = page.first + root.span(page.level)
            if end <= freed:
                continue
            try:
                if page.level > 1:
                    below = await manifests.children(root, page)
                    pages = [*root.children(page, below), *pages]
                    continue
                former = await manifests.former(root, page)
            except MetadataRestoredError:
                raise
            except (NotFoundError, CorruptionError, ConfigurationError) as error:
                self._tell(f"ledgers that commits {page.first} to {end - 1} had stay", error)
            else:
                await self._delete_all(former)
            freed = end
        if not pages or pages[0].first >= upto:
            freed = max(freed, upto)
        for attempt in range(METADATA_ATTEMPTS):
            root = await manifests.read_root(latest=True)
            before = manifests.versioned
            assert before is not None, "it had pages"
            try:
                await self._write_root(before, root._replace(freed=max(freed, root.freed)))
                break
            except ConflictError:  # writers of a busy stream replace the root each second
                if attempt == METADATA_ATTEMPTS - 1:
                    raise
        return self._deleted

    async def _write_packs(self, before: Versioned[Packs], after: Packs) -> Versioned[Packs]:
        nodes = self._nodes
        await nodes.store.transaction(
            [
                self._deletions.guard(),
                Check(nodes.identity_path(self._log.manifests.stream_id), 0),
                Put(nodes.packs_path, encode_packs(after), before.version),
            ]
        )
        return Versioned(after, before.version + 1)

    async def _delete_rows(
        self,
        named: dict[int, NamedLedgers],
        live: range,
        names: LiveNames,
        head: Head,
        may_go_on: Callable[[], bool],
    ) -> tuple[set[LedgerId], set[LedgerId]]:
        """Delete ledgers of rows that no commit of ``live``, or a later one, needs; those that
        wait, and those for which there was no time. ``head`` says which commits are dropped.

        Some are deleted in any case: who has a turn goes on, however long it is to look.
        """
        packs, log, earliest = self._packs, self._log, head.earliest_commit
        candidates = set[LedgerId]().union(*(each.rows for each in named.values()))
        candidates -= await names.named(log, candidates, live.start, live.stop, packs, earliest)

        async def named_since(ledger_ids: Collection[LedgerId]) -> set[LedgerId]:
            newest = (await self._nodes.head(latest=True)).value.next_commit
            return await names.named(log, ledger_ids, live.start, newest, packs, earliest)

        left: set[LedgerId] = set()
        rest = deque(sorted(candidates))
        while rest:
            if free := await self._next_closed(rest, left, may_go_on):
                left |= await self._delete_listed(free, named_since)
            if rest and not may_go_on():
                break
        return left, set(rest)

    async def _next_closed(
        self, rest: deque[LedgerId], left: set[LedgerId], may_go_on: Callable[[], bool]
    ) -> list[Versioned[LedgerMetadata]]:
        """Take ledgers from ``rest`` until there are as many closed ones as may be listed; those.
        Others are added to ``left``."""
        free: list[Versioned[LedgerMetadata]] = []
        while rest and len(free) < DROPPING_LEDGERS_MAX:
            count = min(len(rest), LOOKS_AT_ONCE, DROPPING_LEDGERS_MAX - len(free))
            part = [rest.popleft() for _ in range(count)]
            for ledger in await run_all(self._look(each, left) for each in part):
                if ledger is None:
                    continue
                if ledger.value.is_closed:
                    free.append(ledger)
                    continue
                left.add(ledger.value.ledger_id)
                if not ledger.value.owner:  # it is in no index: nobody else would
                    await self._recover(ledger.value.ledger_id, may_go_on)
        return free

    async def _recover(self, ledger_id: LedgerId, may_go_on: Callable[[], bool]) -> None:
        """Recover a ledger, if there is time. One that was tried waits until all were: it may fail
        each time, or take seconds, and would keep the others from it for ever."""
        if ledger_id in self._names.tried:
            return
        if may_go_on():
            self._names.tried.add(ledger_id)
            await self._deletions.recover(ledger_id)
        else:
            self._is_late = True

    async def _delete_listed(
        self,
        free: Sequence[Versioned[LedgerMetadata]],
        named: Callable[[Collection[LedgerId]], Awaitable[Collection[LedgerId]]],
    ) -> set[LedgerId]:
        """Delete closed ledgers while no commit may name them, except those that are named at the
        second look (rule T17); those that could not be deleted."""
        ids = [each.value.ledger_id for each in free]
        config = await self._listing(ids)
        # Commits that were made before the list are seen now; later ones refuse these ledgers.
        again = await named(ids)
        checks = [Check(self._nodes.config_path, config.version)]
        left: set[LedgerId] = set()
        for ledger in free:
            ledger_id = ledger.value.ledger_id
            if ledger_id not in again and not await self._delete(ledger, checks):
                left.add(ledger_id)
        await self._listing(())
        return left

    async def delete_unlisted(self, ledger_ids: Sequence[LedgerId], end: int) -> int:
        """Delete those of the ledgers that nothing names; how many (rule K9). ``end``: nothing that
        was there before this commit was made names them.

        Raises as ``step``, and DataLossError if what the stream names cannot be read.
        """
        self._deleted = 0
        free = []
        for ledger_id in ledger_ids:
            ledger = await self._ours(ledger_id)
            if ledger is not None and ledger.value.is_closed:
                free.append(ledger)

        async def named(listed: Collection[LedgerId]) -> set[LedgerId]:
            head = (await self._nodes.head(latest=True)).value
            found: set[LedgerId] = set()
            async for part in names_of(self._nodes, self._log, head, end):
                found |= part.ledgers.intersection(listed)
            return found

        if free:
            await self._delete_listed(free, named)
        return self._deleted

    async def withdraw(self) -> None:
        """Take back the list that somebody who died has left in the configuration."""
        await self._listing(())

    async def _ours(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        """A ledger that was made for this stream, or None. Another's is that one's to delete."""
        ledger = await self._deletions.read(ledger_id)
        stream_id = self._log.manifests.stream_id
        if ledger is None or ledger.value.custom_metadata.get(TAG_STREAM_ID) != stream_id:
            return None
        return ledger

    async def _look(
        self, ledger_id: LedgerId, left: set[LedgerId]
    ) -> Versioned[LedgerMetadata] | None:
        """As ``_ours``; one whose node cannot be read is added to those that are left: nobody can
        tell whose it is, and it keeps no other waiting (rule K6)."""
        try:
            return await self._ours(ledger_id)
        except MetadataRestoredError:
            raise
        except (CorruptionError, ConfigurationError) as error:
            self._tell(f"ledger {ledger_id} of dropped rows is left", error)
            left.add(ledger_id)
            return None

    async def _delete(
        self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation] = ()
    ) -> bool:
        done = await self._deletions.delete(ledger, checks)
        self._deleted += done
        return done

    async def _delete_all(self, ledger_ids: Iterable[LedgerId]) -> set[LedgerId]:
        """Delete ledgers that nothing leads to any more but what is dropped with them; those that
        are left, as their nodes cannot be read.

        Raises ConflictError if another is left: then what leads to it has to stay (rule T18).
        """
        left: set[LedgerId] = set()
        for ledger_id in sorted(ledger_ids):
            ledger = await self._look(ledger_id, left)
            if ledger is None or await self._delete(ledger):
                continue
            if await self._ours(ledger_id) is not None:
                raise ConflictError(
                    f"stream {self._nodes.name!r}: ledger {ledger_id} of dropped commits could "
                    "not be deleted yet; the next sweep goes on there"
                )
        return left

    async def _pages_below(self, root: ManifestRoot, dropped: int) -> list[set[LedgerId]]:
        """The ledgers of pages that lie wholly below a commit, by level: those of leaves first, but
        for what these were in before.

        A leaf shares its ledger with others, and with the page that names it.
        """
        after = root.trimmed(dropped)
        gone: dict[int, set[LedgerId]] = {}
        needed: set[LedgerId] = set()
        pages = root.pages()
        while pages:
            page = pages.pop()
            behind = page.first + root.span(page.level)
            if after.is_dropped(page):
                gone.setdefault(page.level, set()).add(LedgerId(page.pointer.ledger_id))
            else:
                needed.add(LedgerId(page.pointer.ledger_id))
            if page.level and page.first < dropped and behind > root.dropped:
                try:
                    pages += root.children(page, await self._log.manifests.children(root, page))
                    if after.is_dropped(page):
                        former = await self._log.manifests.former(root, page)
                        gone.setdefault(_FORMER, set()).update(former)
                except (DataLossError, NotFoundError):
                    continue
                except (CorruptionError, ConfigurationError) as error:
                    if dropped > root.dropped or isinstance(error, MetadataRestoredError):
                        raise  # it has just been read: the next step sees that it waits
        return [gone[level] - needed for level in sorted(gone)]

    async def _write_root(self, before: Versioned[ManifestRoot], after: ManifestRoot) -> None:
        if after == before.value:
            return
        nodes = self._nodes
        await nodes.store.transaction(
            [
                self._deletions.guard(),
                Check(nodes.identity_path(after.stream_id), 0),
                Put(nodes.manifests_path, encode_root(after), before.version),
            ]
        )
        self._log.manifests.wrote(after, before.version + 1)
