"""A stream in memory for tests of the connector. ``tests/spark`` uses real streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace

from spark_ledger.errors import DataLossError
from spark_ledger.stream.model import Commit, Head, Segment
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.plan.locate import Located
from spark_ledger.types import Dlsn, EntryId, LedgerId


class At(dict[str, int | str | dict[str, int]]):
    """An offset that is equal to all of its position, whatever they say of the segment before."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and _plain(self) == _plain(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def _plain(offset: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in offset.items() if key != "last"}


def make_segment(number: int, entry_rows: tuple[int, ...], entry_bytes: int = 100) -> Segment:
    return Segment(
        number=number,
        ledger_id=LedgerId(1),
        first_entry=EntryId(0),
        last_entry=EntryId(len(entry_rows) - 1),
        rows=sum(entry_rows),
        size_bytes=entry_bytes * len(entry_rows),
        schema_version=0,
        entry_rows=entry_rows,
    )


class FakeStream:
    """A stream's commits, made by ``grow``. ``fetches`` lists the calls that read commits."""

    config = SimpleNamespace(stream_id="fake")

    def __init__(self) -> None:
        self._head = Head(stream_id="fake")
        self._commits: list[Commit] = []
        self.fetches: list[tuple[int, int]] = []
        self.heads = 0
        self.waits = 0

    def refresh(self, *, latest: bool = False) -> SimpleNamespace:
        assert latest, "who thinks that it was made again believes the newest metadata only"
        return self.config

    def grow(self, *entry_rows: tuple[int, ...], time_ms: int = 0) -> None:
        """One commit with a segment for each tuple of entry rows."""
        first = self._head.next_segment
        segments = tuple(make_segment(first + n, rows) for n, rows in enumerate(entry_rows))
        commit = Commit(
            number=len(self._commits),
            time_ms=max(time_ms, self._head.time_ms),
            first_segment=first,
            segments=segments,
            sink_id="s",
            transaction_id=len(self._commits),
            rows_before=self._head.rows,
            bytes_before=self._head.size_bytes,
        )
        self._commits.append(commit)
        self._head = replace(
            self._head,
            next_commit=commit.number + 1,
            next_segment=commit.end_segment,
            rows=self._head.rows + commit.rows,
            size_bytes=self._head.size_bytes + commit.size_bytes,
            time_ms=commit.time_ms,
        )

    def truncate(self, earliest: Dlsn) -> None:
        self._head = replace(self._head, earliest=earliest)

    def head(self) -> Head:
        self.heads += 1
        return self._head

    def wait_for_commit(self, *, after_segment: int, timeout_s: float) -> Head:
        self.waits += 1
        return self._head

    def commits_between(self, first_segment: int, end_segment: int) -> list[Commit]:
        assert first_segment >= self._head.earliest.segment, "a truncated commit was asked for"
        self.fetches.append((first_segment, end_segment))
        return [
            commit
            for commit in self._commits
            if commit.segments
            and commit.end_segment > first_segment
            and commit.first_segment < end_segment
        ]

    def commit(self, number: int) -> Commit:
        return self._commits[number]

    def commit_at(self, segment: int) -> Commit:
        return next(each for each in self._commits if each.end_segment > segment)

    def locate(self, ledger_ids: Iterable[LedgerId]) -> Located:
        return Located({}, ())

    retention = SimpleNamespace(packs=Packs)

    def position_of_row(self, row: int) -> Dlsn:
        for commit in self._commits:
            if commit.rows_before <= row < commit.rows_before + commit.rows:
                if commit.first_segment < self._head.earliest.segment:
                    raise DataLossError(f"the row with the offset {row} was truncated")
                return commit.position_of_row(row)
        return self._head.end

    def position_at_timestamp(self, time_ms: int) -> Dlsn:
        for commit in self._commits:
            if commit.time_ms >= time_ms:
                return max(Dlsn(commit.first_segment), self._head.earliest)
        return self._head.end
