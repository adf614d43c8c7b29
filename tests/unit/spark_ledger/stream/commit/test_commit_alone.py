"""A commit that nobody races: what it costs and says, and how far a limited read goes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_ledger.limits.stream import COMMIT_CLOCK_AHEAD_MS_MAX
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Commit
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run, table


def test_commit_behind_one_that_added_a_column_is_not_refused() -> None:
    """It knows the version of the configuration that the one before has left."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([])
        stream = await another(ledgers, faults)[1].open("s")
        await stream.append(
            table(0).append_column("more", pa.array([1], pa.int64())), merge_schema=True
        )
        for number in range(1, 4):
            await stream.append(table(number))
        assert faults.count("transaction") == 4, "one for each commit"

    run(scenario())


@pytest.mark.parametrize(
    ("later_ms", "warnings"), [(0, 0), (1, 0), (-1, 0), (-COMMIT_CLOCK_AHEAD_MS_MAX - 1000, 1)]
)
def test_commit_warns_only_of_a_clock_that_was_far_ahead(
    later_ms: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        stream._committer.clock_ms = lambda: 10**12
        await stream.commit_segments([loose()])
        stream._committer.clock_ms = lambda: 10**12 + later_ms
        await stream.commit_segments([loose()])
        await stream.commit_segments([loose()])
        told = [record.getMessage() for record in caplog.records if "dated" in record.message]
        assert len(told) == warnings
        assert all(f"commit 0 is dated {-later_ms // 1000} s ahead" in each for each in told)

    run(scenario())


@pytest.mark.parametrize(("kind", "each"), [("max_rows", 3), ("max_bytes", 30)])
def test_read_with_a_limit_ends_with_the_commit_that_reaches_it(kind: str, each: int) -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        commits = [await stream.commit_segments([loose(3)]) for _ in range(8)]
        for first in range(8):
            for limit in range(1, 9 * each, each // 3):
                found = await stream.commits_between(first, 8, **{kind: limit})
                count = -(-limit // each)
                assert found == commits[first : first + count], (first, limit)

    run(scenario())


def test_read_with_a_limit_looks_commits_up_in_windows_that_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is far behind does not fetch all that waits for it at once."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = [await stream.commit_segments([loose(3)]) for _ in range(160)]
        reader = await another(ledgers)[1].open("s")
        look, asked = reader._log.range, list[tuple[int, int]]()

        async def noting(first: int, end: int) -> list[Commit]:
            asked.append((first, end))
            return await look(first, end)

        monkeypatch.setattr(reader._log, "range", noting)
        for limit, windows in (
            (3, []),
            (4, [(1, 17)]),
            (3 * 17, [(1, 17)]),
            (3 * 17 + 1, [(1, 17), (17, 49)]),
            (10**9, [(1, 17), (17, 49), (49, 113), (113, 160)]),
        ):
            asked.clear()
            found = await reader.commits_between(0, 160, max_rows=limit)
            assert found == commits[: -(-limit // 3)]
            assert asked == windows
            asked.clear()
            assert await reader.commits_between(0, 160, max_bytes=10 * limit) == found
            assert asked == windows

    run(scenario())


def test_commit_behind_columns_that_were_added_at_once_is_not_refused() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([])
        stream = await another(ledgers, faults)[1].open("s")
        for name in ("one", "two"):
            schema = await stream.merge_schema(SCHEMA.append(pa.field(name, pa.int64())))
            await stream.append(table(0))
        assert schema.names == ["n", "text", "one", "two"]
        assert faults.count("transaction") == 4, "one for each column, and one for each commit"

    run(scenario())
