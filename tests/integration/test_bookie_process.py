"""The bookie as a process: start, serve, stop, crash, and every reason to refuse a start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)
from spark_ledger.wire.frame import Crc32cDigest
from tests.frames import seal

pytestmark = pytest.mark.processes

LEDGER = LedgerId(5)
T = TypeVar("T")


class Process:
    """A bookie's directory, and its process while there is one."""

    def __init__(self, directory: Path, uri: str, extra: str = "") -> None:
        self.directory = directory
        self.config = directory / "bookie.toml"
        self.ready_file = directory / "ready.json"
        self.log = directory / "log"
        self.write_config(uri, extra)
        self.process: subprocess.Popen[bytes] | None = None

    def write_config(self, uri: str, extra: str = "") -> None:
        self.config.write_text(
            f'metadata = "{uri}"\nsession_timeout_s = 2.0\n{extra}\n'
            "[listen]\nport = 0\n[admin]\nport = 0\n[storage]\n"
            'journal_directory = "journal"\nledger_directories = ["l0", "l1"]\n'
            "journal_file_bytes = 4194304\n"
        )

    def start(
        self, *arguments: str, python: tuple[str, ...] = (), output: Path | None = None
    ) -> None:
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, *python, "-m", "bookie_server", "--config", str(self.config)]
        command += ["--ready-file", str(self.ready_file), *arguments]
        with ExitStack() as closing:
            log = closing.enter_context(self.log.open("ab"))
            out = subprocess.PIPE if output is None else closing.enter_context(output.open("ab"))
            self.process = subprocess.Popen(command, stdout=out, stderr=log)

    def await_ready(self) -> dict[str, Any]:
        assert self.process is not None
        deadline = time.monotonic() + 30
        while not self.ready_file.exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        ready: dict[str, Any] = json.loads(self.ready_file.read_text())
        return ready

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(signal_number)
        return self.wait()

    def wait(self) -> int:
        """The exit code of a process that ends."""
        assert self.process is not None
        self.process.communicate(timeout=60)
        return self.process.returncode

    def run_to_end(self, *arguments: str, python: tuple[str, ...] = ()) -> tuple[int, str]:
        """Exit code and log of a process that should end by itself."""
        before = self.log.stat().st_size if self.log.exists() else 0
        self.start(*arguments, python=python)
        code = self.wait()
        return code, self.log.read_text()[before:]


@pytest.fixture
def bookie(tmp_path: Path, metadata_uri: str) -> Iterator[Process]:
    process = Process(tmp_path, metadata_uri)
    asyncio.run(make_ledger(metadata_uri))
    yield process
    if process.process is not None:
        if process.process.poll() is None:
            process.process.kill()
        process.process.communicate()


async def make_ledger(metadata_uri: str) -> None:
    """The ledger of these tests, as an older version made it: without a key."""
    store = await open_store(metadata_uri)
    fragment = Fragment(EntryId(0), (BookieId("any"),))
    await LedgerStore(store).create(LedgerMetadata(LEDGER, Quorums(1, 1, 1), (fragment,)))
    await store.close()


def make_run(first: int, count: int, ledger_id: LedgerId = LEDGER) -> EntryRun:
    frames = [
        seal(Crc32cDigest(), ledger_id, first + i, first + i - 1, 0, b"%d" % i)
        for i in range(count)
    ]
    sizes = [len(frame) for frame in frames]
    return EntryRun(ledger_id, EntryId(first), None, sizes, b"".join(frames))


def with_transport(
    ready: dict[str, Any], work: Callable[[GrpcTransport, BookieId], Coroutine[Any, Any, T]]
) -> T:
    async def main() -> T:
        transport = GrpcTransport(lambda _bookie_id: ready["address"])
        try:
            async with asyncio.timeout(30):
                return await work(transport, BookieId(ready["bookie_id"]))
        finally:
            await transport.close()

    return asyncio.run(main())


async def append(transport: GrpcTransport, bookie_id: BookieId, run: EntryRun) -> AddResult:
    results: asyncio.Queue[AddResult] = asyncio.Queue()
    appender = transport.open_appender(
        bookie_id, run.ledger_id, access_key=b"", recovery=False, on_result=results.put_nowait
    )
    appender.send(run)
    return await results.get()


async def stored(transport: GrpcTransport, bookie_id: BookieId) -> list[tuple[EntryId, EntryId]]:
    status, ranges, _ = await transport.list_entries(bookie_id, LEDGER, timeout_s=5)
    assert status is BookieStatus.OK
    return ranges


def registered(uri: str) -> list[str]:
    async def main() -> list[str]:
        store = await open_store(uri)
        try:
            return [info.bookie_id for info in await BookieRegistry(store).list()]
        finally:
            await store.close()

    return asyncio.run(main())


def test_a_bookie_serves_from_format_to_sigterm(bookie: Process, metadata_uri: str) -> None:
    bookie.start("--format")
    ready = bookie.await_ready()
    assert bookie.process is not None and ready["pid"] == bookie.process.pid
    assert registered(metadata_uri) == [ready["bookie_id"]]
    result = with_transport(ready, lambda t, b: append(t, b, make_run(0, 10)))
    assert (result.status, result.last_entry) == (BookieStatus.OK, 9)
    admin = f"http://{ready['admin_address']}"
    with urllib.request.urlopen(f"{admin}/metrics") as answer:
        assert b"bookie_added_entries_total 10.0" in answer.read()
    with urllib.request.urlopen(f"{admin}/status") as answer:
        status = json.load(answer)
        assert (status["bookie_id"], status["ledgers"]) == (ready["bookie_id"], 1)
        assert status["journal"]["batches"] >= 1
    with urllib.request.urlopen(f"{admin}/healthz") as answer:
        assert answer.status == 200
    description = with_transport(ready, lambda t, b: t.describe(b, timeout_s=5))
    assert (description.state, description.ledgers) == ("writable", 1)
    assert bookie.end() == 0, bookie.log.read_text()
    assert registered(metadata_uri) == []
    output = bookie.log.read_text()
    assert "Traceback" not in output and "ERROR" not in output, output


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_acknowledged_entries_are_there_after_a_restart(
    bookie: Process, signal_number: int
) -> None:
    bookie.start("--format")
    ready = bookie.await_ready()

    async def write(transport: GrpcTransport, bookie_id: BookieId) -> None:
        assert (await append(transport, bookie_id, make_run(0, 100))).status is BookieStatus.OK
        end = await transport.read_last_confirmed(bookie_id, LEDGER, fence=True, timeout_s=5)
        assert end.fenced

    with_transport(ready, write)
    assert bookie.end(signal_number) == (0 if signal_number == signal.SIGTERM else -9)
    bookie.start("--format")
    again = bookie.await_ready()
    assert again["bookie_id"] == ready["bookie_id"]

    async def look(transport: GrpcTransport, bookie_id: BookieId) -> None:
        assert await stored(transport, bookie_id) == [(0, 99)]
        refused = await append(transport, bookie_id, make_run(100, 1))
        assert refused.status is BookieStatus.FENCED

    with_transport(again, look)
    assert bookie.end() == 0


def test_sigterm_finishes_what_is_in_flight(bookie: Process) -> None:
    bookie.start("--format")
    ready = bookie.await_ready()

    async def work(transport: GrpcTransport, bookie_id: BookieId) -> int:
        results: list[AddResult] = []
        appender = transport.open_appender(
            bookie_id, LEDGER, access_key=b"", recovery=False, on_result=results.append
        )
        entry = 0
        while not results:
            appender.send(make_run(entry, 10))
            entry += 10
            await asyncio.sleep(0)
        assert bookie.process is not None
        poll = asyncio.create_task(
            transport.read_last_confirmed(
                bookie_id, LEDGER, wait_above=EntryId(10**9), wait_s=20, timeout_s=5
            )
        )
        await asyncio.sleep(0.1)
        bookie.process.terminate()
        while results[-1].status is BookieStatus.OK:
            appender.send(make_run(entry, 10))
            entry += 10
            await asyncio.sleep(0.001)
        assert results[-1].status is BookieStatus.UNAVAILABLE
        assert (await poll).status is BookieStatus.OK, "long polls are answered, not cut off"
        return max(r.last_entry for r in results if r.status is BookieStatus.OK)

    acknowledged = with_transport(ready, work)
    assert bookie.wait() == 0, bookie.log.read_text()
    bookie.start()
    ((first, last),) = with_transport(bookie.await_ready(), stored)
    assert first == 0 and last >= acknowledged
    assert bookie.end() == 0


def test_a_directory_that_was_never_formatted_is_refused(bookie: Process) -> None:
    code, log = bookie.run_to_end()
    assert code == 2
    assert "never formatted" in log and "Traceback" not in log


def test_format_only_makes_a_bookie_that_can_start(bookie: Process) -> None:
    code, _ = bookie.run_to_end("--format-only")
    assert code == 0
    code, log = bookie.run_to_end("--format-only")
    assert code == 2 and "not empty" in log
    bookie.start()
    bookie.await_ready()
    assert bookie.end() == 0


def test_another_cluster_is_refused(bookie: Process, zookeeper: LocalCluster) -> None:
    assert bookie.run_to_end("--format-only")[0] == 0
    bookie.write_config(f"{zookeeper.uri}/somewhere-else")
    code, log = bookie.run_to_end()
    assert code == 2
    assert "belongs to cluster" in log and "Traceback" not in log


def test_a_second_process_on_the_same_directories_is_refused(bookie: Process) -> None:
    bookie.start("--format")
    bookie.await_ready()
    second = Process.__new__(Process)
    second.__dict__.update(bookie.__dict__)
    second.ready_file = bookie.directory / "second"
    second.process = None
    code, log = second.run_to_end()
    assert code == 2
    assert "in use by another bookie process" in log and "Traceback" not in log
    assert bookie.end() == 0


def test_a_mistake_in_the_configuration_is_one_sentence(bookie: Process) -> None:
    bookie.config.write_text("metadta = 1\n")
    code, log = bookie.run_to_end()
    assert code == 2
    assert "did you mean 'metadata'?" in log and len(log.strip().splitlines()) == 1


def test_optimised_python_is_refused(bookie: Process) -> None:
    code, log = bookie.run_to_end("--format", python=("-O",))
    assert code == 2 and "python -O" in log


def test_bookie_waits_for_a_metadata_store_that_is_down(bookie: Process) -> None:
    uri = "zk://127.0.0.1:1/ledgers"
    bookie.write_config(uri, "metadata_wait_s = 4.0")
    code, log = bookie.run_to_end("--format")
    assert code == 1
    assert "waiting for the metadata store" in log
    assert "no metadata store within 4 s" in log and "Traceback" not in log


def test_sigterm_ends_the_wait_for_the_metadata_store(bookie: Process) -> None:
    bookie.write_config("zk://127.0.0.1:1/ledgers", "metadata_wait_s = 600.0")
    bookie.start("--format")
    deadline = time.monotonic() + 30
    while "waiting for the metadata store" not in bookie.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert bookie.end() == 0


def test_a_bookie_goes_on_without_zookeeper_and_comes_back(tmp_path: Path) -> None:
    with LocalCluster(bookies=0) as cluster:
        bookie = Process(tmp_path, cluster.uri)
        bookie.start("--format")
        ready = bookie.await_ready()
        try:
            asyncio.run(make_ledger(cluster.uri))
            result = with_transport(ready, lambda t, b: append(t, b, make_run(0, 5)))
            assert result.status is BookieStatus.OK
            cluster.kill_zookeeper()
            result = with_transport(ready, lambda t, b: append(t, b, make_run(5, 5)))
            assert result.status is BookieStatus.OK
            other = make_run(0, 5, LedgerId(6))
            result = with_transport(ready, lambda t, b: append(t, b, other))
            assert result.status is BookieStatus.TOO_MANY_REQUESTS, "its key cannot be looked up"
            cluster.start_zookeeper()
            deadline = time.monotonic() + 40
            while registered(cluster.uri) != [ready["bookie_id"]]:
                assert time.monotonic() < deadline, bookie.log.read_text()
                time.sleep(0.1)
            assert bookie.end() == 0
        finally:
            assert bookie.process is not None
            if bookie.process.poll() is None:
                os.kill(bookie.process.pid, signal.SIGKILL)
            bookie.process.communicate()
