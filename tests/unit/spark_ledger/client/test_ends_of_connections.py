"""A connection that is closed: whoever waits only for time, as beside busy bookies, is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.bookie_api import Done, ReadOutcome
from spark_ledger.client.blocking import LedgerConnection
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import AddOutcomeUnknownError, LedgerClosedError
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.spark_ledger.client.world import World, run_virtually, world

BUSY = BookieStatus.TOO_MANY_REQUESTS


def busy_read(_ledger: LedgerId, first: EntryId, _last: EntryId, **_options: Any) -> ReadOutcome:
    return ReadOutcome([], BUSY, first, "busy")


def busy_add(_run: object, done: Done, **_options: Any) -> None:
    done(BUSY, "busy")


def never_reads(bookie: ScriptedBookie) -> None:
    """From now on the bookie is too busy to read."""
    bookie.read = busy_read  # type: ignore[method-assign, assignment]


def never_adds(bookie: ScriptedBookie) -> None:
    """From now on the bookie is too busy to add."""
    bookie.add = busy_add  # type: ignore[method-assign, assignment]


async def ledger_of_four(client: LedgerClient, *, is_closed: bool = True) -> LedgerId:
    writer = await client.create_ledger()
    for _ in range(4):
        await writer.append(b"x")
    if is_closed:
        await writer.close()
    return writer.ledger_id


async def all_of(entries: AsyncIterator[object]) -> list[object]:
    return [entry async for entry in entries]


async def reading(made: World, client: LedgerClient) -> asyncio.Future[Any]:
    ledger_id = await ledger_of_four(await made.client())
    reader = await client.open_ledger(ledger_id)
    for bookie in made.bookies.values():
        never_reads(bookie)
    return asyncio.ensure_future(all_of(reader.read(0, 3)))


async def tailing(made: World, client: LedgerClient) -> asyncio.Future[Any]:
    ledger_id = await ledger_of_four(await made.client(), is_closed=False)
    reader = await client.open_ledger(ledger_id)
    for bookie in made.bookies.values():
        never_reads(bookie)
    return asyncio.ensure_future(all_of(reader.tail(0)))


async def recovering(made: World, client: LedgerClient) -> asyncio.Future[Any]:
    ledger_id = await ledger_of_four(await made.client(), is_closed=False)
    for bookie in made.bookies.values():
        never_adds(bookie)
    return asyncio.ensure_future(client.open_ledger(ledger_id, recover=True))


async def recovering_beside_one_that_adds(made: World, client: LedgerClient) -> asyncio.Future[Any]:
    ledger_id = await ledger_of_four(await made.client(), is_closed=False)
    for bookie in list(made.bookies.values())[:2]:
        never_adds(bookie)
    return asyncio.ensure_future(client.open_ledger(ledger_id, recover=True))


@pytest.mark.parametrize(
    "begin",
    [
        reading,
        pytest.param(
            tailing,
            marks=[
                pytest.mark.leaves_open("client: a tail", reason="it is told by the close"),
                pytest.mark.leaves_open("watch Event.set", reason="the tail's, at that moment"),
            ],
        ),
        recovering,
        recovering_beside_one_that_adds,
    ],
    ids=lambda begin: begin.__name__,
)
def test_who_waits_for_busy_bookies_is_told_that_the_connection_is_closed(
    begin: Callable[[World, LedgerClient], Awaitable[asyncio.Future[Any]]],
) -> None:
    """Nothing is under way then: only a tick leads on, and the timer has ended."""

    async def test(made: World) -> None:
        client = await made.client()
        waiting = await begin(made, client)
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await client.close()
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert done
        with pytest.raises(LedgerClosedError):
            await waiting

    run_virtually(test)


def test_reader_that_has_all_entries_delivers_them_behind_the_end_of_its_connection() -> None:
    async def test(made: World) -> None:
        ledger_id = await ledger_of_four(await made.client())
        client = await made.client()
        reader: LedgerReader = await client.open_ledger(ledger_id)
        entries = reader.read(0, 3)
        await anext(entries)
        await asyncio.sleep(0.1)
        await client.close()
        assert len(await all_of(entries)) == 3

    run_virtually(test)


def test_append_to_a_writer_that_came_while_the_connection_was_closed_may_be_stored() -> None:
    """Writers are ended first, and this one comes behind that."""

    async def test(made: World) -> None:
        client = await made.client()
        suspects = client.context.suspects
        close, is_closing, may_close = suspects.close, asyncio.Event(), asyncio.Event()

        async def close_late() -> None:
            is_closing.set()
            await may_close.wait()
            await close()

        suspects.close = close_late  # type: ignore[method-assign]
        closing = asyncio.ensure_future(client.close())
        await is_closing.wait()
        writer = await client.create_ledger()
        for bookie in made.bookies.values():
            bookie.hold = True
        with pytest.raises(AddOutcomeUnknownError):
            await asyncio.wait_for(writer.append(b"sent"), 1.0)
        with pytest.raises(LedgerClosedError, match="connection is closed"):
            await writer.append(b"later")
        may_close.set()
        await closing
        with pytest.raises(LedgerClosedError):
            await writer.close()

    run_virtually(test)


def test_thread_that_reads_from_busy_bookies_is_told_when_another_closes_the_connection() -> None:
    portal = BlockingPortal.get()

    async def begin() -> tuple[World, LedgerClient, LedgerId]:
        made = await stack.__aenter__()
        ledger_id = await ledger_of_four(await made.client())
        for bookie in made.bookies.values():
            never_reads(bookie)
        return made, await made.client(), ledger_id

    async def end() -> None:
        await stack.__aexit__(None, None, None)

    stack = world()
    _, client, ledger_id = portal.call(begin())
    connection = LedgerConnection(portal, client)
    reader = connection.open_ledger(ledger_id)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            list(reader.read(0, 3))
        except LedgerClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    connection.close()
    thread.join(5.0)
    assert errors
    portal.call(end())
