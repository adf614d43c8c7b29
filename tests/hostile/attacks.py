"""The kinds of hostile clients. Each attacks until it is cancelled, and is one coroutine function.

They speak HTTP/2 by themselves, so they may leave halves of everything, and obey only what a bookie
would close the connection for. None of them knows a secret: a bookie's id and address are public.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Final

from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import AddCommand, encode_append_request
from tests.hostile.http2 import RawConnection, message
from tests.hostile.victim import BIG_LEDGER, FLOODED_LEDGERS, MANY_LEDGER, plain_run

MIB: Final = 1024 * 1024

HEALTH: Final = "/grpc.health.v1.Health"
"""The standard service, which has no deadline and no bookie's id in its calls."""


@dataclass
class Target:
    """Whom to attack, and the connections that are to be dropped in the end."""

    address: str
    admin_address: str
    bookie_id: str
    connections: list[RawConnection] = field(default_factory=list)
    ledgers: count[int] = field(default_factory=lambda: count(10_000))

    async def connect(self, *, window: int = 65_535) -> RawConnection:
        """One more connection. Those that the bookie has ended leave their descriptors to it."""
        ended = [each for each in self.connections if each.closed]
        self.connections = [each for each in self.connections if not each.closed]
        for each in ended:
            await each.close()
        connection = await RawConnection.open(self.address, window=window)
        self.connections.append(connection)
        return connection

    async def close(self) -> None:
        """Drop all connections."""
        for connection in self.connections:
            await connection.close()
        self.connections.clear()


Attack = Callable[[Target], Awaitable[None]]
ATTACKS: Final[dict[str, Attack]] = {}


def attack(function: Attack) -> Attack:
    """Register a kind under the name of its function."""
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


async def again_and_again(turn: Callable[[], Awaitable[None]], *, side_by_side: int = 1) -> None:
    """Take turns for ever; a refusal or a closed connection is no reason to stop."""

    async def repeat() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await turn()
            await asyncio.sleep(0.001)

    await asyncio.gather(*(repeat() for _number in range(side_by_side)))


async def forever() -> None:
    """Hold what was taken."""
    await asyncio.Event().wait()


# -- connections -----------------------------------------------------------------------------------


@attack
async def idle_connections(target: Target) -> None:
    """1,000 connections that do nothing."""
    for _number in range(1_000):
        await target.connect()
    await forever()


@attack
async def connections_that_come_and_go(target: Target) -> None:
    async def turn() -> None:
        connection = await RawConnection.open(target.address)
        await connection.call("Append", target.bookie_id)
        await connection.close()

    await again_and_again(turn, side_by_side=4)


@attack
async def half_greetings(target: Target) -> None:
    """The first bytes of HTTP/2, one a second."""
    host, _, port = target.address.rpartition(":")
    writers = []
    for _number in range(200):
        _reader, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
    try:
        for byte in b"PRI * HTTP/2.0\r\n" * 100:
            for writer in writers:
                writer.write(bytes((byte,)))
            await asyncio.sleep(1.0)
    finally:
        for writer in writers:
            writer.transport.abort()


@attack
async def pings(target: Target) -> None:
    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed:
            await connection.ping(200)
            await asyncio.sleep(0.001)

    await again_and_again(turn, side_by_side=4)


@attack
async def calls_reset_at_once(target: Target) -> None:
    """Rapid reset: each costs the client two small frames."""

    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed:
            stream = await connection.call("ReadLastConfirmed", target.bookie_id)
            await connection.reset(stream)

    await again_and_again(turn, side_by_side=4)


@attack
async def large_headers(target: Target) -> None:
    """Metadata of a hundred kilobytes."""

    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed:
            await connection.call("Describe", "x" * 14_000, extra=(("x-padding", "y" * 2_000),))

    await again_and_again(turn, side_by_side=4)


# -- messages --------------------------------------------------------------------------------------


async def _halves(target: Target, method: str, number: int) -> None:
    half = message(bytes(15 * MIB), claimed=16 * MIB + 500_000)

    async def turn() -> None:
        connection = await target.connect()
        stream = await connection.call(method, target.bookie_id)
        if await connection.send(stream, half):
            while not (connection.closed or stream in connection.ended):
                await asyncio.sleep(0.1)
        await connection.close()

    await again_and_again(turn, side_by_side=number)


@attack
async def halves_of_appends(target: Target) -> None:
    """40 messages of 16 MiB that are never finished."""
    await _halves(target, "Append", 40)


@attack
async def halves_of_requests(target: Target) -> None:
    await _halves(target, "Describe", 40)


@attack
async def halves_of_health_checks(target: Target) -> None:
    """Of a service that is not the bookie's own, and that every prober may ask."""
    await _halves(target, f"{HEALTH}/Check", 40)


async def _appends(target: Target, body: bytes, *, compressed: bool = False) -> None:
    """The same message again and again, on a stream that is opened again when it is ended."""

    async def turn() -> None:
        connection = await target.connect()
        stream = await connection.call("Append", target.bookie_id)
        data = message(body, compressed=compressed)
        while await connection.send(stream, data):
            await asyncio.sleep(0)
        await connection.close()

    await again_and_again(turn, side_by_side=4)


@attack
async def empty_adds(target: Target) -> None:
    """Two million adds without entries in 4 MB."""
    await _appends(target, b"\x0a\x00" * 2_000_000)


@attack
async def unknown_fields(target: Target) -> None:
    await _appends(target, b"\x78\x00" * 2_000_000)


@attack
async def numbers_without_frames(target: Target) -> None:
    """One run that claims millions of frames, as lists of sizes and of ids."""
    run = pb.EntryRun(sizes=[1] * 4_000_000, entry_ids=range(2_000_000), frames=bytes(40))
    await _appends(target, pb.AppendRequest(adds=[pb.AddRun(run=run)]).SerializeToString())


@attack
async def bombs_of_zeros(target: Target) -> None:
    """16 MB that inflate to gigabytes."""
    await _appends(target, zlib.compress(bytes(256 * MIB), 9), compressed=True)


@attack
async def garbage(target: Target) -> None:
    await _appends(target, os.urandom(1 * MIB))


@attack
async def long_requests(target: Target) -> None:
    """Requests of 16 MB that should have a few bytes."""
    body = b"\x7a\xff\xff\x7f" + bytes((1 << 21) - 1)

    async def turn() -> None:
        connection = await target.connect(window=MIB)
        while not connection.closed:
            stream = await connection.ask("Read", target.bookie_id, body * 7)
            await connection.until_ended(stream)

    await again_and_again(turn, side_by_side=4)


# -- calls -----------------------------------------------------------------------------------------


async def _unread(target: Target, request: pb.ReadRequest, connections: int, calls: int) -> None:
    body = request.SerializeToString()

    async def turn() -> None:
        connection = await target.connect(window=1024)
        streams = [await connection.ask("Read", target.bookie_id, body) for _ in range(calls)]
        while not connection.closed:
            ended = [stream for stream in streams if stream in connection.ended]
            for stream in ended:
                streams.remove(stream)
                streams.append(await connection.ask("Read", target.bookie_id, body))
            await asyncio.sleep(0.1)

    await again_and_again(turn, side_by_side=connections)


@attack
async def large_answers_that_nobody_reads(target: Target) -> None:
    """400 reads of an entry of 16 MiB."""
    await _unread(target, pb.ReadRequest(ledger_id=BIG_LEDGER), 100, 4)


@attack
async def small_answers_that_nobody_reads(target: Target) -> None:
    """2,000 reads of a megabyte through windows of 1 KiB."""
    wanted = pb.ReadRequest(ledger_id=MANY_LEDGER, last_entry=1_000_000)
    await _unread(target, wanted, 100, 20)


@attack
async def descriptions_that_nobody_reads(target: Target) -> None:
    async def turn() -> None:
        connection = await target.connect(window=0)
        while not connection.closed and connection.calls < 5_000:
            await connection.ask("Describe", target.bookie_id, b"")
            await asyncio.sleep(0)
        await asyncio.sleep(1.0)

    await again_and_again(turn, side_by_side=8)


@attack
async def watches_that_nobody_reads(target: Target) -> None:
    """Calls that have no end, as many as there are, by clients that let no byte of an answer
    through."""

    async def turn() -> None:
        connection = await target.connect(window=0)
        while not connection.closed and connection.calls < 5_000:
            await connection.ask(f"{HEALTH}/Watch", target.bookie_id, b"")
            await asyncio.sleep(0)
        while not connection.closed:
            await asyncio.sleep(0.1)

    await again_and_again(turn, side_by_side=8)


async def flood(
    target: Target,
    method: str,
    request: Callable[[], bytes],
    *,
    connections: int,
    at_once: int,
    window: int = MIB,
) -> None:
    """Calls on ``connections``, each with so many at once, as fast as they are answered."""

    async def turn() -> None:
        connection = await target.connect(window=window)

        async def ask() -> None:
            while not connection.closed:
                stream = await connection.ask(method, target.bookie_id, request())
                await connection.until_ended(stream)

        await asyncio.gather(*(ask() for _number in range(at_once)))

    await again_and_again(turn, side_by_side=connections)


@attack
async def tail_requests(target: Target) -> None:
    """5,000 polls that wait as long as they may."""
    body = pb.ReadLastConfirmedRequest(
        ledger_id=MANY_LEDGER, wait_above=2**62, wait_ms=2**32 - 1
    ).SerializeToString()
    await flood(target, "ReadLastConfirmed", lambda: body, connections=50, at_once=100)


@attack
async def descriptions(target: Target) -> None:
    await flood(target, "Describe", bytes, connections=8, at_once=32)


@attack
async def reads(target: Target) -> None:
    """Reads of everything, by clients that take it."""
    body = pb.ReadRequest(ledger_id=MANY_LEDGER, last_entry=2**62).SerializeToString()
    await flood(target, "Read", lambda: body, connections=8, at_once=8, window=8 * MIB)


@attack
async def strange_ranges(target: Target) -> None:
    """Ranges of 2^62, strides, ids at the end of the numbers."""
    wanted = [
        pb.ReadRequest(ledger_id=MANY_LEDGER, last_entry=2**63 - 1, stride=2**62),
        pb.ReadRequest(ledger_id=MANY_LEDGER, first_entry=2**62, last_entry=2**63 - 1),
        pb.ReadRequest(ledger_id=2**63 - 1, last_entry=2**63 - 1, stride=7),
        pb.ReadRequest(ledger_id=MANY_LEDGER, last_entry=2**62, stride=3, max_bytes=1),
        pb.ReadRequest(ledger_id=-5, first_entry=-(2**63)),
    ]
    bodies = [request.SerializeToString() for request in wanted]
    turns = count()
    await flood(
        target, "Read", lambda: bodies[next(turns) % len(bodies)], connections=4, at_once=16
    )


@attack
async def fences(target: Target) -> None:
    """Fences of ledgers that nobody knows."""

    def request() -> bytes:
        ledger_id = next(target.ledgers)
        return pb.ReadLastConfirmedRequest(ledger_id=ledger_id, fence=True).SerializeToString()

    await flood(target, "ReadLastConfirmed", request, connections=8, at_once=32)


@attack
async def lists(target: Target) -> None:
    body = pb.ListEntriesRequest(ledger_id=MANY_LEDGER).SerializeToString()
    await flood(target, "ListEntries", lambda: body, connections=8, at_once=16)


@attack
async def cancelled_reads(target: Target) -> None:
    body = pb.ReadRequest(ledger_id=MANY_LEDGER, last_entry=2**62).SerializeToString()

    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed:
            stream = await connection.ask("Read", target.bookie_id, body)
            await asyncio.sleep(0.001)
            await connection.reset(stream)

    await again_and_again(turn, side_by_side=16)


async def _append_flood(target: Target, entries: int, frame: int, ledgers: int) -> None:
    known = cycle(FLOODED_LEDGERS)

    async def turn() -> None:
        connection = await target.connect(window=MIB)
        stream = await connection.call("Append", target.bookie_id)
        mine = [next(known) for _number in range(ledgers)]
        for first in count(0, entries):
            runs = [plain_run(ledger, first, entries, frame) for ledger in mine]
            adds = [AddCommand(1 + n, b"", False, run) for n, run in enumerate(runs)]
            if not await connection.send(stream, message(encode_append_request(adds))):
                return

    await again_and_again(turn, side_by_side=8)


@attack
async def appends(target: Target) -> None:
    """Messages of a megabyte, as fast as they are taken."""
    await _append_flood(target, 16, 65_536, 1)


@attack
async def small_appends_to_many_ledgers(target: Target) -> None:
    await _append_flood(target, 1, 64, len(FLOODED_LEDGERS))


@attack
async def adds_to_ledgers_that_do_not_exist(target: Target) -> None:
    """Each has to be looked up in the metadata."""

    async def turn() -> None:
        connection = await target.connect(window=MIB)
        stream = await connection.call("Append", target.bookie_id)
        for _number in range(14):
            runs = [plain_run(next(target.ledgers), 0, 1, 64) for _add in range(4_096)]
            adds = [AddCommand(1 + n, b"", False, run) for n, run in enumerate(runs)]
            if not await connection.send(stream, message(encode_append_request(adds))):
                break
        await connection.close()

    await again_and_again(turn, side_by_side=4)


# -- the admin port --------------------------------------------------------------------------------


@attack
async def admin_port(target: Target) -> None:
    """Halves of HTTP requests, and what is no HTTP at all."""
    host, _, port = target.admin_address.rpartition(":")
    writers = []
    try:
        for number in count():
            with suppress(OSError):
                _reader, writer = await asyncio.open_connection(host, int(port))
                writers.append(writer)
                if number % 2:
                    writer.write(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
                else:
                    writer.write(b"\x16\x03\x01\x02\x00\x01 nonsense\r\n\r\n")
            if len(writers) > 1_000:
                writers.pop(0).transport.abort()
            await asyncio.sleep(0.002)
    finally:
        for writer in writers:
            writer.transport.abort()
