"""Times and positions in a stream, as they are given to a command."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click
import pytest

from spark_ledger.cli.arguments.positions import position, position_or_time
from spark_ledger.types import Dlsn

CONTEXT = click.Context(click.Command("x"))
OPTION = click.Option(["--at"])

NOON_MS = datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Pacific/Kiritimati"])
@pytest.mark.parametrize(
    "text",
    [
        "2026-07-01T12:00:00",
        "2026-07-01 12:00",
        "2026-07-01T12:00:00Z",
        "2026-07-01T12:00:00+00:00",
        "2026-07-01T09:30:00-02:30",
        "2026-07-02T02:00+14:00",
    ],
)
def test_time_means_the_same_in_every_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str, text: str
) -> None:
    """One without a zone is UTC: a command drops rows by it, wherever it runs."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        found = position_or_time(CONTEXT, OPTION, text)
    time.tzset()
    assert found == NOON_MS


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Pacific/Kiritimati"])
def test_day_begins_at_midnight_of_utc(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        found = position_or_time(CONTEXT, OPTION, "2026-07-01")
    time.tzset()
    assert found == NOON_MS - 12 * 3_600_000


def test_how_long_ago_counts_from_now() -> None:
    before = time.time() * 1000
    found = position_or_time(CONTEXT, OPTION, "90m")
    assert isinstance(found, float)
    assert before <= found + 90 * 60_000 <= time.time() * 1000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("3", Dlsn(3, 0, 0)),
        ("3:4", Dlsn(3, 4, 0)),
        ("3:4:5", Dlsn(3, 4, 5)),
        ('{"segment": 3, "slot": 5}', Dlsn(3, 0, 5)),
    ],
)
def test_position_is_taken_for_no_time(text: str, wanted: object) -> None:
    assert position(CONTEXT, OPTION, text) == wanted
    assert position_or_time(CONTEXT, OPTION, text) == wanted


@pytest.mark.parametrize("text", ["", "-3", "3:-1", '{"segment": -1}', "yesterday", "3:4:5:6"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="use"):
        position(CONTEXT, OPTION, text)
    with pytest.raises(click.BadParameter, match="use"):
        position_or_time(CONTEXT, OPTION, text)
