"""Reads the final state with a client that took no part, without relays."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from spark_ledger.aio import StreamClient, connect
from spark_ledger.errors import LedgerError, NoSuchLedgerError, RetryableError
from spark_ledger.stream.stream import Stream
from spark_ledger.transport.base import Transport
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import BookieId, BookieStatus, Dlsn, EntryId, LedgerId, Quorums
from tests.chaos.payload import value_of
from tests.chaos.stream_roles import STREAM, values_of
from tests.history.final import Final, FinalCommit, FinalLedger, FinalStream
from tests.history.model import History

T = TypeVar("T")

PATIENCE_S = 20.0
"""Seconds after healing within which everything must be readable."""

AT_ONCE = 4
READ_TIMEOUT_S = 10.0


async def read_final(uri: str, bookies: dict[str, str], history: History) -> Final:
    """Recover and read every ledger that the history names, and the stream."""
    ledger_ids = sorted({o.ledger_id for o in history.operations() if o.ledger_id >= 0})
    transport = GrpcTransport(bookies.get)
    limit = asyncio.Semaphore(AT_ONCE)
    try:
        async with connect(uri) as client:

            async def one(ledger_id: int) -> FinalLedger:
                async with limit:
                    return await _ledger(client, transport, bookies, ledger_id)

            ledgers = await asyncio.gather(*map(one, ledger_ids))
            return Final.of(*ledgers, await _stream(client))
    finally:
        await transport.close()


async def retried(work: Callable[[], Awaitable[T]]) -> T:
    """Retry for a while after errors that pass."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await work()
        except RetryableError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def _ledger(
    client: StreamClient, transport: Transport, bookies: Iterable[str], ledger_id: int
) -> FinalLedger:
    try:
        reader = await retried(lambda: client.open_ledger(ledger_id, recover=True))
    except NoSuchLedgerError:
        return FinalLedger(ledger_id, Quorums(), deleted=True)
    except LedgerError as error:
        metadata = await client.ledger_metadata(ledger_id)
        return FinalLedger(
            ledger_id,
            metadata.quorums,
            tuple(metadata.fragments),
            closed=False,
            unreadable=repr(error),
        )
    metadata, end = reader.metadata, reader.last_add_confirmed
    last = FinalLedger(
        ledger_id, metadata.quorums, tuple(metadata.fragments), closed=reader.is_closed, end=end
    )

    async def values() -> tuple[str, ...]:
        found: list[str] = []
        async with aclosing(reader.read_batches(0, end)) as batches:
            async for batch in batches:
                found += [value_of(entry.payload) for entry in batch]
        return tuple(found)

    try:
        text = await retried(values) if end >= 0 else ()
    except LedgerError as error:
        return replace(last, unreadable=repr(error))
    replicas = {
        bookie_id: held
        for bookie_id in bookies
        if (held := await _held(transport, BookieId(bookie_id), LedgerId(ledger_id))) is not None
    }
    return replace(last, values=text, replicas=replicas)


async def _held(
    transport: Transport, bookie_id: BookieId, ledger_id: LedgerId
) -> dict[int, str] | None:
    """What a bookie itself holds: entry id to a digest of the frame; None if it does not answer."""
    status, ranges, _ = await transport.list_entries(bookie_id, ledger_id, timeout_s=READ_TIMEOUT_S)
    if status.is_denial:
        return {}
    if status is not BookieStatus.OK:
        return None
    held: dict[int, str] = {}
    for first, last in ranges:
        following = first
        while following <= last:
            got = False
            async for chunk in transport.read(
                bookie_id, ledger_id, following, last, timeout_s=READ_TIMEOUT_S
            ):
                if chunk.run is None:
                    return None
                for entry_id, frame in chunk.run.split():
                    held[entry_id] = hashlib.blake2b(frame, digest_size=8).hexdigest()
                    following, got = EntryId(entry_id + 1), True
            if not got:
                return None
    return held


async def _stream(client: StreamClient) -> FinalStream:
    async def whole() -> FinalStream:
        stream = await client.stream(STREAM)
        try:
            return await _read_stream(stream)
        finally:
            await stream.close()

    try:
        return await retried(whole)
    except LedgerError as error:
        return FinalStream(STREAM, unreadable=repr(error))


async def _read_stream(stream: Stream) -> FinalStream:
    head = await stream.head()
    commits = []
    for commit in await stream.commits(0, head.next_commit):
        values: list[str] = []
        if commit.segments:
            first, end = Dlsn(commit.first_segment), Dlsn(commit.end_segment)
            async with aclosing(stream.read(first, end)) as batches:
                async for batch in batches:
                    values += values_of(batch)
        commits.append(
            FinalCommit(
                commit.number, commit.sink_id, commit.transaction_id, tuple(values), commit.time_ms
            )
        )
    everything: list[str] = []
    async with aclosing(stream.read()) as batches:
        async for batch in batches:
            everything += values_of(batch)
    return FinalStream(STREAM, tuple(commits), tuple(everything))
