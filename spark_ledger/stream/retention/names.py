"""What a stream names: ledgers of rows, of segment lists and of manifests, a part at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    DataLossError,
    LedgerError,
    MetadataRestoredError,
    NotFoundError,
)
from spark_ledger.stream.commit.commit_log import CommitLog, NamedLedgers
from spark_ledger.stream.manifest.tree import ManifestRoot
from spark_ledger.stream.model import Head
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.stream.packs.store import read_packs
from spark_ledger.types import LedgerId


class Names(NamedTuple):
    """A part of what a stream names."""

    behind: int
    """Of the commits that were asked for, those below are read."""
    ledgers: set[LedgerId]


class ReadNames(NamedTuple):
    """What commits name that are to go, as far as it can be told."""

    named: dict[int, NamedLedgers]
    unread: dict[int, LedgerError]
    """Of the other commits the page, the list or the node itself is there and cannot be read."""


async def read_names(log: CommitLog, numbers: Sequence[int]) -> ReadNames:
    """The ledgers that ascending commits name which were dropped, or whose stream is deleted.

    What is gone names nothing: it went with a step of before, after all that it named. What cannot
    be read keeps no other waiting (rule K6). Raises MetadataRestoredError.
    """
    try:
        return ReadNames(await log.ledgers(numbers), {})
    except MetadataRestoredError:
        raise
    except (NotFoundError, CorruptionError, ConfigurationError):
        pass  # of one of them, perhaps: they are read one by one
    named: dict[int, NamedLedgers] = {}
    unread: dict[int, LedgerError] = {}
    leaf_commits = (await log.manifests.root()).leaf_commits
    for _, of_leaf in groupby(numbers, lambda number: number // leaf_commits):
        members = list(of_leaf)
        damage = await _page_error(log, members[-1])
        if damage is not None:  # each of them would read it again
            if not isinstance(damage, (DataLossError, NotFoundError)):
                unread.update(dict.fromkeys(members, damage))
            continue
        for number in members:
            try:
                named |= await log.ledgers([number])
            except MetadataRestoredError:
                raise
            except (DataLossError, NotFoundError):
                continue
            except (CorruptionError, ConfigurationError) as error:
                unread[number] = error
    return ReadNames(named, unread)


async def _page_error(log: CommitLog, number: int) -> LedgerError | None:
    """Why the page that has a commit cannot be read; None if it can, or none has the commit."""

    async def look(root: ManifestRoot) -> None:
        if number < root.sealed:
            await log.manifests.leaf(root, number)

    try:
        await log.manifests.search(look)
    except MetadataRestoredError:
        raise
    except (NotFoundError, CorruptionError, ConfigurationError) as error:
        return error
    return None


async def names_of(
    nodes: StreamNodes, log: CommitLog, head: Head, first: int = 0
) -> AsyncGenerator[Names, None]:
    """The ledgers that commits ``first`` .. ``head.next_commit - 1`` name, a thousand commits at a
    time, and then those of all pages of manifests and the packs, no older than that. Those that
    packed commits named before are among them, also when they are gone (rule T25), and those in
    which pages were before, as long as a keeper lets them stay (rule T12).

    What a commit names never changes, so one may go on behind a part, also much later. Pages and
    packs do change: they are read at the end of each call.

    All of what is not dropped, or an error: DataLossError if it cannot be read, NoSuchStreamError.
    What dropped commits name, as far as they can be read.
    """
    root = await log.manifests.read_root(latest=True)
    for numbers in _parts(root, max(first, root.dropped), head.next_commit, head.earliest_commit):
        yield Names(numbers.stop, await _named_by(nodes, log, numbers))
    await log.manifests.read_root(latest=True)
    pages, former = await _pages(nodes, log)
    yield Names(head.next_commit, pages | former)
    packs = (await read_packs(nodes)).value.packs
    yield Names(head.next_commit, {pack.ledger_id for pack in packs})


class Replaced(NamedTuple):
    """What has taken the place of other ledgers."""

    merged: int
    """Leaves of commits below it have moved."""
    packs: int
    """So many were made."""
    crowded: int = 0
    """Leaves of commits below it have left more ledgers since than are kept (rule K11)."""


class LedgerCounts(NamedTuple):
    """How many ledgers a stream has, each counted once."""

    live: int
    """Of rows that are not dropped, and of segment lists and manifests."""
    held: int
    """Of these, such as are there only because a hold keeps rows that the limits would drop."""
    reclaimable: int
    """Of dropped and of packed commits only, or of pages that have moved, and not deleted yet."""
    replaced: int = 0
    """Of these, such as packs and pages have replaced: they wait for backups (rule K11)."""


async def count_ledgers(
    nodes: StreamNodes, log: CommitLog, head: Head, first_kept: int
) -> LedgerCounts:
    """Count what a stream names; ``first_kept`` is the first commit that its limits keep."""
    root = await log.manifests.read_root(latest=True)
    dropped: set[LedgerId] = set()
    replaced: set[LedgerId] = set()
    held: set[LedgerId] = set()
    kept: set[LedgerId] = set()
    packs = (await read_packs(nodes)).value
    begin, first_kept = head.earliest_commit, max(first_kept, head.earliest_commit)
    for found, first, end in (
        (dropped, root.dropped, begin),
        (held, begin, first_kept),
        (kept, first_kept, head.next_commit),
    ):
        for part in _parts(root, first, end, begin):
            found |= await _named_by(nodes, log, packs.numbers_outside(part.start, part.stop))
    for pack in packs.packs:
        kept.add(pack.ledger_id)
        if not pack.is_freed:
            for part in _parts(root, max(pack.first, root.dropped), pack.end, begin):
                replaced |= await _named_by(nodes, log, part)
    pages, former = await _pages(nodes, log)
    kept |= pages
    replaced = (replaced | former) - held - kept
    return LedgerCounts(
        live=len(held | kept),
        held=len(held - kept),
        reclaimable=len((dropped - held - kept) | replaced),
        replaced=len(replaced),
    )


def _parts(root: ManifestRoot, first: int, end: int, earliest: int) -> Iterator[range]:
    """Ranges of commits that lie in one bucket each. Of dropped commits a page each: one that is
    gone says nothing of those behind it."""
    start = first
    while start < end:
        is_dropped = start < earliest
        step = root.leaf_commits if is_dropped else COMMITS_PER_BUCKET
        behind = min(start - start % step + step, earliest if is_dropped else end, end)
        yield range(start, behind)
        start = behind


async def _named_by(nodes: StreamNodes, log: CommitLog, numbers: Sequence[int]) -> set[LedgerId]:
    if not numbers:
        return set()
    try:
        named = (await log.ledgers(numbers)).values()
    except (DataLossError, NotFoundError):
        earliest = (await nodes.head(latest=True)).value.earliest_commit
        if numbers[0] >= earliest:
            raise
        # Dropped, perhaps since they were counted: a page of them may be gone, and all it named.
        kept = range(earliest, numbers[-1] + 1)
        return await _named_by(nodes, log, kept) if kept else set()
    found = set[LedgerId]().union(*(each.rows for each in named))
    return found | {each.segment_list for each in named if each.segment_list is not None}


async def _pages(nodes: StreamNodes, log: CommitLog) -> tuple[set[LedgerId], set[LedgerId]]:
    """The ledgers of pages, and those in which pages were before."""
    earliest = (await nodes.head()).value.earliest_commit

    async def look(root: ManifestRoot) -> tuple[set[LedgerId], set[LedgerId]]:
        found: set[LedgerId] = set()
        former: set[LedgerId] = set()
        pages = root.pages()
        while pages:
            page = pages.pop()
            found.add(LedgerId(page.pointer.ledger_id))
            if not page.level:
                continue
            if page.first + root.span(page.level) <= earliest:
                with suppress(NotFoundError):  # a keeper is about to delete it
                    pages += root.children(page, await log.manifests.children(root, page))
                    former.update(await log.manifests.former(root, page))
            else:
                pages += root.children(page, await log.manifests.children(root, page))
                former.update(await log.manifests.former(root, page))
        return found, former

    return await log.manifests.search(look)
