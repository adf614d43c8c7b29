"""What tails read together comes to them in parts: they do not wait until all of it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from spark_ledger.client import followed
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieStatus
from tests.unit.spark_ledger.client.tails import Asked, begun, end, run
from tests.unit.spark_ledger.client.world import World


def test_tails_are_given_what_one_fetch_has_brought_before_the_next_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty megabytes that are new would keep the first of them from everybody meanwhile."""
    monkeypatch.setattr(followed, "TAIL_FETCH_BYTES_MAX", 1)
    monkeypatch.setattr(followed, "TAIL_KEPT_BYTES_MAX", 1_000_000)

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        asked = Asked(client)
        asked.stops_once = True
        await asyncio.gather(*[writer.append_nowait(b"%d" % number) for number in range(1, 7)])
        for each in following:
            await each.has(4)
        assert not asked.read_room.is_set(), "what is behind these has not come"
        asked.read_room.set()
        for each in following:
            await each.has(7)
        await end(writer, following, [b"%d" % number for number in range(7)])

    run(test)


def test_tails_read_together_again_behind_a_place_where_that_failed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failure of a moment would cost each entry one read for each tail from then on."""
    monkeypatch.setattr(followed, "TAIL_FETCH_BYTES_MAX", 1)
    monkeypatch.setattr("spark_ledger.transport.memory.READ_CHUNK_BYTES_TARGET", 1)

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        asked, unbroken = Asked(client), Asked.read
        asked.broken = BookieStatus.IO_ERROR

        async def mended(*args: Any, **options: Any) -> AsyncGenerator[ReadChunk, None]:
            if len({bookie_id for bookie_id, _ in asked.reads}) == 3:
                asked.broken = None  # all replicas have failed the first read for all
            async with aclosing(unbroken(asked, *args, **options)) as chunks:
                async for chunk in chunks:
                    yield chunk

        client.context.transport.read = mended  # type: ignore[method-assign]
        await writer.append(b"1")
        for each in following:
            await each.has(2)
        assert asked.broken is None
        asked.reads.clear()
        await asyncio.gather(*[writer.append_nowait(b"%d" % number) for number in range(2, 22)])
        for each in following:
            await each.has(22)
        assert len(set(asked.reads)) == len(asked.reads), "nothing was asked for twice"
        await end(writer, following, [b"%d" % number for number in range(22)])

    run(test)
