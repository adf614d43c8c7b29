"""Roles on the stream: commit with repetitions and rivals, read, follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pyarrow as pa

from spark_ledger.errors import ConflictError, LedgerError
from spark_ledger.stream.model import Commit
from spark_ledger.stream.stream import Stream
from tests.chaos.session import Session
from tests.history.model import value

STREAM = "rows"
SCHEMA = pa.schema([pa.field("value", pa.string())])
SHARED_SINK = "shared"
"""Two drivers commit transactions of this sink, so one of them is always too late."""

COMMIT_INTERVAL_S = (0.02, 0.3)
ROWS_MAX = 12
REPEATED = 0.15
READ_ROWS_MAX = 20_000
TAIL_IDLE_S = 1.0


async def open_stream(session: Session) -> Stream | None:
    """Open the stream; None if it is time to stop before that succeeds."""
    while not session.stopping.is_set():
        try:
            return await session.client.stream(STREAM)
        except LedgerError:
            await session.pause(0.1)
    return None


async def commit(session: Session, sink_id: str) -> None:
    """Commit one transaction after the other; after a failure, the same one again."""
    process = f"{session.name}.{sink_id}"
    stream = await open_stream(session)
    if stream is None:
        return
    transaction_id, counter = -1, 0
    while await session.pause(session.rng.uniform(*COMMIT_INTERVAL_S)):
        newest = await _newest(stream, sink_id)
        if newest is None:
            continue
        transaction_id = max(transaction_id, newest) + 1
        if sink_id == SHARED_SINK:
            transaction_id = newest + 1  # the rival may have been faster: go on with the next
        count = session.rng.randint(1, ROWS_MAX)
        values = tuple(value(process, sink_id, counter + n) for n in range(count))
        counter += count
        while not session.stopping.is_set():
            if await _offer(session, process, stream, sink_id, transaction_id, values):
                break
            await session.pause(0.05)
        if session.rng.random() < REPEATED and not session.stopping.is_set():
            await _offer(session, process, stream, sink_id, transaction_id, values)
    await stream.close()


async def _newest(stream: Stream, sink_id: str) -> int | None:
    """The sink's newest transaction, -1 for none; None if it cannot be read now."""
    try:
        record = await stream.last_transaction(sink_id)
    except LedgerError:
        return None
    return -1 if record is None else record.transaction_id


async def _offer(
    session: Session,
    process: str,
    stream: Stream,
    sink_id: str,
    transaction_id: int,
    values: tuple[str, ...],
) -> bool:
    """Try to commit a transaction once. True if it is decided."""
    invoke = session.recorder.begin(
        process,
        "commit",
        stream=STREAM,
        sink_id=sink_id,
        transaction_id=transaction_id,
        values=values,
    )
    try:
        done: Commit = await stream.append(
            pa.table({"value": list(values)}, schema=SCHEMA),
            sink_id=sink_id,
            transaction_id=transaction_id,
        )
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return isinstance(error, ConflictError)  # the rival won with an older attempt
    session.recorder.ok(invoke, commit=done.number, applied=done.applied)
    return True


async def read_all(session: Session) -> None:
    """Read the whole stream repeatedly, under the name of the process that also commits."""
    process = f"{session.name}.{session.name}"
    stream = await open_stream(session)
    if stream is None:
        return
    while await session.pause(session.rng.uniform(0.5, 3.0)):
        invoke = session.recorder.begin(process, "stream_read", stream=STREAM, entry_id=0)
        found: list[str] = []
        try:
            async with aclosing(stream.read()) as batches:
                async for batch in batches:
                    found += values_of(batch)
        except LedgerError as error:
            session.recorder.error(invoke, error)
            continue
        session.recorder.ok(invoke, values=tuple(found))
        if len(found) > READ_ROWS_MAX:
            break
    await stream.close()


async def follow(session: Session) -> None:
    """Follow the stream from its beginning, and after an error from there again."""
    process = f"{session.name}.tail"
    stream = await open_stream(session)
    if stream is None:
        return
    while await session.pause(0.2):
        await _follow_once(session, process, stream)
    await stream.close()


async def _follow_once(session: Session, process: str, stream: Stream) -> None:
    count = 0
    invoke = session.recorder.begin(process, "stream_read", stream=STREAM, entry_id=0, last_entry=0)
    try:
        async with aclosing(stream.tail("earliest", idle_timeout=TAIL_IDLE_S)) as batches:
            async for batch in batches:
                found = tuple(values_of(batch))
                session.recorder.ok(invoke, values=found, entry_id=count)
                count += len(found)
                invoke = session.recorder.begin(
                    process, "stream_read", stream=STREAM, entry_id=count, last_entry=count
                )
                if session.stopping.is_set():
                    break
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return
    session.recorder.ok(invoke, entry_id=count)


def values_of(batch: Any) -> Iterator[str]:
    """The values of a record batch."""
    return iter(batch.column("value").to_pylist())
