"""``ledger streams truncate``, ``retention``, ``hold`` and ``show``, over a stream in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from weakref import WeakSet

import pytest

from spark_ledger.cli.retention import span_text
from spark_ledger.stream.blocking import Stream
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, table

T = TypeVar("T")


class _Portal:
    """Runs coroutines on a loop of its own, while somebody waits."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)


@pytest.fixture
def stream(client: FakeClient) -> Iterator[Stream]:
    """Stream ``s`` with rows 0 .. 5, one in each commit."""
    portal = _Portal()

    async def made() -> Any:
        made = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        for n in range(6):
            await made.append(table(n))
        return made

    found = Stream(portal, portal.call(made()), WeakSet())  # type: ignore[arg-type]
    client.streams["s"] = found  # type: ignore[assignment]
    yield found
    found.close()
    portal.loop.close()


@pytest.mark.parametrize(
    ("before", "expected"),
    [("2", 2), ("3:0:0", 3), ('{"segment": 4}', 4), ("latest", 6), ("earliest", 0), ("1h", 0)],
)
def test_truncate_takes_positions_and_times(
    stream: Stream, run: Run, before: str, expected: int
) -> None:
    outcome = run("streams", "truncate", "s", "--before", before, "--yes")
    assert outcome.status == 0, outcome
    assert outcome.out == f"stream s begins at {expected}:0:0\n"
    assert stream.head().earliest == Dlsn(expected)


@pytest.mark.parametrize("before", ["2020-01-31T12:00:00Z", "2020-01-31"])
def test_truncate_before_a_time_long_ago_drops_nothing(
    stream: Stream, run: Run, before: str
) -> None:
    outcome = run("streams", "truncate", "s", "--before", before, "--yes", "--json")
    assert json.loads(outcome.out)["earliest"] == {"segment": 0, "entry": 0, "slot": 0}


@pytest.mark.parametrize("before", ["soon", "", "2999-01-01", "99"])
def test_truncate_before_nonsense_drops_nothing(stream: Stream, run: Run, before: str) -> None:
    assert run("streams", "truncate", "s", "--before", before, "--yes").status == 2
    assert stream.head().earliest == Dlsn(0)


def test_truncate_asks_first(stream: Stream, run: Run) -> None:
    assert run("streams", "truncate", "s", "--before", "2", stdin=b"n\n").status == 2
    assert stream.head().earliest == Dlsn(0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (30, "30 s"),
        (90, "1.5 min"),
        (7_200, "2 h"),
        (86_400, "1 d"),
        (604_800, "7 d"),
        (86_400 * 3650, "3,650 d"),
    ],
)
def test_span_of_time_is_shown_in_days_hours_or_minutes(seconds: int, text: str) -> None:
    assert span_text(seconds) == text


def test_retention_is_set_shown_and_taken_off(stream: Stream, run: Run) -> None:
    assert run("streams", "retention", "s").out == "stream s keeps all rows\n"
    outcome = run("streams", "retention", "s", "--age", "7d", "--bytes", "2g", "--rows", "5")
    assert "the last 7 d, at most the last 2.0 GiB, at most the last 5 rows" in outcome.out
    assert stream.retention.limits() == Retention(7 * 86_400, 2 << 30, 5)
    found = json.loads(run("streams", "retention", "s", "--rows", "5", "--json").out)
    assert found == {"stream": "s", "age_s": None, "bytes": None, "rows": 5}
    assert run("streams", "retention", "s", "--none", "--rows", "5").status == 2
    assert run("streams", "retention", "s", "--age", "soon").status == 2
    without_unit = run("streams", "retention", "s", "--age", "7")
    assert without_unit.status == 2
    assert "needs a time with its unit" in without_unit.err
    assert run("streams", "retention", "s", "--none").status == 0
    assert stream.retention.limits() == Retention()


def test_hold_is_added_listed_and_removed(stream: Stream, run: Run) -> None:
    assert run("streams", "hold", "add", "s", "slow", "--position", "2").status == 2
    added = run("streams", "hold", "add", "s", "slow", "--position", "2", "--expires", "1h")
    assert added.status == 0 and "from 2:0:0 on" in added.out
    refused = run("streams", "truncate", "s", "--before", "4", "--yes")
    assert refused.status == 1 and "hold 'slow' keeps" in refused.err
    listed = json.loads(run("streams", "hold", "list", "s", "--json").out)
    assert [(hold["hold"], hold["position"]["segment"]) for hold in listed] == [("slow", 2)]
    assert "slow" in run("streams", "hold", "list", "s").out
    assert "held by slow" in run("streams", "show", "s").out
    ignored = ("streams", "truncate", "s", "--before", "4", "--yes", "--ignore-holds")
    assert run(*ignored).status == 0
    late = run("streams", "hold", "add", "s", "late", "--position", "1", "--expires", "1h")
    assert late.status == 1 and "cannot be held" in late.err
    assert run("streams", "hold", "remove", "s", "slow").status == 0
    assert run("streams", "hold", "remove", "s", "slow").status == 1


def test_hold_that_ended_as_too_much_followed_is_shown_as_over(stream: Stream, run: Run) -> None:
    for name, size in (("small", "1"), ("large", "1g")):
        added = ("streams", "hold", "add", "s", name, "--expires", "1h", "--bytes", size)
        assert run(*added).status == 0
    shown = run("streams", "hold", "list", "s").out.splitlines()
    assert [line.endswith("(over)") for line in shown if "small" in line or "large" in line] == [
        name == "small" for name in ("large", "small")
    ]


def test_show_draws_the_stream_as_a_line(stream: Stream, run: Run) -> None:
    stream.retention.truncate((2,))
    found = json.loads(run("streams", "show", "s", "--json").out)
    assert (found["live_rows"], found["reclaimable_rows"], found["deleted_commits"]) == (4, 2, 0)
    assert found["earliest_commit"] == 2 and found["holds"] == []
    shown = run("streams", "show", "s").out
    assert found["stream_id"] in shown
    assert "xxxxxxxxxxxxxxxxxxxx|----------------------------------------" in shown
    assert "commits 0 to 1" in shown and "commits 2 to 5" in shown
    assert "2 rows" in shown and "4 rows" in shown and "back to" in shown


def test_optimize_says_what_would_be_packed_then_what_was_then_that_nothing_is_left(
    stream: Stream, run: Run
) -> None:
    ask = ("streams", "optimize", "s", "--min-entries", "6")
    outcome = run(*ask, "--dry-run", "--json")
    (found,) = json.loads(outcome.out)
    assert (found["commits"], found["former_entries"], found["packed"]) == (6, 6, False)
    outcome = run(*ask)
    assert outcome.status == 0 and "0..5" in outcome.out
    assert "nothing to pack" in run(*ask).out
    assert json.loads(run(*ask, "--json").out) == []
    refused = run("streams", "optimize", "s", "--entry-bytes", "1m", "--pack-bytes", "64k")
    assert refused.status == 2 and "pack_bytes 65536 must be at least" in refused.err
