"""The entry frame: the bytes of one entry, made once by its writer and never changed after.

    offset  bytes  field
    0       8      ledger id, big endian, as all numbers here
    8       8      entry id
    16      8      last add confirmed when the writer made the frame (-1: none)
    24      8      length: payload bytes of the ledger up to and with this entry
    32      d      digest over the 32 bytes above and the payload; d = 4 or 16
    32 + d  n      payload

The digest binds a payload to its ledger, entry id and LAC, so a bookie cannot serve it as another
entry (rule P20). It begins from a key of the ledger's incarnation, so it does not fit a ledger that
has, or had, the same id. Recovery and re-replication copy frames byte for byte: an entry id has one
frame on every replica (rule P2). CRC32C detects damage. HMAC-SHA256 (first 16 bytes, RFC 2104) also
stops forgery by anybody without the ledger's password, whose MAC key no bookie ever sees.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise, repeat, starmap
from typing import Final, Protocol

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c_value

from spark_ledger.errors import DigestMismatchError
from spark_ledger.runs import EntryRun
from spark_ledger.types import DigestType, Entry, EntryId

HEADER: Final = struct.Struct(">qqqQ")
HEADER_BYTES: Final = HEADER.size
_CRC: Final = struct.Struct(">I")
_HMAC_BYTES: Final = 16
_LAC_OFFSET: Final = 16
_LAC: Final = struct.Struct(">q")


class Digest(Protocol):
    """Seals and opens frames of one ledger."""

    size: int
    code: str
    """How ``struct`` names it."""

    def sum(self, header: bytes, payload: bytes) -> bytes:
        """The digest of a header and a payload."""

    def sums(self, frames: Iterable[tuple[bytes, bytes]]) -> list[int] | list[bytes]:
        """The digests of headers and payloads, as ``struct`` reads them by ``code``."""


class Crc32cDigest:
    """Integrity: four bytes, computed by the processor.

    The sum starts from that of ``key``, as if it stood before the header. Ledgers that were made
    by older versions have no key.
    """

    size = 4
    code = "I"

    def __init__(self, key: bytes = b"") -> None:
        self._start = crc32c_value(key)

    def sum(self, header: bytes, payload: bytes) -> bytes:
        return _CRC.pack(crc32c_extend(crc32c_extend(self._start, header), payload))

    def sums(self, frames: Iterable[tuple[bytes, bytes]]) -> list[int]:
        key = self._start
        return [crc32c_extend(crc32c_extend(key, header), payload) for header, payload in frames]


class HmacDigest:
    """Authenticity: HMAC-SHA256 with the ledger's MAC key, cut to 16 bytes."""

    size = _HMAC_BYTES
    code = f"{_HMAC_BYTES}s"

    def __init__(self, mac_key: bytes) -> None:
        assert mac_key, "an HMAC ledger has a password"
        self._mac_key = mac_key

    def sum(self, header: bytes, payload: bytes) -> bytes:
        return hmac.digest(self._mac_key, header + payload, "sha256")[:_HMAC_BYTES]

    def sums(self, frames: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
        return list(starmap(self.sum, frames))


def digest_for(digest_type: DigestType, digest_key: bytes) -> Digest:
    """The digest of a ledger of this type and with this key; see ``derive_keys``."""
    if digest_type is DigestType.HMAC_SHA256:
        return HmacDigest(digest_key)
    return Crc32cDigest(digest_key)


def seal_heads(
    digest: Digest,
    ledger_id: int,
    first_entry: int,
    last_add_confirmed: int,
    length: int,
    payloads: Sequence[bytes],
) -> list[bytes]:
    """Header and digest of consecutive entries: each is a frame with its payload behind it.

    ``length`` is that of the ledger before the first of them.
    """
    pack, digest_sum = HEADER.pack, digest.sum
    heads = []
    for entry_id, payload in enumerate(payloads, first_entry):
        length += len(payload)
        header = pack(ledger_id, entry_id, last_add_confirmed, length)
        heads.append(header + digest_sum(header, payload))
    return heads


def open_run(digest: Digest, run: EntryRun) -> tuple[list[Entry], DigestMismatchError | None]:
    """The entries of a run up to the first that is damaged, and what is wrong with that one.

    A frame is damaged unless its digest is right and it is the very entry asked for (rule P20).
    """
    entries: list[Entry] = []
    frames, ledger_id, digest_sum = run.frames, run.ledger_id, digest.sum
    overhead = HEADER_BYTES + digest.size
    start = 0
    for entry_id, size in zip(run.ids(), run.sizes, strict=True):
        end = start + size
        header = frames[start : start + HEADER_BYTES]
        payload = frames[start + overhead : end]
        stored = frames[start + HEADER_BYTES : start + overhead]
        if size < overhead or stored != digest_sum(header, payload):
            return entries, DigestMismatchError(
                f"ledger {ledger_id} entry {entry_id}: digest does not match"
            )
        found_ledger, found_entry, last_add_confirmed, length = HEADER.unpack(header)
        if found_ledger != ledger_id or found_entry != entry_id:
            return entries, DigestMismatchError(
                f"ledger {ledger_id} entry {entry_id}: bookie served {found_ledger}/{found_entry}"
            )
        entries.append(Entry(ledger_id, found_entry, payload, last_add_confirmed, length))
        start = end
    return entries, None


def is_intact(digest: Digest, run: EntryRun) -> bool:
    """Whether no frame of a run is damaged, and each is the very entry asked for (rule P20).

    As ``open_run`` finds it, at less than half of the cost: a few loops over all frames, and
    nothing is kept of an entry. Where it says no, ``open_run`` says which frame and why.
    """
    frames, offsets = run.frames, run.offsets()
    head_bytes, size = HEADER_BYTES + digest.size, run.sizes[0]
    if min(run.sizes) < head_bytes or offsets[-1] != len(frames):
        return False
    form = f">qq16x{digest.code}"
    parts: Iterable[tuple[bytes, bytes]]
    if offsets == list(range(0, len(frames) + 1, size)):  # of one size, as those of most programs
        body = size - head_bytes
        parts = struct.iter_unpack(f"{HEADER_BYTES}s{digest.size}x{body}s", frames)
        found = struct.iter_unpack(f"{form}{body}x", frames)
    else:
        parts = (
            (frames[start : start + HEADER_BYTES], frames[start + head_bytes : end])
            for start, end in pairwise(offsets)
        )
        heads = [frames[start : start + head_bytes] for start in offsets[:-1]]
        found = struct.iter_unpack(form, b"".join(heads))
    wanted = zip(repeat(run.ledger_id), run.ids(), digest.sums(parts))
    return list(found) == list(wanted)


def frame_last_add_confirmed(run: EntryRun) -> EntryId:
    """The LAC piggybacked in the last frame of a run; LACs grow along a run.

    Bookies have no MAC key and cannot verify it, so what they say of a LAC is a hint (rule P5).
    """
    start = len(run.frames) - run.sizes[-1]
    if run.sizes[-1] < HEADER_BYTES:
        return EntryId(-1)
    (last_add_confirmed,) = _LAC.unpack_from(run.frames, start + _LAC_OFFSET)
    return EntryId(last_add_confirmed)


_SCRYPT_COST: Final = 2**14
"""RFC 7914: about 50 ms, once per handle."""


def derive_keys(password: bytes, ledger_id: int, incarnation: bytes = b"") -> tuple[bytes, bytes]:
    """The access key, shown to bookies, and the digest's key, never shown (rule P20).

    Whoever may read the metadata can derive those of a ledger without a password: they tell
    ledgers apart, and keep nobody out. A ledger made by an older version has no incarnation; both
    its keys are empty without a password.
    """
    if incarnation:
        salt = b"spark-ledger v2 ledger %d incarnation %s" % (ledger_id, incarnation.hex().encode())
    else:
        salt = b"spark-ledger v1 ledger %d" % ledger_id
    if password:
        key = hashlib.scrypt(password, salt=salt, n=_SCRYPT_COST, r=8, p=1, dklen=64)
    elif incarnation:
        key = hashlib.sha512(salt).digest()
    else:
        return b"", b""
    return key[:32], key[32:]


def access_key_hash(access_key: bytes) -> bytes:
    """What a bookie and the metadata keep of an access key; empty for an empty key."""
    if len(access_key) > _ACCESS_KEY_BYTES_MAX:
        return hashlib.sha256(access_key).digest()  # of no use to anybody, and not worth keeping
    return _hash_of_key(access_key)


@lru_cache(maxsize=1024)
def _hash_of_key(access_key: bytes) -> bytes:
    """Each add brings its key: a digest costs as much as all decisions about a small add."""
    return hashlib.sha256(access_key).digest() if access_key else b""


_ACCESS_KEY_BYTES_MAX: Final = 32
"""Ours have so many."""
