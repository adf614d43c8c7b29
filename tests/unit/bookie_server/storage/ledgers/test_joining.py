"""Small runs that become one block of an entry log: no entry gets another's id, whatever is missing
between them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_server.storage.blocks import decode_block, encode_run
from bookie_server.storage.journal.waiting import RunPlace
from bookie_server.storage.ledgers.joining import _JOIN_BELOW_BYTES, _JOINED_BYTES_MAX, joined
from bookie_server.storage.ledgers.write_cache import CachedRun
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId


def cached(ids: Sequence[int], *, size: int = 3, place: RunPlace | None = None) -> CachedRun:
    """A run of these entries, each with bytes of its own."""
    frames = b"".join(b"%d" % (each % 10) * size for each in ids)
    listed = ids if ids[-1] - ids[0] >= len(ids) else None
    run = EntryRun(LedgerId(1), EntryId(ids[0]), listed, [size] * len(ids), frames)
    confirmed = EntryId(ids[0] - 1)
    return CachedRun(run, confirmed, encode_run(run, confirmed), place)


def entries(runs: Sequence[CachedRun]) -> list[tuple[int, bytes]]:
    """What a reader finds in the blocks as they are stored."""
    found: list[tuple[int, bytes]] = []
    for each in runs:
        run, confirmed = decode_block(b"".join(each.block.buffers))
        assert (run.first_entry, run.last_entry) == (each.run.first_entry, each.run.last_entry)
        assert confirmed == each.last_add_confirmed
        found += [(entry_id, bytes(frame)) for entry_id, frame in run.split()]
    return found


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12),
    st.integers(1, 3),
)
def test_joined_runs_hold_the_same_entries_with_any_gaps_between_and_within(
    parts: list[tuple[int, int]], stride: int
) -> None:
    runs: list[CachedRun] = []
    following = 0
    for gap, count in parts:
        ids = range(following + gap, following + gap + count * stride, stride)
        runs.append(cached(ids))
        following = ids[-1] + 1
    made = list(joined(runs))
    assert len(made) == 1, "they are small"
    assert entries(made) == entries(runs)
    assert made[0].last_add_confirmed == max(each.last_add_confirmed for each in runs)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_entry_behind_a_gap_keeps_its_id(missing: int) -> None:
    """On a striped ensemble each bookie lacks every few entries."""
    (made,) = joined([cached([0, 1]), cached([2 + missing])])
    assert list(made.run.ids()) == [0, 1, 2 + missing]
    assert entries([made])[-1] == (2 + missing, b"%d" % (2 + missing) * 3)


@pytest.mark.parametrize(("over", "blocks"), [(-1, 1), (0, 2)])
def test_run_of_the_limit_is_a_block_of_its_own(over: int, blocks: int) -> None:
    overhead = cached([1]).block.length - 3
    large = cached([1], size=_JOIN_BELOW_BYTES - overhead + over)
    assert large.block.length == _JOIN_BELOW_BYTES + over
    assert len(list(joined([cached([0]), large]))) == blocks


def test_joined_block_has_at_most_its_limit() -> None:
    overhead = cached([0]).block.length - 3
    quarter = [cached([n], size=_JOINED_BYTES_MAX // 8 - overhead) for n in range(17)]
    made = list(joined(quarter))
    assert [each.run.count for each in made] == [8, 8, 1]
    assert entries(made) == entries(quarter)


def test_run_that_is_written_once_already_is_not_joined() -> None:
    """Its bytes are in the run log: a joined block would write them once more."""
    placed = cached([1], place=RunPlace(0))
    made = list(joined([cached([0]), placed, cached([2]), cached([3])]))
    assert [list(each.run.ids()) for each in made] == [[0], [1], [2, 3]]
    assert made[1] is placed
