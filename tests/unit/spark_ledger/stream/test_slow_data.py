"""Appends of data that are still to come: each has its own writer, and few of those are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from spark_ledger.stream import stream as stream_module
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, numbers, run, table


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_appends_of_slow_data_keep_few_ledgers_open_and_use_them_again(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_SPARE_WRITERS_MAX", kept)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        all_began, began = asyncio.Event(), 0

        async def slow(number: int) -> AsyncIterator[pa.Table]:
            nonlocal began
            began += 1
            yield table(number)
            if began >= 4:
                all_began.set()
            await all_began.wait()

        await asyncio.gather(*(stream.append(slow(number)) for number in range(4)))
        assert _open(ledgers) == kept
        made = len(ledgers.ledgers)
        await stream.append(slow(4))
        assert len(ledgers.ledgers) == made + (0 if kept else 1), "it goes on in one of them"
        assert _open(ledgers) == kept
        assert sorted(await numbers(stream.read())) == list(range(5))
        await stream.close()
        assert _open(ledgers) == 0

    run(scenario())


def _open(ledgers: FakeLedgers) -> int:
    return sum(not each.closed for each in ledgers.ledgers.values())
