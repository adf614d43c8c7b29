"""Sizes and time spans as people write them: 64k, 1 GiB, 15m, 7d. For options and commands.

A parser takes the text that a user wrote, and raises ValueError with the half sentence that says
what is allowed; who calls it puts the name of the option in front.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from spark_ledger.limits import GIB, KIB, MIB, SECONDS_MAX, TIB

SIZE_DIGITS: Final = 15
DURATION_DIGITS: Final = 9
"""Before the point; six stand behind it."""

_SIZE_UNITS: Final = {"": 1, "b": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


def parse_size_bytes(low: int, high: int | None = None) -> Callable[[str], int]:
    """A parser of sizes: bytes, or with a unit as Spark writes them (64k, 128m, 1g, 1 MiB)."""
    top = "" if high is None else f", at most {high} bytes"
    pattern = re.compile(rf"(\d{{1,{SIZE_DIGITS}}})\s*([bkmgt]?)(?:i?b)?")
    wanted = f"a size such as 1048576, 64k, 128m or 1g, at least {low} bytes{top}"

    def parse(text: str) -> int:
        match = pattern.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError(f"needs {wanted}")
        value = int(match[1]) * _SIZE_UNITS[match[2]]
        if value < low or (high is not None and value > high):
            raise ValueError(f"needs {wanted}")
        return value

    return parse


def size_argument(size_bytes: int) -> str:
    """The text that such a parser reads as this size; of one beyond its digits, as the largest."""
    return str(min(size_bytes, 10**SIZE_DIGITS - 1))


_DURATION_UNITS: Final = {
    "ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0,
}  # fmt: skip
_DURATION: Final = re.compile(rf"(\d{{1,{DURATION_DIGITS}}}(?:\.\d{{1,6}})?)\s*(ms|s|m|min|h|d|)")


def parse_duration_s(text: str) -> float:
    """A time span in seconds: a bare number counts seconds; units are ms, s, m, min, h, d."""
    match = _DURATION.fullmatch(text.strip().lower())
    value = float(match[1]) * _DURATION_UNITS[match[2]] if match else 0.0
    if value <= 0.0:
        raise ValueError("needs a time above 0, such as 500ms, 10s, 15m, 1h or 7d")
    return value


def parse_timeout_s(text: str) -> float:
    """A time span in seconds that a timer can wait for."""
    value = parse_duration_s(text)
    if value > SECONDS_MAX:
        raise ValueError(f"needs a time of at most {SECONDS_MAX / 86_400:.0f}d")
    return value


def duration_argument(seconds: float) -> str:
    """The text that ``parse_duration_s`` reads as this time, to the microsecond.

    Of 0 it is a microsecond, and of more than nine digits, infinity too, the longest: 31 years.
    """
    return f"{min(max(seconds, 1e-6), 10**DURATION_DIGITS - 1):.6f}s"


def parse_age_s(text: str) -> float:
    """A time span in seconds that decides what is dropped: a bare number might be meant as days,
    so it needs its unit."""
    if not re.fullmatch(r".*[a-z]", text.strip().lower()):
        raise ValueError("needs a time with its unit, such as 10s, 15m, 1h or 7d")
    return parse_duration_s(text)
