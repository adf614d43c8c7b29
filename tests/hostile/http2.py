"""A raw HTTP/2 connection for clients that do not behave: half messages, answers that are not read.

Only what a hostile gRPC client needs: headers are sent as literals, flow control of the peer is
obeyed (or a bookie would close the connection), and what arrives is counted and dropped.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
CONTINUATION: Final = 9
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5


class RawConnection:
    """One connection; ``window`` is how much of each answer may come without being read. With more
    than the usual 65,535 everything is read."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, reads: bool = False
    ) -> None:
        self._reads = reads
        self._reader, self._writer = reader, writer
        self._next_stream = 1
        self._window = 65_535
        self._stream_window = 65_535
        self._stream_windows: dict[int, int] = {}
        self._changed = asyncio.Condition()
        self._frame_bytes = 16_384
        self.bytes_received = 0
        self.calls = 0
        self.ended: set[int] = set()
        """Streams that the bookie has ended."""
        self.closed = False
        self._task = asyncio.get_running_loop().create_task(self._receive())

    @classmethod
    async def open(cls, address: str, *, window: int = 65_535) -> RawConnection:
        """Connect and say hello."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        connection = cls(reader, writer, reads=window > 65_535)
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, window)
        writer.write(_PREFACE + _frame(SETTINGS, 0, 0, settings))
        if window > 65_535:
            writer.write(_frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", window)))
        await writer.drain()
        return connection

    async def call(
        self,
        method: str,
        bookie_id: str,
        *,
        timeout_s: int = 600,
        extra: Sequence[tuple[str, str]] = (),
    ) -> int:
        """Begin a call of the bookie's service, or of another one by its path; the number of its
        stream."""
        path = method if method.startswith("/") else f"/spark_ledger.v1.Bookie/{method}"
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self.calls += 1
        headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "bookie"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{timeout_s}S"),
            ("bookie-id", bookie_id),
            *extra,
        )
        self._stream_windows[stream] = self._stream_window
        await self._write(_frame(HEADERS, _END_HEADERS, stream, encode_headers(headers)))
        return stream

    async def send(self, stream: int, data: bytes, *, end: bool = False) -> bool:
        """Send bytes of a call's body, as far as its windows allow; False if it has ended."""
        view = memoryview(data)
        while view:
            async with self._changed:
                await self._changed.wait_for(lambda: self._room(stream) > 0 or self.over(stream))
            if self.over(stream):
                return False
            size = min(len(view), self._room(stream), self._frame_bytes)
            self._window -= size
            self._stream_windows[stream] -= size
            flags = _END_STREAM if end and size == len(view) else 0
            await self._write(_frame(DATA, flags, stream, bytes(view[:size])))
            view = view[size:]
        return True

    async def ask(
        self, method: str, bookie_id: str, request: bytes, *, timeout_s: int = 600
    ) -> int:
        """A whole unary request."""
        stream = await self.call(method, bookie_id, timeout_s=timeout_s)
        await self.send(stream, message(request), end=True)
        return stream

    async def until_ended(self, stream: int) -> None:
        """Wait until the bookie has ended a call, and take what it sends meanwhile."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.over(stream))
        self.ended.discard(stream)
        self._stream_windows.pop(stream, None)

    async def frame(self, kind: int, flags: int, stream: int, body: bytes, times: int = 1) -> None:
        """Send anything, as often as wanted in one piece."""
        await self._write(_frame(kind, flags, stream, body) * times)

    async def ping(self, times: int) -> None:
        """Probe the connection."""
        await self._write(_frame(PING, 0, 0, b"hostile!") * times)

    async def reset(self, stream: int) -> None:
        """Cancel a call."""
        await self._write(_frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))

    async def close(self) -> None:
        """Drop the connection."""
        self._task.cancel()
        self._writer.transport.abort()
        await asyncio.gather(self._task, return_exceptions=True)

    def _room(self, stream: int) -> int:
        return min(self._window, self._stream_windows.get(stream, 0))

    def over(self, stream: int) -> bool:
        """The bookie has ended the call, or the connection."""
        return self.closed or stream in self.ended

    async def _write(self, data: bytes) -> None:
        if self.closed:
            return
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            self.closed = True

    async def _receive(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                body = await self._reader.readexactly(size)
                self.bytes_received += 9 + size
                await self._take(kind, flags, stream, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed = True
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & _ACK:
            for key, value in struct.iter_unpack(">HI", body):
                if key == _INITIAL_WINDOW_SIZE:
                    for known in self._stream_windows:
                        self._stream_windows[known] += value - self._stream_window
                    self._stream_window = value
                elif key == _MAX_FRAME_SIZE:
                    self._frame_bytes = min(value, 1 << 20)
            await self._write(_frame(SETTINGS, _ACK, 0, b""))
        elif kind == PING and not flags & _ACK:
            await self._write(_frame(PING, _ACK, 0, body))
        elif kind == WINDOW_UPDATE:
            (more,) = struct.unpack(">I", body)
            if stream == 0:
                self._window += more
            elif stream in self._stream_windows:
                self._stream_windows[stream] += more
        if kind == DATA and body and self._reads:
            more = struct.pack(">I", len(body))
            await self._write(_frame(WINDOW_UPDATE, 0, 0, more))
            if not flags & _END_STREAM:
                await self._write(_frame(WINDOW_UPDATE, 0, stream, more))
        if (kind in (DATA, HEADERS) and flags & _END_STREAM) or kind == RST_STREAM:
            self.ended.add(stream)
        async with self._changed:
            self._changed.notify_all()


def message(data: bytes, *, claimed: int | None = None, compressed: bool = False) -> bytes:
    """A gRPC message; ``claimed`` is the length that it says it has."""
    return struct.pack(">BI", compressed, len(data) if claimed is None else claimed) + data


def encode_headers(headers: Sequence[tuple[str, str]]) -> bytes:
    """HPACK: each header as a literal that is not indexed."""
    return b"".join(
        b"\x00" + _string(name.encode()) + _string(value.encode()) for name, value in headers
    )


def _string(data: bytes) -> bytes:
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, digits = len(data) - 127, bytearray(b"\x7f")
    while rest >= 128:
        digits.append(rest & 127 | 128)
        rest >>= 7
    digits.append(rest)
    return bytes(digits) + data


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body
