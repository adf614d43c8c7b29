"""What the verdict on many queries finds: lost, doubled and shifted rows, and memory that grows."""

from __future__ import annotations

import pytest

from tests.endurance.memory import Memory, memory_growth, thirds
from tests.endurance.rows import Found, Timed, wrong_copy, wrong_numbers, wrong_reading

BEGAN_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
RUN = {"rows_per_s": 100, "began_us": BEGAN_US, "ended_us": BEGAN_US + 100_000_000}


def numbered(count: int, shift_us: int = 0) -> list[Timed]:
    """A hundred numbers a second."""
    return [Timed(n, BEGAN_US + shift_us + n * 10_000) for n in range(count)]


def test_numbers_once_each_at_their_times_are_right_in_any_order() -> None:
    assert wrong_numbers("s", numbered(500)[::-1], **RUN) == []


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "of 0 numbers"),
        (numbered(500)[1:], r"1 are missing (such as [0])"),
        ([*numbered(500), *numbered(3)], "3 are there twice"),
        (numbered(500, 4 * HOUR_US), "not those of the run"),
        (numbered(500, -4 * HOUR_US), "not those of the run"),
        ([*numbered(400), *numbered(500, HOUR_US)[400:]], "100 numbers have another time"),
    ],
)
def test_numbers_that_are_lost_doubled_or_at_another_instant_are_found(
    rows: list[Timed], told: str
) -> None:
    (first, *_) = wrong_numbers("s", rows, **RUN)
    assert told in first


def test_copy_that_differs_is_found() -> None:
    source = numbered(10)
    assert wrong_copy("c", source[::-1], source) == []
    assert "1 are missing, 0 are others" in wrong_copy("c", source[1:], source)[0]
    assert "1 are there twice" in wrong_copy("c", [*source, source[0]], source)[0]
    assert "10 are missing, 10 are others" in wrong_copy("c", numbered(10, HOUR_US), source)[0]


def test_reading_of_spark_in_another_zone_is_found() -> None:
    rows = numbered(10)
    found = Found("s", 10, 10, rows[0].micros, rows[-1].micros)
    assert wrong_reading(found, rows) == []
    assert wrong_reading(found._replace(first_micros=rows[0].micros + HOUR_US), rows) != []
    assert wrong_reading(found._replace(rows=11), rows) != []


def look(seconds: int, heap_mb: float) -> Memory:
    return Memory(seconds, seconds, heap_mb, 1000.0, 80.0, 12, 700.0, 90.0)


def test_memory_that_swings_is_flat_and_memory_that_grows_is_found() -> None:
    flat = [look(n, 100.0 + n % 2 * 10) for n in range(30)]
    assert memory_growth(flat) == []
    growing = [look(n, 100.0 + 4 * n) for n in range(30)]
    assert thirds(growing)["heap_mb"] == (118.0, 198.0)
    assert memory_growth(growing) == ["heap_mb grew from 118.0 to 198.0"]
    assert "run it for longer" in memory_growth(flat[:5])[0]
