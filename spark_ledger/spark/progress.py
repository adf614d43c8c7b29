"""``progress(query)``: what Spark's progress says of the ledgers that a query reads, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from spark_ledger.types import Dlsn

PARTS: Final = {
    "planning": ("latestOffset", "getBatch", "queryPlanning"),
    "rows": ("addBatch",),
    "checkpoint": ("walCommit", "commitOffsets", "commitBatch"),
}
"""What a micro-batch spends its time on, by Spark's names of the phases. Rows: reading them, the
query's own work, writing them and the commit."""


class Reported(Protocol):
    """What is needed of a ``pyspark.sql.streaming.StreamingQueryProgress``."""

    @property
    def json(self) -> str: ...


class Query(Protocol):
    """What is needed of a ``pyspark.sql.streaming.StreamingQuery``, also of Spark Connect's."""

    @property
    def lastProgress(self) -> Reported | None: ...


_UNNAMED: Final = "stream id "
"""Before the id of a stream whose name is not known."""


class _Offset(msgspec.Struct, rename="camel"):
    """An offset of ours: of a stream (``segment``) or of a raw ledger (``ledger``)."""

    entry: int
    segment: int | None = None
    ledger: int | None = None
    slot: int = 0
    stream: str = ""
    name: str = ""
    rows_behind: int | None = None
    bytes_behind: int | None = None
    millis_behind: int | None = None
    batch_rows: int = 0
    """How many rows of the stream the micro-batch has: where a source reads several, Spark counts
    those of all."""

    @property
    def dlsn(self) -> Dlsn:
        return Dlsn(self.segment or 0, self.entry, self.slot)

    @property
    def unnamed(self) -> str:
        return _UNNAMED + self.stream if self.ledger is None else f"ledger {self.ledger}"


class _Several(msgspec.Struct):
    """An offset of several streams, which has that of each by its name."""

    streams: dict[str, _Offset] | None = None


class _Offsets(NamedTuple):
    streams: Mapping[str, _Offset]


_NOTHING: Final = msgspec.Raw(b"null")


class _Source(msgspec.Struct, rename="camel"):
    """One source in Spark's JSON. What its offsets look like is its own business."""

    end_offset: msgspec.Raw = _NOTHING
    latest_offset: msgspec.Raw = _NOTHING
    num_input_rows: int = 0


class _Progress(msgspec.Struct, rename="camel"):
    """The part of Spark's JSON that is looked at."""

    id: str
    run_id: str
    batch_id: int
    name: str | None = None
    timestamp: str = ""
    num_input_rows: int = 0
    duration_ms: dict[str, int] = {}
    sources: tuple[_Source, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far one stream, or one raw ledger, was read when a micro-batch ended.

    ``name`` is the stream's, or ``ledger 7`` for a raw ledger. ``position`` is that of the next row
    to read, ``end`` that of the end of the stream when the micro-batch was planned. ``rows`` were
    read by this micro-batch; of a raw ledger rows are entries, and their ``Dlsn`` has segment 0.

    The three ``..._behind`` are what was committed by then and is not read yet, and for how long
    the oldest of it has been. They are None where they are not known: bytes and seconds of a raw
    ledger, and all of a micro-batch that was planned before a restart.
    """

    name: str
    position: Dlsn
    end: Dlsn
    rows: int
    rows_behind: int | None
    bytes_behind: int | None
    seconds_behind: float | None

    @property
    def is_named(self) -> bool:
        """Whether the name is the stream's: in a micro-batch of before a restart it is its id."""
        return not self.name.startswith(_UNNAMED)


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The last micro-batch of a query.

    ``time`` is when its trigger fired, in ISO 8601. ``seconds`` is how long it took, ``shares``
    what part of that went into planning, rows, checkpoint and other things; they sum up to 1.
    ``sources`` are the streams and raw ledgers that it reads; sources of other kinds are left out.
    ``input_rows`` counts the rows of all.
    """

    query_id: str
    run_id: str
    name: str
    batch_id: int
    time: str
    seconds: float
    shares: Mapping[str, float]
    input_rows: int
    sources: tuple[SourceProgress, ...]


def progress(query: Query) -> QueryProgress | None:
    """Where a running or ended query is: of its last micro-batch. None before the first one."""
    last = query.lastProgress
    return None if last is None else progress_of(last)


def progress_of(reported: Reported) -> QueryProgress:
    """The values of one ``StreamingQueryProgress``."""
    values = msgspec.json.decode(reported.json, type=_Progress)
    total_ms = values.duration_ms.get("triggerExecution", 0)
    return QueryProgress(
        query_id=values.id,
        run_id=values.run_id,
        name=values.name or "",
        batch_id=values.batch_id,
        time=values.timestamp,
        seconds=total_ms / 1000,
        shares=time_shares(values.duration_ms, total_ms),
        input_rows=values.num_input_rows,
        sources=tuple(found for source in values.sources for found in _sources(source)),
    )


def time_shares(durations: Mapping[str, int], total_ms: int) -> dict[str, float]:
    """The parts of a micro-batch's time. Empty if it took no time that Spark could measure."""
    if total_ms <= 0:
        return {}
    spent = {part: sum(durations.get(name, 0) for name in names) for part, names in PARTS.items()}
    whole = max(total_ms, sum(spent.values()))
    spent["other"] = whole - sum(spent.values())
    return {part: took / whole for part, took in spent.items()}


def _sources(source: _Source) -> list[SourceProgress]:
    """What one source reads: a stream, a raw ledger, or several streams."""
    position, end = _offset(source.end_offset), _offset(source.latest_offset)
    if isinstance(position, _Offset):
        newest = end if isinstance(end, _Offset) else position
        return [_progress(position, newest, "", source.num_input_rows)]
    if position is None:
        return []
    ends = end.streams if isinstance(end, _Offsets) else {}
    counts = {name: each.batch_rows for name, each in ends.items()}
    return [
        _progress(each, ends.get(name, each), name, counts.get(name, 0))
        for name, each in sorted(position.streams.items())
    ]


def _progress(position: _Offset, newest: _Offset, name: str, rows: int) -> SourceProgress:
    millis = newest.millis_behind
    return SourceProgress(
        name=newest.name or name or position.unnamed,
        position=position.dlsn,
        end=newest.dlsn,
        rows=rows,
        rows_behind=newest.rows_behind,
        bytes_behind=newest.bytes_behind,
        seconds_behind=None if millis is None else millis / 1000,
    )


def _offset(raw: bytes | msgspec.Raw) -> _Offset | _Offsets | None:
    """An offset of ours; None if it is another source's, or none yet. Spark has the JSON of an
    offset as such, or as a text."""
    try:
        text = msgspec.json.decode(raw)
        if isinstance(text, str):
            raw = text.encode()
        several = msgspec.json.decode(raw, type=_Several)
        if several.streams is not None:
            return _Offsets(several.streams)
        found = msgspec.json.decode(raw, type=_Offset)
    except msgspec.MsgspecError:
        return None
    return None if found.segment is None and found.ledger is None else found
