"""What bookies serve is what the plan says, striped or not, also where a bookie is away."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits import KIB
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.plan.partitions import Plan, PlanLimits, plan_partitions
from spark_ledger.stream.plan.read_plan import with_bookies
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.stream.stream import Stream
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId, Dlsn
from spark_ledger.wire.frame import HEADER_BYTES
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.stream.world import SCHEMA, table

PARTITIONS = 12
COMMITS = 12
OVERHEAD_BYTES = HEADER_BYTES + 4
"""Header and CRC of a frame."""


def counted(client: LedgerClient) -> Counter[str]:
    """Payload bytes that each bookie serves this client from now on."""
    transport = client._context.transport
    honest, served = transport.read, Counter[str]()

    async def read(bookie_id: str, *args: Any, **kwargs: Any) -> AsyncGenerator[ReadChunk, None]:
        async for chunk in honest(bookie_id, *args, **kwargs):  # type: ignore[arg-type]
            if chunk.run is not None:
                served[bookie_id] += len(chunk.run.frames) - chunk.run.count * OVERHEAD_BYTES
            yield chunk

    transport.read = read  # type: ignore[method-assign]
    return served


async def written(client: LedgerClient, quorums: tuple[int, int, int]) -> Stream:
    """A stream of commits of two tasks, some of whose ledgers are closed."""
    size, write, ack = quorums
    stream = await StreamCatalog(client).create(
        "s",
        SCHEMA,
        entry_bytes=KIB,
        ensemble_size=size,
        write_quorum=write,
        ack_quorum=ack,
        segment_roll_bytes=8 * KIB,
    )
    writers = [stream.writer(), stream.writer()]
    for n in range(COMMITS):
        for writer in writers:
            await writer.write(table(1000 * n, 150))
        await stream.commit_segments([part for each in writers for part in await each.finish()])
    for writer in writers:
        await writer.close()
    return stream


async def planned(stream: Stream) -> list[Plan]:
    end = (await stream.head()).end
    commits = await stream.commits_between(0, end.segment)
    plans = plan_partitions(ranges_between(commits, Dlsn(0), end), PlanLimits(PARTITIONS))
    ids = {part.segment.ledger_id for plan in plans for part in plan.ranges}
    located = await stream.locator.locate(ids)
    blocking: Any = SimpleNamespace(
        locate=lambda ids: located, retention=SimpleNamespace(packs=Packs)
    )
    return with_bookies(blocking, plans)


async def read_all(stream: Stream, plans: list[Plan]) -> int:
    rows = 0
    for plan in plans:
        batches = stream.read_ranges(plan.ranges, replica_hint=plan.reads.order)
        rows += sum([batch.batch.num_rows async for batch in batches])
    return rows


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2)])
@pytest.mark.parametrize("away", [(), ("b1",)])
def test_bookies_serve_what_was_planned(
    quorums: tuple[int, int, int], away: tuple[str, ...]
) -> None:
    async def test(world: World) -> None:
        stream = await written(await world.client(), quorums)
        for name in away:
            world.kill(name)
            await world._registries[BookieId(name)].deregister()
        client = await world.client()
        reader = await StreamCatalog(client).open("s")
        plans = await planned(reader)
        served = counted(client)
        assert await read_all(reader, plans) == COMMITS * 2 * 150
        wanted: Counter[str] = Counter()
        for plan in plans:
            wanted.update(plan.reads.bytes_by_bookie)
        assert set(served) == set(wanted) and not set(served) & set(away)
        total = sum(wanted.values())
        assert total == pytest.approx(sum(plan.size_bytes for plan in plans), rel=0.001)
        for bookie in wanted:  # what a stripe serves is planned by the number of its entries
            assert abs(served[bookie] - wanted[bookie]) <= 0.02 * total, (served, wanted)
        largest = max(plan.size_bytes for plan in plans)
        assert max(wanted.values()) - min(wanted.values()) <= 2 * largest, wanted
        await stream.close()

    run(test, bookies=6)


def test_fragment_whose_bookies_are_all_down_is_named() -> None:
    async def test(world: World) -> None:
        stream = await written(await world.client(), (3, 3, 2))
        client = await world.client(read_timeout_s=0.2)
        reader = await StreamCatalog(client).open("s")
        plans = await planned(reader)
        for name in list(world.alive):
            world.kill(name)
        with pytest.raises(BookieUnavailableError) as raised:
            await read_all(reader, plans)
        message = str(raised.value)
        assert message.startswith("stream 's': segment 0 cannot be read: ledger "), message
        assert all(bookie in message for bookie in plans[0].reads.order), message
        await stream.close()

    run(test, bookies=3)
