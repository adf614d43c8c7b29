"""Which ledgers of a bookie are garbage: what the looks at the metadata say together. Pure.

The rules are in ``bookie_server/collection/README.md``. Whoever asks here has read its own ledgers
first and the metadata second (rule G1).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, StrEnum
from typing import NamedTuple

from spark_ledger.types import BookieId, LedgerId, LedgerMetadata


class Seen(Enum):
    """What one look at the metadata says of a ledger that the bookie holds."""

    NAMED = "named"
    """They name this ledger, here, or anywhere while it is open (rule G8), or a node that cannot be
    read stands in its place."""

    ABSENT = "absent"
    """They have no ledger of this id."""

    OTHER = "other"
    """They have another ledger of this id: another incarnation (rule G2)."""

    ELSEWHERE = "elsewhere"
    """They name this ledger, which is closed, on other bookies only (rule G9)."""


class History(Enum):
    """Whether the metadata are those that this bookie has known, and not a backup of them."""

    BEGINS = "begins"
    CONTINUES = "continues"
    BROKEN = "broken"


class Cause(StrEnum):
    """Why a pass ended early; the label of a metric."""

    RESTORED = "restored"
    """The metadata are not those that the bookie has known (rule G4)."""

    TOO_MANY = "too_many"
    """An operator has to say that so many may go (rule G6)."""

    CHANGED = "changed"
    """Two looks do not agree (rule G3)."""

    METADATA = "metadata"
    """The metadata store did not answer, or the connection to it broke."""

    DISK = "disk"
    """The disk of the bookie failed, or stands still."""


class CollectionStats(NamedTuple):
    """How the garbage collection of a bookie goes, since it started."""

    passes: int = 0
    aborted: int = 0
    """Of these: how many ended early."""
    held: int = 0
    """Ledgers that the last pass found here."""
    candidates: int = 0
    """Of these: how many the metadata did not name at the first look."""
    deleted: int = 0
    freed_bytes: int = 0
    last_pass_s: float = 0.0
    """How long the last pass took."""
    ended_at: float = 0.0
    """When it ended, in seconds since 1970; 0 before the first one."""
    cause: Cause | None = None
    """Why the last pass ended early; None if it did not."""
    reason: str = ""
    """The same as a sentence."""


def absent(held: Sequence[LedgerId], listed: Collection[LedgerId]) -> list[LedgerId]:
    """Those of the held ledgers that a list, which was read after them, lacks."""
    return [each for each in held if each not in listed]


def seen(held_key: bytes, found: LedgerMetadata | None, here: BookieId) -> Seen:
    """What a ledger's node says to the bookie ``here``: ``found``; None without a node.

    The key is made from the incarnation (rule P20), so two ledgers of one id have two. Without a
    key of its own the bookie cannot tell, and keeps what it holds.
    """
    if found is None:
        return Seen.ABSENT
    if not held_key:
        return Seen.NAMED
    if held_key != found.access_key_hash:
        return Seen.OTHER
    is_here = any(here in fragment.bookies for fragment in found.fragments)
    return Seen.NAMED if is_here or not found.is_closed else Seen.ELSEWHERE


def is_garbage(first: Seen, second: Seen) -> bool:
    """Whether two looks with a pause between them agree that a ledger is gone (rule G3).

    The first look is often a list, the second never is.
    """
    return first is second and first in (Seen.ABSENT, Seen.OTHER)


def history(noted: Collection[str], stored: str) -> History:
    """Compare the marks that the bookie has noted on its disk with the one in the metadata.

    ``noted`` are one or two: the last one that was written, and one that may have been; none before
    the first. A mark that is empty stands for none in the metadata.
    """
    if not noted and not stored:
        return History.BEGINS
    return History.CONTINUES if stored in noted else History.BROKEN


def too_many(garbage: int, held: int, *, share_max: float, freely: int) -> bool:
    """Whether so many ledgers may not go in one pass without an operator's word (rule G6)."""
    assert 0 <= garbage <= held, f"{garbage} of {held} ledgers are garbage"
    return garbage > freely and garbage > share_max * held
