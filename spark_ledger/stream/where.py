"""Which rows a reader wants, by event time and key: what callers say and options carry. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TypeAlias

KeyValue: TypeAlias = str | int | bool | bytes | date | datetime


@dataclass(frozen=True, slots=True)
class Where:
    """Rows whose time is from ``start_us`` (included) to ``end_us`` (excluded), in microseconds
    since 1970, and whose key is this one. None: no such condition. ``key`` names every key column
    of the stream; with one key column its value alone will do.
    """

    start_us: int | None = None
    end_us: int | None = None
    key: KeyValue | tuple[tuple[str, KeyValue], ...] | None = None

    @property
    def is_all(self) -> bool:
        """Whether it asks for all rows."""
        return self == Where()


def where(
    *,
    event_time_from: datetime | date | None = None,
    event_time_until: datetime | date | None = None,
    key: KeyValue | Mapping[str, KeyValue] | None = None,
) -> Where:
    """A condition for ``Stream.read``. A time without a zone is UTC."""
    parts = tuple(key.items()) if isinstance(key, Mapping) else key
    return Where(_time_us(event_time_from), _time_us(event_time_until), parts)


def _time_us(when: datetime | date | None) -> int | None:
    if when is None:
        return None
    if not isinstance(when, datetime):
        when = datetime(when.year, when.month, when.day, tzinfo=UTC)
    delta = when.replace(tzinfo=when.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
