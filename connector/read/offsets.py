"""Offsets: how far a streaming query has read, as the JSON that Spark keeps in its checkpoint.

Spark compares offsets as text, so one function makes them and their keys are always sorted. An
offset is the position of the next row to read: everything before it has been read.

A stream's offset is ``{"entry": e, "segment": s, "stream": id}``, numbers counting from 0 and
``entry`` within the segment. After the last entry of a segment the offset is entry 0 of the next
one, so each position has one spelling. ``"slot"`` (a row within the entry) appears only if a query
was started in the middle of an entry. The id tells the stream from a later one of its name
(rule T7). ``"last": {"commit": c, "entry": f, "ledger": l}`` names the segment that has the row
before the position, by its commit and its first entry in its ledger; it tells whether a restored
ZooKeeper has given the numbers to other rows since (rule T5). It is left out where nothing lies
before, and in offsets of versions that did not have it. ``"start"`` is the segment with which the
micro-batch begins that ends here, if it is the first one and the start was given as a time (rule
T31). A raw ledger's offset is
``{"entry": e, "ledger": id}``. That of several streams has the offset of each by its name,
``{"streams": {"a": {...}, "b": {...}}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, cast

from spark_ledger.errors import ConfigurationError, DataLossError, NoSuchStreamError
from spark_ledger.types import Dlsn, EntryId, LedgerId

OffsetJson: TypeAlias = dict[str, int | str | dict[str, int]]
"""An offset for Spark. Spark calls for a plain ``dict``."""

CheckpointOffset: TypeAlias = Mapping[str, object]
"""An offset that came back from Spark. It may be of another source: nothing is checked yet."""


SeveralOffset: TypeAlias = dict[str, dict[str, OffsetJson]]
"""The offset of several streams, for Spark."""

AnyOffset: TypeAlias = OffsetJson | SeveralOffset
"""An offset for Spark, of a source of either kind."""


class StreamPosition(NamedTuple):
    """A position in a stream, and the stream's id, which is empty if an offset does not have it."""

    position: Dlsn
    stream_id: str


class LastSegment(NamedTuple):
    """The segment that has the row before a position, by its commit, and where it begins."""

    commit: int
    entry: EntryId
    ledger: LedgerId


def unchanged(offset: CheckpointOffset) -> OffsetJson:
    """The offset of one stream or ledger as it came from Spark: nothing is new."""
    return cast(OffsetJson, dict(offset))


def stream_offset(position: Dlsn, stream_id: str, last: LastSegment | None = None) -> OffsetJson:
    """The offset of a stream position. All offsets of streams are made here."""
    offset: OffsetJson = {"entry": position.entry}
    if last is not None:
        offset["last"] = last._asdict()
    offset["segment"] = position.segment
    if position.slot:
        offset["slot"] = position.slot
    offset["stream"] = stream_id
    return offset


def stream_position(offset: CheckpointOffset) -> StreamPosition:
    """The position of an offset that came back from Spark.

    Raises ConfigurationError if it is not a stream's offset: the checkpoint is another source's.
    """
    keys = set(offset)
    if not {"entry", "segment"} <= keys <= {"entry", "last", "segment", "slot", "start", "stream"}:
        raise _foreign_offset_error(offset, "a stream")
    numbers = [offset["segment"], offset["entry"], offset.get("slot", 0), offset.get("start", 0)]
    segment, entry, slot, start = (n if isinstance(n, int) else -1 for n in numbers)
    stream_id = offset.get("stream", "")
    if min(segment, entry, slot, start) < 0 or not isinstance(stream_id, str):
        raise _foreign_offset_error(offset, "a stream")
    last_segment(offset)
    return StreamPosition(Dlsn(segment, entry, slot), stream_id)


def naming_start(offset: OffsetJson, start: Dlsn) -> OffsetJson:
    """A stream's offset that also names where the micro-batch begins that ends there."""
    assert start == Dlsn(start.segment), "a start by time is that of a commit"
    return dict(sorted({**offset, "start": start.segment}.items()))


def named_start(offset: CheckpointOffset) -> Dlsn | None:
    """Where the micro-batch begins that ends at this offset of a stream; None if it does not say.
    The offset is one that ``stream_position`` has taken."""
    start = offset.get("start")
    return Dlsn(start) if isinstance(start, int) else None


def last_segment(offset: CheckpointOffset) -> LastSegment | None:
    """The segment before a stream's offset that came back from Spark; None if it does not say.

    Raises ConfigurationError if it is not a stream's offset.
    """
    last = offset.get("last")
    if last is None:
        return None
    if not isinstance(last, Mapping) or set(last) != set(LastSegment._fields):
        raise _foreign_offset_error(offset, "a stream")
    commit, entry, ledger = (last[name] for name in LastSegment._fields)
    if not all(isinstance(number, int) and number >= 0 for number in (commit, entry, ledger)):
        raise _foreign_offset_error(offset, "a stream")
    return LastSegment(commit, EntryId(entry), LedgerId(ledger))


def several_offset(offsets: Mapping[str, OffsetJson]) -> SeveralOffset:
    """The offset of several streams. All of them are made here."""
    return {"streams": {name: dict(offsets[name]) for name in sorted(offsets)}}


def offsets_by_stream(offset: CheckpointOffset) -> dict[str, OffsetJson] | None:
    """The offsets in one of several streams that came back from Spark; None if it is of one.

    Raises ConfigurationError if it is neither.
    """
    if set(offset) != {"streams"}:
        stream_position(offset)
        return None
    streams = offset["streams"]
    if not isinstance(streams, Mapping) or not all(
        isinstance(v, Mapping) for v in streams.values()
    ):
        raise _foreign_offset_error(offset, "several streams")
    for each in streams.values():
        stream_position(each)
    return {name: dict(each) for name, each in streams.items()}


class FormerStreamError(NoSuchStreamError):
    """What was opened is a former stream, by a server that lagged. The position may be one of the
    stream that has the name now: that is known once it is opened."""


def recreated_message(subject: str, lost: str) -> str:
    """The sentence on a stream whose name belongs to another stream now; ``lost`` went with it."""
    return (
        f"{subject} was deleted and created again (or is another one than the checkpoint was made "
        f"with): {lost} belongs to the former stream, whose rows are gone"
    )


def recreated_error(subject: str, lost: str) -> DataLossError:
    """The error if a read must not go on in the new stream."""
    return DataLossError(
        f"{recreated_message(subject, lost)}. Use a new checkpoint location; or set "
        "failOnDataLoss=false to go on from the earliest row of the new stream"
    )


def ledger_offset(ledger_id: LedgerId, next_entry: EntryId) -> OffsetJson:
    """The offset of a raw ledger: the entry to read next."""
    return {"entry": next_entry, "ledger": ledger_id}


def ledger_position(offset: CheckpointOffset, ledger_id: LedgerId) -> EntryId:
    """The next entry to read.

    Raises ConfigurationError if the checkpoint belongs to another ledger or source.
    """
    entry = offset.get("entry")
    if set(offset) != {"entry", "ledger"} or not isinstance(entry, int):
        raise _foreign_offset_error(offset, "a raw ledger")
    if offset["ledger"] != ledger_id:
        raise ConfigurationError(
            f"the checkpoint of this query belongs to ledger {offset['ledger']}, but the option "
            f"ledgerId is {ledger_id}: use a new checkpoint for another ledger"
        )
    return EntryId(entry)


def _foreign_offset_error(offset: CheckpointOffset, wanted: str) -> ConfigurationError:
    streams = offset.get("streams")
    if isinstance(streams, Mapping):
        return ConfigurationError(
            f"the checkpoint of this query is of several streams ({', '.join(streams)}), and the "
            f"options name {wanted}: name them with the option streams, or use a new checkpoint"
        )
    return ConfigurationError(
        f"the checkpoint of this query holds the offset {dict(offset)}, which is not that of "
        f"{wanted}: it was made by another source; use a new checkpoint"
    )
