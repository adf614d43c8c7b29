"""Positions and times in a stream, as arguments of commands."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from spark_ledger.amounts import parse_duration_s
from spark_ledger.types import Dlsn

_FIRST_MS: Final = datetime.min.replace(tzinfo=UTC).timestamp() * 1000
_LAST_MS: Final = datetime.max.replace(tzinfo=UTC).timestamp() * 1000
"""Beyond these a time cannot be shown."""

_SHORT: Final = re.compile(r"(\d{1,18})(?::(\d{1,18}))?(?::(\d{1,18}))?")


class JsonPosition(msgspec.Struct, forbid_unknown_fields=True):
    """A position as Spark options spell it; entry and slot may be left out."""

    segment: int
    entry: int = 0
    slot: int = 0


def position(_context: click.Context, _parameter: click.Parameter, value: str) -> str | Dlsn:
    """``earliest``, ``latest``, SEGMENT[:ENTRY[:SLOT]], or the JSON of Spark's options."""
    found = _position(value)
    if found is None:
        raise click.BadParameter(
            f'{value!r}: use earliest, latest, 3, 3:0:5 or {{"segment": 3, "entry": 0}}'
        )
    return found


def position_or_time(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> str | Dlsn | float:
    """A position as above; or a time, as ms since 1970 in a float: ISO 8601, or how long ago."""
    found = _position(value)
    if found is not None:
        return found
    try:
        return _checked(time.time() * 1000 - parse_duration_s(value) * 1000, value)
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r}: use latest, a position such as 3 or 3:0:5, a time such as "
            "2026-01-31T12:00:00Z, or how long ago that was, such as 7d"
        ) from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return _checked(when.timestamp() * 1000, value)


def _checked(time_ms: float, value: str) -> float:
    if not _FIRST_MS <= time_ms <= _LAST_MS:
        raise click.BadParameter(f"{value!r}: use a time in the years 1 to 9999")
    return time_ms


def _position(value: str) -> str | Dlsn | None:
    if value in ("earliest", "latest"):
        return value
    short = _SHORT.fullmatch(value)
    if short:
        return Dlsn(*(int(part or 0) for part in short.groups()))
    try:
        found = msgspec.json.decode(value, type=JsonPosition)
    except (msgspec.MsgspecError, RecursionError):
        return None
    dlsn = Dlsn(found.segment, found.entry, found.slot)
    return dlsn if min(dlsn) >= 0 else None


def position_text(position: Dlsn) -> str:
    """A position as ``--start`` takes it."""
    return f"{position.segment}:{position.entry}:{position.slot}"
