"""Command: ``python -m benchmarks.many_clients``: many processes that append one entry at a time.

A local cluster of three bookies and 50 clients, each a process with a ledger of its own and one
entry of 1 KiB in flight. With ``--bare`` the same over bare gRPC (``benchmarks.bare``): what a
message to three servers costs without a ledger is the limit. All processes begin together.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec
import psutil

from benchmarks.bare.driver import BareWriter
from benchmarks.bare.rows import spawn_servers
from benchmarks.cases import KIB
from benchmarks.ledgers_in_turn import BOOKIES
from benchmarks.paths import ROOT
from benchmarks.percentiles import p99_ms
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.local import LocalCluster
from spark_ledger.local.processes import Processes

_PAYLOAD: Final = bytes(range(256)) * (KIB // 256)
_WARMUP_S: Final = 1.0


class Done(msgspec.Struct):
    """What one client did: seconds of each append, and of a processor for all."""

    latencies_s: list[float]
    used_s: float


async def _appended(append: Callable[[], Awaitable[object]], seconds: float) -> Done:
    latencies: list[float] = []
    used, ends_at = time.process_time(), time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends_at:
        await append()
        latencies.append(time.perf_counter() - began)
    return Done(latencies, time.process_time() - used)


async def _measure(append: Callable[[], Awaitable[object]], seconds: float) -> None:
    """Warm up, say so, wait for the others, append."""
    await _appended(append, _WARMUP_S)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(msgspec.json.encode(await _appended(append, seconds)).decode(), flush=True)


async def _client(servers: str, *, bare: bool, seconds: float) -> None:
    if bare:
        bare_writer = BareWriter([int(port) for port in servers.split(",")], 2)
        await _measure(lambda: bare_writer.append_nowait(_PAYLOAD), seconds)
        await bare_writer.close()
        return
    async with (
        await LedgerClient.connect(servers) as client,
        await client.create_ledger() as writer,
    ):
        await _measure(lambda: writer.append(_PAYLOAD), seconds)


@contextmanager
def _servers(*, bare: bool) -> Iterator[tuple[str, list[psutil.Process]]]:
    """What clients are told of three servers, and their processes."""
    if not bare:
        with LocalCluster(bookies=BOOKIES) as cluster:
            pids = [cluster.bookie_pid(index) for index in range(BOOKIES)]
            yield cluster.uri, [psutil.Process(pid) for pid in pids]
        return
    processes = Processes(Path(tempfile.mkdtemp(prefix="bare-")), remove=True)
    try:
        ports = spawn_servers(processes, BOOKIES)
        found = [psutil.Process(state.pid) for state in processes.states().values() if state.pid]
        yield ports, found
    finally:
        processes.stop(graceful=False)


def _used_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "a client is started with pipes"
    return stream


def measure(clients: int, seconds: float, *, bare: bool) -> None:
    """Print one line: appends a second of all clients together, and what each took."""
    with ExitStack() as stack:
        servers, bookies = stack.enter_context(_servers(bare=bare))
        argv = [sys.executable, "-m", "benchmarks.many_clients", "--of", servers]
        argv += ["--seconds", str(seconds), *(["--bare"] if bare else [])]
        children = [
            stack.enter_context(
                subprocess.Popen(
                    argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _client in range(clients)
        ]
        for child in children:
            assert _pipe(child.stdout).readline() == "ready\n", "a client did not start"
        used = _used_s(bookies)
        for child in children:
            _pipe(child.stdin).write("go\n")
            _pipe(child.stdin).flush()
        lines = [_pipe(child.stdout).readline() for child in children]
        used = _used_s(bookies) - used
    done = [msgspec.json.decode(line, type=Done) for line in lines]
    latencies = sorted(latency for each in done for latency in each.latencies_s)
    entries = len(latencies)
    in_clients = 1e6 * sum(each.used_s for each in done) / entries
    print(
        f"  {entries / seconds:9,.0f} appends/s, p50 {1000 * latencies[entries // 2]:.1f} ms, "
        f"p99 {p99_ms(latencies)} ms, {in_clients:.0f} us of a client each, "
        f"{1e6 * used / entries / BOOKIES:.0f} us of a server"
    )


def main() -> None:
    """Print one round; as a client, append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--bare", action="store_true", help="over bare gRPC, without ledgers")
    parser.add_argument("--of", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of:
        asyncio.run(_client(options.of, bare=options.bare, seconds=options.seconds))
    else:
        measure(options.clients, options.seconds, bare=options.bare)


if __name__ == "__main__":
    main()
