"""Sizes and time spans: what people write, and what is refused with a sentence."""

from __future__ import annotations

import pytest

from spark_ledger.amounts import parse_age_s, parse_duration_s, parse_size_bytes, parse_timeout_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10", 10.0),
        ("15 m", 900.0),
        ("1.5h", 5400.0),
        ("7D", 604_800.0),
    ],
)
def test_duration_with_a_unit_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "1 week", "7dd", "nan"])
def test_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs a time above 0"):
        parse_duration_s(text)


def test_timeout_of_more_than_a_century_is_refused() -> None:
    """No timer takes it; what retention keeps, and what a time is counted back, may be longer."""
    assert parse_timeout_s("36500d") == 3_153_600_000
    with pytest.raises(ValueError, match="at most 36500d"):
        parse_timeout_s("36500.1d")
    assert parse_duration_s("99999d") == parse_age_s("99999d") == 99_999 * 86_400


def test_age_without_its_unit_is_refused() -> None:
    assert parse_age_s("7D") == 604_800.0
    for text in ("7", " 7.5 ", ""):
        with pytest.raises(ValueError, match="needs a time with its unit"):
            parse_age_s(text)
    with pytest.raises(ValueError, match="needs a time above 0"):
        parse_age_s("soon")


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("64k", 65_536), ("1 MiB", 2**20), ("2g", 2**31), ("1TB", 2**40)]
)
def test_size_with_a_unit_is_in_bytes(text: str, size: int) -> None:
    assert parse_size_bytes(1)(text) == size


@pytest.mark.parametrize("text", ["", "k", "1.5g", "-1", "9t", "1k"])
def test_size_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at least 2048 bytes, at most 1073741824 bytes"):
        parse_size_bytes(2048, 2**30)(text)
