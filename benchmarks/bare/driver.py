"""Driver program: the same append loop over bare gRPC streams, confirmed by two of three servers.

Run as ``python -m benchmarks.bare.driver PORT,PORT,PORT <case arguments>``.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from typing import TypeAlias

import msgspec

import spark_ledger.wire.grpc_environment  # isort: skip  # noqa: F401  # before grpc is loaded

import grpc.aio

from benchmarks.bare.server import METHOD
from benchmarks.cases import Case
from benchmarks.ledger_driver import append_in_flight
from benchmarks.rows import Round
from spark_ledger.limits.client import WRITER_BYTES_IN_FLIGHT_MAX
from spark_ledger.limits.entries import APPEND_MESSAGE_BYTES_TARGET
from spark_ledger.local.ports import HOST
from spark_ledger.transport.channel import GrpcOptions, channel_options
from spark_ledger.wire.allocator import keep_freed_memory

Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


class BareWriter:
    """Sends every payload to all servers; each message is everything that waits for its server."""

    def __init__(self, ports: list[int], ack_quorum: int) -> None:
        self._ack_quorum = ack_quorum
        options = channel_options(GrpcOptions())
        self._channels = [grpc.aio.insecure_channel(f"{HOST}:{p}", options=options) for p in ports]
        self._queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in ports]
        self._synced = [0] * len(ports)
        self._sent = 0
        self._confirmed = 0
        self._pending: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._progress = asyncio.Event()
        self._tasks = [asyncio.create_task(self._send(i)) for i in range(len(ports))]

    @property
    def has_room(self) -> bool:
        return self._sent - self._confirmed < WRITER_BYTES_IN_FLIGHT_MAX

    async def wait_for_room(self) -> None:
        while not self.has_room:
            self._progress.clear()
            await self._progress.wait()

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        """A future with how many bytes are confirmed, once the payload is."""
        self._sent += len(payload)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending.append((self._sent, future))
        for queue in self._queues:
            queue.put_nowait(payload)
        return future

    async def _send(self, index: int) -> None:
        call: Call = self._channels[index].stream_stream(METHOD)()
        self._tasks.append(asyncio.create_task(self._receive(index, call)))
        queue = self._queues[index]
        while True:
            batch = [await queue.get()]
            size_bytes = len(batch[0])
            while not queue.empty() and size_bytes < APPEND_MESSAGE_BYTES_TARGET:
                batch.append(queue.get_nowait())
                size_bytes += len(batch[-1])
            await call.write(b"".join(batch) if len(batch) > 1 else batch[0])

    async def _receive(self, index: int, call: Call) -> None:
        async for answer in call:
            self._synced[index] = int.from_bytes(answer, "little")
            self._confirmed = sorted(self._synced, reverse=True)[self._ack_quorum - 1]
            while self._pending and self._pending[0][0] <= self._confirmed:
                self._pending.popleft()[1].set_result(self._confirmed)
            self._progress.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()


async def run(ports: list[int], case: Case) -> None:
    """Warm up, then run the rounds."""
    keep_freed_memory(2 * WRITER_BYTES_IN_FLIGHT_MAX)
    await _round(ports, case, case.warmup_s)
    for _ in range(case.rounds):
        result = await _round(ports, case, case.round_s)
        print(msgspec.json.encode(result).decode(), flush=True)


async def _round(ports: list[int], case: Case, seconds: float) -> Round:
    payload = random.Random(1).randbytes(case.entry_bytes)
    writer = BareWriter(ports, case.ensemble[2])
    load = await append_in_flight(writer, case, payload, seconds)
    await writer.close()
    p50_ms, p99_ms = load.percentile_ms(0.5), load.percentile_ms(0.99)
    return Round("append", load.entries, load.seconds, p50_ms=p50_ms, p99_ms=p99_ms)


if __name__ == "__main__":
    asyncio.run(
        run([int(port) for port in sys.argv[1].split(",")], Case.from_arguments(sys.argv[2:]))
    )
