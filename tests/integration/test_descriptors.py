"""A bookie under few file descriptors: strangers' connections leave what its storage needs."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import BookieId, BookieStatus
from tests.integration.test_bookie_process import (
    Process,
    append,
    make_ledger,
    make_run,
    stored,
    with_transport,
)

pytestmark = pytest.mark.processes

LIMIT = 300
IDLE = 500
UNDER_LIMITS = (
    "-c",
    "import os, resource, sys; soft, hard = map(int, sys.argv[1].split(',')); "
    "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])",
)


@pytest.fixture
def bookie(tmp_path: Path, metadata_uri: str) -> Iterator[Process]:
    process = Process(tmp_path, metadata_uri)
    asyncio.run(make_ledger(metadata_uri))
    config = process.config.read_text().replace('["l0", "l1"]', '["l0"]')
    process.config.write_text(
        config.replace("= 4194304", "= 65536") + "flush_interval_s = 0.05\nentry_log_bytes = 4096\n"
    )
    yield process
    if process.process is not None:
        if process.process.poll() is None:
            process.process.kill()
        process.process.communicate()


def open_files(process: Process) -> int:
    assert process.process is not None
    return len(os.listdir(f"/proc/{process.process.pid}/fd"))


def flood(address: str) -> list[socket.socket]:
    """Connections that say nothing; nobody waits until they are accepted."""
    host, _, port = address.rpartition(":")
    idle = [socket.socket() for _ in range(IDLE)]
    for connection in idle:
        connection.setblocking(False)
        connection.connect_ex((host, int(port)))
    return idle


@pytest.mark.parametrize("port", ["address", "admin_address"])
def test_idle_connections_under_few_descriptors_leave_the_storage_enough(
    bookie: Process, port: str
) -> None:
    bookie.start("--format", python=(*UNDER_LIMITS, f"{LIMIT},{LIMIT}"))
    ready = bookie.await_ready()
    idle: list[socket.socket] = []

    async def work(transport: GrpcTransport, bookie_id: BookieId) -> None:
        assert (await append(transport, bookie_id, make_run(0, 10))).status is BookieStatus.OK
        idle.extend(await asyncio.to_thread(flood, ready[port]))
        for first in range(10, 400, 10):  # journal files and entry logs are begun and left
            result = await append(transport, bookie_id, make_run(first, 10))
            assert result.status is BookieStatus.OK, result
        assert open_files(bookie) < LIMIT
        assert await stored(transport, bookie_id) == [(0, 399)]

    with_transport(ready, work)
    for connection in idle:
        connection.close()

    async def look(transport: GrpcTransport, bookie_id: BookieId) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                assert await stored(transport, bookie_id) == [(0, 399)]
            except BookieUnavailableError:
                assert time.monotonic() < deadline, "the bookie takes no new clients"
                await asyncio.sleep(0.1)
            else:
                return

    with_transport(ready, look)
    assert bookie.end() == 0
    assert "Too many open files" not in bookie.log.read_text()


def test_soft_limit_of_descriptors_is_raised(bookie: Process) -> None:
    bookie.start("--format", python=(*UNDER_LIMITS, "100,4000"))
    bookie.await_ready()
    assert bookie.process is not None
    limits = Path(f"/proc/{bookie.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3:5] == ["4000", "4000"]
    assert bookie.end() == 0


def test_too_few_descriptors_are_refused_in_one_sentence(bookie: Process) -> None:
    code, log = bookie.run_to_end("--format", python=(*UNDER_LIMITS, "150,150"))
    assert code == 2
    assert "may have 150 files open" in log and "raise the limit" in log
    assert "Traceback" not in log
