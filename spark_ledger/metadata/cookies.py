"""The cluster's cookie of each bookie: that its id is taken, where it is, and its last start.

It stays when the bookie is gone. A bookie writes its own with compare-and-set, at each start and
each clean stop (rule S13 of ``bookie_server/storage/README.md``).
"""

from __future__ import annotations

from typing import Final

import msgspec

from spark_ledger.errors import ConflictError, CorruptionError, NotFoundError, OutcomeUnknownError
from spark_ledger.metadata.base import MetadataStore, again
from spark_ledger.metadata.bookies import COOKIES_PATH, check_bookie_id
from spark_ledger.types import BookieId, BookieStart, DirectoryPlace

LEAVING_PATH: Final = "repair/leaving"
LEFT_PATH: Final = "repair/left"


class BookieCookie(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the metadata store keeps of a bookie id, so that none is formatted twice.

    ``incarnation`` is random: after a lost reply it tells this format's cookie from that of another
    bookie with the same id. Starts of the bookie have it in front of their nonce (rule S13).
    """

    cluster_id: str
    bookie_id: str
    journal_directory: str
    ledger_directories: tuple[str, ...]
    incarnation: str
    start: BookieStart | None = None
    """The last start; None before the first."""

    is_confirmed: bool = True
    """Whether all directories have noted that start as theirs."""

    places: tuple[DirectoryPlace, ...] = ()
    """The directories at that start: the journal's, then the ledgers'."""

    is_forming: bool = False
    """Its format has begun and not ended, so its directories never served (rule S10)."""

    accepts_newer: bool = False
    """The cluster was restored from a backup, and the bookie may know later starts than this."""


def cookie_path(bookie_id: BookieId) -> str:
    return f"{COOKIES_PATH}/{check_bookie_id(bookie_id)}"


def leaving_path(bookie_id: BookieId) -> str:
    """Exists while an operator takes the bookie out of the cluster (``spark_ledger/repair``)."""
    return f"{LEAVING_PATH}/{check_bookie_id(bookie_id)}"


def left_path(bookie_id: BookieId) -> str:
    """Stays once the bookie was taken out, until one of its name is made: that it has no cookie
    may also mean that the store was restored, and then it serves on. Holds the incarnation in the
    cookie that went with it; nothing if there was none: then it is of whoever has the name."""
    return f"{LEFT_PATH}/{check_bookie_id(bookie_id)}"


async def has_left(store: MetadataStore, bookie_id: BookieId, incarnation: str = "") -> bool:
    """Whether an operator has taken the bookie out of the cluster (rule R10): the one of this
    incarnation, if there is one, and not one that had its name before."""
    left = await _read(store, left_path(bookie_id))
    if left is None or await _read(store, cookie_path(bookie_id)) is not None:
        return False
    return not left or not incarnation or left == incarnation.encode()


async def _read(store: MetadataStore, path: str) -> bytes | None:
    try:
        return (await store.get_latest(path)).value
    except NotFoundError:
        return None


def encode_cookie(cookie: BookieCookie) -> bytes:
    return msgspec.json.encode(cookie)


def decode_cookie(bookie_id: BookieId, data: bytes) -> BookieCookie:
    """Raises CorruptionError, which names the bookie."""
    try:
        return msgspec.json.decode(data, type=BookieCookie)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(
            f"the cluster's cookie of bookie {bookie_id} cannot be read: {error}"
        ) from error


def incarnation_in(bookie_id: BookieId, data: bytes) -> str:
    """The incarnation that a cookie says; empty if it cannot be read."""
    try:
        return decode_cookie(bookie_id, data).incarnation
    except CorruptionError:
        return ""


async def accept_newer_starts(store: MetadataStore) -> list[BookieId]:
    """After the store was restored from a backup: let each bookie start once although it knows
    later starts than its cookie. Returns the bookies. To repeat it is safe.

    Raises CorruptionError if a cookie cannot be read, and what the metadata store raises.
    """
    bookie_ids = [BookieId(name) for name in await store.children(COOKIES_PATH)]
    return [each for each in bookie_ids if await _accept_newer_starts(store, each)]


async def _accept_newer_starts(store: MetadataStore, bookie_id: BookieId) -> bool:
    path = cookie_path(bookie_id)

    async def note() -> bool:
        try:
            node = await store.get_latest(path)
            cookie = decode_cookie(bookie_id, node.value)
            if not cookie.accepts_newer:
                changed = msgspec.structs.replace(cookie, accepts_newer=True)
                await store.put(path, encode_cookie(changed), node.version)
        except NotFoundError:
            return False
        return True

    return await again(note, ConflictError, OutcomeUnknownError)
