"""A tail of a stream is cut off while ZooKeeper is restored, until new commits have passed it.

The stream is written before the backup and behind it. Its later commits are lost, and a process
that starts behind the restore makes others under their numbers, more than there were. Only then the
tail reaches ZooKeeper again. It may fail; it must not deliver one of the new rows, as it would have
passed over those below.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import CorruptionError, LedgerError, MetadataRestoredError, NotFoundError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.sim.clients import Client

if TYPE_CHECKING:
    from tests.sim.world import World

_NAME: Final = "overtaken"
_SCHEMA: Final = pa.schema([("v", pa.string())])
_MORE: Final = 3
"""So many commits beyond what the tail has delivered: it may have seen more of them."""
_ATTEMPTS: Final = 40


class Overtaking:
    """The stream, its tail and its writers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw: random.Random = world.random_for("overtaking")
        self.tail = _Tail(world)
        self._begin("overtaken-writer", lambda: not world.healing)

    def _begin(self, name: str, goes_on: Callable[[], bool]) -> _Writer:
        writer = _Writer(self.world, name, goes_on)
        self.world.clients.append(writer)
        return writer

    def restored(self) -> None:
        """ZooKeeper is back, with the backup."""
        world, tail = self.world, self.tail
        tail.before = len(tail.delivered)
        name = tail.process.name
        world.zookeeper.cut_off.add(name)

        def goes_on() -> bool:
            reached = overtaker.commits > len(tail.delivered) + _MORE
            if reached and name in world.zookeeper.cut_off:
                world.zookeeper.cut_off.discard(name)
                world.fault("tail overtaken", f"{len(tail.delivered)} rows")
            return not reached and not world.healing

        overtaker = self._begin("overtaker", goes_on)

    async def judge(self, client: LedgerClient) -> None:
        """Compare what the tail has delivered with the stream."""
        tail, found = self.tail, list[str]()
        if tail.before is None:
            return
        try:
            stream = await StreamCatalog(client).open(_NAME)
            async with aclosing(stream.read()) as batches:
                async for batch in batches:
                    found += [str(text) for text in batch.column("v").to_pylist()]
        except LedgerError as error:  # the rows of a ledger that was open may be lost
            self.world.say(f"the stream that was overtaken: {type(error).__name__}: {error}")
        new = [each for each in tail.delivered[tail.before :] if each in found]
        if new and tail.delivered != found[: len(tail.delivered)]:
            text = f"the tail delivered {new[0]} behind {tail.delivered[: tail.before]} of {found}"
            self.world.violate("restore", "rows passed over", text)


class _Follower(Client):
    async def open_stream(self) -> Stream:
        """Connect and open the stream; who comes first creates it."""
        client = await self.connect()
        while True:
            try:
                return await StreamCatalog(client).create(_NAME, _SCHEMA, exist_ok=True)
            except LedgerError as error:
                self.world.say(f"{self.name} cannot open the stream: {type(error).__name__}")
                await asyncio.sleep(0.1)


class _Writer(_Follower):
    """Commits a row each time, as long as it is to go on."""

    def __init__(self, world: World, name: str, goes_on: Callable[[], bool]) -> None:
        super().__init__(world, name)
        self.commits = 0
        """How many the stream has, for all that it knows."""
        self._goes_on = goes_on
        self.start(self._run())

    async def _run(self) -> None:
        stream = await self.open_stream()
        number = 0
        while self._goes_on():
            row = pa.table({"v": [f"{self.name}.{number}"]}, _SCHEMA)
            try:
                commit = await stream.append(row, sink_id=self.name, transaction_id=number)
            except (NotFoundError, CorruptionError) as error:
                self.world.say(f"{self.name}: {type(error).__name__}: {error}")
                break
            except LedgerError:
                await asyncio.sleep(self.draw.uniform(0.01, 0.1))
                continue
            self.commits, number = commit.number + 1, number + 1
            await asyncio.sleep(self.draw.uniform(0.01, 0.1))
        await stream.close()


class _Tail(_Follower):
    """Follows the stream with one handle; when it fails, it goes on from where it was."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "overtaken-tail")
        self.delivered: list[str] = []
        self.before: int | None = None
        """How many rows it had delivered when ZooKeeper was restored."""
        world.clients.append(self)
        self.start(self._run())

    async def _run(self) -> None:
        stream = await self.open_stream()
        for _ in range(_ATTEMPTS):
            before = len(self.delivered)
            try:
                async with aclosing(stream.tail(Dlsn(before), idle_timeout=0.5)) as batches:
                    async for batch in batches:
                        self.delivered += [str(text) for text in batch.column("v").to_pylist()]
            except (NotFoundError, CorruptionError) as error:
                self.world.say(f"{self.name}: {type(error).__name__}: {error}")
                self.world.counts["overtaken tails told"] += isinstance(
                    error, MetadataRestoredError
                )
                break
            except LedgerError:
                await asyncio.sleep(self.draw.uniform(0.01, 0.1))
                continue
            if self.world.healing and before == len(self.delivered):
                break
        await stream.close()
