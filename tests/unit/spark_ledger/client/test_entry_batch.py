"""EntryBatch: a run verified and opened as a whole equals its frames opened one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ledger.client.entry_batch import EntryBatch, open_batch
from spark_ledger.errors import DigestMismatchError
from spark_ledger.runs import EntryRun
from spark_ledger.types import Entry, EntryId, LedgerId
from spark_ledger.wire.frame import HEADER_BYTES, Crc32cDigest, Digest, HmacDigest, is_intact
from tests.frames import open_frame, seal

DIGESTS: list[Digest] = [Crc32cDigest(), Crc32cDigest(b"c" * 32), HmacDigest(b"k" * 32)]
every_digest = pytest.mark.parametrize("digest", DIGESTS, ids=["crc32c-v1", "crc32c", "hmac"])

FIRST = 1000

unhurried = settings(deadline=None)
"""The first use of Arrow loads it."""


def frames_of(digest: Digest, sizes: Sequence[int], stride: int = 1) -> list[bytes]:
    length, frames = 0, []
    for index, size in enumerate(sizes):
        length += size
        entry_id = FIRST + index * stride
        payload = random.Random(index).randbytes(size)
        frames.append(seal(digest, 7, entry_id, entry_id - 1, length, payload))
    return frames


def run_of(frames: Sequence[bytes], stride: int = 1) -> EntryRun:
    ids = [FIRST + index * stride for index in range(len(frames))] if stride > 1 else None
    sizes = [len(frame) for frame in frames]
    return EntryRun(LedgerId(7), EntryId(FIRST), ids, sizes, b"".join(frames))


def one_by_one(digest: Digest, run: EntryRun) -> tuple[list[Entry], str]:
    """The entries of a run up to the first that is damaged, and what is said of that one."""
    entries: list[Entry] = []
    for entry_id, frame in run.split():
        try:
            entries.append(open_frame(digest, run.ledger_id, entry_id, frame))
        except DigestMismatchError as error:
            return entries, str(error)
    return entries, ""


def batch_of(digest: Digest, sizes: Sequence[int], stride: int = 1) -> EntryBatch:
    batch, damage = open_batch(digest, run_of(frames_of(digest, sizes, stride), stride))
    assert batch is not None and damage is None
    return batch


SIZES = st.one_of(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.builds(lambda size, count: [size] * count, st.integers(0, 40), st.integers(1, 12)),
)


def harm(data: st.DataObject, digest: Digest, frames: list[bytes], at: int, stride: int) -> bytes:
    """The frame with something about it that is not as its writer made it, or as it is."""
    frame, entry_id = frames[at], FIRST + at * stride
    match data.draw(st.sampled_from(["no", "bit", "cut", "longer", "ledger", "entry", "swapped"])):
        case "bit":
            bit = data.draw(st.integers(0, 8 * len(frame) - 1))
            harmed = bytearray(frame)
            harmed[bit // 8] ^= 1 << bit % 8
            return bytes(harmed)
        case "cut":
            return frame[: data.draw(st.integers(1, len(frame)))]
        case "longer":
            return frame + b"x"
        case "ledger":
            return seal(digest, data.draw(st.integers(0, 2**62)), entry_id, -1, 9, b"other")
        case "entry":
            return seal(digest, 7, data.draw(st.integers(0, 2**62)), -1, 9, b"other")
        case "swapped":
            return frames[at - 1]
    return frame


@unhurried
@given(st.data())
def test_open_batch_of_any_run_is_its_frames_one_by_one(data: st.DataObject) -> None:
    """The same entries, the same first damage, whatever is wrong and wherever (rule P20)."""
    digest, stride = data.draw(st.sampled_from(DIGESTS)), data.draw(st.integers(1, 5))
    frames = frames_of(digest, data.draw(SIZES), stride)
    for at in data.draw(st.sets(st.integers(0, len(frames) - 1), max_size=2)):
        frames[at] = harm(data, digest, frames, at, stride)
    run = run_of(frames, stride)
    entries, problem = one_by_one(digest, run)
    batch, damage = open_batch(digest, run)
    assert list(batch or ()) == entries
    assert (damage is None) == is_intact(digest, run) == (problem == "")
    if damage is not None:
        place = f"ledger 7 entry {FIRST + len(entries) * stride}:"
        assert str(damage).startswith(place) and problem.startswith(place)


@every_digest
@pytest.mark.parametrize("kept", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1])
@pytest.mark.parametrize("short", [{0}, {2}, {0, 1, 2}], ids=str)
def test_frame_without_a_whole_head_is_damage(digest: Digest, kept: int, short: set[int]) -> None:
    """Alone, beside whole ones, and where all have the same size."""
    whole = frames_of(digest, [0, 0, 0])
    for count in (1, 3):
        frames = [f[:kept] if at in short else f for at, f in enumerate(whole[:count])]
        run, damaged = run_of(frames), [at for at in sorted(short) if at < count]
        batch, damage = open_batch(digest, run)
        assert is_intact(digest, run) == (not damaged) == (damage is None)
        assert len(batch or ()) == (damaged[0] if damaged else count)


@every_digest
@pytest.mark.parametrize("sizes", [[3, 0, 5], [4, 4, 4], [0, 0]], ids=str)
def test_every_flipped_bit_of_a_run_is_found(digest: Digest, sizes: list[int]) -> None:
    whole = frames_of(digest, sizes)
    bounds = run_of(whole).offsets()
    frames = b"".join(whole)
    for bit in range(8 * len(frames)):
        harmed = bytearray(frames)
        harmed[bit // 8] ^= 1 << bit % 8
        run = EntryRun(
            LedgerId(7), EntryId(FIRST), None, [len(frame) for frame in whole], bytes(harmed)
        )
        batch, damage = open_batch(digest, run)
        assert damage is not None, f"bit {bit} was flipped"
        assert len(batch or ()) == sum(end <= bit // 8 for end in bounds[1:])


@every_digest
@pytest.mark.parametrize("stride", [1, 3])
def test_batch_is_a_sequence_of_its_entries(digest: Digest, stride: int) -> None:
    sizes = [5, 0, 32, 1]
    entries = one_by_one(digest, run_of(frames_of(digest, sizes, stride), stride))[0]
    for batch in (batch_of(digest, sizes, stride), EntryBatch.of(entries)):
        assert len(batch) == 4 and batch.payload_bytes == 38
        assert list(batch.entry_ids) == [entry.entry_id for entry in entries]
        assert (batch.first_entry, batch.last_entry) == (FIRST, FIRST + 3 * stride)
        assert batch[1] == entries[1] and batch[-1] == entries[-1] and batch[1:3] == entries[1:3]
        assert all(type(entry) is Entry for entry in batch)
        assert batch == entries and batch == EntryBatch.of(entries)
        assert batch != entries[:3]


@unhurried
@given(SIZES, st.integers(1, 4), st.booleans())
def test_payloads_are_an_arrow_array_of_the_bytes(
    sizes: list[int], stride: int, entries_first: bool
) -> None:
    batch = batch_of(DIGESTS[1], sizes, stride)
    payloads = [random.Random(index).randbytes(size) for index, size in enumerate(sizes)]
    if entries_first:
        assert [entry.payload for entry in batch] == payloads
    array = batch.payloads()
    array.validate(full=True)
    assert str(array.type) == "binary" and array.to_pylist() == payloads
    assert [entry.payload for entry in batch] == payloads, "asking for one harms not the other"


def test_payloads_make_no_object_of_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(DIGESTS[1], [10] * 5)
    monkeypatch.setattr(EntryBatch, "_made", lambda _batch: pytest.fail("entries were made"))
    assert len(batch.payloads()) == len(batch) == 5
    assert batch.between(FIRST + 1, FIRST + 3).payload_bytes == 30
    assert batch.last_entry == FIRST + 4


@unhurried
@given(SIZES, st.integers(1, 3), st.booleans(), st.data())
def test_between_is_the_entries_of_that_range(
    sizes: list[int], stride: int, entries_first: bool, data: st.DataObject
) -> None:
    batch = batch_of(DIGESTS[1], sizes, stride)
    entries = list(batch_of(DIGESTS[1], sizes, stride))
    if entries_first:
        assert batch[0] == entries[0]
    index = st.integers(0, len(sizes) - 1)
    low, high = sorted((data.draw(index), data.draw(index)))
    cut = batch.between(FIRST + low * stride, FIRST + high * stride)
    assert cut == entries[low : high + 1]
    assert list(cut.entry_ids) == [entry.entry_id for entry in entries[low : high + 1]]
    cut = batch.between(FIRST + low * stride, FIRST + high * stride)
    assert cut.payloads().to_pylist() == [entry.payload for entry in entries[low : high + 1]]
    assert cut.payload_bytes == sum(sizes[low : high + 1])
    assert batch.between(0, FIRST + high * stride) == entries[: high + 1]
    assert batch.between(FIRST + low * stride, 2**62) == entries[low:]


def test_overhead_is_that_of_the_digest() -> None:
    for digest in DIGESTS:
        (frame,) = frames_of(digest, [9])
        assert batch_of(digest, [9]).payload_bytes == len(frame) - HEADER_BYTES - digest.size


@every_digest
@pytest.mark.parametrize("at", [0, 1])
def test_cut_frame_borrows_nothing_of_the_next(digest: Digest, at: int) -> None:
    """A digest that ends with 0 is whole again with the first byte of the frame behind it."""
    cut = next(
        frame
        for length in range(10_000)
        if (frame := seal(digest, 7, FIRST + at, -1, length, b""))[-1] == 0
    )
    frames = frames_of(digest, [3, 3, 3])
    frames[at] = cut[:-1]
    run = run_of(frames)
    assert cut in run.frames
    batch, damage = open_batch(digest, run)
    assert len(batch or ()) == at and damage is not None
