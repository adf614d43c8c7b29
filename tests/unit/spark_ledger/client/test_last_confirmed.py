"""Which end a reader sees of an open ledger when few bookies know it: told again, or proved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from spark_ledger.client.last_confirmed import PROOF_TRIES
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World
from tests.unit.spark_ledger.client.world import run_virtually as run

NEVER_S = 1000.0


async def known_to_one(world: World) -> tuple[LedgerWriter, str]:
    """Three entries on one of two bookies; the other was away, is back, and knows nothing. Nothing
    is announced: the newest entry says that the one before is confirmed."""
    client = await world.client(explicit_lac_delay_s=NEVER_S)
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
    away, knowing = writer.metadata.last_fragment.bookies
    world.kill(away)
    for payload in (b"0", b"1", b"2"):
        await writer.append(payload)
    world.revive(away)
    return writer, knowing


def interposed(
    client: LedgerClient, read: Callable[[AsyncGenerator[ReadChunk, None]], Any]
) -> list[BookieId]:
    """Every read of the client goes through ``read``; who was asked."""
    asked: list[BookieId] = []
    honest = client._context.transport.read

    def reading(bookie_id: BookieId, *args: Any, **kwargs: Any) -> Any:
        asked.append(bookie_id)
        return read(honest(bookie_id, *args, **kwargs))

    client._context.transport.read = reading  # type: ignore[method-assign]
    return asked


def test_open_shows_what_an_entry_proves_although_one_bookie_alone_says_it() -> None:
    async def test(world: World) -> None:
        writer, _ = await known_to_one(world)
        reader = await (await world.client()).open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 1

    run(test, bookies=2)


def test_tail_delivers_what_an_entry_proves() -> None:
    async def test(world: World) -> None:
        writer, _ = await known_to_one(world)
        reader = await (await world.client()).open_unconfirmed(writer.ledger_id)
        got: list[EntryId] = []
        async with asyncio.timeout(30):
            async for entry in reader.tail(0):
                got.append(entry.entry_id)
                if len(got) == 2:
                    break
        assert got == [0, 1]

    run(test, bookies=2)


def answered(
    client: LedgerClient, answers: dict[BookieId, Callable[[LastConfirmed], LastConfirmed]]
) -> None:
    """Questions for the end are answered as these say; ``answers`` change what is true."""
    transport = client._context.transport
    honest = transport.read_last_confirmed

    async def asking(bookie_id: BookieId, *args: Any, **kwargs: Any) -> LastConfirmed:
        told = await honest(bookie_id, *args, **kwargs)
        return answers[bookie_id](told) if bookie_id in answers else told

    transport.read_last_confirmed = asking  # type: ignore[method-assign]


async def told_by_three(world: World) -> LedgerWriter:
    """Three entries on all of three bookies; their newest one says that the one before is
    confirmed."""
    client = await world.client(explicit_lac_delay_s=NEVER_S)
    writer = await client.create_ledger()
    for payload in (b"0", b"1", b"2"):
        await writer.append(payload)
    return writer


def lying(writer: LedgerWriter, client: LedgerClient, newest: int) -> BookieId:
    """The first bookie says that seven entries are confirmed, and names this one as its newest.
    Returns the second."""
    liar, other, _ = writer.metadata.last_fragment.bookies

    def lie(told: LastConfirmed) -> LastConfirmed:
        return told._replace(last_entry=EntryId(newest), last_add_confirmed=EntryId(7))

    answered(client, {liar: lie})
    return other


def test_liar_is_not_believed_because_another_bookie_is_down() -> None:
    async def test(world: World) -> None:
        writer = await told_by_three(world)
        client = await world.client(read_timeout_s=2.0)
        world.kill(lying(writer, client, newest=2))
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 1

    run(test)


def test_open_beside_one_that_denies_what_it_named_and_one_that_is_down_fails() -> None:
    """Seed 613374 of the simulation: the third had missed what the other two acknowledged."""

    async def test(world: World) -> None:
        writer = await told_by_three(world)
        client = await world.client(read_timeout_s=2.0)
        down = lying(writer, client, newest=7)
        world.kill(down)
        with pytest.raises(BookieUnavailableError, match="its newest entry cannot be read"):
            await client.open_ledger(writer.ledger_id)
        world.revive(down)
        assert (await client.open_ledger(writer.ledger_id)).last_add_confirmed == 1

    run(test)


def test_liar_makes_no_tail_deliver_more_when_another_bookie_is_down() -> None:
    async def test(world: World) -> None:
        writer = await told_by_three(world)
        liar, down, _ = writer.metadata.last_fragment.bookies
        client = await world.client(read_timeout_s=2.0)
        answered(client, {liar: lambda told: told._replace(last_add_confirmed=EntryId(2))})
        world.kill(down)
        reader = await client.open_ledger(writer.ledger_id)
        got = [entry.entry_id async for entry in reader.tail(0, idle_timeout=0.5)]
        assert got == [0, 1]

    run(test)


def test_open_shows_what_one_of_three_proves_although_another_is_busy() -> None:
    """Seed 61266 of the simulation: the third has come back empty."""

    async def test(world: World) -> None:
        writer = await told_by_three(world)
        busy, empty, _ = writer.metadata.last_fragment.bookies
        client = await world.client(read_timeout_s=0.5)
        answered(
            client,
            {
                busy: lambda told: LastConfirmed(BookieStatus.TOO_MANY_REQUESTS),
                empty: lambda told: LastConfirmed(BookieStatus.NO_SUCH_LEDGER),
            },
        )
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 1

    run(test)


def test_end_is_proved_by_the_next_bookie_when_the_first_is_lost_meanwhile() -> None:
    """Which entries may prove something changes while they are read."""

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=NEVER_S)
        writer = await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=2)
        for payload in (b"0", b"1", b"2"):
            await writer.append(payload)
        lost, knows, *behind = writer.metadata.last_fragment.bookies
        client = await world.client(read_timeout_s=2.0)
        late = {
            bookie: lambda told: told._replace(last_add_confirmed=EntryId(0), last_entry=1)
            for bookie in behind
        }
        answered(client, {lost: lambda told: told._replace(last_add_confirmed=EntryId(9)), **late})
        asked: list[BookieId] = []
        honest = client._context.transport.read

        async def reading(bookie_id: BookieId, *args: Any, **kwargs: Any) -> Any:
            asked.append(bookie_id)
            if bookie_id == lost:
                yield ReadChunk(BookieStatus.UNAVAILABLE, None, EntryId(2), "gone")
                return
            async for chunk in honest(bookie_id, *args, **kwargs):
                yield chunk

        client._context.transport.read = reading  # type: ignore[method-assign]
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 1 and asked == [lost, lost, lost, knows]

    run(test, bookies=4)


@pytest.mark.parametrize("ask", ["open", "refresh", "tail"])
def test_bookie_that_goes_on_with_wrong_entries_keeps_nobody_waiting(ask: str) -> None:
    """It says that seven entries are confirmed, and answers who reads its newest with another
    ledger's, and with the same again before anybody calls it silent."""

    async def test(world: World) -> None:
        writer = await told_by_three(world)
        liar, down, _ = writer.metadata.last_fragment.bookies
        client = await world.client(read_timeout_s=2.0)
        reader = await client.open_ledger(writer.ledger_id)
        transport = client._context.transport
        honest = transport.read_last_confirmed

        async def asking(bookie_id: BookieId, *args: Any, **kwargs: Any) -> LastConfirmed:
            if bookie_id == liar:
                return LastConfirmed(BookieStatus.OK, EntryId(7), EntryId(2))
            return await honest(bookie_id, *args, **kwargs)

        async def going_on(chunks: AsyncGenerator[ReadChunk, None]) -> Any:
            wrong = EntryRun(LedgerId(writer.ledger_id + 1), EntryId(2), None, [40], bytes(40))
            while asked[-1] == liar:
                yield ReadChunk(BookieStatus.OK, wrong, EntryId(2))
                await asyncio.sleep(0.5)
            async for chunk in chunks:
                yield chunk

        transport.read_last_confirmed = asking  # type: ignore[method-assign]
        asked = interposed(client, going_on)
        world.kill(down)
        async with asyncio.timeout(5.0):
            if ask == "tail":
                async with aclosing(reader.tail_batches(2)) as batches:
                    batch = asyncio.ensure_future(anext(batches))
                    while not asked:
                        await asyncio.sleep(0.1)
                    await writer.append(b"3")
                    await writer.append(b"4")
                    assert (await batch).first_entry == 2
            else:
                with pytest.raises(BookieUnavailableError, match="its newest entry cannot be"):
                    if ask == "refresh":
                        await reader.refresh()
                    else:
                        await client.open_ledger(writer.ledger_id)
        assert liar in asked

    run(test)


def test_proof_that_is_damaged_on_its_way_is_read_again() -> None:
    async def test(world: World) -> None:
        writer, knowing = await known_to_one(world)
        client = await world.client()

        async def damaged(chunks: AsyncGenerator[ReadChunk, None]) -> Any:
            async for chunk in chunks:
                assert chunk.run is not None
                sent = chunk.run
                frames = bytearray(sent.frames)
                frames[-1] ^= len(asked) < 3
                bad = EntryRun(sent.ledger_id, sent.first_entry, None, sent.sizes, bytes(frames))
                yield chunk._replace(run=bad)

        asked = interposed(client, damaged)
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 1 and asked == 3 * [knowing]

    run(test, bookies=2)


@pytest.mark.parametrize(
    "status", [BookieStatus.UNAVAILABLE, BookieStatus.IO_ERROR, BookieStatus.NO_SUCH_ENTRY]
)
def test_bookie_whose_proof_cannot_be_had_has_not_answered(status: BookieStatus) -> None:
    """It is gone, its copy is damaged, or it lies: nobody knows then what was confirmed."""

    async def test(world: World) -> None:
        writer, knowing = await known_to_one(world)
        client = await world.client()

        async def unread(_chunks: AsyncGenerator[ReadChunk, None]) -> Any:
            yield ReadChunk(status, None, EntryId(2), "no")

        asked = interposed(client, unread)
        with pytest.raises(BookieUnavailableError, match=f"{knowing}: its newest entry cannot be"):
            await client.open_ledger(writer.ledger_id)
        tries = 1 if status is BookieStatus.NO_SUCH_ENTRY else PROOF_TRIES
        assert asked == [knowing] * tries, "who denies what it named is not asked again"

    run(test, bookies=2)


def test_open_beside_a_damaged_copy_fails_until_the_bookie_that_is_down_is_back() -> None:
    """Seed 25356 of the simulation: it said that nothing is confirmed, although the two of three
    that have the last entry are the bookie with the damaged copy, and the one that was down."""

    async def test(world: World) -> None:
        writer = await told_by_three(world)
        rotten, down, empty = writer.metadata.last_fragment.bookies
        client = await world.client(read_timeout_s=2.0)
        answered(client, {empty: lambda told: LastConfirmed(BookieStatus.NO_SUCH_LEDGER)})
        honest = client._context.transport.read

        async def reading(bookie_id: BookieId, *args: Any, **kwargs: Any) -> Any:
            if bookie_id == rotten:
                yield ReadChunk(BookieStatus.IO_ERROR, None, EntryId(2), "checksum")
                return
            async for chunk in honest(bookie_id, *args, **kwargs):
                yield chunk

        client._context.transport.read = reading  # type: ignore[method-assign]
        world.kill(down)
        with pytest.raises(BookieUnavailableError, match="cannot be read"):
            await client.open_ledger(writer.ledger_id)
        world.revive(down)
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 1

    run(test)


def test_damaged_copy_ends_no_open_when_another_copy_proves_the_same() -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=NEVER_S)
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=1)
        for payload in (b"0", b"1", b"2"):
            await writer.append(payload)
        rotten, good, empty = writer.metadata.last_fragment.bookies
        client = await world.client(read_timeout_s=2.0)
        answered(client, {empty: lambda told: LastConfirmed(BookieStatus.NO_SUCH_LEDGER)})
        asked: list[BookieId] = []
        honest = client._context.transport.read

        async def reading(bookie_id: BookieId, *args: Any, **kwargs: Any) -> Any:
            asked.append(bookie_id)
            if bookie_id == rotten:
                yield ReadChunk(BookieStatus.IO_ERROR, None, EntryId(2), "checksum")
                return
            async for chunk in honest(bookie_id, *args, **kwargs):
                yield chunk

        client._context.transport.read = reading  # type: ignore[method-assign]
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 1 and asked == [rotten, rotten, rotten, good]

    run(test)


def test_lost_announcement_is_repeated_until_readers_see_the_end() -> None:
    async def test(world: World) -> None:
        client, other = await world.client(explicit_lac_delay_s=0.01), await world.client()
        transport = client._context.transport
        told: list[BookieId] = []
        honest = transport.write_last_confirmed

        async def lossy(bookie_id: BookieId, *args: Any, **kwargs: Any) -> BookieStatus:
            told.append(bookie_id)
            if len(told) <= 3:
                return BookieStatus.TIMEOUT
            return await honest(bookie_id, *args, **kwargs)

        transport.write_last_confirmed = lossy  # type: ignore[method-assign]
        writer = await client.create_ledger()
        await writer.append(b"the last one for now")
        reader = await other.open_ledger(writer.ledger_id)
        async with asyncio.timeout(20):
            while reader.last_add_confirmed < 0:
                await asyncio.sleep(0.05)
                await reader.refresh()
        assert len(told) == 6

    run(test)


@pytest.mark.parametrize("opened_before", [False, True])
def test_writer_that_replaces_its_bookies_while_they_are_asked_fails_no_reader(
    opened_before: bool,
) -> None:
    """Metadata are read, then bookies are asked: in between both may have ended, and others be
    there."""

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        client = await world.client()
        reader = await client.open_ledger(writer.ledger_id) if opened_before else None
        honest = client._context.transport.read_last_confirmed
        ended = writer.metadata.last_fragment.bookies[1:]

        async def asking(*args: Any, **kwargs: Any) -> LastConfirmed:
            if set(ended) & world.alive.keys():
                for bookie_id in ended:
                    world.kill(bookie_id)
                await writer.append(b"1")
                await writer.flush()
            return await honest(*args, **kwargs)

        client._context.transport.read_last_confirmed = asking  # type: ignore[method-assign]
        if reader is None:
            reader = await client.open_ledger(writer.ledger_id)
        else:
            await reader.refresh()
        assert reader.last_add_confirmed >= 0
        assert not set(ended) & set(reader.metadata.last_fragment.bookies)
        for bookie_id in reader.metadata.last_fragment.bookies[1:]:
            world.kill(bookie_id)
        with pytest.raises(BookieUnavailableError):
            await reader.refresh()

    run(test, bookies=5)
