"""The entry frame: golden bytes, what is believed, and what is refused."""

from __future__ import annotations

import hashlib
import random

import pytest

from spark_ledger.errors import DigestMismatchError
from spark_ledger.limits.entries import ENTRY_FRAME_OVERHEAD_BYTES_MAX
from spark_ledger.runs import EntryRun
from spark_ledger.types import DigestType, EntryId, LedgerId
from spark_ledger.wire import frame
from spark_ledger.wire.frame import (
    HEADER_BYTES,
    Crc32cDigest,
    Digest,
    HmacDigest,
    access_key_hash,
    derive_keys,
    digest_for,
    frame_last_add_confirmed,
    open_run,
    seal_heads,
)
from tests.frames import open_frame, seal

DIGESTS = [Crc32cDigest(), Crc32cDigest(b"c" * 32), HmacDigest(b"k" * 32)]
every_digest = pytest.mark.parametrize("digest", DIGESTS, ids=["crc32c-v1", "crc32c", "hmac"])


def test_golden_bytes() -> None:
    """Frames that exist on disks: these bytes never change."""
    header = "00000000000000070000000000000003000000000000000200000000000003e8"
    payload = b"payload".hex()
    frame = seal(Crc32cDigest(), 7, 3, 2, 1000, b"payload")
    assert frame.hex() == header + "ae43fda5" + payload
    frame = seal(HmacDigest(b"Jefe"), 7, 3, 2, 1000, b"payload")
    assert frame.hex() == header + "e550856dda5526a72b468ed4307d0258" + payload


def test_crc_is_crc32c() -> None:
    """The check value of the polynomial (RFC 3720 uses it for iSCSI)."""
    assert Crc32cDigest().sum(b"1234", b"56789").hex() == "e3069283"


def test_hmac_is_the_cut_hmac_sha256() -> None:
    """RFC 4231, test case 2, cut to 16 bytes."""
    found = HmacDigest(b"Jefe").sum(b"what do ya want ", b"for nothing?")
    assert found.hex() == "5bdcc146bf60754e6a042426089575c7"


@every_digest
def test_seal_heads_of_many_equals_seal_of_each(digest: Digest) -> None:
    payloads = [b"", b"a", b"bcd", b"x" * 1000]
    heads = seal_heads(digest, 7, 3, 2, 40, payloads)
    lengths = [40, 41, 44, 1044]
    for i, (head, payload, length) in enumerate(zip(heads, payloads, lengths, strict=True)):
        assert head + payload == seal(digest, 7, 3 + i, 2, length, payload)


@every_digest
@pytest.mark.parametrize("payload", [b"", b"x", b"y" * 70_000])
def test_sealed_frame_opens(digest: Digest, payload: bytes) -> None:
    frame = seal(digest, 7, 3, -1, 70_000, payload)
    assert len(frame) == HEADER_BYTES + digest.size + len(payload)
    assert HEADER_BYTES + digest.size <= ENTRY_FRAME_OVERHEAD_BYTES_MAX
    entry = open_frame(digest, 7, 3, memoryview(frame))
    assert entry == (7, 3, payload, -1, 70_000)


@every_digest
def test_frame_with_a_flipped_bit_is_refused(digest: Digest) -> None:
    frame = seal(digest, 7, 3, 2, 1000, b"payload")
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(DigestMismatchError):
            open_frame(digest, 7, 3, bytes(damaged))


@every_digest
def test_cut_frame_is_refused(digest: Digest) -> None:
    frame = seal(digest, 7, 3, 2, 1000, b"payload")
    for size in range(len(frame)):
        with pytest.raises(DigestMismatchError, match="ledger 7 entry 3"):
            open_frame(digest, 7, 3, frame[:size])


@every_digest
def test_random_bytes_are_refused(digest: Digest) -> None:
    draw = random.Random(11)
    for _ in range(500):
        with pytest.raises(DigestMismatchError):
            open_frame(digest, 7, 3, draw.randbytes(draw.randrange(100)))


@pytest.mark.parametrize(("ledger", "entry"), [(8, 3), (7, 4)])
def test_a_bookie_cannot_serve_another_entry(ledger: int, entry: int) -> None:
    frame = seal(Crc32cDigest(), 7, 3, 2, 1000, b"payload")
    with pytest.raises(DigestMismatchError, match="served 7/3"):
        open_frame(Crc32cDigest(), ledger, entry, frame)


def test_frame_sealed_with_another_key_is_refused() -> None:
    frame = seal(HmacDigest(b"other"), 7, 3, 2, 1000, b"payload")
    with pytest.raises(DigestMismatchError, match="digest does not match"):
        open_frame(HmacDigest(b"right"), 7, 3, frame)


def test_a_key_is_needed_for_hmac() -> None:
    with pytest.raises(AssertionError, match="has a password"):
        HmacDigest(b"")


def test_digest_of_a_ledger() -> None:
    assert isinstance(digest_for(DigestType.CRC32C, b""), Crc32cDigest)
    assert isinstance(digest_for(DigestType.HMAC_SHA256, b"key"), HmacDigest)


def run_of(*frames: bytes) -> EntryRun:
    sizes = [len(frame) for frame in frames]
    return EntryRun(LedgerId(7), EntryId(3), None, sizes, b"".join(frames))


@every_digest
def test_open_run_equals_open_frame_of_each(digest: Digest) -> None:
    """Also with one frame that is damaged, cut or of another entry."""
    frames = [seal(digest, 7, 3 + i, i, 10 * i, b"x" * i) for i in range(4)]
    whole, problem = open_run(digest, run_of(*frames))
    assert problem is None
    assert whole == [open_frame(digest, 7, 3 + i, frame) for i, frame in enumerate(frames)]
    flipped = bytes([frames[2][0] ^ 1]) + frames[2][1:]
    foreign = seal(digest, 8, 5, 2, 20, b"xx")
    misplaced = seal(digest, 7, 6, 2, 20, b"xx")
    for bad in (flipped, foreign, misplaced, frames[2][:-1], frames[2][:20], b"z"):
        with pytest.raises(DigestMismatchError):
            open_frame(digest, 7, 5, bad)
        entries, problem = open_run(digest, run_of(*frames[:2], bad, frames[3]))
        assert entries == whole[:2] and isinstance(problem, DigestMismatchError)
        assert "ledger 7 entry 5" in str(problem)


def test_last_add_confirmed_is_that_of_the_last_frame() -> None:
    frames = [seal(Crc32cDigest(), 7, 3 + i, i, 10, b"abc") for i in range(3)]
    assert frame_last_add_confirmed(run_of(*frames)) == 2
    assert frame_last_add_confirmed(run_of(frames[0])) == 0
    assert frame_last_add_confirmed(run_of(frames[0], b"short")) == -1


def test_keys_of_a_password() -> None:
    access, mac = derive_keys(b"secret", 7)
    assert (access, mac) == derive_keys(b"secret", 7)
    assert len(access) == len(mac) == 32 and access != mac
    assert derive_keys(b"secret", 8) != (access, mac), "salted by the ledger"
    assert derive_keys(b"Secret", 7)[0] != access
    assert derive_keys(b"", 7) == (b"", b"")


def test_the_keys_of_a_password_never_change() -> None:
    """Otherwise ledgers that exist could not be opened: bookies keep a hash of the access key."""
    access, mac = derive_keys(b"secret", 7)
    assert access.hex() == "f988e54f63fd8027b90160bf87b738bc64cbd8df88ae28e4f4ce2c0d0d33d23f"
    assert mac.hex() == "7b3fe6f7693975f8fbb105d628ae51a648a734148855ba808e12b41e74545532"
    kept = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
    assert access_key_hash(b"key").hex() == kept


@pytest.mark.parametrize("password", [b"", b"secret"])
def test_keys_of_an_incarnation(password: bytes) -> None:
    one, other = bytes(16), b"\1" + bytes(15)
    access, digest_key = derive_keys(password, 7, one)
    assert len(access) == len(digest_key) == 32 and access != digest_key
    others = [
        derive_keys(password, 7, other),
        derive_keys(password, 8, one),
        derive_keys(password + b"x", 7, one),
        derive_keys(password, 7),
    ]
    assert all(access != found[0] and digest_key != found[1] for found in others)


def test_the_keys_of_an_incarnation_never_change() -> None:
    access, digest_key = derive_keys(b"", 7, bytes(range(16)))
    assert access.hex() == "816db1cde95d1e481b6dcbcb2e1a812ede3ac4b9ad30e8ccd6ef87e4b409ab07"
    assert digest_key.hex() == "46d955fb591164cf4705501d0341df12f2640ba9ced2f16a1e54cb95ae476d78"
    assert (
        derive_keys(b"secret", 7, bytes(range(16)))[0].hex()
        == "930dcc95bbca515c326b57f87ec684c4147f030bfe819b2f3a7ab6bf619f34e8"
    )


@pytest.mark.parametrize("digest_type", DigestType)
def test_frame_of_another_incarnation_is_refused(digest_type: DigestType) -> None:
    """A closed ledger changed when its id was given again: the entries fitted both ledgers."""
    password = b"secret" if digest_type is DigestType.HMAC_SHA256 else b""
    older, newer = (
        digest_for(digest_type, derive_keys(password, 7, incarnation)[1])
        for incarnation in (bytes(16), b"\1" * 16)
    )
    frame = seal(older, 7, 3, 2, 1000, b"payload")
    assert open_frame(older, 7, 3, frame).payload == b"payload"
    with pytest.raises(DigestMismatchError):
        open_frame(newer, 7, 3, frame)
    entries, problem = open_run(newer, run_of(frame))
    assert not entries and isinstance(problem, DigestMismatchError)


def test_access_key_that_is_too_long_for_one_is_not_kept() -> None:
    """A client chooses what it sends as a key: kept, they would fill the memory."""
    long = b"k" * 100_000
    before = frame._hash_of_key.cache_info().currsize
    assert access_key_hash(long) == hashlib.sha256(long).digest()
    assert frame._hash_of_key.cache_info().currsize == before


def test_access_key_hash() -> None:
    assert access_key_hash(b"") == b""
    assert len(access_key_hash(b"key")) == 32
    assert b"key" not in access_key_hash(b"key")
    key = bytes(range(32))
    assert access_key_hash(key) == hashlib.sha256(key).digest(), "of all of its bytes"
