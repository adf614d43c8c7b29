"""The keeper's nodes in the metadata store.

| node | contents |
|---|---|
| keeper/elected | ephemeral: format_version, host, pid of the one that was elected |
| keeper/epoch | random letters; its version grows with each election, and deletions check it |
| keeper/state | format_version, host, pid, passes, time_ms, what was done and what waits, and for |
| | how long owners were seen to be gone; written after each pass |
| keeper/clock | format_version, time_ms: up to where the clocks of keepers were believed last |
| keeper/dropped/<stream id> | format_version, name of the stream, and when it was seen to be |
| | dropped and merged up to which commit, and to have how many packs, in seconds of work; as long |
| | as the stream exists |
| keeper/swept | format_version, how many commits and bytes of all streams were dropped and not |
| | given back at the last sweep; written when that changes |
| keeper/packed | format_version, how many packs keepers have made, of how many commits |
| keeper/audit | format_version, how far the audit of now is, and what the last one found |
| keeper/audit/<page> | format_version, and since when which ledgers of ten thousand ids are |
| | noted, in seconds of work |
| keeper/names | format_version, and up to where the audit of now has read which streams |
| keeper/names/<page> | format_version, and which of ten thousand ids it has found named |
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from spark_ledger.errors import NotFoundError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import (
    Count,
    Node,
    Seconds,
    decode_node,
    read_node,
    read_or_renew,
    write_node,
)
from spark_ledger.stream.packs.model import Pack
from spark_ledger.types import Versioned

ELECTED_PATH: Final = "keeper/elected"
EPOCH_PATH: Final = "keeper/epoch"
STATE_PATH: Final = "keeper/state"
CLOCK_PATH: Final = "keeper/clock"
DROPPED_PATH: Final = "keeper/dropped"
SWEPT_PATH: Final = "keeper/swept"
PACKED_PATH: Final = "keeper/packed"
AUDIT_PATH: Final = "keeper/audit"
NAMES_PATH: Final = "keeper/names"


class Elected(Node, frozen=True, kw_only=True):
    """Who was elected."""

    host: str
    pid: Count


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What keepers have done since the cluster was made."""

    recovered: Count = 0
    deleted: Count = 0
    """Ledgers that no commit ever named."""
    reclaimed: Count = 0
    """Ledgers of rows that were dropped, or replaced."""
    streams_finished: Count = 0

    @classmethod
    def of(cls, counts: Counter[str]) -> Done:
        """As ``counts`` made them."""
        return cls(
            recovered=counts["recovered"],
            deleted=counts["deleted"],
            reclaimed=counts["reclaimed"],
            streams_finished=counts["streams"],
        )

    def counts(self) -> Counter[str]:
        """To count on from."""
        return Counter(
            recovered=self.recovered,
            deleted=self.deleted,
            reclaimed=self.reclaimed,
            streams=self.streams_finished,
        )


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the last pass saw."""

    open: Count = 0
    open_of_the_dead: Count = 0
    unnamed: Count = 0
    unnamed_of_the_dead: Count = 0
    locked: Count = 0
    """Open ledgers with a password: only who knows it can recover them."""
    failing: Count = 0
    """Ledgers that could not be recovered, and are tried again."""


class KeeperState(Node, frozen=True, kw_only=True):
    """What the keeper did and knows."""

    host: str
    pid: Count
    passes: Count = 0
    time_ms: Count = 0
    worked_s: Seconds = 0.0
    """For how long this cluster has had a keeper at work (rule K8)."""
    done: Done = Done()
    found: Found = Found()
    gone_s: dict[str, Seconds] = msgspec.field(default_factory=dict)
    last_error: str = ""


class KeeperClock(Node, frozen=True, kw_only=True):
    """The time by which retention counted last (rule K7)."""

    time_ms: Count


class DroppedNode(Node, frozen=True, kw_only=True):
    """What keepers have seen one stream drop (rule K8), and replace (rule K11)."""

    name: str
    looks: tuple[tuple[Seconds, Count], ...]
    merged: tuple[tuple[Seconds, Count], ...] = ()
    """When leaves of commits up to which were merged."""
    packed: tuple[tuple[Seconds, Count], ...] = ()
    """When how many packs were made."""


class SweptNode(Node, frozen=True, kw_only=True):
    """What is dropped of all streams, and waits to be given back."""

    reclaimable_commits: Count = 0
    reclaimable_bytes: Count = 0
    """User data of theirs."""


class PackedNode(Node, frozen=True, kw_only=True):
    """What keepers have packed since the cluster was made (rule K10)."""

    packs: Count = 0
    commits: Count = 0
    copied_bytes: Count = 0
    """Of entries of packs, one copy only."""


class Unlisted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ledgers of streams that no index lists and nothing names (rule K9)."""

    ledgers: Count = 0
    open: Count = 0
    """Of these."""
    user_bytes: Count = 0
    """In those that are closed."""
    deleted: Count = 0
    recovered: Count = 0


class AuditState(Node, frozen=True, kw_only=True):
    """How far the audit is, and what the last one found (rule K9)."""

    is_asked: bool = False
    """Somebody wants one now."""
    begun_s: Seconds | None = None
    """When the one of now began, in seconds of work; None between two."""
    next_page: Count = 0
    """The pages of ids below are done."""
    so_far: Unlisted = Unlisted()
    ended_s: Seconds = 0.0
    """When the last one ended, in seconds of work."""
    ended_ms: Count = 0
    last: Unlisted = Unlisted()
    """What that one found, and did."""
    deleted: Count = 0
    """By all audits since the cluster was made."""
    unread: tuple[str, ...] = ()
    """Streams that the last one could not read: of those it deleted nothing."""


class AuditPage(Node, frozen=True, kw_only=True):
    """Ledgers of one page that audits have found (rule K9)."""

    looks: tuple[tuple[Seconds, tuple[Count, ...]], ...]


class StreamRead(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far an audit has read one stream (rule K9)."""

    stream_id: str
    name: str
    behind: Count
    """What the commits below name is in the pages of names."""
    is_whole: bool
    """Its manifests and packs are there as well: nothing is left to read."""


class AuditNames(Node, frozen=True, kw_only=True):
    """How far the audit of now has read what streams name (rule K9)."""

    begun_s: Seconds | None = None
    """Which audit it is; None: of none."""
    streams: tuple[StreamRead, ...] = ()
    pages: tuple[Count, ...] = ()
    """All pages of names. Without one of them the rest is worth nothing."""


class NamedPage(Node, frozen=True, kw_only=True):
    """Which ids of one page are named."""

    begun_s: Seconds
    ids: bytes


async def read_elected(store: MetadataStore) -> Elected | None:
    """Who is the keeper now, or None if nobody is."""
    try:
        return decode_node(Elected, ELECTED_PATH, (await store.get(ELECTED_PATH)).value)
    except NotFoundError:
        return None


async def read_state(store: MetadataStore) -> Versioned[KeeperState] | None:
    """What the last pass left, or None before the first one."""
    return await read_node(store, KeeperState, STATE_PATH)


async def read_clock(store: MetadataStore) -> Versioned[KeeperClock] | None:
    """The time that was written down last, or None before the first."""
    return await read_node(store, KeeperClock, CLOCK_PATH)


async def read_or_renew_clock(
    store: MetadataStore, believed_ms: int
) -> Versioned[KeeperClock] | None:
    """As ``read_clock``; a damaged node is written anew, with what this keeper believes."""
    return await read_or_renew(store, KeeperClock(time_ms=max(0, believed_ms)), CLOCK_PATH)


async def write_clock(
    store: MetadataStore, time_ms: int, before: Versioned[KeeperClock] | None
) -> None:
    """Write a time down. Raises ConflictError if another keeper has."""
    await write_node(store, CLOCK_PATH, KeeperClock(time_ms=max(0, time_ms)), before)


async def read_swept(store: MetadataStore) -> Versioned[SweptNode] | None:
    """What waited to be given back at the last sweep, or None before any was written down."""
    return await read_node(store, SweptNode, SWEPT_PATH)


async def read_packed(store: MetadataStore) -> Versioned[PackedNode] | None:
    """What keepers have packed, or None before the first pack."""
    return await read_node(store, PackedNode, PACKED_PATH)


async def add_packed(store: MetadataStore, pack: Pack) -> None:
    """Count a pack. Raises ConflictError if another keeper has just counted one of its own."""
    before = await read_or_renew(store, PackedNode(), PACKED_PATH)
    known = PackedNode() if before is None else before.value
    after = PackedNode(
        packs=known.packs + 1,
        commits=known.commits + pack.end - pack.first,
        copied_bytes=known.copied_bytes + pack.size_bytes,
    )
    await write_node(store, PACKED_PATH, after, before)


def dropped_path(stream_id: str) -> str:
    """The node of what one stream was seen to drop."""
    return f"{DROPPED_PATH}/{stream_id}"


async def read_audit(store: MetadataStore) -> Versioned[AuditState] | None:
    """How far the audit is, or None before the first was begun or asked for."""
    return await read_node(store, AuditState, AUDIT_PATH)


async def read_or_renew_audit(store: MetadataStore) -> Versioned[AuditState] | None:
    """As ``read_audit``; a damaged node is written anew: audits begin again."""
    return await read_or_renew(store, AuditState(), AUDIT_PATH)


def audit_page_path(number: int) -> str:
    """The node of what audits have found on one page of ids."""
    return f"{AUDIT_PATH}/{number:06d}"


async def read_audit_page(store: MetadataStore, number: int) -> Versioned[AuditPage] | None:
    """What audits have found on a page of ids, or None if that is nothing."""
    return await read_node(store, AuditPage, audit_page_path(number))


def named_page_path(number: int) -> str:
    """The node of what an audit has found named on one page of ids."""
    return f"{NAMES_PATH}/{number:06d}"


async def read_audit_names(store: MetadataStore) -> Versioned[AuditNames] | None:
    """How far the audit of now has read what streams name, or None before the first."""
    return await read_node(store, AuditNames, NAMES_PATH)


async def read_named_page(store: MetadataStore, number: int) -> Versioned[NamedPage] | None:
    """What an audit has found named on a page of ids, or None if that is nothing."""
    return await read_node(store, NamedPage, named_page_path(number))


async def ask_for_audit(store: MetadataStore) -> None:
    """Have the keeper begin an audit soon. Raises ConflictError if that just changes."""
    before = await read_or_renew_audit(store)
    known = AuditState() if before is None else before.value
    if not known.is_asked:
        await write_node(store, AUDIT_PATH, msgspec.structs.replace(known, is_asked=True), before)
