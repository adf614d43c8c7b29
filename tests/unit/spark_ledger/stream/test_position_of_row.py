"""Positions of rows by how many were committed before them."""

from __future__ import annotations

import random

import pytest

from spark_ledger.errors import DataLossError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    loose,
    numbers,
    run,
    small_manifests,
    table,
)


@pytest.mark.parametrize("manifests", [False, True])
def test_each_row_is_found_where_counting_all_rows_finds_it(
    manifests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manifests:
        small_manifests(monkeypatch)
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        places, segment = [], 0
        for _ in range(40):  # some commits have no segment
            segments = [
                [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
                for _ in range(rng.choice([0, 1, 1, 3]))
            ]
            await stream.commit_segments([loose(*rows) for rows in segments])
            for entry_rows in segments:
                places += [
                    Dlsn(segment, entry, slot)
                    for entry, rows in enumerate(entry_rows)
                    for slot in range(rows)
                ]
                segment += 1
        reader = await another(ledgers)[1].open("s")
        for row in [*range(len(places)), *reversed(range(len(places)))]:
            assert await reader.position_of_row(row) == places[row], f"seed {seed}, row {row}"
        for row in (len(places), len(places) + 7):
            assert await reader.position_of_row(row) == Dlsn(segment), f"seed {seed}"

    run(scenario())


def test_row_that_is_read_from_its_position_is_the_row() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        for first in range(0, 12, 4):
            await stream.append(table(first, 4))
        for row in range(12):
            start = await stream.position_of_row(row)
            assert await numbers(stream.read(start)) == list(range(row, 12))

    run(scenario())


def test_truncated_row_is_refused_with_the_first_one_kept() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        for first in range(0, 12, 4):
            await stream.append(table(first, 4))
        await stream.retention.truncate(Dlsn(1))
        assert await stream.position_of_row(4) == Dlsn(1)
        with pytest.raises(
            DataLossError, match=r"offset 3 was truncated; the first row kept .* 4$"
        ):
            await stream.position_of_row(3)
        await stream.retention.truncate("latest")
        with pytest.raises(DataLossError, match="the first row kept has the offset 12"):
            await stream.position_of_row(11)
        assert await stream.position_of_row(12) == Dlsn(3)

    run(scenario())
