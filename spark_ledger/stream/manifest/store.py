"""Reads manifests: the root, and pages by commit number. Keeps pages, which never change.

The root that is known may be old. What it names may then be gone, because pages were merged into
another ledger: whoever meets that reads the root again, and finds the commits where they are now
(rule T12).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import Final, TypeVar

from spark_ledger.client.caches import watch_cache
from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    DataLossError,
    LedgerError,
    MetadataRestoredError,
    NotFoundError,
)
from spark_ledger.limits import KIB
from spark_ledger.limits.stream import PAGES_KEPT_BYTES_MAX
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.ledgers import Ledgers
from spark_ledger.stream.manifest.format import (
    decode_index,
    decode_leaf,
    decode_root,
    former_ledgers,
    leaf_count,
)
from spark_ledger.stream.manifest.tree import ManifestRoot, Page, PagePointer, empty_root
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.types import EntryId, LedgerId, Versioned

T = TypeVar("T")

_POINTERS_KEPT_MAX: Final = 16
"""Pages of pointers that are kept decoded, a hundred pointers each: a search ends below one."""

PAGE_READS_MAX: Final = 64
"""Pages that are read at once: enough to hide the round trip."""

_SEARCHES_MAX: Final = 8
"""How often a look-up begins again because pages moved. They move once in thousands of commits."""

_PAGE_BYTES_MIN: Final = KIB
"""What a page counts at least."""


_NO_NODE: Final = -1
"""The version of the root of a stream of the former format, which has no node."""


class ManifestStore:
    """The manifests of one stream. Bound to one event loop."""

    def __init__(self, ledgers: Ledgers, nodes: StreamNodes, stream_id: str) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self.stream_id = stream_id
        self._root: Versioned[ManifestRoot] | None = None
        self._reading = OneConnection(nodes.store)
        """Of the root. Behind it another root may be there, also an older one (rule T12)."""
        self._pages: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._pages_bytes = 0
        self._pointers: OrderedDict[tuple[int, int], tuple[PagePointer, ...]] = OrderedDict()
        self._reads = asyncio.Semaphore(PAGE_READS_MAX)
        watch_cache("pages", self, lambda store: store._pages_bytes, PAGES_KEPT_BYTES_MAX)

    @property
    def memory_bytes(self) -> int:
        """What the pages that are kept take."""
        return self._pages_bytes

    # -- the root ----------------------------------------------------------------------------------

    async def root(self) -> ManifestRoot:
        """The root as it was last read, over the connection of now. A stream of the former format
        has an empty one."""
        if self._root is None or self._reading.has_ended:
            return await self.read_root()
        return self._root.value

    async def read_root(self, *, latest: bool = False) -> ManifestRoot:
        """Read the root again; ``latest``: no older than this call."""
        while True:
            reading, is_new = OneConnection(self._nodes.store), self._reading.has_ended
            found = await self._find_root(latest=latest or is_new)
            if not reading.has_ended:
                break
        # Over one connection versions only grow: an older one is of a server that lags.
        if self._reading.has_ended:
            self.forget_all()  # ids of ledgers may have been given again too
        if self._root is None or found.version > self._root.version:
            self._root, self._reading = found, reading
        return self._root.value

    async def _find_root(self, *, latest: bool) -> Versioned[ManifestRoot]:
        read = self._nodes.store.get_latest if latest else self._nodes.store.get
        path = self._nodes.manifests_path
        try:
            node = await read(path)
        except NotFoundError as error:
            if self.versioned is not None:
                raise self._nodes.no_such_stream() from error
            return Versioned(empty_root(self.stream_id), _NO_NODE)
        root = decode_root(node.value, path)
        if root.stream_id != self.stream_id:
            raise self._nodes.no_such_stream()  # another stream of the same name (rule T7)
        return Versioned(root, node.version)

    @property
    def versioned(self) -> Versioned[ManifestRoot] | None:
        """The root as it was last read, with the version of its node; None if it has none."""
        return None if self._root is None or self._root.version == _NO_NODE else self._root

    def wrote(self, root: ManifestRoot, version: int) -> None:
        """The root was replaced by this process."""
        if self._root is None or version > self._root.version:
            self._root = Versioned(root, version)

    async def search(self, look: Callable[[ManifestRoot], Awaitable[T]]) -> T:
        """What ``look`` finds with a root. It looks again, with the newest root, if what the root
        names is gone. Raises DataLossError if it is gone although the root names it still."""
        root = await self.root()
        for _ in range(_SEARCHES_MAX):
            try:
                return await look(root)
            except NotFoundError as error:
                newest = await self.read_root(latest=True)
                if newest == root:
                    config = await self._nodes.config()
                    if config.value.deleted:
                        raise self._nodes.no_such_stream() from error
                    raise self._gone(error) from error
                root = newest
        raise self._gone(None)

    def _gone(self, cause: NotFoundError | None) -> DataLossError:
        return DataLossError(
            f"stream {self._nodes.name!r}: the manifests that hold its older commits cannot be "
            f"read: {cause or 'they keep moving'}"
        )

    def _truncated(self, commit: int, root: ManifestRoot) -> DataLossError:
        return DataLossError(
            f"stream {self._nodes.name!r}: commit {commit} was truncated, like all before "
            f"{root.dropped}"
        )

    # -- pages -------------------------------------------------------------------------------------

    async def leaf(self, root: ManifestRoot, commit: int) -> tuple[int, tuple[bytes, ...]]:
        """The leaf that holds a sealed commit: the number of its first commit, and the nodes.

        Raises NotFoundError if a page is gone: the root is old.
        """
        page = (await self.path(root, commit))[-1]
        return page.first, await self.nodes_of(root, page)

    async def path(self, root: ManifestRoot, commit: int) -> list[Page]:
        """The pages behind which a sealed commit lies, down to its leaf.

        Raises DataLossError if the commit was truncated, and its page is gone or about to go.
        """
        if commit < root.dropped:
            raise self._truncated(commit, root)
        pages = [root.page_of(commit)]
        while pages[-1].level:
            page = pages[-1]
            below = root.children(page, await self.children(root, page))
            pages.append(below[(commit - page.first) // root.span(page.level - 1)])
        return pages

    async def nodes_of(self, root: ManifestRoot, page: Page) -> tuple[bytes, ...]:
        """The nodes of the commits of a leaf."""
        where, data = await self._read(page.pointer)
        nodes = decode_leaf(data, self.stream_id, page.first, where)
        if len(nodes) != root.leaf_commits:
            raise CorruptionError(f"{where}: {len(nodes)} commits, not {root.leaf_commits}")
        return nodes

    async def children(self, root: ManifestRoot, page: Page) -> tuple[PagePointer, ...]:
        """The pointers of a page above the leaves."""
        key = (page.pointer.ledger_id, page.pointer.entry_id)
        known = self._pointers.get(key)
        if known is None:
            reading = OneConnection(self._nodes.store)
            where, data = await self._read(page.pointer)
            known = decode_index(data, self.stream_id, page.level, page.first, where)
            if len(known) != root.fan_out:
                raise CorruptionError(f"{where}: {len(known)} pages, not {root.fan_out}")
            if not reading.has_ended:
                self._pointers[key] = known
                if len(self._pointers) > _POINTERS_KEPT_MAX:
                    self._pointers.popitem(last=False)
        return known

    async def former(self, root: ManifestRoot, page: Page) -> tuple[LedgerId, ...]:
        """The ledgers that the leaves below a page have left for its own, and that may be there
        still (rule T12)."""
        if page.level != 1 or page.first < root.freed:
            return ()
        where, data = await self._read(page.pointer)
        return former_ledgers(data, self.stream_id, page.first, where)

    async def leaf_bytes(self, root: ManifestRoot, page: Page) -> bytes:
        """A leaf as it is stored, to be copied: looked at no further than that it is that leaf, and
        not damaged."""
        where, data = await self._read(page.pointer)
        count = leaf_count(data, self.stream_id, page.first, where)
        if count != root.leaf_commits:
            raise CorruptionError(f"{where}: {count} commits, not {root.leaf_commits}")
        return data

    async def _read(self, pointer: PagePointer) -> tuple[str, bytes]:
        """Where a page is, and its bytes, which are confirmed (rules T6 and T9)."""
        key = (pointer.ledger_id, pointer.entry_id)
        where = f"stream {self._nodes.name!r}, manifest in entry {key[1]} of ledger {key[0]}"
        known = self._pages.get(key)
        if known is None:
            (known,) = await self._fetch(*key, key[1])
        else:
            self._pages.move_to_end(key)
        return where, known

    async def _fetch(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Read pages that stand one behind the other in a ledger, and keep them."""
        found: list[bytes] = []
        async with self._reads:
            reading = OneConnection(self._nodes.store)
            reader = await self._ledgers.open_unconfirmed(LedgerId(ledger_id))
            batches = reader.read_batches(EntryId(first), EntryId(last), unconfirmed=True)
            async for entries in batches:
                found += [entry.payload for entry in entries]
        assert len(found) == last - first + 1, "a ledger delivers the entries, or raises"
        if not reading.has_ended:  # else the pages that are kept are those of another store by now
            for entry_id, data in enumerate(found, first):
                self._keep((ledger_id, entry_id), data)
        return found

    def keep(self, ledger_id: LedgerId, pages: Sequence[bytes]) -> None:
        """Keep the pages of a ledger that was written here, and that the root names."""
        for entry_id, data in enumerate(pages):
            self._keep((ledger_id, entry_id), data)

    def forget(self, ledger_ids: Collection[LedgerId]) -> None:
        """Keep the pages of ledgers no longer that were deleted."""
        for key in [each for each in self._pages if each[0] in ledger_ids]:
            self._pages_bytes -= max(len(self._pages.pop(key)), _PAGE_BYTES_MIN)

    def forget_all(self) -> None:
        """Keep no page and no root: they are of a store that went back since."""
        self._root = None
        self._pages.clear()
        self._pages_bytes = 0
        self._pointers.clear()

    def _keep(self, key: tuple[int, int], data: bytes) -> None:
        if key in self._pages:
            return  # two read it at once
        self._pages[key] = data
        self._pages_bytes += max(len(data), _PAGE_BYTES_MIN)
        while self._pages_bytes > PAGES_KEPT_BYTES_MAX:
            _, oldest = self._pages.popitem(last=False)
            self._pages_bytes -= max(len(oldest), _PAGE_BYTES_MIN)

    async def leaves(self, root: ManifestRoot, first: int, end: int) -> list[Page]:
        """The leaves with sealed commits of ``first`` .. ``end - 1``, in order; none is read."""

        def inside(pages: list[Page]) -> list[Page]:
            return [p for p in pages if p.first < end and first < p.first + root.span(p.level)]

        pages = inside(root.pages())
        while any(page.level for page in pages):
            above = [page for page in pages if page.level]
            below = dict(
                zip(above, await run_all(self.children(root, p) for p in above), strict=True)
            )
            pages = inside(
                [leaf for p in pages for leaf in (root.children(p, below[p]) if p.level else [p])]
            )
        return pages

    async def load(self, root: ManifestRoot, first: int, end: int) -> None:
        """Read the leaves with sealed commits of ``first`` .. ``end - 1`` that are not kept.

        Those that were sealed together stand one behind the other in a ledger: one read brings
        them, where a read for each would take longer than to decode them. Raises as ``leaf``.
        """
        runs: list[list[int]] = []
        for page in await self.leaves(root, first, end):
            ledger_id, entry_id = key = page.pointer.ledger_id, page.pointer.entry_id
            if key in self._pages:
                continue
            if runs and runs[-1][0] == ledger_id and runs[-1][2] + 1 == entry_id:
                runs[-1][2] = entry_id
            else:
                runs.append([ledger_id, entry_id, entry_id])
        await run_all(self._fetch(*run) for run in runs)

    async def leaves_of_sink(
        self, root: ManifestRoot, first: int, sink_id: str, transaction_id: int
    ) -> AsyncGenerator[Page, None]:
        """The leaves that may hold a transaction of a sink from this one on, in order, of those
        with a commit from ``first`` on. It reads the pages above as far as the caller takes them.
        """
        pages = root.pages()
        while pages:
            page, *pages = pages
            behind = page.first + root.span(page.level)
            if behind <= first or not page.pointer.may_hold(sink_id, transaction_id):
                continue
            if page.level:
                pages = [*root.children(page, await self.children(root, page)), *pages]
            else:
                yield page

    async def walk(self, unread: list[LedgerError] | None = None) -> AsyncGenerator[Page, None]:
        """All pages, each before those that it names, as far as they can be read: to delete them.

        A page that a deletion of before has taken away, or that is lost, is there, and what it
        named is not. ``unread`` is given the error of each that is there and cannot be read;
        without it that is raised, as is MetadataRestoredError.
        """
        root = await self.read_root(latest=True)
        pages = root.pages()
        while pages:
            page = pages.pop()
            yield page
            if page.level:
                try:
                    pages += root.children(page, await self.children(root, page))
                except (DataLossError, NotFoundError):
                    continue
                except (CorruptionError, ConfigurationError) as error:
                    if unread is None or isinstance(error, MetadataRestoredError):
                        raise
                    unread.append(error)

    # -- searching ---------------------------------------------------------------------------------

    async def narrow(
        self, among: tuple[int, int], target: int, key: Callable[[PagePointer], int]
    ) -> tuple[int, int]:
        """A part of the commits ``low`` .. ``high - 1`` that has the last one whose key is at most
        ``target``, if any has. Keys ascend there; ``key`` is that of a page's first commit.

        It reads a page for each level, and ends at a leaf, or behind the sealed commits.
        """

        async def look(root: ManifestRoot) -> tuple[int, int]:
            low, high = among
            pages = root.pages()
            while pages:
                inner = [page for page in pages if low < page.first < high]
                later = [page for page in inner if key(page.pointer) > target]
                high = later[0].first if later else high
                low = max([low, *(page.first for page in inner if page.first < high)])
                page = max(
                    (p for p in pages if p.first <= low), key=lambda p: p.first, default=None
                )
                if page is None or not page.level or low >= page.first + root.span(page.level):
                    break
                pages = root.children(page, await self.children(root, page))
            return low, high

        return await self.search(look)
