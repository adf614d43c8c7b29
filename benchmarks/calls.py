"""Command: ``python -m benchmarks.calls``: Python calls for each entry, in client and bookie.

Time depends on the machine and on what else runs on it; how many functions an entry runs through
does not, and where Python's time goes is mostly there. Three bookies with their storage and a
client with its machines run on one loop, connected by memory, and every call of a function of ours,
and by one of ours, is counted. What gRPC needs is not in it; appends *over streams* also encode,
decode, share out and answer messages, as ``AppendStream`` and ``AppendSession`` do. The loop's
clock goes by how often it is read: by a real one, a machine under load would have more ticks of
writers for each entry.

Calls that C makes are not seen. A loop that becomes ``map`` falls out of the count and still costs
its time: opening and sealing frames that way took a read from 8.3 calls to 1.4, and a frame from
1.66 us to 1.58. So a fall that comes from ``map`` is shown in processor time before it is held.

``tests/unit/benchmarks/test_calls.py`` compares the counts with those of ``calls.json``, so that no
change makes an entry dearer unnoticed. ``--write`` replaces them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

import bookie_server
import spark_ledger
from benchmarks.append_wire import WiredTransport
from bookie_server.bookie import Bookie
from bookie_server.ledger_keys import MetadataKeys
from bookie_server.opening import open_bookie
from bookie_server.service import append_session
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.lmdb_index import LmdbIndex
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.config import ClientConfig
from spark_ledger.limits import KIB, MIB
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieInfo

LIMITS: Final = Path(__file__).with_name("calls.json")
SLACK: Final = 0.15
"""An entry may run through so much more than it did, and through so much less: then the smaller
number is the one to hold."""

_TAILS: Final = 200

_CLOCK_STEP_S: Final = 10e-6

_ROOTS: Final = {
    str(Path(spark_ledger.__file__).parent): "client",
    str(Path(bookie_server.__file__).parent): "bookie",
}
_NOT_COUNTED: Final = ("spark_ledger/transport/memory.py", "spark_ledger/metadata/memory.py")

Counts = dict[str, dict[str, float]]


class Profile:
    """Counts calls by side, on the thread that it was made on."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._sides: dict[CodeType, str] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count until the end of the block."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in {"call", "c_call"}:
            code = frame.f_code
            side = self._sides.get(code)
            if side is None:
                side = self._sides[code] = _side_of(code.co_filename)
            self.calls[side] += 1


def _side_of(name: str) -> str:
    if name.endswith(_NOT_COUNTED):
        return "others"
    return next((side for root, side in _ROOTS.items() if name.startswith(root)), "others")


class _CountingLoop(asyncio.SelectorEventLoop):
    """Each look at its clock takes the same time. It never waits: the bookies' commits go round."""

    _now = 0.0

    def time(self) -> float:
        self._now += _CLOCK_STEP_S
        return self._now


class World:
    """Bookies and a client of theirs, all on the loop that runs."""

    def __init__(self, directory: Path) -> None:
        self._tree = MemoryTree()
        self._bookies = {
            BookieId(name): _bookie(directory / name, name, MemoryMetadataStore(self._tree))
            for name in ("b0", "b1", "b2")
        }

    async def start(self, transport_of: type[MemoryTransport] = MemoryTransport) -> LedgerClient:
        """Register the bookies; the client."""
        self._registries = []
        for bookie_id in self._bookies:
            registry = BookieRegistry(MemoryMetadataStore(self._tree))
            await registry.register(BookieInfo(bookie_id, f"memory:{bookie_id}"))
            self._registries.append(registry)
        self._commits = asyncio.create_task(self._commit())
        transport = transport_of(self._bookies)
        return await LedgerClient.over(MemoryMetadataStore(self._tree), transport, ClientConfig())

    async def stop(self) -> None:
        """End what runs."""
        self._commits.cancel()
        await asyncio.gather(self._commits, return_exceptions=True)
        for bookie in self._bookies.values():
            bookie.close()

    async def _commit(self) -> None:
        """What a bookie's journal does on a thread of its own."""
        while True:
            for bookie in self._bookies.values():
                if bookie.append_bytes_in_flight:
                    bookie.commit_pending()
            await asyncio.sleep(0)


def _bookie(directory: Path, name: str, store: MemoryMetadataStore) -> Bookie:
    journal, ledgers = directory / "journal", directory / "ledgers"
    for path in (journal, ledgers):
        path.mkdir(parents=True)
    loop = asyncio.get_running_loop()
    files = MemoryFileSystem()  # a slow disk would add looks at the clock
    format_directories(files, journal, (ledgers,), cluster_id="c", bookie_id=BookieId(name))
    return open_bookie(
        StorageConfig(journal, (ledgers,), BookieId(name)),
        post=lambda call: _post(loop, call),
        on_fatal=print,
        keys=MetadataKeys(store),
        file_system=files,
        open_index=partial(LmdbIndex, map_bytes=MIB),
        threads=False,
    )


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon(call)


async def _appended(writers: list[LedgerWriter], size: int, entries: int, at_once: int) -> None:
    payload = bytes(size)
    for first in range(0, entries, at_once):
        futures = [
            writers[number % len(writers)].append_nowait(payload)
            for number in range(first, first + at_once)
        ]
        await asyncio.gather(*futures)


async def _counted(work: Callable[[], Awaitable[Any]], entries: int) -> dict[str, float]:
    profile = Profile()
    with profile.counting():
        await work()
    return {side: round(profile.calls[side] / entries, 1) for side in ("client", "bookie")}


async def _count(directory: Path) -> Counts:
    return await _count_over(MemoryTransport, directory / "memory", "") | await _count_over(
        WiredTransport, directory / "streams", ", over streams"
    )


async def _count_over(transport: type[MemoryTransport], directory: Path, over: str) -> Counts:
    world = World(directory)
    client = await world.start(transport)
    counts: Counts = {}

    async def append(name: str, size: int, entries: int, at_once: int, ledgers: int = 1) -> None:
        writers = [await client.create_ledger() for _ledger in range(ledgers)]
        await _appended(writers, size, at_once, at_once)  # what is paid once is paid
        counts[name + over] = await _counted(
            lambda: _appended(writers, size, entries, at_once), entries
        )
        for writer in writers:
            await writer.close()

    try:
        await append("append 1 KiB, 500 in flight", KIB, 3_000, 500)
        await append("append 1 KiB, one in flight", KIB, 200, 1)
        await append("append 1 MiB, 4 in flight", MIB, 40, 4)
        await append("append 1 KiB to 50 ledgers in turn", KIB, 1_000, 50, 50)
        if not over:
            counts |= await _read(client)
            counts[f"tail 1 KiB, {_TAILS} readers"] = await _tailed(client)
    finally:
        await client.close()
        await world.stop()
    return counts


async def _read(client: LedgerClient) -> Counts:
    entries = 3_000
    async with await client.create_ledger() as writer:
        await _appended([writer], KIB, entries, 500)
    reader = await client.open_ledger(writer.ledger_id)

    async def read() -> None:
        number = 0
        async for _entry in reader.read(0, entries - 1):
            number += 1
        assert number == entries

    async def read_batches() -> None:
        number = 0
        async for batch in reader.read_batches(0, entries - 1):
            number += len(batch)
        assert number == entries

    await read()
    return {
        "read 1 KiB": await _counted(read, entries),
        "read 1 KiB in batches": await _counted(read_batches, entries),
    }


async def _tailed(client: LedgerClient) -> dict[str, float]:
    """Of each delivery: every tail of the ledger is given every entry once the next one tells that
    it is confirmed. What tells it of the last one is not waited for: the loop would go round."""
    entries, given, wanted = 20, 0, 0
    all_have_it = asyncio.Event()

    async def follow(reader: LedgerReader) -> None:
        nonlocal given
        async for batch in reader.tail_batches():
            given += len(batch)
            if given == wanted:
                all_have_it.set()

    async with await client.create_ledger() as writer:
        readers = [await client.open_ledger(writer.ledger_id) for _tail in range(_TAILS)]
        tails = [asyncio.create_task(follow(reader)) for reader in readers]

        async def append(number: int) -> None:
            nonlocal wanted
            for _entry in range(number):
                wanted += _TAILS
                all_have_it.clear()
                await writer.append(bytes(KIB))
                await all_have_it.wait()

        await writer.append(bytes(KIB))
        await append(2)
        counted = await _counted(lambda: append(entries), entries * _TAILS)
    await asyncio.gather(*tails)
    return counted


def count() -> Counts:
    """Calls for each entry, by work and side."""
    loop = asyncio.Runner(loop_factory=_CountingLoop)
    turns = patch.object(append_session, "APPEND_TURN_S", math.inf)  # seconds of a real clock
    with tempfile.TemporaryDirectory() as directory, loop as runner, turns:
        return runner.run(_count(Path(directory)))


def main() -> None:
    """Print the counts, beside those that are held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--write", action="store_true", help="hold these counts from now on")
    options = parser.parse_args()
    counts = count()
    held = json.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.exists() else {}
    table = Table("work", "client", "bookies", "held", title="Python calls for each entry")
    for name, sides in counts.items():
        before = held.get(name, {})
        limit = " / ".join(str(before.get(side, "-")) for side in sides)
        table.add_row(name, str(sides["client"]), str(sides["bookie"]), limit)
    Console().print(table)
    if options.write:
        LIMITS.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
