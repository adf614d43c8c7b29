"""Handles of a deleted stream never touch one that was made with its name since."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError, NoSuchStreamError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import StreamConfig
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, another, loose, run, table

MORE = pa.schema([*SCHEMA, pa.field("more", pa.int64())])


def before_the_next(stream_or_streams: Any, name: str, act: Callable[[], Awaitable[Any]]) -> None:
    """Let ``act`` happen just before the store's next call of that name."""
    store = stream_or_streams._ledgers.store
    original = getattr(store, name)

    async def interposed(*arguments: Any, **named: Any) -> Any:
        setattr(store, name, original)
        await act()
        return await original(*arguments, **named)

    setattr(store, name, interposed)


async def two_processes() -> tuple[FakeLedgers, StreamCatalog, Stream]:
    """A stream, this process's streams, and another process's handle of it."""
    ledgers = FakeLedgers()
    streams = StreamCatalog(ledgers)
    await streams.create("s", SCHEMA)
    return ledgers, streams, await another(ledgers)[1].open("s")


async def replace_by_new(streams: StreamCatalog) -> None:
    await streams.delete("s")
    await streams.create("s", SCHEMA)


async def check_untouched(streams: StreamCatalog, stale: Stream) -> None:
    new = await streams.open("s")
    assert new.config.stream_id != stale.config.stream_id
    assert new.schema == SCHEMA
    assert await new._nodes.store.children(new._nodes.commits_path) == []
    head = await new.head()
    assert (head.stream_id, head.next_commit) == (new.config.stream_id, 0)
    assert (await new.append(table(0, 3))).number == 0


def test_commit_to_replaced_stream_is_refused() -> None:
    async def scenario() -> None:
        _, streams, stale = await two_processes()
        before_the_next(stale, "transaction", lambda: replace_by_new(streams))
        with pytest.raises(NoSuchStreamError):
            await stale.commit_segments([loose()])
        await check_untouched(streams, stale)

    run(scenario())


def test_commit_of_pair_applied_by_the_new_stream_is_refused() -> None:
    async def scenario() -> None:
        _, streams, stale = await two_processes()
        await replace_by_new(streams)
        await (await streams.open("s")).append(table(0), sink_id="q", transaction_id=1)
        with pytest.raises(NoSuchStreamError):
            await stale.commit_segments([loose()], sink_id="q", transaction_id=1)

    run(scenario())


def test_commit_before_first_bucket_of_deleted_stream_is_refused() -> None:
    async def scenario() -> None:
        ledgers, streams, stale = await two_processes()
        before_the_next(stale, "create", lambda: streams.delete("s"))
        with pytest.raises(NoSuchStreamError):
            await stale.commit_segments([loose()])
        assert await ledgers.store.children("streams") == []

    run(scenario())


def test_merge_schema_on_replaced_stream_is_refused() -> None:
    async def scenario() -> None:
        _, streams, stale = await two_processes()
        await replace_by_new(streams)
        with pytest.raises(NoSuchStreamError):
            await stale.merge_schema(MORE)
        await check_untouched(streams, stale)

    run(scenario())


def test_delete_overtaken_by_replacement_deletes_the_new_stream() -> None:
    async def scenario() -> None:
        ledgers, streams, _ = await two_processes()
        others = another(ledgers)[1]
        before_the_next(others, "transaction", lambda: replace_by_new(streams))
        await others.delete("s")
        with pytest.raises(NoSuchStreamError):
            await streams.open("s")
        assert await ledgers.store.children("streams/s") == []

    run(scenario())


def test_delete_of_nodes_leaves_the_new_stream_alone() -> None:
    async def scenario() -> None:
        ledgers, streams, _ = await two_processes()
        await (await streams.open("s")).append(table(0, 3))
        others = another(ledgers)[1]
        remove = others._try_delete_nodes

        async def late(nodes: StreamNodes, config: StreamConfig, checks: Any) -> None:
            await streams.delete("s")
            new = await streams.create("s", SCHEMA)
            await new.append(table(10, 5))
            await new.merge_schema(MORE)
            assert (await nodes.config()).version == 1, "as that of the one that was marked"
            await remove(nodes, config, checks)

        others._try_delete_nodes = late  # type: ignore[method-assign]
        await others.delete("s")
        reader = await another(ledgers)[1].open("s")
        assert sum([b.num_rows async for b in reader.read()]) == 5

    run(scenario())


@pytest.mark.parametrize("name", ["s", "other"])
def test_rows_that_were_written_for_another_stream_are_refused(name: str) -> None:
    """Their space is given back with that one, and another schema may have the same layout."""

    async def scenario() -> None:
        _, streams, stale = await two_processes()
        segments = await stale.write(table(0, 3))
        segments = pickle.loads(pickle.dumps(segments))
        await streams.delete("s")
        await streams.create(name, SCHEMA)
        stream = await streams.open(name)
        with pytest.raises(ConfigurationError, match="for another stream"):
            await stream.commit_segments(segments)
        assert (await stream.head()).next_commit == 0
        (own,) = await stream.write(table(0, 3))
        older = replace(own, stream_id="")  # of a task of a version that did not say
        assert (await stream.commit_segments([older])).number == 0
        assert (await stream.commit_segments([own])).number == 1

    run(scenario())


@pytest.mark.parametrize("deleted", ["", "and made again"])
def test_handle_of_a_deleted_stream_does_not_call_rows_of_the_one_of_now_foreign(
    deleted: str,
) -> None:
    """The rows are well, and the handle is old: who opens it anew can commit them."""

    async def scenario() -> None:
        _, streams, stale = await two_processes()
        await streams.delete("s")
        stream = await streams.create("s", SCHEMA)
        segments = await stream.write(table(0, 3))
        if not deleted:
            await streams.delete("s")
        with pytest.raises(NoSuchStreamError):
            await stale.commit_segments(segments)
        if deleted:
            assert (await stream.commit_segments(segments)).number == 0

    run(scenario())
