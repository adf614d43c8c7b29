"""Offsets: where a streaming query stands, as the JSON that Spark keeps in its checkpoint.

Spark compares offsets as text, so one function makes them and their keys are always sorted. An
offset is the position of the next row to read: everything before it has been read.

A stream's offset is ``{"entry": e, "segment": s}``, both counting from 0, ``entry`` within the
segment. Behind the last entry of a segment the offset is entry 0 of the next one, so a position
has one spelling. ``"slot"`` (a row within the entry) appears only when a query was started in the
middle of an entry. A raw ledger's offset is ``{"entry": e, "ledger": id}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ledger.errors import ConfigurationError
from spark_ledger.types import Dlsn, EntryId, LedgerId

OffsetJson = dict[str, int]


def stream_offset(position: Dlsn) -> OffsetJson:
    """The offset of a stream position. The only place where one is made."""
    offset = {"entry": position.entry, "segment": position.segment}
    if position.slot:
        offset["slot"] = position.slot
    return offset


def stream_position(offset: Mapping[str, Any]) -> Dlsn:
    """The position of an offset that came back from Spark.

    Raises ConfigurationError when it is not one of ours: the checkpoint belongs to another source.
    """
    keys = set(offset)
    if not {"entry", "segment"} <= keys <= {"entry", "segment", "slot"}:
        raise _foreign(offset, "a stream")
    position = Dlsn(offset["segment"], offset["entry"], offset.get("slot", 0))
    if not all(isinstance(part, int) and part >= 0 for part in position):
        raise _foreign(offset, "a stream")
    return position


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
