"""A handle that follows the head knows the last one, and word of the next is on its way: what is
looked up then is of the stream as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.stream import stream as stream_module
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, another, numbers, run, table

Look = Callable[[Stream], Awaitable[object]]


async def number_since(stream: Stream, time_ms: int) -> int | None:
    commit = await stream.first_commit_since(time_ms)
    return None if commit is None else commit.number


async def rows_between(stream: Stream, **limit: int) -> list[int]:
    return [commit.rows for commit in await stream.commits_between(0, 2, **limit)]


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (lambda s: numbers(s.read()), [0, 1, 2]),
        (lambda s: numbers(s.read(Dlsn(0, 0, 1))), [1, 2]),
        (lambda s: numbers(s.read("earliest", Dlsn(2))), [0, 1, 2]),
        (lambda s: numbers(s.read(Dlsn(1), Dlsn(2))), [2]),
        (lambda s: numbers(s.tail("earliest", idle_timeout=0)), [0, 1, 2]),
        (lambda s: numbers(s.tail(Dlsn(0, 0, 1), idle_timeout=0)), [1, 2]),
        (lambda s: s.position_of_row(2), Dlsn(1)),
        (lambda s: s.position_of_row(3), Dlsn(2)),
        (lambda s: s.position_at_timestamp(2000), Dlsn(1)),
        (lambda s: s.position_at_timestamp(2001), Dlsn(2)),
        (lambda s: number_since(s, 2000), 1),
        (lambda s: s.position_of("q", 2), Dlsn(1)),
        (rows_between, [2, 1]),
        (lambda s: rows_between(s, max_rows=3), [2, 1]),
    ],
)
def test_look_up_behind_a_late_watch_sees_the_newest_commit(
    look: Look, found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "STALE_READ_DELAY_S", 0.0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        reader = await another(ledgers)[1].open("s")
        monkeypatch.setattr(reader._watch, "invalidate", lambda: None)
        stream._committer.clock_ms = lambda: 1000
        await stream.append(table(0, 2), sink_id="q", transaction_id=1)
        assert (await reader.wait_for_commit(after_segment=0, timeout_s=0)).rows == 2
        stream._committer.clock_ms = lambda: 2000
        await stream.append(table(2), sink_id="q", transaction_id=2)
        assert (await reader.head()).rows == 2, "it knows no newer one"
        assert await look(reader) == found
        await reader.close()

    run(scenario())
