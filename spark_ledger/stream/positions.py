"""Positions in a stream as callers give them. Pure."""

from __future__ import annotations

from spark_ledger.errors import ConfigurationError
from spark_ledger.types import Dlsn

Position = Dlsn | tuple[int, ...] | str
"""A ``Dlsn`` (or its tuple, entry and slot may be left out), "earliest" or "latest"."""


def parse_position(position: Position) -> Dlsn | str:
    """A position as a ``Dlsn``, "earliest" or "latest". Raises ConfigurationError."""
    if isinstance(position, str) and position in ("earliest", "latest"):
        return position
    if (
        isinstance(position, tuple)
        and 1 <= len(position) <= 3
        and all(type(number) is int and number >= 0 for number in position)
    ):
        return Dlsn(*position)
    raise ConfigurationError(
        f"position {position!r}: use 'earliest', 'latest' or Dlsn(segment, entry, slot) "
        "with numbers from 0"
    )
