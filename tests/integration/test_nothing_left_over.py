"""What bookies hold is what metadata name, and that is what live rows need: compared after a run
with keepers and writers that are killed, and a bookie that is down for a part of it."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import spark_ledger
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import LedgerId
from tests.integration.test_cli import Shell
from tests.unit.spark_ledger.keeper.test_audit import of_a_former_version
from tests.unit.spark_ledger.keeper.test_streams import live_ledgers

pytestmark = [pytest.mark.processes, pytest.mark.proof, pytest.mark.timeout(600)]

WAIT_S = 120.0
ROUNDS = 24
SCHEMA = pa.schema([("n", pa.int64())])

WRITER = """
import sys, pyarrow as pa, spark_ledger
client = spark_ledger.connect(sys.argv[1])
writer = client.stream("kept").writer()
writer.write(pa.table({"n": [-1]}, pa.schema([("n", pa.int64())])))
writer.finish()
print("written", flush=True)
sys.stdin.read()
"""
"""A task that dies before its driver commits."""


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)}, SCHEMA)


class KilledKeepers:
    """A keeper that is killed at random, and followed by another one."""

    def __init__(self, shell: Shell, draw: random.Random) -> None:
        self._environment = shell.environment
        self._draw = draw
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "spark_ledger.cli", "keeper", "run", "--interval", "0.2"),
                *("--owner-grace", "0.5", "--unnamed-grace", "1", "--dropped-grace", "1"),
                *("--audit-interval", "1", "--until-input-ends"),
            ],
            env=self._environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._start() as process:
                self._stop.wait(self._draw.uniform(1.5, 5.0))
                process.kill()
            self.kills += 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    @contextmanager
    def the_last(self) -> Iterator[None]:
        """One that nobody kills."""
        with self._start() as process:
            try:
                yield
            finally:
                process.kill()


def die_before_the_commit(uri: str) -> None:
    argv = [sys.executable, "-c", WRITER, uri]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.kill()


async def leave_as_a_former_version(uri: str, name: str) -> None:
    """A ledger of a stream that names no owner, stands in no index, and that no commit names."""
    async with await LedgerClient.connect(uri) as client:
        stream = await StreamCatalog(client).open(name)
        writer = stream.writer()
        await writer.write(rows(-2))
        (segment,) = await writer.finish()
        await writer.close()
        await of_a_former_version(client.store, [segment.ledger_id])


class Streams:
    """Three streams, and what is in each of them."""

    def __init__(self, client: StreamConnection, uri: str) -> None:
        self._client = client
        self._uri = uri
        self._next = 0
        self.kept: list[int] = []
        client.create_stream("kept", SCHEMA)
        client.create_stream("short", SCHEMA, retention=Retention(rows=2))
        client.create_stream("again", SCHEMA)
        self.again: list[int] = []

    def _append(self, name: str, *, overwrite: bool = False) -> int:
        stream = self._client.stream(name)
        self._next += 1
        stream.append(rows(self._next), overwrite=overwrite)
        stream.close()
        return self._next

    def one_round(self, number: int) -> None:
        self.kept.append(self._append("kept"))
        self._append("short")
        self.again.append(self._append("again"))
        if number % 5 == 4:
            self.kept = [self._append("kept", overwrite=True)]
        if number % 7 == 3:
            die_before_the_commit(self._uri)
        if number % 4 == 1:
            asyncio.run(leave_as_a_former_version(self._uri, ("kept", "again")[number % 8 == 1]))
        if number % 8 == 6:
            self._client.delete_stream("again")
            self._client.create_stream("again", SCHEMA)
            self.again = []

    def read(self, name: str) -> list[int]:
        stream = self._client.stream(name)
        found = [int(str(n)) for batch in stream.read() for n in batch.column("n").to_pylist()]
        stream.close()
        return found


async def _needed(uri: str) -> set[int]:
    """The ledgers that live rows of all streams need."""
    async with await LedgerClient.connect(uri) as client:
        catalog, found = StreamCatalog(client), set[int]()
        for name in await catalog.names():
            stream = await catalog.open(name)
            found |= await live_ledgers(stream)
            await stream.close()
        return found


async def _named_and_held(uri: str) -> tuple[set[int], dict[str, set[int]]]:
    """The ledgers that metadata name, and those of which each bookie holds entries."""
    store = await open_store(uri)
    named = set(map(int, await LedgerStore(store).list()))
    addresses = {info.bookie_id: info.address for info in await BookieRegistry(store).list()}
    transport = GrpcTransport(addresses.get)
    held: dict[str, set[int]] = {bookie_id: set() for bookie_id in addresses}
    end = int(await LedgerStore(store).new_ledger_id())
    for bookie_id in addresses:
        for ledger_id in range(end + 1):
            status, ranges, _ = await transport.list_entries(
                bookie_id, LedgerId(ledger_id), timeout_s=10.0
            )
            assert status.is_denial or status.value == 0, status
            if ranges:
                held[bookie_id].add(ledger_id)
    await transport.close()
    await store.close()
    return named, held


def eventually(what: str, condition: Callable[[], object]) -> None:
    """``condition`` says what is missing."""
    deadline = time.monotonic() + WAIT_S
    while missing := condition():
        assert time.monotonic() < deadline, f"{what}: {missing}"
        time.sleep(0.5)


def test_bookies_hold_what_live_rows_need_and_nothing_else() -> None:
    draw = random.Random(12)
    with LocalCluster(bookies=4) as cluster:
        shell = Shell(cluster.uri)
        keepers = KilledKeepers(shell, draw)
        with spark_ledger.connect(cluster.uri) as client:
            streams = Streams(client, cluster.uri)
            with keepers.at_work():
                for number in range(ROUNDS):
                    if number == ROUNDS // 3:
                        cluster.kill_bookie(3)
                    if number == 2 * ROUNDS // 3:
                        cluster.start_bookie(3)
                    streams.one_round(number)
                    time.sleep(draw.uniform(0, 1))
            assert keepers.kills >= 3
        with keepers.the_last():

            def too_many() -> set[int]:
                named, _ = asyncio.run(_named_and_held(cluster.uri))
                return named ^ asyncio.run(_needed(cluster.uri))

            eventually("ledgers that nobody needs", too_many)

        def too_much() -> dict[str, set[int]]:
            shell("bookies", "collect", "--json", "--share", "1")
            named, held = asyncio.run(_named_and_held(cluster.uri))
            return {each: ledgers - named for each, ledgers in held.items() if ledgers - named}

        eventually("ledgers that bookies hold, and no metadata name", too_much)
        named, held = asyncio.run(_named_and_held(cluster.uri))
        assert len(held) == 4
        assert set[int]().union(*held.values()) == named == asyncio.run(_needed(cluster.uri))
        compared = json.loads(shell("cluster", "usage", "--verify", "--json").out)
        missing = 0
        for copies in compared["bookies"].values():
            assert (copies["damaged"], copies["left_ledgers"], copies["silent"]) == (0, 0, "")
            missing += copies["missing"]  # of an entry that was confirmed by two, as one was killed
        held_bytes = sum(copies["user_bytes"] for copies in compared["bookies"].values())
        assert held_bytes == compared["named_bytes"] or missing
        assert compared["open"] == 0
        with spark_ledger.connect(cluster.uri) as client:
            streams._client = client
            assert streams.read("kept") == streams.kept
            assert streams.read("again") == streams.again
            assert len(streams.read("short")) == 2
