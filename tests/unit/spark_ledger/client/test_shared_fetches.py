"""What tails read together comes to them in parts: they do not wait until all of it is read."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client import followed
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
