"""The tree of manifests: which page holds a commit, and what sealing and merging make of it. Pure.

A page of level 0, a *leaf*, repeats ``leaf_commits`` consecutive commits. A page of level n + 1
names ``fan_out`` pages of level n. Every page is full, so arithmetic says where a commit is: the
pages of the highest level hold the oldest commits, and the leaves that are named alone the newest.
Each page is one entry of a ledger. The root is a metadata node: it names the pages that no page
names, and so says how many commits are sealed (rule T11).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from spark_ledger.stream.model import Commit
from spark_ledger.types import LedgerId

COMMITS_PER_LEAF: Final = 100
"""Small enough that a reader who wants one commit decodes little (80 KB for tasks of 8 segments,
some 8 KB of them as stored), large enough that one commit in a hundred pays for sealing."""

FAN_OUT: Final = 100
"""A million commits are two reads away from the root, which names 300 pages at most."""

SINKS_PER_POINTER_MAX: Final = 4
"""A pointer tells which transactions of how many sinks lie behind it. Most streams have one or two;
appends without a sink id have one each, and a root full of those would be large."""


class SinkSpan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The first and the last transaction of a sink in a page. They ascend (rule T3)."""

    sink_id: str
    first: int
    last: int


class PagePointer(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """Where a page is, and what its first commit says: what a search compares.

    ``sinks`` is None if too many sinks wrote these commits to name them all.
    """

    ledger_id: int
    entry_id: int
    first_segment: int
    time_ms: int
    rows_before: int
    bytes_before: int
    sinks: tuple[SinkSpan, ...] | None

    def may_hold(self, sink_id: str, transaction_id: int) -> bool:
        """Whether a transaction of a sink with this number, or a later one, may lie behind it."""
        return self.sinks is None or any(
            span.sink_id == sink_id and transaction_id <= span.last for span in self.sinks
        )


class Page(NamedTuple):
    """A page: the number of its first commit, its level, and where it is."""

    first: int
    level: int
    pointer: PagePointer


class ManifestRoot(NamedTuple):
    """The pages that no page names, by level, each level in order of the commits.

    The sizes are kept with the tree, so programs that use other sizes for new streams read it.
    Commits below ``dropped`` were truncated, and nothing that they name is left (rule T18); the
    first page begins with commit ``first``. Of a page that begins below ``dropped`` and ends above
    it the pages behind ``dropped`` are there, and it itself. Of the leaves of commits below
    ``freed`` that were merged nothing is left in their former ledgers (rule T12).
    """

    stream_id: str
    levels: tuple[tuple[PagePointer, ...], ...]
    leaf_commits: int
    fan_out: int
    first: int = 0
    dropped: int = 0
    freed: int = 0

    def span(self, level: int) -> int:
        """How many commits a page of a level holds."""
        return self.leaf_commits * int(self.fan_out**level)

    @property
    def sealed(self) -> int:
        """One above the last sealed commit: this one and later ones have metadata nodes."""
        spans = (len(pages) * self.span(level) for level, pages in enumerate(self.levels))
        return self.first + sum(spans)

    @property
    def merged_upto(self) -> int:
        """The leaves of commits below it are named by pages above them."""
        return self.sealed - self.leaf_commits * len(self.levels[0] if self.levels else ())

    def pages(self) -> list[Page]:
        """All pages that it names, in order of the commits."""
        found: list[Page] = []
        following = self.first
        for level in range(len(self.levels) - 1, -1, -1):
            for pointer in self.levels[level]:
                found.append(Page(following, level, pointer))
                following += self.span(level)
        assert following == self.sealed, (following, self.sealed)
        return found

    def page_of(self, commit: int) -> Page:
        """The page behind which a sealed commit lies, one that was not dropped."""
        first = self.first
        assert commit >= first, f"commit {commit} was dropped; the first is {first}"
        for level in range(len(self.levels) - 1, -1, -1):
            span, pages = self.span(level), self.levels[level]
            if commit < first + span * len(pages):
                index = (commit - first) // span
                return Page(first + index * span, level, pages[index])
            first += span * len(pages)
        raise AssertionError(f"commit {commit} is not sealed; those before {first} are")

    def children(self, page: Page, pointers: Sequence[PagePointer]) -> list[Page]:
        """The pages that a page names."""
        level = page.level - 1
        assert level >= 0 and len(pointers) == self.fan_out, (page.level, len(pointers))
        span = self.span(level)
        return [Page(page.first + n * span, level, p) for n, p in enumerate(pointers)]

    def with_leaves(self, leaves: Sequence[PagePointer]) -> ManifestRoot:
        """The root when the commits from ``sealed`` on are in these leaves."""
        lowest, higher = (self.levels or ((),))[0], self.levels[1:]
        return self._replace(levels=((*lowest, *leaves), *higher))

    def dropped_leaves(self) -> int:
        """How many leaves the next commits would fill of which nothing is left: they get no page,
        for nobody would ever delete it (rule T18)."""
        gone = max(0, self.dropped - self.sealed) // self.leaf_commits
        assert not gone or not any(self.levels), "every page before them went with what it names"
        return gone

    def without_leaves(self, count: int) -> ManifestRoot:
        """The root when the next commits, all dropped, are counted as sealed and have no page."""
        assert 0 < count <= self.dropped_leaves(), (count, self.dropped, self.sealed)
        return self._replace(first=self.first + count * self.leaf_commits)

    def level_to_merge(self) -> int | None:
        """The lowest level with enough pages for a page above, or None."""
        full = (n for n, pages in enumerate(self.levels) if len(pages) >= self.fan_out)
        return next(full, None)

    def merged(self, level: int, above: PagePointer) -> ManifestRoot:
        """The root when the first ``fan_out`` pages of a level are named by a page above."""
        levels = [*self.levels, *([()] if level + 1 == len(self.levels) else [])]
        assert len(levels[level]) >= self.fan_out, "a page above names a full set"
        levels[level] = levels[level][self.fan_out :]
        levels[level + 1] = (*levels[level + 1], above)
        after = self._replace(levels=tuple(levels))
        assert after.sealed == self.sealed, "merging moves no commit"
        return after

    def is_dropped(self, page: Page) -> bool:
        """Whether all commits behind a page were truncated, and nothing that they name is left."""
        return page.first + self.span(page.level) <= self.dropped

    def trimmed(self, dropped: int) -> ManifestRoot:
        """The root when nothing is left of the commits below one (rule T18)."""
        assert dropped >= self.dropped, "what was dropped does not come back"
        after = self._replace(dropped=dropped)
        pages = after.pages()
        kept = [page for page in pages if not after.is_dropped(page)]
        levels: list[tuple[PagePointer, ...]] = [() for _ in self.levels]
        for page in kept:
            levels[page.level] = (*levels[page.level], page.pointer)
        after = after._replace(levels=tuple(levels), first=kept[0].first if kept else self.sealed)
        assert after.sealed == self.sealed, "only the oldest pages go"
        return after

    def ledgers(self) -> set[LedgerId]:
        """The ledgers of the pages that it names."""
        return {LedgerId(pointer.ledger_id) for pages in self.levels for pointer in pages}


def empty_root(stream_id: str) -> ManifestRoot:
    """The root of a stream of which nothing is sealed yet."""
    return ManifestRoot(stream_id, (), COMMITS_PER_LEAF, FAN_OUT)


def leaf_pointer(ledger_id: int, entry_id: int, commits: Sequence[Commit]) -> PagePointer:
    """The pointer to a leaf that holds these commits."""
    first = commits[0]
    spans = [SinkSpan(c.sink_id, c.transaction_id, c.transaction_id) for c in commits]
    return PagePointer(
        ledger_id,
        entry_id,
        first.first_segment,
        first.time_ms,
        first.rows_before,
        first.bytes_before,
        _joined(spans),
    )


def index_pointer(ledger_id: int, entry_id: int, pages: Sequence[PagePointer]) -> PagePointer:
    """The pointer to a page that names these pages."""
    spans: list[SinkSpan] | None = []
    for page in pages:
        spans = None if spans is None or page.sinks is None else [*spans, *page.sinks]
    return msgspec.structs.replace(
        pages[0],
        ledger_id=ledger_id,
        entry_id=entry_id,
        sinks=None if spans is None else _joined(spans),
    )


def _joined(spans: Iterable[SinkSpan]) -> tuple[SinkSpan, ...] | None:
    """One span for each sink; None if there are too many sinks."""
    found: dict[str, SinkSpan] = {}
    for span in spans:
        known = found.get(span.sink_id, span)
        found[span.sink_id] = SinkSpan(
            span.sink_id, min(known.first, span.first), max(known.last, span.last)
        )
        if len(found) > SINKS_PER_POINTER_MAX:
            return None
    return tuple(found.values())
