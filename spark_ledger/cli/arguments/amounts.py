"""Sizes, time spans and ledger ids as they are given to a command."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import click

from spark_ledger.amounts import parse_age_s, parse_duration_s, parse_size_bytes
from spark_ledger.limits import NUMBER_MAX


class Amount(click.ParamType[float]):
    """A click type around one of the parsers of ``spark_ledger.amounts``."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number of a text. Wrong usage, with the parser's half sentence, if it is none."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class _Number(click.FloatRange):
    """A number in a range. Of "not a number" nothing is true, so no range holds or excludes it."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number of a text, or wrong usage."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


_ID_DIGITS_MAX: Final = 19
"""Of a number with 64 bits and a sign."""


class _LedgerIdType(click.ParamType[int]):
    """The number of a ledger."""

    name = "ledger id"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number of a text, or wrong usage that says where ids are shown."""
        if not (text := str(value)).isdecimal() or len(text) > _ID_DIGITS_MAX:
            self.fail(f"{text!r} is no ledger id: see them with: ledger ledgers list", param, ctx)
        return int(text)


LEDGER_ID = _LedgerIdType()

DURATION_S = Amount("duration", parse_duration_s)
"""Seconds, from 500ms, 10s, 15m, 1h or 7d."""

AGE_S = Amount("age", parse_age_s)
"""The same where rows are dropped by it: with a unit."""


def size_of(low: int, high: int | None = None) -> Amount:
    """Bytes, from 64k, 128m or 1g."""
    return Amount("size", parse_size_bytes(low, high))


def number_from(
    low: float | None = None, high: float | None = None, *, above: bool = False
) -> click.ParamType[float]:
    """A number from ``low`` on, or above it."""
    return _Number(min=low, max=high, min_open=above)


def count_from(low: int) -> click.IntRange:
    """A whole number from ``low`` on that C takes."""
    return click.IntRange(min=low, max=NUMBER_MAX)
