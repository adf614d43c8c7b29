"""Kinds of hostile clients that play with frames, bytes and connections below gRPC."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Final

from spark_ledger.wire import bookie_pb2 as pb
from tests.hostile.attacks import Target, again_and_again, attack
from tests.hostile.http2 import (
    CONTINUATION,
    HEADERS,
    SETTINGS,
    WINDOW_UPDATE,
    encode_headers,
    message,
)
from tests.hostile.victim import MANY_LEDGER

_END_STREAM: Final = 1


@attack
async def settings(target: Target) -> None:
    """Each has to be acknowledged."""
    changes = struct.pack(">HIHI", 4, 65_535, 3, 100)

    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed:
            await connection.frame(SETTINGS, 0, 0, changes, times=100)
            await asyncio.sleep(0.001)

    await again_and_again(turn, side_by_side=4)


@attack
async def window_updates(target: Target) -> None:
    """A window that grows by a byte a hundred thousand times, on a call that has no answer yet."""

    async def turn() -> None:
        connection = await target.connect()
        stream = await connection.call("Append", target.bookie_id)
        one = struct.pack(">I", 1)
        for _number in range(1_000):
            await connection.frame(WINDOW_UPDATE, 0, stream, one, times=50)
            await connection.frame(WINDOW_UPDATE, 0, 0, one, times=50)
            await asyncio.sleep(0.001)
        await connection.close()

    await again_and_again(turn, side_by_side=4)


@attack
async def answers_that_are_read_byte_by_byte(target: Target) -> None:
    """The window is open by one byte at a time."""
    wanted = pb.ReadRequest(ledger_id=MANY_LEDGER, last_entry=1_000_000).SerializeToString()
    one = struct.pack(">I", 1)

    async def turn() -> None:
        connection = await target.connect(window=0)
        streams = [await connection.ask("Read", target.bookie_id, wanted) for _ in range(4)]
        while not connection.closed:
            for stream in streams:
                await connection.frame(WINDOW_UPDATE, 0, stream, one)
            await asyncio.sleep(0.05)

    await again_and_again(turn, side_by_side=50)


@attack
async def headers_without_end(target: Target) -> None:
    """CONTINUATION after CONTINUATION: headers that are never complete."""
    more = encode_headers([("x-more", "z" * 1_000)])

    async def turn() -> None:
        connection = await target.connect()
        await connection.frame(HEADERS, 0, 1, encode_headers([(":method", "POST")]))
        while not connection.closed:
            await connection.frame(CONTINUATION, 0, 1, more, times=10)
            await asyncio.sleep(0.001)

    await again_and_again(turn, side_by_side=4)


@attack
async def slow_headers(target: Target) -> None:
    """A header in each second, on a thousand connections."""

    async def turn() -> None:
        connection = await target.connect()
        await connection.frame(HEADERS, 0, 1, encode_headers([(":method", "POST")]))
        while not connection.closed:
            await connection.frame(CONTINUATION, 0, 1, encode_headers([("x-more", "z")]))
            await asyncio.sleep(1.0)

    await again_and_again(turn, side_by_side=1_000)


@attack
async def many_streams_of_one_connection(target: Target) -> None:
    """Twenty thousand calls that are begun and wait for their requests."""

    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed and connection.calls < 20_000:
            await connection.call("Append" if connection.calls % 2 else "Read", target.bookie_id)
            await asyncio.sleep(0)
        while not connection.closed:
            await asyncio.sleep(0.1)

    await again_and_again(turn, side_by_side=2)


@attack
async def half_closed_calls(target: Target) -> None:
    """Calls that end without a request, and appends that end before they began."""

    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed:
            stream = await connection.call("Append", target.bookie_id)
            await connection.frame(0, _END_STREAM, stream, b"")
            stream = await connection.call("Describe", target.bookie_id)
            await connection.frame(0, _END_STREAM, stream, b"")
            await asyncio.sleep(0.001)

    await again_and_again(turn, side_by_side=8)


@attack
async def requests_byte_by_byte(target: Target) -> None:
    """Slow loris: a request that comes as slowly as it may."""
    body = message(pb.ReadRequest(ledger_id=MANY_LEDGER, access_key=bytes(40)).SerializeToString())

    async def turn() -> None:
        connection = await target.connect()
        stream = await connection.call("Read", target.bookie_id)
        for byte in body:
            if not await connection.send(stream, bytes((byte,))):
                break
            await asyncio.sleep(0.2)
        await connection.close()

    await again_and_again(turn, side_by_side=500)


@attack
async def unknown_methods(target: Target) -> None:
    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed:
            stream = await connection.ask("Destroy", "another", b"x")
            await connection.until_ended(stream)

    await again_and_again(turn, side_by_side=32)


@attack
async def connections_reset_by_their_client(target: Target) -> None:
    """RST instead of FIN, in the middle of a greeting."""
    host, _, port = target.address.rpartition(":")

    async def turn() -> None:
        _reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(30))
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0)
        writer.transport.abort()

    await again_and_again(turn, side_by_side=8)


async def _strange_bytes(target: Target, data: bytes, side_by_side: int) -> None:
    host, _, port = target.address.rpartition(":")

    async def turn() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            async with asyncio.timeout(0.5):
                await reader.read(1_000)
        finally:
            writer.transport.abort()

    await again_and_again(turn, side_by_side=side_by_side)


@attack
async def tls_greetings(target: Target) -> None:
    """A client that expects TLS."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(32) + bytes(465)
    await _strange_bytes(target, hello, 8)


@attack
async def http_1_requests(target: Target) -> None:
    await _strange_bytes(target, b"GET /metrics HTTP/1.1\r\nHost: bookie\r\n\r\n", 8)


@attack
async def random_bytes(target: Target) -> None:
    """After a greeting that is right."""
    await _strange_bytes(target, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(20_000), 8)


@attack
async def idle_connections_at_the_cap(target: Target) -> None:
    """More than there is room for; those that are closed come again."""

    async def turn() -> None:
        connection = await target.connect()
        while not connection.closed:
            await asyncio.sleep(1.0)

    await again_and_again(turn, side_by_side=3_000)


@attack
async def scrapes(target: Target) -> None:
    """Whole requests to the admin port, as fast as they are answered."""
    host, _, port = target.admin_address.rpartition(":")

    async def turn() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            while True:
                for path in ("metrics", "status"):
                    writer.write(f"GET /{path} HTTP/1.1\r\nHost: bookie\r\n\r\n".encode())
                async with asyncio.timeout(5.0):
                    if not await reader.read(65_536):
                        return
        finally:
            writer.transport.abort()

    await again_and_again(turn, side_by_side=16)
