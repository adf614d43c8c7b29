"""Fair turns between the connections that append."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bookie_server.service.append_gate import AppendShares
from spark_ledger.limits import MIB


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            async with asyncio.timeout(10):
                await test()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def settle() -> None:
    for _number in range(5):
        await asyncio.sleep(0)


@on_loop
async def test_connection_that_floods_is_held_to_its_share() -> None:
    """Eight that read on whenever they may have a bound together, not a bound each."""
    shares = AppendShares(16 * MIB)

    async def flood(connection: str) -> None:
        while True:
            await shares.wait(connection, MIB)
            shares.began(connection, MIB)
            await asyncio.sleep(0)

    floods = [asyncio.ensure_future(flood(f"flood-{number}")) for number in range(8)]
    for _number in range(200):
        await asyncio.sleep(0)
    assert sum(shares._in_flight.values()) <= 16 * MIB, "a message more than the share each"
    await shares.wait("neighbour", 100)
    for each in floods:
        each.cancel()


@on_loop
async def test_message_that_costs_more_than_is_left_of_a_share_waits() -> None:
    """Fifty small adds cost nearly a share: with two of them in flight each, eight connections kept
    a neighbour waiting behind eight hundred."""
    shares = AppendShares(16 * MIB)
    for number in range(8):
        shares.began(f"flood-{number}", MIB)
    waits = asyncio.ensure_future(shares.wait("flood-0", 2 * MIB))
    fits = asyncio.ensure_future(shares.wait("flood-1", MIB))
    await settle()
    assert (waits.done(), fits.done()) == (False, True)
    shares.ended("flood-0", MIB)
    await waits


@on_loop
async def test_connection_with_nothing_in_flight_is_read_whatever_its_next_message_costs() -> None:
    """A message that is larger than a share would never come, for as long as others flood."""
    shares = AppendShares(16 * MIB)
    for number in range(8):
        shares.began(f"flood-{number}", 2 * MIB)
    await shares.wait("quiet", 3 * MIB)
    shares.began("quiet", 3 * MIB)
    waits = asyncio.ensure_future(shares.wait("quiet", 1))
    await settle()
    assert not waits.done(), "the second one is beyond its share"
    shares.ended("quiet", 3 * MIB)
    await waits


@on_loop
async def test_connection_alone_has_the_whole_bound() -> None:
    shares = AppendShares(16 * MIB)
    for _number in range(16):
        await shares.wait("alone", MIB)
        shares.began("alone", MIB)
    waits = asyncio.ensure_future(shares.wait("alone", MIB))
    await settle()
    assert not waits.done()
    shares.ended("alone", MIB)
    await waits


@on_loop
async def test_streams_of_a_connection_are_let_go_one_after_the_other() -> None:
    shares = AppendShares(2 * MIB)
    shares.began("client", 2 * MIB)
    streams = [asyncio.ensure_future(shares.wait("client", 2 * MIB)) for _number in range(4)]
    await settle()
    shares.ended("client", MIB)
    streams[0].cancel()  # its client leaves before anybody looks
    await settle()
    assert [stream.done() for stream in streams] == [True, True, False, False]
    shares.ended("client", MIB)
    await asyncio.gather(*streams[1:])
    while shares._in_flight:
        await asyncio.sleep(0.01)
    assert not shares._waiting, "what was expected is forgotten"


@on_loop
async def test_stream_that_ends_while_nothing_is_answered_leaves_nothing() -> None:
    shares = AppendShares(2 * MIB)
    shares.began("client", 2 * MIB)
    streams = [asyncio.ensure_future(shares.wait("client", MIB)) for _number in range(3)]
    await settle()
    streams.pop(1).cancel()
    await settle()
    assert len(shares._waiting["client"]) == 2
    for each in streams:
        each.cancel()
    await asyncio.wait(streams)
    assert not shares._waiting
    streams = [asyncio.ensure_future(shares.wait("client", MIB)) for _number in range(2)]
    await settle()
    shares.ended("client", 2 * MIB)
    await asyncio.gather(*streams)


@on_loop
async def test_stream_that_comes_last_waits_behind_those_of_its_connection() -> None:
    """There is room again, and those that wait have not been told yet."""
    shares = AppendShares(2 * MIB)
    shares.began("client", 2 * MIB)
    first = asyncio.ensure_future(shares.wait("client", 2 * MIB))
    await settle()
    last = asyncio.ensure_future(shares.wait("client", 2 * MIB))
    shares.ended("client", 2 * MIB)
    await settle()
    assert (first.done(), last.done()) == (True, False), "the room is that of the first"
    await asyncio.gather(first, last)


@on_loop
async def test_share_grows_when_another_connection_has_its_answers() -> None:
    shares = AppendShares(4 * MIB)
    shares.began("one", 2 * MIB)
    shares.began("other", MIB)
    waits = asyncio.ensure_future(shares.wait("one", MIB))
    await settle()
    assert not waits.done()
    shares.ended("other", MIB)
    await waits


@on_loop
async def test_connection_that_sent_nonsense_is_not_read_for_a_while() -> None:
    shares = AppendShares(1000)
    shares.bar("hostile", 0.05)
    shares.bar("hostile", 0.1)
    began = asyncio.get_running_loop().time()
    waiting = [asyncio.ensure_future(shares.wait("hostile", 1)) for _number in range(2)]
    await asyncio.wait_for(shares.wait("honest", 1), 0.05)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert asyncio.get_running_loop().time() - began >= 0.1
    await asyncio.wait_for(shares.wait("hostile", 1), 0.05)


@on_loop
async def test_message_without_adds_has_no_share() -> None:
    """That of all others would be smaller for it."""
    shares = AppendShares(4 * MIB)
    shares.began("client", 4 * MIB)
    streams = [asyncio.ensure_future(shares.wait("client", 0)) for _number in range(3)]
    await settle()
    assert not any(stream.done() for stream in streams)
    shares.ended("client", 4 * MIB)
    await asyncio.gather(*streams)
    assert not shares._in_flight


@on_loop
async def test_stream_waits_for_room_for_its_own_next_message() -> None:
    """Not for that of the one that went before it."""
    shares = AppendShares(8 * MIB)
    shares.began("other", MIB)
    shares.began("client", 4 * MIB)
    small, large = (asyncio.ensure_future(shares.wait("client", cost)) for cost in (MIB, 3 * MIB))
    await settle()
    shares.ended("client", 2 * MIB)
    await settle()
    assert (small.done(), large.done()) == (True, False)
    shares.ended("client", 2 * MIB)
    await large
