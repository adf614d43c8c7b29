"""Segments, commits and ledgers for tests of plans."""

from __future__ import annotations

from hypothesis import strategies as st

from spark_ledger.limits import MIB
from spark_ledger.stream.model import Commit, Segment
from spark_ledger.types import EntryId, LedgerId


def segment(
    number: int,
    entry_rows: tuple[int, ...],
    *,
    first: int = 0,
    ledger: int = 1,
    entry_bytes: int = MIB,
) -> Segment:
    return Segment(
        number=number,
        ledger_id=LedgerId(ledger),
        first_entry=EntryId(first),
        last_entry=EntryId(first + len(entry_rows) - 1),
        rows=sum(entry_rows),
        size_bytes=entry_bytes * len(entry_rows),
        schema_version=0,
        entry_rows=entry_rows,
    )


def commits(*segments: Segment) -> list[Commit]:
    return [
        Commit(
            number=one.number,
            time_ms=1000 + one.number,
            first_segment=one.number,
            segments=(one,),
            sink_id="s",
            transaction_id=one.number,
        )
        for one in segments
    ]


streams = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=6).map(tuple), min_size=1, max_size=6
)
