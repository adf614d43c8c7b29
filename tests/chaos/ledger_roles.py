"""Roles on ledgers: write, read, follow, recover, delete. Each records everything it does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from spark_ledger.client.reader import LedgerReader
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import LedgerError, NoSuchLedgerError
from spark_ledger.types import Entry
from tests.chaos.payload import new_value, payload_of, value_of
from tests.chaos.session import LEDGER_TAG, Session
from tests.history.model import Event

QUORUMS = ((3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 2), (3, 3, 2))
"""(E, WQ, AQ) of new ledgers."""

IN_FLIGHT_MAX = 200
LEDGER_LIFE_S = (1.0, 7.0)
ABANDONED = 0.25
"""The share of ledgers that are left open, for recovery to close."""

RECOVERY_INTERVAL_S = (1.0, 4.0)
DELETE_INTERVAL_S = 8.0
KEPT_LEDGERS = 12
READ_ENTRIES_MAX = 300
TAIL_IDLE_S = 0.6


# -- writing ---------------------------------------------------------------------------------------


async def write(session: Session, index: int) -> None:
    """Write one ledger after the other, at a steady rate, with many appends in flight."""
    process = f"{session.name}.w{index}"
    while not session.stopping.is_set():
        writer = await _create(session, process)
        if writer is None:
            await session.pause(0.2)
            continue
        await _fill(session, process, writer)
        left_open = session.rng.random() < ABANDONED and not session.stopping.is_set()
        if left_open and not writer.is_closed:
            await _settle(writer)
        else:
            await _close(session, process, writer)


async def _create(session: Session, process: str) -> LedgerWriter | None:
    e, wq, aq = session.rng.choice(QUORUMS)
    invoke = session.recorder.begin(process, "create")
    try:
        writer: LedgerWriter = await session.client.create_ledger(
            ensemble_size=e, write_quorum=wq, ack_quorum=aq, custom_metadata=LEDGER_TAG
        )
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return None
    session.recorder.ok(invoke, ledger_id=writer.ledger_id)
    return writer


async def _fill(session: Session, process: str, writer: LedgerWriter) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + session.rng.uniform(*LEDGER_LIFE_S)
    counter, flying = 0, set[asyncio.Future[int]]()
    burst_max = session.rng.choice((1, 4, 16, 16))
    while loop.time() < until and not writer.is_closed and not session.stopping.is_set():
        burst = session.rng.randint(1, burst_max)
        for _ in range(burst):
            counter += 1
            if not _append(session, process, writer, counter, flying):
                return
        if len(flying) > IN_FLIGHT_MAX or burst_max == 1:
            await asyncio.wait(flying, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        await session.pause(burst / session.appends_per_s)


def _append(
    session: Session,
    process: str,
    writer: LedgerWriter,
    counter: int,
    flying: set[asyncio.Future[int]],
) -> bool:
    """Begin one append. False if the ledger accepts no more."""
    text = new_value(process, writer.ledger_id, counter)
    invoke = session.recorder.begin(process, "append", ledger_id=writer.ledger_id, values=(text,))
    try:
        future = writer.append_nowait(payload_of(text))
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return False
    flying.add(future)
    future.add_done_callback(flying.discard)
    future.add_done_callback(partial(_appended, session, writer, invoke))
    return True


def _appended(
    session: Session, writer: LedgerWriter, invoke: Event, future: asyncio.Future[int]
) -> None:
    error = future.exception()
    if error is not None:
        session.recorder.error(invoke, error)
        return
    confirmed = writer.last_add_confirmed
    session.recorder.ok(invoke, entry_id=future.result(), last_add_confirmed=confirmed)


async def _settle(writer: LedgerWriter) -> None:
    """Wait until every append is decided, and leave the ledger open."""
    try:
        await writer.flush()
    except LedgerError:
        return  # each append has its result


async def _close(session: Session, process: str, writer: LedgerWriter) -> None:
    invoke = session.recorder.begin(process, "close", ledger_id=writer.ledger_id)
    try:
        await writer.close()
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return
    if not writer.metadata.is_closed:  # somebody recovered it: this close did nothing
        session.recorder.failed(invoke, "TakenOver")
        return
    end = writer.metadata.last_entry_id
    session.recorder.ok(invoke, entry_id=end, last_add_confirmed=end, closed=True)


# -- reading ---------------------------------------------------------------------------------------


async def read(session: Session, index: int) -> None:
    """Open ledgers, mostly new ones; refresh, read and follow them."""
    count = 0
    while await session.pause(session.rng.uniform(0.05, 0.5)):
        if not session.others:
            continue
        newest = session.others[-8:]
        ledger_id = session.rng.choice(newest if session.rng.random() < 0.7 else session.others)
        count += 1
        process = f"{session.name}.r{index}.{count}"
        reader = await _open(session, process, ledger_id)
        if reader is None:
            continue
        for _ in range(session.rng.randint(1, 3)):
            if not await _use(session, process, reader):
                break


async def _open(session: Session, process: str, ledger_id: int) -> LedgerReader | None:
    invoke = session.recorder.begin(process, "open", ledger_id=ledger_id)
    try:
        reader = await session.client.open_ledger(ledger_id)
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return None
    lac, closed = reader.last_add_confirmed, reader.is_closed
    session.recorder.ok(invoke, last_add_confirmed=lac, closed=closed)
    return reader


async def _use(session: Session, process: str, reader: LedgerReader) -> bool:
    """Read, follow or refresh once; False if that failed."""
    rng, known = session.rng, reader.last_add_confirmed
    choice = rng.random()
    if choice < 0.5 and known >= 0:
        first = rng.randint(0, known)
        last = min(known, first + rng.randint(0, READ_ENTRIES_MAX))
        return await read_range(session, process, reader, first, last)
    if choice < 0.75:
        return await _follow(session, process, reader, max(0, known - rng.randint(0, 20)))
    invoke = session.recorder.begin(process, "refresh", ledger_id=reader.ledger_id)
    try:
        await reader.refresh()
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return False
    lac, closed = reader.last_add_confirmed, reader.is_closed
    session.recorder.ok(invoke, last_add_confirmed=lac, closed=closed)
    return True


async def read_range(
    session: Session, process: str, reader: LedgerReader, first: int, last: int
) -> bool:
    """Read a range as one operation; False if that failed."""
    invoke = session.recorder.begin(
        process, "read", ledger_id=reader.ledger_id, entry_id=first, last_entry=last
    )
    found: list[str] = []
    try:
        async with aclosing(reader.read_batches(first, last)) as batches:
            async for batch in batches:
                found += _values(batch)
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return False
    lac, closed = reader.last_add_confirmed, reader.is_closed
    session.recorder.ok(invoke, values=tuple(found), last_add_confirmed=lac, closed=closed)
    return True


async def _follow(session: Session, process: str, reader: LedgerReader, start: int) -> bool:
    """Follow a ledger for a while; each delivery is recorded as an operation."""
    following, ledger_id = start, reader.ledger_id
    invoke = session.recorder.begin(process, "tail", ledger_id=ledger_id, entry_id=following)
    try:
        async with aclosing(reader.tail_batches(start, idle_timeout=TAIL_IDLE_S)) as batches:
            async for batch in batches:
                session.recorder.ok(
                    invoke,
                    entry_id=batch[0].entry_id,
                    values=_values(batch),
                    last_add_confirmed=reader.last_add_confirmed,
                )
                following += len(batch)
                invoke = session.recorder.begin(
                    process, "tail", ledger_id=ledger_id, entry_id=following
                )
                if session.stopping.is_set() or following > start + 4 * READ_ENTRIES_MAX:
                    break
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return False
    lac, closed = reader.last_add_confirmed, reader.is_closed
    session.recorder.ok(invoke, last_add_confirmed=lac, closed=closed)
    return True


def _values(batch: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(value_of(entry.payload) for entry in batch)


# -- recovering and deleting -----------------------------------------------------------------------


async def recover(session: Session) -> None:
    """Recover ledgers that are not known to be closed, whether or not their writers live."""
    process = f"{session.name}.x"
    while not session.stopping.is_set():
        session.recover_all.clear()
        waiting = asyncio.ensure_future(session.recover_all.wait())
        try:
            await asyncio.wait({waiting}, timeout=session.rng.uniform(*RECOVERY_INTERVAL_S))
        finally:
            waiting.cancel()
        open_ledgers = [i for i in session.others if i not in session.closed]
        if not open_ledgers or session.stopping.is_set():
            continue
        oldest = open_ledgers[0] if session.rng.random() < 0.6 else None
        one = oldest if oldest is not None else session.rng.choice(open_ledgers)
        wanted = open_ledgers[::-1] if session.recover_all.is_set() else [one]
        await asyncio.gather(*(_recover(session, process, ledger_id) for ledger_id in wanted))


async def _recover(session: Session, process: str, ledger_id: int) -> None:
    invoke = session.recorder.begin(process, "recover", ledger_id=ledger_id)
    try:
        reader = await session.client.open_ledger(ledger_id, recover=True)
    except NoSuchLedgerError as error:
        session.closed.add(ledger_id)
        session.recorder.error(invoke, error)
        return
    except LedgerError as error:
        session.recorder.error(invoke, error)
        return
    end = reader.last_add_confirmed
    session.closed.add(ledger_id)
    session.recorder.ok(invoke, entry_id=end, last_add_confirmed=end, closed=True)
    if end >= 0:
        first = max(0, end - READ_ENTRIES_MAX)
        await read_range(session, process, reader, first, end)


async def delete(session: Session) -> None:
    """Delete an old ledger occasionally."""
    process = f"{session.name}.d"
    while await session.pause(DELETE_INTERVAL_S):
        if len(session.others) <= KEPT_LEDGERS:
            continue
        invoke = session.recorder.begin(process, "delete", ledger_id=session.others[0])
        try:
            await session.client.delete_ledger(session.others[0])
        except LedgerError as error:
            session.recorder.error(invoke, error)
            continue
        session.recorder.ok(invoke)
        session.closed.add(session.others.pop(0))
