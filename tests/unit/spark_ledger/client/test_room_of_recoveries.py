"""What a recovery holds and how long it waits: counted once, and by the settings meant for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.client import found_entries
from spark_ledger.client.found_entries import FoundEntries
from spark_ledger.protocol.quorum import lanes
from spark_ledger.wire.frame import Crc32cDigest
from tests.unit.spark_ledger.client.test_found_entries import METADATA, QUORUMS, add
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_room_that_was_free_stays_so_when_another_bookie_has_to_store_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is released is not held any more, however far a bookie that came anew has come."""
    monkeypatch.setattr(found_entries, "RECOVERY_BYTES_MAX", 100)

    async def test() -> None:
        found = FoundEntries(METADATA, Crc32cDigest(), 4)
        add(found, *range(5, 10))
        found.release(8)
        found.release(5)
        async with asyncio.timeout(1):
            for lane in lanes(QUORUMS):
                await found.wait_for_room(lane)

    asyncio.run(test())


def test_recovery_waits_for_answers_as_long_as_readers_do() -> None:
    """And not as long as writers: a bookie that looks for its end in the index takes its time."""
    waits: list[tuple[str, float]] = []

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=100.0)).create_ledger()
        await writer.append(b"0")
        other = await world.client(read_timeout_s=7.0, add_timeout_s=3.0)
        transport: Any = other.context.transport
        read, ask = transport.read, transport.read_last_confirmed

        def noted_read(*args: Any, **options: Any) -> Any:
            waits.append(("read", options["timeout_s"]))
            return read(*args, **options)

        async def noted_ask(*args: Any, **options: Any) -> Any:
            waits.append(("end", options["timeout_s"]))
            return await ask(*args, **options)

        transport.read, transport.read_last_confirmed = noted_read, noted_ask
        await other.open_ledger(writer.ledger_id, recover=True)
        assert set(waits) == {("read", 7.0), ("end", 7.0)}

    run_virtually(test)
