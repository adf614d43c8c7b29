"""FrameStore: runs for indexes, released and resent frames."""

from __future__ import annotations

import pytest

from spark_ledger.client.frames import FrameStore
from spark_ledger.limits.entries import APPEND_MESSAGE_BYTES_TARGET, FIRST_MESSAGE_BYTES_TARGET
from spark_ledger.types import (
    NO_ENTRY,
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)
from spark_ledger.wire.frame import Crc32cDigest, open_run


def store(e: int = 3, wq: int = 3, first_entry: int = 0) -> FrameStore:
    bookies = tuple(BookieId(f"b{i}") for i in range(e))
    metadata = LedgerMetadata(LedgerId(7), Quorums(e, wq, wq), (Fragment(EntryId(0), bookies),))
    return FrameStore(metadata, Crc32cDigest(), first_entry=first_entry)


def payloads_of(frames: FrameStore, bookie_index: int, first: int, last: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for run in frames.runs(bookie_index, first, last):
        entries, damage = open_run(Crc32cDigest(), run)
        assert damage is None
        found.update({entry.entry_id: entry.payload for entry in entries})
    return found


def test_a_full_write_set_shares_its_runs() -> None:
    frames = store()
    assert frames.seal([b"a", b"bb", b"ccc"], NO_ENTRY) == [1, 2, 3]
    assert frames.runs(0, 0, 2) is frames.runs(2, 0, 2)
    assert payloads_of(frames, 1, 0, 2) == {0: b"a", 1: b"bb", 2: b"ccc"}


def test_a_striped_index_gets_its_own_entries_only() -> None:
    frames = store(e=5, wq=2)
    frames.seal([b"%d" % i for i in range(10)], NO_ENTRY)
    assert sorted(payloads_of(frames, 0, 0, 9)) == [0, 4, 5, 9]
    assert sorted(payloads_of(frames, 3, 0, 9)) == [2, 3, 7, 8]
    assert frames.runs(3, 4, 6) == []


def test_frames_after_a_release_keep_their_entry_ids() -> None:
    frames = store(e=3, wq=2)
    frames.seal([b"%d" % i for i in range(9)], NO_ENTRY)
    frames.release(EntryId(2))
    frames.release(EntryId(1))  # it is gone already
    frames.seal([b"9"], EntryId(2))
    assert payloads_of(frames, 0, 3, 9) == {3: b"3", 5: b"5", 6: b"6", 8: b"8", 9: b"9"}
    frames.release(EntryId(9))
    assert frames.seal([b"10"], EntryId(9)) == [2]
    assert payloads_of(frames, 1, 10, 10) == {10: b"10"}


@pytest.mark.parametrize("is_confirmed", [False, True])
@pytest.mark.parametrize("began", [0, 7])
def test_runs_are_cut_at_the_size_of_a_message(is_confirmed: bool, began: int) -> None:
    """Of the first message, until something was confirmed: those of a recovery, too, which begins
    somewhere else."""
    frames = store(first_entry=began)
    first = began
    if is_confirmed:
        frames.seal([b"first"], NO_ENTRY)
        frames.release(EntryId(began))
        first += 1
    size = APPEND_MESSAGE_BYTES_TARGET if is_confirmed else FIRST_MESSAGE_BYTES_TARGET
    half = bytes(size // 2)
    frames.seal([half, half, b"x", bytes(3 * size), b"y", half, half, b"z"], NO_ENTRY)
    runs = frames.runs(0, first, first + 7)
    assert [run.count for run in runs] == [1, 2, 1, 2, 2]
    assert [run.first_entry - first for run in runs] == [0, 1, 3, 4, 6]


def test_resent_runs_begin_at_the_asked_entry() -> None:
    """After an ensemble change a bookie gets what is not confirmed, not what others got before."""
    frames = store()
    frames.seal([b"a", b"b", b"c", b"d"], NO_ENTRY)
    assert sorted(payloads_of(frames, 0, 0, 3)) == [0, 1, 2, 3]
    assert sorted(payloads_of(frames, 1, 2, 3)) == [2, 3]
    assert sorted(payloads_of(frames, 1, 2, 2)) == [2]
    frames.release(EntryId(0))
    assert sorted(payloads_of(frames, 2, 1, 3)) == [1, 2, 3]
