"""The keeper's nodes in the metadata store.

| node | contents |
|---|---|
| keeper/elected | ephemeral: format_version, host, pid of the one that was elected |
| keeper/epoch | random letters; its version grows with each election, and deletions check it |
| keeper/state | format_version, host, pid, passes, time_ms, what was done and what waits, and for |
| | how long owners were seen to be gone; written after each pass |
| keeper/clock | format_version, time_ms: up to where the clocks of keepers were believed last |
| keeper/dropped/<stream id> | format_version, name of the stream, and when it was seen to be |
| | dropped up to which commit, in seconds of work; as long as the stream exists |
| keeper/swept | format_version, how many commits and bytes of all streams were dropped and not |
| | given back at the last sweep; written when that changes |
| keeper/audit | format_version, how far the audit of now is, and what the last one found |
| keeper/audit/<page> | format_version, and since when which ledgers of ten thousand ids are |
| | noted, in seconds of work |
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from spark_ledger.errors import ConfigurationError, CorruptionError, NotFoundError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.types import Versioned

ELECTED_PATH: Final = "keeper/elected"
EPOCH_PATH: Final = "keeper/epoch"
STATE_PATH: Final = "keeper/state"
CLOCK_PATH: Final = "keeper/clock"
DROPPED_PATH: Final = "keeper/dropped"
SWEPT_PATH: Final = "keeper/swept"
AUDIT_PATH: Final = "keeper/audit"

FORMAT_VERSION: Final = 1

_Count = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[float, Meta(ge=0)]


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format_version: int = FORMAT_VERSION


class Elected(_Node, frozen=True, kw_only=True):
    """Who was elected."""

    host: str
    pid: _Count


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What keepers have done since the cluster was made."""

    recovered: _Count = 0
    deleted: _Count = 0
    """Ledgers that no commit ever named."""
    reclaimed: _Count = 0
    """Ledgers of rows that were dropped."""
    streams_finished: _Count = 0


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the last pass saw."""

    open: _Count = 0
    open_of_the_dead: _Count = 0
    unnamed: _Count = 0
    unnamed_of_the_dead: _Count = 0
    locked: _Count = 0
    """Open ledgers with a password: only who knows it can recover them."""
    failing: _Count = 0
    """Ledgers that could not be recovered, and are tried again."""


class KeeperState(_Node, frozen=True, kw_only=True):
    """What the keeper did and knows."""

    host: str
    pid: _Count
    passes: _Count = 0
    time_ms: _Count = 0
    worked_s: _Seconds = 0.0
    """For how long this cluster has had a keeper at work (rule K8)."""
    done: Done = Done()
    found: Found = Found()
    gone_s: dict[str, _Seconds] = {}
    last_error: str = ""


class KeeperClock(_Node, frozen=True, kw_only=True):
    """The time by which retention counted last (rule K7)."""

    time_ms: _Count


class DroppedNode(_Node, frozen=True, kw_only=True):
    """What keepers have seen one stream drop (rule K8)."""

    name: str
    looks: tuple[tuple[_Seconds, _Count], ...]


class SweptNode(_Node, frozen=True, kw_only=True):
    """What is dropped of all streams, and waits to be given back."""

    reclaimable_commits: _Count = 0
    reclaimable_bytes: _Count = 0
    """User data of theirs."""


class Unlisted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ledgers of streams that no index lists and nothing names (rule K9)."""

    ledgers: _Count = 0
    open: _Count = 0
    """Of these."""
    user_bytes: _Count = 0
    """In those that are closed."""
    deleted: _Count = 0
    recovered: _Count = 0


class AuditState(_Node, frozen=True, kw_only=True):
    """How far the audit is, and what the last one found (rule K9)."""

    is_asked: bool = False
    """Somebody wants one now."""
    begun_s: _Seconds | None = None
    """When the one of now began, in seconds of work; None between two."""
    next_page: _Count = 0
    """The pages of ids below are done."""
    so_far: Unlisted = Unlisted()
    ended_s: _Seconds = 0.0
    """When the last one ended, in seconds of work."""
    ended_ms: _Count = 0
    last: Unlisted = Unlisted()
    """What that one found, and did."""
    deleted: _Count = 0
    """By all audits since the cluster was made."""
    unread: tuple[str, ...] = ()
    """Streams that the last one could not read: of those it deleted nothing."""


class AuditPage(_Node, frozen=True, kw_only=True):
    """Ledgers of one page that audits have found (rule K9)."""

    looks: tuple[tuple[_Seconds, tuple[_Count, ...]], ...]


N = TypeVar("N", bound=_Node)


def encode(node: _Node) -> bytes:
    """JSON bytes of a node."""
    return msgspec.json.encode(node)


def decode(kind: type[N], path: str, data: bytes) -> N:
    """A node. Raises CorruptionError if it does not decode, ConfigurationError if it has a later
    format."""
    try:
        node = msgspec.json.decode(data, type=kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"metadata node {path!r} is damaged: {error}") from error
    if node.format_version > FORMAT_VERSION:
        raise ConfigurationError(
            f"metadata node {path!r} has format version {node.format_version}, this program knows "
            f"up to {FORMAT_VERSION}: upgrade spark-ledger here"
        )
    return node


async def read_elected(store: MetadataStore) -> Elected | None:
    """Who is the keeper now, or None if nobody is."""
    try:
        return decode(Elected, ELECTED_PATH, (await store.get(ELECTED_PATH)).value)
    except NotFoundError:
        return None


async def read_state(store: MetadataStore) -> Versioned[KeeperState] | None:
    """What the last pass left, or None before the first one."""
    try:
        node = await store.get_latest(STATE_PATH)
    except NotFoundError:
        return None
    return Versioned(decode(KeeperState, STATE_PATH, node.value), node.version)


async def read_clock(store: MetadataStore) -> Versioned[KeeperClock] | None:
    """The time that was written down last, or None before the first."""
    try:
        node = await store.get_latest(CLOCK_PATH)
    except NotFoundError:
        return None
    return Versioned(decode(KeeperClock, CLOCK_PATH, node.value), node.version)


async def write_clock(
    store: MetadataStore, time_ms: int, before: Versioned[KeeperClock] | None
) -> None:
    """Write a time down. Raises ConflictError if another keeper has."""
    data = encode(KeeperClock(time_ms=max(0, time_ms)))
    if before is None:
        await store.create(CLOCK_PATH, data)
    else:
        await store.put(CLOCK_PATH, data, before.version)


async def read_swept(store: MetadataStore) -> Versioned[SweptNode] | None:
    """What waited to be given back at the last sweep, or None before any was written down."""
    try:
        node = await store.get_latest(SWEPT_PATH)
    except NotFoundError:
        return None
    return Versioned(decode(SweptNode, SWEPT_PATH, node.value), node.version)


def dropped_path(stream_id: str) -> str:
    """The node of what one stream was seen to drop."""
    return f"{DROPPED_PATH}/{stream_id}"


async def read_dropped(store: MetadataStore, stream_id: str) -> Versioned[DroppedNode] | None:
    """What keepers have seen a stream drop, or None before they saw any."""
    path = dropped_path(stream_id)
    try:
        node = await store.get_latest(path)
    except NotFoundError:
        return None
    return Versioned(decode(DroppedNode, path, node.value), node.version)


async def read_audit(store: MetadataStore) -> Versioned[AuditState] | None:
    """How far the audit is, or None before the first was begun or asked for."""
    try:
        node = await store.get_latest(AUDIT_PATH)
    except NotFoundError:
        return None
    return Versioned(decode(AuditState, AUDIT_PATH, node.value), node.version)


def audit_page_path(number: int) -> str:
    """The node of what audits have found on one page of ids."""
    return f"{AUDIT_PATH}/{number:06d}"


async def read_audit_page(store: MetadataStore, number: int) -> Versioned[AuditPage] | None:
    """What audits have found on a page of ids, or None if that is nothing."""
    path = audit_page_path(number)
    try:
        node = await store.get_latest(path)
    except NotFoundError:
        return None
    return Versioned(decode(AuditPage, path, node.value), node.version)


async def ask_for_audit(store: MetadataStore) -> None:
    """Have the keeper begin an audit soon. Raises ConflictError if that just changes."""
    before = await read_audit(store)
    if before is None:
        await store.create(AUDIT_PATH, encode(AuditState(is_asked=True)))
    elif not before.value.is_asked:
        asked = msgspec.structs.replace(before.value, is_asked=True)
        await store.put(AUDIT_PATH, encode(asked), before.version)
