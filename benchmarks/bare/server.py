"""A server that writes each message to a file, syncs it, and answers how many bytes it has.

Run as ``python -m benchmarks.bare.server DIRECTORY``; prints its port.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import spark_ledger.wire.grpc_environment  # isort: skip  # noqa: F401  # before grpc is loaded

import grpc
import grpc.aio

from benchmarks.cases import MIB
from bookie_server.service.grpc_server import server_options
from spark_ledger.limits.client import WRITER_BYTES_IN_FLIGHT_MAX
from spark_ledger.local.ports import HOST
from spark_ledger.wire.allocator import keep_freed_memory

METHOD = "/bare/Append"
FILE_BYTES = 64 * MIB
"""Written once before the load, so that a sync has no extents to write. Then it is a ring."""


OnSynced = Callable[[], None]


def _answer(batch: list[tuple[bytes, OnSynced]]) -> None:
    for _, on_synced in batch:
        on_synced()


class SyncedFile:
    """Writes in a thread. All that waits is written and synced at once, as a journal does."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        for start in range(0, FILE_BYTES, MIB):
            os.pwrite(self._file, bytes(MIB), start)
        os.fsync(self._file)
        self._position = 0
        self._waiting: SimpleQueue[tuple[bytes, OnSynced]] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        Thread(target=self._write_all, name="file", daemon=True).start()

    def write(self, message: bytes, on_synced: OnSynced) -> None:
        """Call ``on_synced`` on the loop when the message is on the disk."""
        self._waiting.put((message, on_synced))

    def _write_all(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            for message, _ in batch:
                if self._position + len(message) > FILE_BYTES:
                    self._position = 0
                self._position += os.pwrite(self._file, message, self._position)
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(_answer, batch)


def handlers(file: SyncedFile) -> grpc.GenericRpcHandler:
    async def append(messages: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        synced, has_more = 0, asyncio.Event()

        def count(size_bytes: int) -> None:
            nonlocal synced
            synced += size_bytes
            has_more.set()

        async def receive() -> None:
            async for message in messages:
                file.write(message, partial(count, len(message)))

        receiver = asyncio.create_task(receive())
        try:
            while True:
                await has_more.wait()
                has_more.clear()
                yield synced.to_bytes(8, "little")
        finally:
            receiver.cancel()

    service, _, method = METHOD.lstrip("/").partition("/")
    return grpc.method_handlers_generic_handler(
        service, {method: grpc.stream_stream_rpc_method_handler(append)}
    )


async def serve(directory: Path) -> None:
    """Until the process is ended."""
    keep_freed_memory(2 * WRITER_BYTES_IN_FLIGHT_MAX)
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((handlers(SyncedFile(directory / f"file-{os.getpid()}")),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
