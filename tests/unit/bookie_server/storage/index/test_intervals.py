"""Index rows among rows: the rule of the index holds after any sequence of insertions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie_server.storage.index.intervals import Piece, StoredRow, plan_insert


class RowModel:
    """Rows as the store would keep them, blocks as lists of ids with an owner number."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}  # key -> block
        self.blocks: list[list[int]] = []

    def insert(self, ids: list[int]) -> list[Piece]:
        keys = sorted(self.rows)
        used = [k for k in keys if ids[0] < k <= ids[-1]]
        before = [k for k in keys if k <= ids[0]][-1:]
        after = [k for k in keys if k > ids[-1]]
        chosen = before + used
        stored = [StoredRow(k, [e for e in self.blocks[self.rows[k]] if e >= k]) for k in chosen]
        pieces = plan_insert(ids, stored, after[0] if after else None)
        for piece in pieces:
            part = ids[piece.start : piece.stop]
            self.blocks.append(part)
            self.rows[part[0]] = len(self.blocks) - 1
            if piece.resumed_row >= 0:
                self.rows[piece.resume_at] = self.rows[chosen[piece.resumed_row]]
        return pieces

    def lookup(self, entry_id: int) -> int | None:
        """The block that holds the entry, by the rule of the index."""
        keys = [key for key in self.rows if key <= entry_id]
        if not keys:
            return None
        block = self.rows[max(keys)]
        return block if entry_id in self.blocks[block] else None


@given(st.lists(st.sets(st.integers(0, 40), min_size=1), max_size=12))
def test_inserted_rows_agree_with_a_dict(insertions: list[set[int]]) -> None:
    model = RowModel()
    owners: dict[int, int] = {}
    for chosen in insertions:
        ids = sorted(chosen)
        first_block = len(model.blocks)
        for number, piece in enumerate(model.insert(ids)):
            for entry_id in ids[piece.start : piece.stop]:
                assert entry_id not in owners, "stored entries are dropped"
                owners[entry_id] = first_block + number
        assert set(ids) <= owners.keys()
        for entry_id in range(42):
            assert model.lookup(entry_id) == owners.get(entry_id), entry_id


def test_consecutive_runs_need_few_rows() -> None:
    model = RowModel()
    model.insert(list(range(10, 20)))
    model.insert(list(range(30, 40)))
    assert model.insert(list(range(50))) == [Piece(0, 10), Piece(20, 30), Piece(40, 50)]
    assert sorted(model.rows) == [0, 10, 20, 30, 40], "no row is split"
    assert model.insert(list(range(5, 45))) == [], "all of it is stored"


def test_row_resumes_behind_entries_added_into_its_gap() -> None:
    model = RowModel()
    model.insert([0, 10, 20])
    assert model.insert([5, 15]) == [Piece(0, 1, 0, 10), Piece(1, 2, 0, 20)]
    assert sorted(model.rows.items()) == [(0, 0), (5, 1), (10, 0), (15, 2), (20, 0)]


def test_a_block_ends_where_the_next_row_begins() -> None:
    """What it has behind that row is no reason to go past it."""
    rows = [StoredRow(0, [0, 10]), StoredRow(5, [5])]
    assert plan_insert([3, 7], rows, 10) == [Piece(0, 1), Piece(1, 2)]
    assert plan_insert([3], rows[:1], 5) == [Piece(0, 1)]
    assert plan_insert([7, 9, 12], [StoredRow(5, [5]), StoredRow(10, [10])], None) == [
        Piece(0, 2),
        Piece(2, 3),
    ]
