"""Simulated client processes: they use the real LedgerClient and record a history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.config import ClientConfig
from spark_ledger.errors import (
    ConfigurationError,
    DigestMismatchError,
    FencedError,
    LedgerError,
    MetadataRestoredError,
    NotEnoughBookiesError,
    NotFoundError,
    UnauthorizedError,
)
from spark_ledger.lab.simulation.loop import Process
from spark_ledger.limits.client import WRITER_ENTRY_BYTES
from tests.history.model import Phase
from tests.history.values import value
from tests.sim.fences import write_more
from tests.sim.options import LedgerPlan
from tests.sim.tailing import LonelyTail
from tests.sim.transport import SimTransport

if TYPE_CHECKING:
    from tests.sim.world import World

CONFIG = ClientConfig(
    add_timeout_s=0.4,
    read_timeout_s=0.4,
    speculative_read_delay_s=0.05,
    bytes_in_flight_max=64 * 1024,
    metadata_timeout_s=1.0,
)


PASSWORD: Final = b"the right one"
"""The password of every ledger that has one. Only one, because deriving its key is slow and
cached."""


class Client:
    """A process with one connection that records what it asks and what it is told."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.draw: random.Random = world.random_for(f"client {name}")
        options = world.options
        self.process = Process(
            name,
            rate=self.draw.uniform(0.8, 1.25) if options.drift else 1.0,
            wall_offset_s=self.draw.uniform(-1e6, 1e6) if options.drift else 0.0,
        )
        self.tasks: list[asyncio.Task[Any]] = []
        self._connections: list[LedgerClient] = []

    def start(self, work: Any) -> None:
        """Run a coroutine in the process."""
        self.tasks.append(self.world.loop.spawn(self.process, work))

    @property
    def is_done(self) -> bool:
        """Whether all its tasks have ended, or the process is dead."""
        if self.process.alive:
            self.tasks = [task for task in self.tasks if not task.done()]
            return not self.tasks
        return True

    def crash(self) -> None:
        """Kill the process."""
        if self.process.alive:
            self.world.say(f"{self.name} is dead")
            self.world.loop.bury(self.process)
            self.world.zookeeper.died(self.process, self.draw.uniform(0.1, 2.0))

    async def connect(self) -> LedgerClient:
        """Connect, as often as it takes."""
        transport = SimTransport(self.world.network, self.process, self.world.nodes)
        while True:
            store = self.world.zookeeper.connect(self.process)
            try:
                draw = self.world.random_for(f"placement {self.name}")
                client = await LedgerClient.over(store, transport, CONFIG, draw=draw)
            except LedgerError:
                await store.close()
                await asyncio.sleep(0.1)
            else:
                self._connections.append(client)
                return client

    async def close(self) -> None:
        """Close the connections, once all else is done."""
        for client in self._connections:
            await client.close()

    def open(
        self, client: LedgerClient, ledger_id: int, *, recover: bool = False
    ) -> Awaitable[LedgerReader]:
        """Open a ledger with the password that it has."""
        password = self.world.passwords.get(ledger_id, b"")
        return client.open_ledger(ledger_id, recover=recover, password=password)

    # -- history -----------------------------------------------------------------------------------

    def invoke(self, name: str, **fields: Any) -> int:
        """Record that an operation begins. Returns its number."""
        return self.world.invoke(self.name, name, **fields)

    def end(self, operation: int, phase: Phase, name: str, **fields: Any) -> None:
        """Record that an operation ends."""
        self.world.end(self.name, operation, phase, name, **fields)

    def name_of(self, error: LedgerError) -> str:
        """The name under which the error of a read goes into the history.

        Where copies are damaged, or answers corrupted, a digest mismatch on one copy says nothing
        about the others, which may be out of reach for now. In the end it has to be readable.
        """
        options = self.world.options
        if isinstance(error, DigestMismatchError) and (
            options.corruption > 0 or options.rot or options.lies
        ):
            return "SomeCopiesDamaged"
        return type(error).__name__

    async def attempt(self, name: str, work: Awaitable[Any], **fields: Any) -> Any:
        """Run an operation and record how it ended. Raises LedgerError if it failed."""
        operation = self.invoke(name, **fields)
        try:
            result = await work
        except LedgerError as error:
            self.end(operation, failure(error), name, error=self.name_of(error), **fields)
            raise
        ended = dict(fields)
        if isinstance(result, LedgerReader):
            ended.update(closed=result.is_closed, last_add_confirmed=result.last_add_confirmed)
            if name == "recover":
                ended["entry_id"] = result.last_add_confirmed
        self.end(operation, Phase.OK, name, **ended)
        return result


def failure(error: LedgerError) -> Phase:
    """Whether an operation that raised surely did not happen (FAIL), or may have (UNKNOWN)."""
    definite = (NotFoundError, ConfigurationError)
    if error.outcome_unknown or not isinstance(error, definite):
        return Phase.UNKNOWN
    return Phase.FAIL


class Pending:
    """An append in flight. The writer calls it at the moment it decides."""

    __slots__ = ("_client", "_ledger_id", "_operation", "_value", "ended", "entry_id")

    def __init__(self, client: WriterClient, ledger_id: int, text: str) -> None:
        self._client = client
        self._ledger_id = ledger_id
        self._value = text
        self._operation = client.invoke("append", ledger_id=ledger_id, values=(text,))
        self.entry_id = -1
        self.ended = False

    def done(self) -> bool:
        return self.ended

    def set_result(self, result: int, /) -> None:
        """The entry is confirmed."""
        self.ended = True
        self.entry_id = result
        client = self._client
        client.world.invariants.confirmed(self._ledger_id, result)
        client.world.append_ended(client.name, None)
        client.end(
            self._operation,
            Phase.OK,
            "append",
            ledger_id=self._ledger_id,
            entry_id=result,
            values=(self._value,),
        )
        client.settled()

    def set_exception(self, error: BaseException, /) -> None:
        """The entry failed, or its outcome is unknown: recovery may make it part of the ledger."""
        self.ended = True
        client = self._client
        if isinstance(error, FencedError):
            client.world.invariants.withdrawn(self._ledger_id)
        client.world.append_ended(client.name, error)
        if isinstance(error, NotEnoughBookiesError | UnauthorizedError):
            client.gives_up(self._ledger_id)
        client.end(
            self._operation,
            Phase.UNKNOWN,
            "append",
            ledger_id=self._ledger_id,
            error=type(error).__name__,
        )
        client.settled()


class WriterClient(Client):
    """A client that creates a ledger and writes to it."""

    def __init__(self, world: World, name: str, plan: LedgerPlan, number: int) -> None:
        super().__init__(world, name)
        self.plan = plan
        self.number = number
        self.writer: LedgerWriter | None = None
        self._unsettled = 0
        self._close_operation = 0
        """Number of the close in the history: it begins when the writer gives up or is asked to
        close."""
        self._settled = asyncio.Event()
        self.start(self._run())

    def settled(self) -> None:
        """One append has ended."""
        self._unsettled -= 1
        self._settled.set()

    def gives_up(self, ledger_id: int) -> None:
        """The writer gave up and closes the ledger by itself, without telling how that ends."""
        if not self._close_operation:
            self._close_operation = self.invoke("close", ledger_id=ledger_id)

    async def _run(self) -> None:
        client = await self.connect()
        self.writer = writer = await self._create(client)
        self.world.created(self.number, writer.ledger_id)
        try:
            await self._write(writer)
        except LedgerError as error:
            self.world.say(f"{self.name} stops: {type(error).__name__}")
        while self._unsettled:
            self._settled.clear()
            await self._settled.wait()
        if self.plan.closes:
            await self._close(writer)
        if self.world.misbehaviour.false_fences is not None:
            await write_more(self, client, writer)

    async def _create(self, client: LedgerClient) -> LedgerWriter:
        shape = self.plan.shape()
        while True:
            operation = self.invoke("create")
            try:
                writer = await client.create_ledger(
                    ensemble_size=shape.ensemble_size,
                    write_quorum=shape.write_quorum,
                    ack_quorum=shape.ack_quorum,
                    password=PASSWORD if self.plan.password else b"",
                )
            except LedgerError as error:
                self.end(operation, Phase.UNKNOWN, "create", error=type(error).__name__)
                await asyncio.sleep(0.1)
            else:
                self.end(operation, Phase.OK, "create", ledger_id=writer.ledger_id)
                return writer

    async def _write(self, writer: LedgerWriter) -> None:
        plan, counter = self.plan, 0
        while counter < plan.entries and not writer.is_closed:
            await writer.wait_for_room()
            burst = min(self.draw.randint(1, plan.burst), plan.entries - counter)
            texts = [
                value(self.name, str(writer.ledger_id), counter + i, plan.size)
                for i in range(burst)
            ]
            counter += burst
            writer.check_open()
            pending = [Pending(self, writer.ledger_id, text) for text in texts]
            self._unsettled += burst
            writer.submit([text.encode() for text in texts], pending)
            if plan.pace_s == 0.0 or self.draw.random() < 0.3:
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(plan.pace_s * self.draw.random() * 2)
            self._check_bounds(writer)

    def _check_bounds(self, writer: LedgerWriter) -> None:
        """Check I15: the bytes that wait in the writer are bounded."""
        entry_bytes = max(self.plan.size, 100) + WRITER_ENTRY_BYTES
        bound = writer.bytes_in_flight_max + self.plan.burst * entry_bytes
        waiting = writer._machine.bytes_in_flight + writer._queue_bytes
        if waiting > bound:
            text = f"{self.name} holds {waiting} bytes in flight, {bound} at most are allowed"
            self.world.violate("I15", "bound", text)

    async def _close(self, writer: LedgerWriter) -> None:
        ledger_id = writer.ledger_id
        operation = self._close_operation or self.invoke("close", ledger_id=ledger_id)
        try:
            await writer.close()
        except LedgerError as error:
            phase, name = Phase.UNKNOWN, type(error).__name__
            self.end(operation, phase, "close", ledger_id=ledger_id, error=name)
            return
        if not writer.metadata.is_closed:  # it stopped before, so it knows no end
            self.end(operation, Phase.UNKNOWN, "close", ledger_id=ledger_id, error="stopped")
            return
        end = writer.metadata.last_entry_id
        self.end(operation, Phase.OK, "close", ledger_id=ledger_id, entry_id=end, closed=True)


class RecoverClient(Client):
    """A client that opens a ledger with recovery, perhaps several times, and reads it."""

    def __init__(self, world: World, name: str, ledger_id: int) -> None:
        super().__init__(world, name)
        self.ledger_id = ledger_id
        self.start(self._run())

    async def _run(self) -> None:
        client = await self.connect()
        world, ledger_id = self.world, self.ledger_id
        for _ in range(8):
            world.recovering[ledger_id] += 1
            if world.recovering[ledger_id] > 1:
                world.counts["recoveries that met"] += 1
            try:
                reader = await self.attempt(
                    "recover", self.open(client, ledger_id, recover=True), ledger_id=ledger_id
                )
            except NotFoundError:
                return
            except LedgerError as error:
                world.say(f"{self.name}: {type(error).__name__}: {error}")
                await asyncio.sleep(self.draw.uniform(0.02, 0.4))
            else:
                world.counts["recoveries"] += 1
                await read_all(self, reader)
                return
            finally:
                world.recovering[ledger_id] -= 1


class ReaderClient(Client):
    """A client that opens a ledger without recovery, then refreshes and reads repeatedly."""

    def __init__(self, world: World, name: str, ledger_id: int, *, tails: bool) -> None:
        super().__init__(world, name)
        self.ledger_id = ledger_id
        self.delivered = 0  # the next entry that a tail has not brought
        self.start(self._tail() if tails else self._read())

    async def _open(self) -> LedgerReader | None:
        client = await self.connect()
        while True:
            try:
                reader: LedgerReader = await self.attempt(
                    "open", self.open(client, self.ledger_id), ledger_id=self.ledger_id
                )
            except (NotFoundError, MetadataRestoredError):
                return None
            except LedgerError as error:
                if isinstance(error, UnauthorizedError) and self.world.options.restores:
                    return None  # bookies hold another ledger of this id
                await asyncio.sleep(0.1)
            else:
                return reader

    async def _read(self) -> None:
        reader = await self._open()
        if reader is None:
            return
        for _ in range(self.draw.randint(1, 6)):
            try:
                await self.refresh(reader)
            except NotFoundError:
                return
            except LedgerError:
                pass
            await read_all(self, reader)
            await asyncio.sleep(self.draw.uniform(0.02, 0.5))

    async def refresh(self, reader: LedgerReader) -> None:
        """Refresh and record the LAC that the handle has then."""
        ledger_id = self.ledger_id
        operation = self.invoke("refresh", ledger_id=ledger_id)
        try:
            await reader.refresh()
        except LedgerError as error:
            name = type(error).__name__
            self.end(operation, failure(error), "refresh", ledger_id=ledger_id, error=name)
            raise
        self.end(
            operation,
            Phase.OK,
            "refresh",
            ledger_id=ledger_id,
            last_add_confirmed=reader.last_add_confirmed,
            closed=reader.is_closed,
        )

    async def _tail(self) -> None:
        reader = await self._open()
        if reader is None:
            return
        if self.world.options.lonely_tails:
            LonelyTail(self.world, self, reader)
        following = 0
        for _ in range(40):
            try:
                following = await self._follow(reader, following)
            except NotFoundError:
                return
            except LedgerError:
                await asyncio.sleep(0.1)
            else:
                if reader.is_closed or self.world.healing:
                    return

    async def _follow(self, reader: LedgerReader, following: int) -> int:
        """Record batches of a tail until it ends. Returns the next entry id."""
        operation = -1
        try:
            async with aclosing(reader.tail_batches(following, idle_timeout=2.0)) as batches:
                operation = self._await_news(following)
                async for batch in batches:
                    self._delivered(operation, reader, following, batch)
                    following += len(batch)
                    operation = self._await_news(following)
        except LedgerError as error:
            name = self.name_of(error)
            self.end(operation, failure(error), "tail", ledger_id=self.ledger_id, error=name)
            raise
        self._delivered(operation, reader, following, [])
        return following

    def _await_news(self, following: int) -> int:
        return self.invoke("tail", ledger_id=self.ledger_id, entry_id=following)

    def _delivered(self, operation: int, reader: LedgerReader, first: int, batch: Any) -> None:
        self.world.counts["entries read"] += len(batch)
        self.delivered = first + len(batch)
        self.end(
            operation,
            Phase.OK,
            "tail",
            ledger_id=self.ledger_id,
            entry_id=first,
            last_entry=first + len(batch) - 1,
            values=tuple(entry.payload.decode() for entry in batch),
            last_add_confirmed=reader.last_add_confirmed,
            closed=reader.is_closed,
        )


class DeleteClient(Client):
    """A client that deletes a ledger."""

    def __init__(self, world: World, name: str, ledger_id: int) -> None:
        super().__init__(world, name)
        self.start(self._run(ledger_id))

    async def _run(self, ledger_id: int) -> None:
        client = await self.connect()
        for _ in range(5):
            try:
                await self.attempt("delete", client.delete_ledger(ledger_id), ledger_id=ledger_id)
            except LedgerError:
                await asyncio.sleep(0.1)
            else:
                self.world.counts["ledgers deleted"] += 1
                return


async def read_all(client: Client, reader: LedgerReader) -> tuple[str, ...] | None:
    """Read everything up to the handle's LAC, recorded as one read. None if it failed."""
    end, ledger_id = reader.last_add_confirmed, reader.ledger_id
    if end < 0:
        return ()
    fields = {"ledger_id": ledger_id, "entry_id": 0, "last_entry": end}
    operation = client.invoke("read", **fields)
    texts: list[str] = []
    try:
        batches: AsyncIterator[Any] = reader.read_batches(
            0, end, replica_hint=client.draw.randrange(3)
        )
        async for batch in batches:
            texts += [entry.payload.decode() for entry in batch]
    except LedgerError as error:
        client.end(operation, failure(error), "read", error=client.name_of(error), **fields)
        client.world.say(f"{client.name} cannot read: {type(error).__name__}: {error}")
        return None
    client.world.counts["entries read"] += len(texts)
    client.end(operation, Phase.OK, "read", values=tuple(texts), **fields)
    return tuple(texts)
