"""Whether numbers with their times are in a stream once each, at the instants that they had. Pure.

Instants are microseconds since 1970: what the session's zone is called has no part in them. A copy
that reads a clock time in one zone and writes it in another is off by hours, and seen by the time
at which the run was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

NUMBERS, COPIES = "numbers-{}", "copy-{}"
"""Names of streams, by number."""

STEP_SLACK_US: Final = 1_000
"""The source of numbers counts in milliseconds."""

CLOCK_SLACK_US: Final = 60_000_000
"""The source begins at its last full second, and rows of the next one may be there already."""


class Timed(NamedTuple):
    """A number, and its time in microseconds."""

    value: int
    micros: int


class Found(NamedTuple):
    """What Spark found in a stream."""

    stream: str
    rows: int
    values: int
    first_micros: int
    last_micros: int


def wrong_numbers(
    name: str, rows: Sequence[Timed], *, rows_per_s: int, began_us: int, ended_us: int
) -> list[str]:
    """What is wrong with a stream that has the numbers from 0 on, so many a second."""
    values = sorted(each.value for each in rows)
    if values != list(range(len(values))) or not values:
        missing = sorted(set(range(max(values, default=-1) + 1)) - set(values))
        twice = len(values) - len(set(values))
        return [
            f"{name}: of {len(values)} numbers {len(missing)} are missing (such as "
            f"{missing[:5]}), {twice} are there twice"
        ]
    in_order = sorted(rows)
    wrong = []
    step_us, first_us = 1_000_000 / rows_per_s, in_order[0].micros
    off = [
        each
        for each in in_order
        if abs(each.micros - first_us - each.value * step_us) > STEP_SLACK_US
    ]
    if off:
        wrong.append(f"{name}: {len(off)} numbers have another time than theirs, such as {off[0]}")
    if not (
        began_us - CLOCK_SLACK_US <= first_us and in_order[-1].micros <= ended_us + CLOCK_SLACK_US
    ):
        wrong.append(
            f"{name}: its times, {first_us} to {in_order[-1].micros}, are not those of the run, "
            f"{began_us} to {ended_us}"
        )
    return wrong


def wrong_copy(name: str, rows: Sequence[Timed], source: Sequence[Timed]) -> list[str]:
    """What is wrong with a copy of a stream."""
    if sorted(rows) == sorted(source):
        return []
    return [
        f"{name}: {len(rows)} rows, {len(source)} in its source; {len(set(source) - set(rows))} "
        f"are missing, {len(set(rows) - set(source))} are others, "
        f"{len(rows) - len(set(rows))} are there twice"
    ]


def wrong_reading(found: Found, rows: Sequence[Timed]) -> list[str]:
    """Whether Spark, in its session's zone, reads what is there."""
    expected = Found(
        found.stream,
        len(rows),
        len({each.value for each in rows}),
        min((each.micros for each in rows), default=0),
        max((each.micros for each in rows), default=0),
    )
    return [] if found == expected else [f"Spark reads {found}, and there is {expected}"]
