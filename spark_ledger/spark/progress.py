"""``progress(query)``: what Spark's progress says of the ledgers that a query reads, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from spark_ledger.types import Dlsn

# Any: the progress is JSON of Spark's, whose fields are looked at one by one.

PARTS: Final = {
    "planning": ("latestOffset", "getBatch", "queryPlanning"),
    "rows": ("addBatch",),
    "checkpoint": ("walCommit", "commitOffsets", "commitBatch"),
}
"""What a micro-batch spends its time on, by Spark's names of the phases. Rows: reading them, the
query's own work, writing them and the commit."""


class Query(Protocol):
    """What is needed of a ``pyspark.sql.streaming.StreamingQuery``, also of Spark Connect's."""

    @property
    def lastProgress(self) -> Any: ...


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


def progress_of(reported: Any) -> QueryProgress:
    """The values of one ``StreamingQueryProgress``."""
    values = reported if type(reported) is dict else msgspec.json.decode(reported.json)
    durations = values.get("durationMs") or {}
    total_ms = durations.get("triggerExecution", 0)
    return QueryProgress(
        query_id=str(values["id"]),
        run_id=str(values["runId"]),
        name=values.get("name") or "",
        batch_id=values["batchId"],
        time=values.get("timestamp", ""),
        seconds=total_ms / 1000,
        shares=time_shares(durations, total_ms),
        input_rows=values.get("numInputRows", 0),
        sources=tuple(
            found for source in values["sources"] if (found := _source(source)) is not None
        ),
    )


def time_shares(durations: Mapping[str, int], total_ms: int) -> dict[str, float]:
    """The parts of a micro-batch's time. Empty if it took no time that Spark could measure."""
    if total_ms <= 0:
        return {}
    spent = {part: sum(durations.get(name, 0) for name in names) for part, names in PARTS.items()}
    whole = max(total_ms, sum(spent.values()))
    spent["other"] = whole - sum(spent.values())
    return {part: took / whole for part, took in spent.items()}


def _source(source: Mapping[str, Any]) -> SourceProgress | None:
    position, end = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
    if position is None:
        return None
    newest = end or position
    millis = newest.get("millisBehind")
    return SourceProgress(
        name=newest.get("name") or _unnamed(position),
        position=_dlsn(position),
        end=_dlsn(newest),
        rows=source.get("numInputRows", 0),
        rows_behind=newest.get("rowsBehind"),
        bytes_behind=newest.get("bytesBehind"),
        seconds_behind=None if millis is None else millis / 1000,
    )


def _offset(value: Any) -> dict[str, Any] | None:
    """An offset of ours; None if it is another source's, or none yet."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
    if not isinstance(value, dict) or not isinstance(value.get("entry"), int):
        return None
    is_ours = isinstance(value.get("segment"), int) or isinstance(value.get("ledger"), int)
    return value if is_ours else None


def _unnamed(offset: Mapping[str, Any]) -> str:
    return f"ledger {offset['ledger']}" if "ledger" in offset else f"stream id {offset['stream']}"


def _dlsn(offset: Mapping[str, Any]) -> Dlsn:
    return Dlsn(offset.get("segment", 0), offset["entry"], offset.get("slot", 0))
