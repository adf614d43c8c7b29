"""Writers of a stream that went back with ZooKeeper: they stop, and write behind no hole."""

from __future__ import annotations

import pytest

from spark_ledger.errors import MetadataRestoredError, NoSuchStreamError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, another, run, table

HEAD = "streams/s/head"


@pytest.mark.parametrize("sink_id", [None, "sink"])
def test_commit_after_the_stream_went_back_is_refused(sink_id: str | None) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        store = another(ledgers)[0].store

        async def append(number: int) -> None:
            transaction = None if sink_id is None else number
            await stream.append(table(number), sink_id=sink_id, transaction_id=transaction)

        await append(0)
        backup = (await store.get(HEAD)).value
        await append(1)
        await store.put(HEAD, backup, (await store.get(HEAD)).version)
        with pytest.raises(MetadataRestoredError, match=r"has 1 commits.* seen 2.*restored"):
            await append(2)

    run(scenario())


def test_commit_by_a_server_that_lags_behind_is_made() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        other, streams = another(ledgers)
        writer = await streams.open("s")
        stale = await other.store.get(HEAD)
        await writer.append(table(0))
        inner, answers = other.store.get, [stale]

        async def lags_once(path: str) -> Versioned[bytes]:
            return answers.pop() if path == HEAD and answers else await inner(path)

        other.store.get = lags_once  # type: ignore[method-assign]
        assert (await writer.append(table(1))).number == 1
        assert not answers
        assert (await stream.head()).next_commit == 2

    run(scenario())


def test_commit_to_a_former_stream_of_the_name_is_refused() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        former = await StreamCatalog(ledgers).create("s", SCHEMA)
        await former.append(table(0))
        catalog = another(ledgers)[1]
        await catalog.delete("s")
        await catalog.create("s", SCHEMA)
        with pytest.raises(NoSuchStreamError):
            await former.append(table(1))

    run(scenario())
