"""A schema version that an entry names and nobody knows yet: waited for, and not for ever."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from spark_ledger.errors import CorruptionError, NoSuchStreamError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.schema_registry import STALE_READ_DELAY_S, STALE_READ_RETRIES
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, another
from tests.unit.virtual_time import run_in_virtual_time

WAITS_S = STALE_READ_RETRIES * STALE_READ_DELAY_S


def test_version_that_never_comes_is_corruption_after_a_while() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(CorruptionError, match=r"'s': an entry has schema version 2, .* is 0"):
            async with asyncio.timeout(10 * WAITS_S):
                await stream._schemas.schema(2)
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s == pytest.approx(WAITS_S)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("after", [0.0, 0.1, 0.9])
def test_version_that_comes_late_is_taken_once_it_is_there(after: float) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        looking = asyncio.create_task(stream._schemas.schema(1))
        await asyncio.sleep(after * WAITS_S)
        rival = await another(ledgers)[1].open("s")
        wider = await rival.merge_schema(pa.schema({"more": pa.int64()}))
        changed_s = asyncio.get_running_loop().time()
        assert await looking == wider
        assert asyncio.get_running_loop().time() - changed_s < 1.5 * STALE_READ_DELAY_S

    run_in_virtual_time(scenario())


def test_version_of_a_stream_that_is_deleted_meanwhile_is_not_waited_for() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        looking = asyncio.create_task(stream._schemas.schema(1))
        await asyncio.sleep(0.3 * WAITS_S)
        await another(ledgers)[1].delete("s")
        gone_s = asyncio.get_running_loop().time()
        with pytest.raises(NoSuchStreamError):
            await looking
        assert asyncio.get_running_loop().time() - gone_s < 1.5 * STALE_READ_DELAY_S

    run_in_virtual_time(scenario())
