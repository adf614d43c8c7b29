"""Nodes of repair in the metadata store.

| node | contents |
|---|---|
| repair/marked/<copies left>/00/0000/L0001 | format_version, the bookies whose copies are missing |
| repair/locks/<ledger id> | ephemeral: the worker that is at it (``metadata/repair_locks.py``) |
| repair/failed/00/0000/L0001 | format_version, why the last try failed, how many did |
| repair/leaving/<bookie id> | an operator takes this bookie out of the cluster |
| repair/left/<bookie id> | an operator has taken it out; without its cookie |
| repair/state | format_version, what the auditor saw last |
| repair/done | format_version, what workers have done, for people |
| repair/counts | format_version, how much is marked and fails, for metrics |
| repair/check | format_version, how far the periodic check is, and what the last one found |
| repair/closed | format_version, up to where ledgers were checked once they were closed |
| repair/rebalance | ephemeral: copies are moved from full bookies to empty ones |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Final

import msgspec

from spark_ledger.errors import (
    BookieUnavailableError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import Create, Delete, MetadataStore, Operation, again
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import LEAVING_PATH, leaving_path
from spark_ledger.metadata.json_nodes import Count, Node, Seconds, read_or_renew, write_node
from spark_ledger.metadata.unsettled import id_path
from spark_ledger.types import BookieId, LedgerId, Versioned

MARKED_PATH: Final = "repair/marked"
FAILED_PATH: Final = "repair/failed"
STATE_PATH: Final = "repair/state"
DONE_PATH: Final = "repair/done"
CHECK_PATH: Final = "repair/check"
COUNTS_PATH: Final = "repair/counts"
CLOSED_PATH: Final = "repair/closed"
REBALANCE_PATH: Final = "repair/rebalance"

_WRITES: Final = 3
"""Of what an auditor saw: others forget something in between seldom, and it looks again soon."""

PRIORITIES: Final = (0, 1, 2, 3)
"""By copies that the worst entry has left; 3 stands for more. Fewest first."""


class Mark(Node, frozen=True, kw_only=True):
    """A ledger that lacks copies."""

    bookies: tuple[str, ...]
    """Those that were lost, or are leaving, when it was marked; none: a member has holes."""


class FailedRepair(Node, frozen=True, kw_only=True):
    """A ledger whose repair failed at the last try."""

    reason: str
    tries: Count
    again_ms: Count = 0
    """When its worker tries it again at the latest; 0: a program wrote this that did not say."""


class AuditState(Node, frozen=True, kw_only=True):
    """What the auditor saw last."""

    time_ms: Count = 0
    gone_s: dict[str, Seconds] = msgspec.field(default_factory=dict)
    """For how long bookies were seen to be gone."""
    without_cookie: tuple[str, ...] = ()
    """Bookies that have no cookie, and were registered at a look, until all ledgers were looked at
    because they are gone: nothing else says then that they were (rule R1)."""
    audited: tuple[str, ...] = ()
    """Lost bookies for which all ledgers were looked at."""
    audit_time_ms: Count = 0
    """When all ledgers were looked at last, or the cluster's first auditor began."""
    stopped: str = ""
    """Why nothing is marked; empty if nothing is in the way."""

    @property
    def lost(self) -> frozenset[BookieId]:
        """Who is lost or leaving, and what named them then is marked."""
        return frozenset(map(BookieId, self.audited))

    @property
    def known_here_only(self) -> frozenset[BookieId]:
        """``without_cookie``."""
        return frozenset(map(BookieId, self.without_cookie))


class CheckState(Node, frozen=True, kw_only=True):
    """The check of all ledgers: the one that is under way, or else the last one."""

    begun_ms: Count = 0
    """0: none is under way."""
    ended_ms: Count = 0
    """When the last one ended, or the cluster's first keeper began."""
    after: Count = 0
    """Ledgers up to this one are done."""
    ledgers: Count = 0
    with_holes: Count = 0
    restored: bool = False
    """It was begun since ZooKeeper was restored: copies may be where nothing names them."""


class ClosedState(Node, frozen=True, kw_only=True):
    """How far the check of ledgers that were closed is."""

    after: Count = 0
    """Ledgers up to this one are open, or were checked."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges of the ids up to it that no ledger had then: clients take their ids in blocks, and may
    give them out later."""


class RepairCounts(Node, frozen=True, kw_only=True):
    """What the auditor counted last. Only people and metrics read it."""

    lost: Count = 0
    """Bookies whose copies are made again: lost, or leaving."""
    marked: Count = 0
    marked_at_one: Count = 0
    """Of these, those of which the worst entry had one copy left, or none."""
    failing: Count = 0
    misplaced: Count = 0
    """Ledgers that the last look at all of them found where the placement policy does not want
    them, and that can be moved."""


class RepairDone(Node, frozen=True, kw_only=True):
    """What workers have done since the cluster was made."""

    ledgers: Count = 0
    copied_entries: Count = 0
    copied_bytes: Count = 0
    source_waited_ms: Count = 0
    """How long copies waited in sum because of the rate of the bookie that they were read from."""
    bytes_per_s: Count = 0
    """Of the worker that counted last."""
    time_ms: Count = 0


def mark_root(copies: int) -> str:
    """Where ledgers with so many copies left are marked."""
    return f"{MARKED_PATH}/{min(max(copies, PRIORITIES[0]), PRIORITIES[-1])}"


async def mark(
    store: MetadataStore, ledger_id: LedgerId, bookies: frozenset[BookieId], copies: int
) -> None:
    """Mark a ledger, or add bookies to its mark.

    A mark that is there is written once more, also as it is: a worker that is at the ledger may
    have looked before what is marked now, and by the version it notices that (rule R7).
    """
    path = id_path(mark_root(copies), ledger_id)
    while True:
        before = await read_or_renew(store, Mark(bookies=()), path)
        known = frozenset() if before is None else frozenset(before.value.bookies)
        try:
            await write_node(store, path, Mark(bookies=tuple(sorted(known | bookies))), before)
        except (ConflictError, NotFoundError):
            continue  # somebody marked it, or took it off, meanwhile
        return


async def begin_check(store: MetadataStore, now_ms: int) -> None:
    """Have all ledgers checked from now on, as ZooKeeper was restored: it may name bookies that
    have given their copies back since (rule R12). Raises what the metadata store raises."""

    async def write() -> None:
        before = await read_or_renew(store, CheckState(), CHECK_PATH)
        ended_ms = now_ms if before is None else before.value.ended_ms
        begun = CheckState(begun_ms=now_ms, ended_ms=ended_ms, restored=True)
        await write_node(store, CHECK_PATH, begun, before)

    await again(write, ConflictError, NotFoundError, OutcomeUnknownError)


async def leaving(store: MetadataStore) -> frozenset[BookieId]:
    """The bookies that an operator takes out of the cluster."""
    return frozenset(BookieId(name) for name in await store.children(LEAVING_PATH))


async def ran_without_cookie(store: MetadataStore) -> frozenset[BookieId]:
    """Bookies that the auditor has seen, and of which nothing else says that they were there."""
    state = await read_or_renew(store, AuditState(), STATE_PATH)
    return frozenset() if state is None else state.value.known_here_only


async def forget_without_cookie(store: MetadataStore, bookie_id: BookieId) -> None:
    """Count a bookie as one that the cluster never had, as if its cookie were removed (rule R10).

    It is to be registered no more: an auditor that sees it so notes it again.
    """
    while True:
        before = await read_or_renew(store, AuditState(), STATE_PATH)
        if before is None or bookie_id not in before.value.known_here_only:
            return
        names = tuple(sorted(before.value.known_here_only - {bookie_id}))
        after = msgspec.structs.replace(before.value, without_cookie=names)
        with contextlib.suppress(ConflictError, NotFoundError):  # an auditor wrote what it saw
            await write_node(store, STATE_PATH, after, before)


async def forget_lost(store: MetadataStore, bookies: Collection[BookieId]) -> None:
    """Count bookies that are registered as lost no more, before their marks go: if they are gone
    at an auditor's next look, it has to look at all ledgers for them once more (rule R1). Those
    that have no cookie are noted: nothing else would say then that they were there."""
    while bookies:
        before = await read_or_renew(store, AuditState(), STATE_PATH)
        if before is None:
            return
        cookies = await BookieRegistry(store).list_cookies()
        noted = before.value.known_here_only.union(set(bookies).difference(cookies))
        forgotten = before.value.lost.union(before.value.gone_s).intersection(bookies)
        if not forgotten and noted == before.value.known_here_only:
            return
        audited = tuple(sorted(before.value.lost.difference(bookies)))
        gone_s = {name: s for name, s in before.value.gone_s.items() if name not in bookies}
        names = tuple(sorted(noted))
        after = msgspec.structs.replace(
            before.value, audited=audited, gone_s=gone_s, without_cookie=names
        )
        with contextlib.suppress(ConflictError, NotFoundError):  # an auditor wrote what it saw
            await write_node(store, STATE_PATH, after, before)


async def write_seen(
    store: MetadataStore, seen: AuditState, before: Versioned[AuditState] | None
) -> None:
    """Write what an auditor saw, but for what others have forgotten since it read ``before``: that
    they did while all ledgers were looked at is no reason to look at all of them again (rule R7).

    What another auditor wrote stays: both are right.
    """
    was = before
    for _ in range(_WRITES):
        with contextlib.suppress(ConflictError, NotFoundError):
            await write_node(store, STATE_PATH, seen, was)
            return
        was = await read_or_renew(store, AuditState(), STATE_PATH)
        if before is None or was is None or was.value.time_ms != before.value.time_ms:
            return  # who forgets leaves the time
        seen = _without_forgotten(seen, before.value, was.value)


def _without_forgotten(seen: AuditState, before: AuditState, now: AuditState) -> AuditState:
    there = before.lost.union(before.gone_s).difference(now.lost, now.gone_s)
    known = seen.known_here_only - (before.known_here_only - now.known_here_only)
    known |= now.known_here_only - (seen.lost - there)
    return msgspec.structs.replace(
        seen,
        audited=tuple(sorted(seen.lost - there)),
        gone_s={name: s for name, s in seen.gone_s.items() if name not in there},
        without_cookie=tuple(sorted(known)),
    )


async def that_stay(store: MetadataStore, bookies: Collection[BookieId]) -> list[Operation]:
    """The parts of a transaction that fails with ConflictError if one of the bookies has been told
    to leave by then (rule R10): its node cannot be created, or is gone at once.

    Raises BookieUnavailableError if one is leaving now.
    """
    told = await store.listing(LEAVING_PATH)
    if gone := sorted(set(told.value).intersection(bookies)):
        raise BookieUnavailableError(
            f"bookie {gone[0]} is taken out of the cluster: it is named for no copy any more"
        )
    if told.version < 0:
        with contextlib.suppress(ConflictError):
            await store.create(LEAVING_PATH, b"")
    paths = [leaving_path(each) for each in bookies]
    return [part for path in paths for part in (Create(path, b""), Delete(path))]


async def count_done(store: MetadataStore, more: RepairDone, attempts: int = 5) -> None:
    """Add to what workers have done. Only for people: a count that is lost is no harm."""
    for _ in range(attempts):
        before = await read_or_renew(store, RepairDone(), DONE_PATH)
        known = RepairDone() if before is None else before.value
        total = RepairDone(
            ledgers=known.ledgers + more.ledgers,
            copied_entries=known.copied_entries + more.copied_entries,
            copied_bytes=known.copied_bytes + more.copied_bytes,
            source_waited_ms=known.source_waited_ms + more.source_waited_ms,
            bytes_per_s=more.bytes_per_s,
            time_ms=more.time_ms,
        )
        try:
            await write_node(store, DONE_PATH, total, before)
        except (ConflictError, NotFoundError):
            await asyncio.sleep(0)
            continue
        return
