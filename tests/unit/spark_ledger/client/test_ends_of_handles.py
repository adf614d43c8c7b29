"""How a writer, reader, tail or recovery ends: whatever ended it, nothing of it is left behind.

A process that runs for months opens and ends a hundred thousand of them on one connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import FencedError, LedgerError
from spark_ledger.limits.client import LEFT_OPEN_DELAY_S
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.events import Append, Event
from spark_ledger.transport.memory import MemoryAppender, MemoryTransport
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.test_callers_that_leave import hold, leave
from tests.unit.spark_ledger.client.world import World, run_virtually

pytestmark = pytest.mark.leaves_open(
    "MemoryTransport._call", reason="who asks a silent bookie fails there"
)


class Traffic:
    """What one client has under way: appenders, calls, tasks, and what it counts as used."""

    def __init__(self, client: LedgerClient) -> None:
        self._context = client.context
        self._appenders: set[MemoryAppender] = set()
        self._calls = 0
        transport = client.context.transport
        assert isinstance(transport, MemoryTransport)
        self._open, self._read = transport.open_appender, transport.read
        self._ask = transport.read_last_confirmed
        transport.open_appender = self.open_appender  # type: ignore[method-assign]
        transport.read = self.read  # type: ignore[method-assign]
        transport.read_last_confirmed = self.ask  # type: ignore[method-assign]
        self._tasks = asyncio.all_tasks()

    def open_appender(self, *args: Any, **options: Any) -> MemoryAppender:
        appender = self._open(*args, **options)
        close = appender.close

        def closed() -> None:
            self._appenders.discard(appender)
            close()

        appender.close = closed  # type: ignore[method-assign]
        self._appenders.add(appender)
        return appender

    async def read(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        self._calls += 1
        try:
            async for chunk in self._read(*args, **options):
                yield chunk
        finally:
            self._calls -= 1

    async def ask(self, *args: Any, **options: Any) -> Any:
        self._calls += 1
        try:
            return await self._ask(*args, **options)
        finally:
            self._calls -= 1

    def left(self) -> dict[str, object]:
        """What there is of it now."""
        context = self._context
        found = {
            "appenders": len(self._appenders),
            "calls": self._calls,
            "tasks": asyncio.all_tasks() - self._tasks,
            "bookies that count as used": dict(+context.load),
            "writers": list(context.writers),
            "ledgers that are kept in mind": dict(context.ledgers._seen._kept),
        }
        return {name: what for name, what in found.items() if what}


async def written(other: LedgerClient, entries: int = 3) -> LedgerWriter:
    """An open ledger of another client, whose entries are confirmed."""
    writer = await other.create_ledger()
    await asyncio.gather(*(writer.append_nowait(b"%d" % n) for n in range(entries)))
    return writer


# -- writers ---------------------------------------------------------------------------------------


async def closed(world: World, client: LedgerClient, other: LedgerClient) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    await writer.close()


async def closed_after_a_bookie_was_replaced(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    world.kill(writer.metadata.last_fragment.bookies[0])
    await writer.append(b"y")
    await writer.close()


async def closed_while_a_bookie_is_silent(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await client.create_ledger()
    world.bookies[writer.metadata.last_fragment.bookies[0]].hold = True
    await writer.append(b"x")
    await writer.close()


async def told_of_a_takeover_by_its_close(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    await other.open_ledger(writer.ledger_id, recover=True)
    await other.delete_ledger(writer.ledger_id)
    with pytest.raises(LedgerError):
        await writer.close()


async def told_of_a_takeover_by_an_append(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    await other.open_ledger(writer.ledger_id, recover=True)
    with pytest.raises(FencedError):
        await writer.append(b"y")
    await writer.close()


async def ended_by_a_bug_of_ours(world: World, client: LedgerClient, other: LedgerClient) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    writer = await client.create_ledger()
    honest = AppendMachine.handle

    def broken(self: AppendMachine, event: Event, now: float) -> Any:
        assert not isinstance(event, Append), "broken on purpose"
        return honest(self, event, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AppendMachine, "handle", broken)
        with pytest.raises((LedgerError, AssertionError)):
            await writer.append(b"x")
    with pytest.raises(LedgerError, match="broken on purpose"):
        await writer.close()
    await asyncio.sleep(2 * LEFT_OPEN_DELAY_S)  # the ledger is closed behind it
    assert not writer.is_left_open


async def closed_by_a_caller_that_leaves(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await client.create_ledger()
    hold(world)
    append = writer.append_nowait(b"x")
    await leave(writer.close(), "cancelled")
    hold(world, False)
    await append
    await writer.close()


# -- readers and tails -----------------------------------------------------------------------------


async def open_that_is_left(world: World, client: LedgerClient, other: LedgerClient) -> None:
    writer = await written(other)
    for name in world.bookies:
        world.alive[name] = Silent()  # type: ignore[assignment]
    await leave(client.open_ledger(writer.ledger_id), "timeout")


async def open_beside_a_silent_bookie(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await written(other)
    world.alive[writer.metadata.last_fragment.bookies[0]] = Silent()  # type: ignore[assignment]
    await client.open_ledger(writer.ledger_id)


async def reader_that_is_left(world: World, client: LedgerClient, other: LedgerClient) -> None:
    writer = await written(other, 300)
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    batches = reader.read_batches(0, 299)
    assert await anext(batches)
    await batches.aclose()


async def tail_that_is_left(world: World, client: LedgerClient, other: LedgerClient) -> None:
    writer = await written(other)
    await writer.append(b"tells of those before it")
    batches = (await client.open_ledger(writer.ledger_id)).tail_batches()
    while (await anext(batches)).last_entry < 2:
        pass
    await leave(anext(batches), "timeout")
    await batches.aclose()


async def tail_that_is_left_while_it_reads_the_metadata(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await written(other)
    await writer.append(b"tells of those before it")
    batches = (await client.open_ledger(writer.ledger_id)).tail_batches()
    while (await anext(batches)).last_entry < 2:
        pass
    asked = asyncio.Event()

    def interpose(_name: str, path: str) -> Fault:
        asked.set()
        return Fault(delay_s=60.0)

    assert isinstance(client.store, MemoryMetadataStore)
    client.store.interpose = interpose
    waiting = asyncio.ensure_future(anext(batches))
    await writer.close()
    await asked.wait()
    await leave(waiting, "cancelled")


async def tail_that_is_idle(world: World, client: LedgerClient, other: LedgerClient) -> None:
    reader = await client.open_ledger((await written(other)).ledger_id)
    async for _batch in reader.tail_batches(idle_timeout=0.5):
        pass


# -- recoveries ------------------------------------------------------------------------------------


class Silent:
    """A bookie that answers nothing, and whose connection stands."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_options: None


async def recovered(world: World, client: LedgerClient, other: LedgerClient) -> None:
    await client.open_ledger((await written(other)).ledger_id, recover=True)


async def recovered_beside_a_silent_bookie(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await written(other)
    world.alive[writer.metadata.last_fragment.bookies[0]] = Silent()  # type: ignore[assignment]
    await client.open_ledger(writer.ledger_id, recover=True)


async def recovery_that_is_left(world: World, client: LedgerClient, other: LedgerClient) -> None:
    writer = await written(other)
    hold(world)
    await leave(client.open_ledger(writer.ledger_id, recover=True), "timeout")


async def recovery_that_is_left_while_it_writes(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    writer = await written(other)
    recovering = asyncio.ensure_future(client.open_ledger(writer.ledger_id, recover=True))
    adds = [len(bookie.adds) for bookie in world.bookies.values()]
    while adds == [len(bookie.adds) for bookie in world.bookies.values()]:
        await asyncio.sleep(0)
    recovering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recovering


async def recovery_that_is_left_twice(
    world: World, client: LedgerClient, other: LedgerClient
) -> None:
    """The second time while it waits for its calls, which it has just broken off."""
    writer = await written(other)
    world.alive[writer.metadata.last_fragment.bookies[0]] = Silent()  # type: ignore[assignment]
    recovering = asyncio.ensure_future(client.open_ledger(writer.ledger_id, recover=True))
    adds = [len(bookie.adds) for bookie in world.bookies.values()]
    while adds == [len(bookie.adds) for bookie in world.bookies.values()]:
        await asyncio.sleep(0)
    while not recovering.done():
        recovering.cancel()
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)  # its calls end by themselves


async def recovery_that_fails(world: World, client: LedgerClient, other: LedgerClient) -> None:
    writer = await written(other)
    for name in writer.metadata.last_fragment.bookies[1:]:
        world.alive[BookieId(name)] = Silent()  # type: ignore[assignment]
    with pytest.raises(LedgerError):
        await client.open_ledger(writer.ledger_id, recover=True)


ENDS = [
    closed,
    closed_after_a_bookie_was_replaced,
    closed_while_a_bookie_is_silent,
    told_of_a_takeover_by_its_close,
    told_of_a_takeover_by_an_append,
    ended_by_a_bug_of_ours,
    closed_by_a_caller_that_leaves,
    open_that_is_left,
    open_beside_a_silent_bookie,
    reader_that_is_left,
    tail_that_is_left,
    tail_that_is_left_while_it_reads_the_metadata,
    tail_that_is_idle,
    recovered,
    recovered_beside_a_silent_bookie,
    recovery_that_is_left,
    recovery_that_is_left_while_it_writes,
    recovery_that_is_left_twice,
    recovery_that_fails,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_handle_that_has_ended_leaves_nothing_behind(
    end: Callable[[World, LedgerClient, LedgerClient], Awaitable[None]],
) -> None:
    async def test(world: World) -> None:
        other = await world.client(explicit_lac_delay_s=1000.0)
        client = await world.client(read_timeout_s=1.0, add_timeout_s=1.0)
        traffic = Traffic(client)
        await end(world, client, other)
        assert traffic.left() == {}

    run_virtually(test, bookies=5)
