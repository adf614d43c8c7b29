"""The first change of a stream that an older program made: all nodes that it needs come with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Retention
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.retention.test_truncation import stream_of
from tests.unit.spark_ledger.stream.world import another, numbers, root_of, run

Change = Callable[[Stream], Awaitable[object]]


async def of_before(commits: int, *, manifests: bool) -> tuple[FakeLedgers, Stream]:
    """A stream without retention and packs, and also without manifests if it is as old as that."""
    ledgers, stream = await stream_of(commits)
    config = await ledgers.store.get("streams/s/config")
    after = replace(stream.config, has_manifests=manifests)
    await ledgers.store.put("streams/s/config", codec.encode_config(after), config.version)
    if not manifests:
        await ledgers.store.delete("streams/s/manifests")
    return ledgers, await another(ledgers)[1].open("s")


async def limit(stream: Stream) -> None:
    await stream.retention.set_limits(Retention(rows=2))


async def hold(stream: Stream) -> None:
    await stream.retention.hold("slow", (1,), for_s=60)


async def pack(stream: Stream) -> None:
    await stream.retention.allow_packs()


@pytest.mark.parametrize("manifests", [False, True])
@pytest.mark.parametrize("change", [limit, hold, pack])
def test_first_change_of_a_stream_of_before_makes_all_nodes_that_it_needs(
    change: Change, manifests: bool
) -> None:
    async def scenario() -> None:
        ledgers, stream = await of_before(5, manifests=manifests)
        await change(stream)
        nodes = set(ledgers.store.tree.children("streams/s"))
        assert {"manifests", "holds"} <= nodes and ("packs" in nodes) == (change is pack)
        assert root_of(ledgers).sealed == 0
        config = (await another(ledgers)[1].open("s")).config
        assert (config.has_manifests, config.has_retention) == (True, True)
        assert config.has_packs == (change is pack)
        for other in (limit, hold, pack):  # and each works behind any other
            await other(stream)
        held = await stream.retention.holds()
        assert [each.name for each in held] == ["slow"]
        assert await stream.retention.apply(held[0].made_ms) == 1
        assert (await stream.head()).earliest == Dlsn(1)
        assert await numbers(stream.read()) == [1, 2, 3, 4]

    run(scenario())
