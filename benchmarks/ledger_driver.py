"""Driver program for this system: appends in a closed loop, reads back, prints each round.

Run as ``python -m benchmarks.ledger_driver URI <case arguments>``, in a process of its own so that
nothing shares its interpreter. One JSON line per result; see ``rows.Round``.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from benchmarks.cases import Case
from benchmarks.rows import READ, READ_BATCHES, Round
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter

READERS = 3
"""Parts of a ledger that are read at the same time, each from another replica first."""


class Load:
    """What one append loop measured. Times are seconds of ``perf_counter``."""

    def __init__(self) -> None:
        self.entries = 0
        self.seconds = 0.0
        self.latencies = array("d")
        self.longest_gap_s = 0.0

    def percentile_ms(self, part: float) -> float:
        ordered = sorted(self.latencies)
        return 1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main(arguments: list[str]) -> None:
    """Run the case of the arguments against the cluster at the URI."""
    asyncio.run(run(arguments[0], Case.from_arguments(arguments[1:])))


async def run(uri: str, case: Case) -> None:
    """Warm up, then run the rounds."""
    payload = random.Random(1).randbytes(case.entry_bytes)
    async with await LedgerClient.connect(uri) as client:
        if case.failover:
            await _failover(client, case, payload)
            return
        await _round(client, case, payload, case.warmup_s)
        # As a service should: else each full collection looks at what imports have left, pyarrow's
        # most of all, for some 20 ms.
        gc.collect()
        gc.freeze()
        for _ in range(case.rounds):
            for result in await _round(client, case, payload, case.round_s):
                _print(result)


def _print(result: Round) -> None:
    print(msgspec.json.encode(result).decode(), flush=True)


async def _round(client: LedgerClient, case: Case, payload: bytes, seconds: float) -> list[Round]:
    writer = await _create(client, case)
    load = await append_in_flight(writer, case, payload, seconds)
    await writer.close()
    reads = [
        Round(op, load.entries, await _read(client, writer.ledger_id, load.entries, case, take))
        for op, take in _TAKERS.items()
    ]
    await client.delete_ledger(writer.ledger_id)
    appended = Round(
        "append",
        load.entries,
        load.seconds,
        p50_ms=load.percentile_ms(0.5),
        p99_ms=load.percentile_ms(0.99),
    )
    return [appended, *reads]


async def _create(client: LedgerClient, case: Case) -> LedgerWriter:
    e, wq, aq = case.ensemble
    return await client.create_ledger(ensemble_size=e, write_quorum=wq, ack_quorum=aq)


class Writer(Protocol):
    """What an append loop needs."""

    @property
    def has_room(self) -> bool: ...

    async def wait_for_room(self) -> None: ...

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]: ...


async def append_in_flight(writer: Writer, case: Case, payload: bytes, seconds: float) -> Load:
    """Keep ``in_flight`` entries in flight until the time or the bytes are used up.

    Latencies run from handing over an entry until this program continues with its result.
    """
    load = Load()
    entries_max = max(1, case.round_bytes_max // case.entry_bytes)
    pending: deque[tuple[asyncio.Future[int], float]] = deque()
    submitted, clock = 0, time.perf_counter
    started = last_progress = now = clock()
    while True:
        if now - started < seconds and submitted < entries_max:
            while len(pending) < case.in_flight and submitted < entries_max and writer.has_room:
                pending.append((writer.append_nowait(payload), clock()))
                submitted += 1
        if not pending:
            if submitted >= entries_max or now - started >= seconds:
                break
            await writer.wait_for_room()
            now = clock()
            continue
        await pending[0][0]
        now = clock()
        load.longest_gap_s = max(load.longest_gap_s, now - last_progress)
        last_progress = now
        while pending and pending[0][0].done():
            future, handed_over = pending.popleft()
            future.result()
            load.latencies.append(now - handed_over)
    load.entries, load.seconds = submitted, now - started
    return load


def _take_entries(batch: EntryBatch) -> int:
    """The bytes of a batch, each payload in the hands of this program as an object."""
    return sum([len(entry.payload) for entry in batch])


def _take_array(batch: EntryBatch) -> int:
    """The bytes of a batch, in the hands of this program as one array."""
    array = batch.payloads()
    assert len(array) == len(batch), "an array has all payloads of a batch"
    return batch.payload_bytes


_TAKERS: Final[dict[str, Callable[[EntryBatch], int]]] = {
    READ: _take_entries,
    READ_BATCHES: _take_array,
}


async def _read(
    client: LedgerClient,
    ledger_id: int,
    entries: int,
    case: Case,
    take: Callable[[EntryBatch], int],
) -> float:
    """Read the whole ledger back, verifying every entry. Returns seconds."""
    reader = await client.open_ledger(ledger_id)
    assert reader.last_add_confirmed == entries - 1, "every confirmed entry is in the ledger"
    share = -(-entries // READERS)

    async def part(index: int) -> int:
        found = 0
        first, last = index * share, min(entries, (index + 1) * share) - 1
        if first > last:
            return 0
        async for batch in reader.read_batches(first, last, replica_hint=index):
            found += take(batch)
        return found

    started = time.perf_counter()
    found = sum(await asyncio.gather(*map(part, range(READERS))))
    seconds = time.perf_counter() - started
    wanted = entries * case.entry_bytes
    assert found == wanted, f"{wanted} bytes were written, {found} were read"
    return seconds


async def _failover(client: LedgerClient, case: Case, payload: bytes) -> None:
    """Write, print which bookies store the ledger, and go on while one of them is killed."""
    async with await _create(client, case) as writer:
        await append_in_flight(writer, case, payload, case.warmup_s)
        bookies = [str(bookie) for bookie in writer.metadata.last_fragment.bookies]
        print(msgspec.json.encode({"writing": bookies}).decode(), flush=True)
        load = await append_in_flight(writer, case, payload, case.round_s)
        gap_ms = 1e3 * load.longest_gap_s
        _print(Round("failover", load.entries, load.seconds, longest_gap_ms=gap_ms))
        fragments = len(writer.metadata.fragments)
        assert fragments > 1, "the killed bookie was not replaced within the round"


if __name__ == "__main__":
    main(sys.argv[1:])
