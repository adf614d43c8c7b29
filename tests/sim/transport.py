"""The clients' transport over the simulated network; see ``transport.base``.

A request may arrive although its sender has given up or died, and it may arrive twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from spark_ledger.errors import BookieUnavailableError, CorruptionError, LedgerClosedError
from spark_ledger.lab.simulation.loop import Handle, Process
from spark_ledger.lab.simulation.network import Direction, Network
from spark_ledger.limits.bookie import BOOKIE_LEDGERS_PER_ANSWER
from spark_ledger.limits.entries import LONG_POLL_S_MAX, READ_REQUEST_BYTES_MAX
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import (
    FIRST_ENTRY,
    AddResult,
    BookieDescription,
    LastConfirmed,
    ListedEntries,
    ReadChunk,
)
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId
from tests.sim.node import BookieNode
from tests.sim.patience import taken_soon

KEEPALIVE_S = 1.5
"""After so many seconds of silence a client takes its connection for broken."""

_REPEATED_LATE_S = 0.5


class Connection:
    """One client's connection to one run of a bookie."""

    def __init__(self, transport: SimTransport, node: BookieNode) -> None:
        self.transport = transport
        self.node = node
        self.server = node.process
        """The bookie's process when the connection was made; None if it was down."""
        self.broken = False
        self.appenders: list[SimAppender] = []
        self.calls: list[Callable[[Any], None]] = []
        if self.server is None:
            self._refused()
        else:
            node.connections.append(self)

    def send(self, direction: Direction, deliver: Callable[..., None], *args: Any) -> None:
        """Send towards the bookie."""
        if self.server is not None and not self.broken:
            self.transport.network.send(
                self.transport.process.name, self.server, direction, deliver, *args
            )

    def send_back(self, direction: Direction, deliver: Callable[..., None], *args: Any) -> None:
        """Send towards the client."""
        if not self.broken:
            self.transport.network.send(
                self.node.name, self.transport.process, direction, deliver, *args
            )

    def server_died(self) -> None:
        """The bookie's process has ended; the client is told, or finds out by itself."""
        network = self.transport.network
        silent = network.link(self.node.name, self.transport.process.name).cut
        delay_s = KEEPALIVE_S if silent else network.world.delay()
        network.world.loop.later(delay_s, self.transport.process, self.break_off)

    def _refused(self) -> None:
        world = self.transport.network.world
        world.loop.later(world.delay(), self.transport.process, self.break_off)

    def break_off(self) -> None:
        """Fail the requests in flight. Their messages may arrive all the same."""
        if self.broken:
            return
        self.broken = True
        self.transport.forget(self)
        if self in self.node.connections:
            self.node.connections.remove(self)
        for appender in list(self.appenders):
            appender.connection_broke()
        calls, self.calls = self.calls, []
        for finish in calls:
            finish(BookieStatus.UNAVAILABLE)


class SimAppender:
    """See ``transport.base.Appender``."""

    def __init__(
        self,
        connection: Connection,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> None:
        self._connection = connection
        self._bookie_id = connection.node.bookie_id
        self._ledger_id = ledger_id
        self._access_key = access_key
        self._recovery = recovery
        self._on_result = on_result
        self._requests = Direction()
        self._answers = Direction()
        self._outstanding: deque[EntryId] = deque()
        self._unanswered: deque[list[AddResult]] = deque()
        self._ended = False
        self._refused = False
        self._noted = False
        """Whether it was told that the journal hangs."""

    def send(self, run: EntryRun) -> None:
        assert run.ledger_id == self._ledger_id, "an appender carries one ledger"
        if self._ended:
            return
        self._outstanding.append(run.last_entry)
        connection = self._connection
        world = connection.transport.network.world
        if connection.broken:
            world.loop.call_soon(self.connection_broke)
            return
        connection.send(self._requests, self._arrived, run)
        if connection.server is not None and connection.transport.network.repeats():
            world.fault("request repeated", f"add {run.ledger_id}/{run.last_entry}")
            delay_s = connection.transport.network.draw.uniform(0, _REPEATED_LATE_S)
            world.loop.later(delay_s, connection.server, self._arrived_again, run)

    def close(self) -> None:
        self._ended = True
        if self in self._connection.appenders:
            self._connection.appenders.remove(self)

    def connection_broke(self) -> None:
        """Report UNAVAILABLE for the first run without an answer."""
        if self._ended or not self._outstanding:
            return
        text = f"bookie {self._bookie_id} is unavailable"
        self._report(
            AddResult(self._bookie_id, BookieStatus.UNAVAILABLE, self._outstanding[0], text)
        )

    def _arrived(self, run: EntryRun) -> None:
        """The bookie's side of an append stream: nothing behind a refusal is stored."""
        if self._refused:
            return
        answer: list[AddResult] = []
        self._unanswered.append(answer)
        node = self._connection.node
        refusal = node.world.misbehaviour.refusal(node, run)
        if refusal is not None:
            self._answered(answer, refusal, run.last_entry, "it refuses")
            return
        node.add(
            run,
            access_key=self._access_key,
            recovery=self._recovery,
            done=lambda status, text: self._answered(answer, status, run.last_entry, text),
        )

    def _arrived_again(self, run: EntryRun) -> None:
        self._connection.node.add(
            run,
            access_key=self._access_key,
            recovery=self._recovery,
            done=lambda status, text: None,
        )

    def _answered(
        self, answer: list[AddResult], status: BookieStatus, last_entry: EntryId, text: str
    ) -> None:
        answer.append(AddResult(self._bookie_id, status, last_entry, text))
        self._noted = False
        self._refused = self._refused or status is not BookieStatus.OK
        while self._unanswered and self._unanswered[0]:
            (result,) = self._unanswered.popleft()
            self._connection.send_back(self._answers, self._deliver, result)

    def note_stall(self) -> None:
        """The bookie tells who waits that its journal hangs: once, until something is durable."""
        if self._unanswered and not self._noted and self._connection.server is not None:
            self._noted = True
            note = AddResult(self._bookie_id, BookieStatus.STALLED, EntryId(-1), "it hangs")
            self._connection.send_back(self._answers, self._deliver, note)

    def _deliver(self, result: AddResult) -> None:
        if not self._connection.broken:
            self._report(result)

    def _report(self, result: AddResult) -> None:
        if self._ended:
            return
        if result.status is BookieStatus.OK:
            while self._outstanding and self._outstanding[0] <= result.last_entry:
                self._outstanding.popleft()
        elif result.status is not BookieStatus.STALLED:  # a note, and no answer
            self.close()
        self._on_result(result)


class SimTransport:
    """See ``transport.base.Transport``."""

    def __init__(
        self, network: Network, process: Process, nodes: dict[BookieId, BookieNode]
    ) -> None:
        self.network = network
        self.process = process
        self._nodes = nodes
        self._connections: dict[BookieId, Connection] = {}
        self._closed = False

    def connection(self, bookie_id: BookieId) -> Connection:
        """The open connection to a bookie, or a new one."""
        if self._closed:
            raise LedgerClosedError("the transport is closed: open a new client")
        connection = self._connections.get(bookie_id)
        if connection is None:
            connection = Connection(self, self._nodes[bookie_id])
            if not connection.broken:
                self._connections[bookie_id] = connection
        return connection

    def forget(self, connection: Connection) -> None:
        """Forget a broken connection."""
        if self._connections.get(connection.node.bookie_id) is connection:
            del self._connections[connection.node.bookie_id]

    def open_appender(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> SimAppender:
        connection = self.connection(bookie_id)
        appender = SimAppender(
            connection,
            ledger_id,
            access_key=access_key,
            recovery=recovery,
            on_result=on_result,
        )
        connection.appenders.append(appender)
        return appender

    async def read(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int = 1,
        max_bytes: int = 0,
        fence: bool = False,
        access_key: bytes = b"",
        timeout_s: float,
    ) -> AsyncGenerator[ReadChunk, None]:
        def read(node: BookieNode, reply: Callable[[list[ReadChunk]], None]) -> None:
            limit = min(max_bytes or READ_REQUEST_BYTES_MAX, READ_REQUEST_BYTES_MAX)
            chunks = node.read(ledger_id, first_entry, last_entry, stride, limit)
            reply(node.world.misbehaviour.read(node, chunks, first_entry, fence=fence))

        def serve(node: BookieNode, reply: Callable[[list[ReadChunk]], None]) -> None:
            def fenced(status: BookieStatus, text: str) -> None:
                if status is BookieStatus.OK:
                    node.when_ledgers_move(lambda: read(node, reply))
                else:
                    reply([ReadChunk(status, None, first_entry, text)])

            if fence:
                node.fence(ledger_id, access_key=access_key, done=fenced)
            else:
                fenced(*(node.refuse_reader(ledger_id, access_key) or (BookieStatus.OK, "")))

        busy = [ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, first_entry, "it is busy")]
        chunks = await self._call("read", bookie_id, serve, timeout_s, busy)
        if isinstance(chunks, BookieStatus):
            yield ReadChunk(chunks, None, first_entry, f"bookie {bookie_id}: {chunks.name}")
            return
        for chunk in chunks:
            with taken_soon(bookie_id):
                yield self._spoiled(chunk)

    async def read_last_confirmed(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        fence: bool = False,
        access_key: bytes = b"",
        wait_above: EntryId = NO_ENTRY,
        wait_s: float = 0.0,
        timeout_s: float,
    ) -> LastConfirmed:
        def serve(node: BookieNode, reply: Callable[[LastConfirmed], None]) -> None:
            def fenced(status: BookieStatus, text: str) -> None:
                if status is not BookieStatus.OK:
                    reply(LastConfirmed(status, message=text))
                elif wait_s > 0:
                    poll = _LongPoll(node, ledger_id, access_key, wait_above, reply)
                    poll.start(min(wait_s, LONG_POLL_S_MAX))
                else:
                    answer = node.last_confirmed(ledger_id, access_key)
                    reply(node.world.misbehaviour.told(node, ledger_id, answer))

            if fence:
                node.fence(ledger_id, access_key=access_key, done=fenced)
            else:
                fenced(BookieStatus.OK, "")

        busy = LastConfirmed(BookieStatus.TOO_MANY_REQUESTS)
        told = await self._call("read_last_confirmed", bookie_id, serve, wait_s + timeout_s, busy)
        return LastConfirmed(told) if isinstance(told, BookieStatus) else told

    async def write_last_confirmed(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        last_add_confirmed: EntryId,
        *,
        access_key: bytes = b"",
        timeout_s: float,
    ) -> BookieStatus:
        def serve(node: BookieNode, reply: Callable[[tuple[BookieStatus]], None]) -> None:
            node.write_last_confirmed(
                ledger_id,
                last_add_confirmed,
                access_key=access_key,
                done=lambda status, _text: reply((status,)),
            )

        busy = (BookieStatus.TOO_MANY_REQUESTS,)
        told = await self._call("write_last_confirmed", bookie_id, serve, timeout_s, busy)
        return told if isinstance(told, BookieStatus) else told[0]

    async def list_entries(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first: EntryId = FIRST_ENTRY,
        *,
        timeout_s: float,
    ) -> ListedEntries:
        def serve(node: BookieNode, reply: Callable[[ListedEntries], None]) -> None:
            try:
                page = node.entry_page(ledger_id, first)
            except (OSError, CorruptionError):
                reply(ListedEntries(BookieStatus.IO_ERROR, []))  # as the service does
                return
            if page is None:
                reply(ListedEntries(BookieStatus.NO_SUCH_LEDGER, []))
            else:
                reply(ListedEntries(BookieStatus.OK, *page))

        told = await self._call("list_entries", bookie_id, serve, timeout_s)
        return ListedEntries(told, []) if isinstance(told, BookieStatus) else told

    async def list_ledgers(
        self, bookie_id: BookieId, first: LedgerId, *, timeout_s: float
    ) -> tuple[BookieStatus, list[LedgerId]]:
        def serve(node: BookieNode, reply: Callable[[list[LedgerId]], None]) -> None:
            held = node.held_ledgers(first - 1, BOOKIE_LEDGERS_PER_ANSWER)
            reply([each.ledger_id for each in held])

        told = await self._call("list_ledgers", bookie_id, serve, timeout_s)
        return (told, []) if isinstance(told, BookieStatus) else (BookieStatus.OK, told)

    async def describe(self, bookie_id: BookieId, *, timeout_s: float) -> BookieDescription:
        def serve(node: BookieNode, reply: Callable[[BookieDescription], None]) -> None:
            next_id = node.bookie.next_ledger_id() if node.bookie is not None else 0
            reply(BookieDescription(bookie_id, "sim", "sim", "writable", 0, 0, 0, 0, 0.0, next_id))

        told = await self._call("describe", bookie_id, serve, timeout_s)
        if isinstance(told, BookieStatus):
            raise BookieUnavailableError(f"bookie {bookie_id}: {told.name.lower()}")
        assert isinstance(told, BookieDescription)
        return told

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._connections.values()):
            connection.break_off()

    async def _call(
        self,
        kind: str,
        bookie_id: BookieId,
        serve: Callable[[BookieNode, Callable[[Any], None]], None],
        timeout_s: float,
        busy: Any = None,
    ) -> Any:
        """Send a request, let the bookie answer it, and deliver the answer or a status. ``busy`` is
        the answer of a bookie that decides nothing now."""
        connection = self.connection(bookie_id)
        loop = self.network.world.loop
        future = loop.create_future()
        requests, answers = Direction(), Direction()

        def finish(value: Any) -> None:
            if not future.done():
                future.set_result(value)

        def reply(value: Any) -> None:
            connection.send_back(answers, finish, value)

        def arrive() -> None:
            connection.node.say(f"{self.process} asks {bookie_id}: {kind}")
            if busy is not None and connection.node.world.misbehaviour.is_busy(kind):
                reply(busy)
                return
            serve(connection.node, reply)

        if connection.broken:
            return BookieStatus.UNAVAILABLE
        connection.calls.append(finish)
        connection.send(requests, arrive)
        if connection.server is not None and self.network.repeats():
            self.network.world.fault("request repeated", f"{kind} of {self.process}")
            delay_s = self.network.draw.uniform(0, _REPEATED_LATE_S)
            loop.later(delay_s, connection.server, arrive)
        timer: Handle = loop.call_later(timeout_s, finish, BookieStatus.TIMEOUT)
        try:
            return await future
        finally:
            timer.cancel()
            if finish in connection.calls:
                connection.calls.remove(finish)

    def _spoiled(self, chunk: ReadChunk) -> ReadChunk:
        """Change one byte of an answer, with the probability of the options."""
        world, draw = self.network.world, self.network.draw
        rate = world.options.corruption
        if chunk.run is None or not rate or world.healing or draw.random() >= rate:
            return chunk
        world.fault("answer corrupted", f"entry {chunk.entry_id} for {self.process}")
        run = chunk.run
        frames = bytearray(run.frames)
        frames[draw.randrange(len(frames))] ^= 1 << draw.randrange(8)
        spoiled = EntryRun(run.ledger_id, run.first_entry, run.entry_ids, run.sizes, bytes(frames))
        return chunk._replace(run=spoiled)


class _LongPoll:
    """Holds one tail request until the LAC moves, the ledger is fenced, or its time is up."""

    def __init__(
        self,
        node: BookieNode,
        ledger_id: LedgerId,
        access_key: bytes,
        wait_above: EntryId,
        reply: Callable[[LastConfirmed], None],
    ) -> None:
        self._node = node
        self._ledger_id = ledger_id
        self._access_key = access_key
        self._wait_above = wait_above
        self._reply = reply
        self._answered = False
        self._cancel_watch = node.watch(ledger_id, wait_above, self._changed)
        self._timer: Handle | None = None

    def start(self, wait_s: float) -> None:
        """Begin to wait."""
        self._timer = self._node.world.loop.later(wait_s, self._node.process, self._answer)
        if self._node.world.misbehaviour.invents_news(self._node):
            self._answer()
        else:
            self._changed()

    def _changed(self) -> None:
        end = self._node.last_confirmed(self._ledger_id, self._access_key)
        waiting = end.status is BookieStatus.NO_SUCH_LEDGER
        if end.status is BookieStatus.OK:
            waiting = not end.fenced and end.last_add_confirmed <= self._wait_above
        if not waiting:
            self._answer()

    def _answer(self) -> None:
        if self._answered:
            return
        self._answered = True
        self._cancel_watch()
        if self._timer is not None:
            self._timer.cancel()
        answer = self._node.last_confirmed(self._ledger_id, self._access_key)
        self._reply(self._node.world.misbehaviour.told(self._node, self._ledger_id, answer))
