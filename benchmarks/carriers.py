"""Command: ``python -m benchmarks.carriers``: what it costs to carry messages, before any work.

One client sends messages to one server that drops them and answers each, a few in flight. gRPC as
this system uses it, over TCP and over a Unix socket, and Arrow Flight, whose server hands Python
the received bytes without copying them into an object. An append goes over three such connections.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import grpc.aio
import psutil
import pyarrow as pa
import pyarrow.flight as flight

from spark_ledger.limits import MIB
from spark_ledger.wire.options import transfer_options

MESSAGE_BYTES: Final = 4 * MIB
"""As messages of appends (``APPEND_MESSAGE_BYTES_TARGET``)."""

IN_FLIGHT: Final = 4
_METHOD: Final = "/carriers/Send"
_SCHEMA: Final = pa.schema([("bytes", pa.uint8())])


class Carried(NamedTuple):
    """Seconds of a processor for a gigabyte."""

    client_s: float
    server_s: float
    mb_per_second: float


# -- gRPC ------------------------------------------------------------------------------------------


async def _serve_grpc(address: str) -> None:
    async def send(messages: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for _message in messages:
            yield b"ok"

    server = grpc.aio.server(options=list(transfer_options()))
    handler: Any = grpc.stream_stream_rpc_method_handler(send)
    service, method = _METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


async def _send_grpc(address: str, messages: int) -> None:
    payload, free = bytes(MESSAGE_BYTES), asyncio.Semaphore(IN_FLIGHT)
    async with grpc.aio.insecure_channel(address, options=list(transfer_options())) as channel:
        call: Any = channel.stream_stream(_METHOD)()

        async def take_answers() -> None:
            for _message in range(messages):
                await call.read()
                free.release()

        answers = asyncio.create_task(take_answers())
        for _message in range(messages):
            await free.acquire()
            await call.write(payload)
        await answers


# -- Arrow Flight ----------------------------------------------------------------------------------


class _FlightServer(flight.FlightServerBase):
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for _chunk in reader:
            writer.write_metadata(b"ok")


def _serve_flight(address: str) -> None:
    server = _FlightServer(f"grpc://{address}")
    print("ready", flush=True)
    server.serve()


def _send_flight(address: str, messages: int) -> None:
    payload = pa.Array.from_buffers(
        pa.uint8(), MESSAGE_BYTES, [None, pa.py_buffer(bytes(MESSAGE_BYTES))]
    )
    batch, free = pa.record_batch([payload], schema=_SCHEMA), threading.Semaphore(IN_FLIGHT)
    with flight.connect(f"grpc://{address}") as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("carriers"))

        def take_answers() -> None:
            for _message in range(messages):
                reader.read_chunk()
                free.release()

        answers = threading.Thread(target=take_answers)
        with writer:
            writer.begin(_SCHEMA)
            answers.start()
            for _message in range(messages):
                free.acquire()
                writer.write_batch(batch)
            answers.join()


# -- both ------------------------------------------------------------------------------------------

_SERVE: Final[dict[str, Callable[[str], None]]] = {
    "grpc": lambda address: asyncio.run(_serve_grpc(address)),
    "flight": _serve_flight,
}
_SEND: Final[dict[str, Callable[[str, int], None]]] = {
    "grpc": lambda address, messages: asyncio.run(_send_grpc(address, messages)),
    "flight": _send_flight,
}


@contextmanager
def _server(kind: str, address: str) -> Iterator[psutil.Process]:
    argv = [sys.executable, "-m", "benchmarks.carriers", "--serve", kind, "--address", address]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def carry(kind: str, address: str, gigabytes: float) -> Carried:
    """One round."""
    messages = int(gigabytes * 1e9 / MESSAGE_BYTES)
    with _server(kind, address) as server:
        _SEND[kind](address, IN_FLIGHT)  # both sides have loaded what they need
        there, here, began = server.cpu_times(), time.process_time(), time.perf_counter()
        _SEND[kind](address, messages)
        elapsed, here = time.perf_counter() - began, time.process_time() - here
        after, sent = server.cpu_times(), messages * MESSAGE_BYTES / 1e9
        there_s = after.user + after.system - there.user - there.system
    return Carried(here / sent, there_s / sent, 1e3 * sent / elapsed)


def main() -> None:
    """Print the figures, or serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.carriers", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3.0, help="for each carrier")
    parser.add_argument("--rounds", type=int, default=2, help="in turns")
    parser.add_argument("--serve", choices=_SERVE, help=argparse.SUPPRESS)
    parser.add_argument("--address", default="127.0.0.1:47191", help="of the server")
    options = parser.parse_args()
    if options.serve:
        _SERVE[options.serve](options.address)
        return
    with tempfile.TemporaryDirectory() as directory:
        carriers = (
            ("gRPC over TCP", "grpc", options.address),
            ("gRPC over a Unix socket", "grpc", f"unix:{directory}/socket"),
            ("Arrow Flight over TCP", "flight", options.address),
        )
        for _round in range(options.rounds):
            for name, kind, address in carriers:
                found = carry(kind, address, options.gigabytes)
                both_s = found.client_s + found.server_s
                print(
                    f"{name:<24} client {found.client_s:.2f} s/GB, server {found.server_s:.2f}, "
                    f"together {both_s:.2f}; {found.mb_per_second:.0f} MB/s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
