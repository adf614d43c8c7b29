"""Offsets: where a streaming query stands, as the JSON that Spark keeps in its checkpoint.

Spark compares offsets as text, so one function makes them and their keys are always sorted. An
offset is the position of the next row to read: everything before it has been read.

A stream's offset is ``{"entry": e, "segment": s, "stream": id}``, numbers counting from 0 and
``entry`` within the segment. Behind the last entry of a segment the offset is entry 0 of the next
one, so a position has one spelling. ``"slot"`` (a row within the entry) appears only when a query
was started in the middle of an entry. The id tells the stream from a later one of its name. A raw
ledger's offset is ``{"entry": e, "ledger": id}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_ledger.errors import ConfigurationError, DataLossError
from spark_ledger.types import Dlsn, EntryId, LedgerId

OffsetJson = dict[str, int | str]


class StreamPlace(NamedTuple):
    """A position, and the id of the stream it is one of; empty where nothing was said of that."""

    position: Dlsn
    stream_id: str


def stream_offset(position: Dlsn, stream_id: str) -> OffsetJson:
    """The offset of a stream position. The only place where one is made."""
    offset: OffsetJson = {"entry": position.entry, "segment": position.segment}
    if position.slot:
        offset["slot"] = position.slot
    offset["stream"] = stream_id
    return offset


def stream_place(offset: Mapping[str, Any]) -> StreamPlace:
    """The place of an offset that came back from Spark.

    Raises ConfigurationError when it is not one of ours: the checkpoint belongs to another source.
    """
    keys = set(offset)
    if not {"entry", "segment"} <= keys <= {"entry", "segment", "slot", "stream"}:
        raise _foreign(offset, "a stream")
    position = Dlsn(offset["segment"], offset["entry"], offset.get("slot", 0))
    stream_id = offset.get("stream", "")
    numbers_fit = all(isinstance(part, int) and part >= 0 for part in position)
    if not numbers_fit or not isinstance(stream_id, str):
        raise _foreign(offset, "a stream")
    return StreamPlace(position, stream_id)


def made_again(subject: str, what: str) -> str:
    """The sentence on a stream whose name belongs to another one now; ``what`` is lost with it."""
    return (
        f"{subject} was deleted and created again (or is another one than the checkpoint was made "
        f"with): {what} belongs to the former stream, whose rows are gone"
    )


def made_again_error(subject: str, what: str) -> DataLossError:
    """The error when a read may not go on in the new stream."""
    return DataLossError(
        f"{made_again(subject, what)}. Use a new checkpoint location; or set failOnDataLoss=false "
        "to go on from the earliest row of the new stream"
    )


def ledger_offset(ledger_id: LedgerId, next_entry: EntryId) -> OffsetJson:
    """The offset of a raw ledger: the entry to read next."""
    return {"entry": next_entry, "ledger": ledger_id}


def ledger_position(offset: Mapping[str, Any], ledger_id: LedgerId) -> EntryId:
    """The next entry to read.

    Raises ConfigurationError when the checkpoint belongs to another ledger or source.
    """
    if set(offset) != {"entry", "ledger"} or not isinstance(offset["entry"], int):
        raise _foreign(offset, "a raw ledger")
    if offset["ledger"] != ledger_id:
        raise ConfigurationError(
            f"the checkpoint of this query belongs to ledger {offset['ledger']}, but the option "
            f"ledgerId is {ledger_id}: use a new checkpoint for another ledger"
        )
    return EntryId(offset["entry"])


def _foreign(offset: Mapping[str, Any], wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint of this query holds the offset {dict(offset)}, which is not that of "
        f"{wanted}: it was made by another source; use a new checkpoint"
    )
