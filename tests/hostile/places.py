"""Kinds of hostile clients that take places and keep them: others are to find none."""

from __future__ import annotations

import asyncio

from spark_ledger.wire import bookie_pb2 as pb
from tests.hostile.attacks import MIB, Target, again_and_again, attack, flood


@attack
async def tails_of_the_neighbour(target: Target) -> None:
    """As many polls of the ledger that is written all the time, for an entry that never comes."""
    body = pb.ReadLastConfirmedRequest(
        ledger_id=1, wait_above=2**62, wait_ms=2**32 - 1
    ).SerializeToString()
    await flood(target, "ReadLastConfirmed", lambda: body, connections=4, at_once=1_024)


@attack
async def refusals_that_nobody_reads(target: Target) -> None:
    """Reads of recoveries that make no sense, by clients that let no byte of an answer through."""
    body = pb.ReadRequest(ledger_id=1, first_entry=5, last_entry=0, fence=True).SerializeToString()

    async def turn() -> None:
        connection = await target.connect(window=0)
        while not connection.closed and connection.calls < 3_000:
            await connection.ask("Read", target.bookie_id, body)
            await asyncio.sleep(0)
        while not connection.closed:
            await asyncio.sleep(0.1)

    await again_and_again(turn, side_by_side=4)


@attack
async def idle_append_streams(target: Target) -> None:
    """All that there may be, by clients that have nothing to send."""

    async def turn() -> None:
        connection = await target.connect(window=MIB)
        for _number in range(512):
            await connection.call("Append", target.bookie_id)
            await asyncio.sleep(0)
        while not connection.closed:
            for stream in list(connection.ended):  # again and again, but no flood
                await connection.until_ended(stream)
                await connection.call("Append", target.bookie_id)
            await asyncio.sleep(0.1)

    await again_and_again(turn, side_by_side=4)
