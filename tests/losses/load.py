"""The load: clients that write ledgers of all shapes, read them, and note what they were told.

An error is no fault by itself, since a stranger is at the bookies. What was acknowledged is noted,
and looked for at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import (
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from spark_ledger.types import LedgerId

SHAPES: Final = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (5, 3, 2))
"""E, WQ, AQ: each entry is promised to outlive one lost disk."""

PASSWORD: Final = b"secret"
_WRITERS: Final = 4
_PAUSE_S: Final = 0.02
_CLOSED, _LEFT = 0.8, 0.9
"""Shares of ledgers that are closed, and that are left open without a word; the others are left
open by a writer that stays, and adds nothing."""


def payload(ledger_id: int, number: int) -> bytes:
    """The bytes of one append, which nobody else writes."""
    seed = hashlib.sha256(b"%d/%d" % (ledger_id, number)).digest()
    return seed * (1 + seed[0] ** 2 // 256 if seed[1] else 2048)


_OPERATOR_S: Final = 10.0
"""An operator closes a ledger with a password so long after its writer was done with it: nobody
else can, and as long as one names a lost bookie no other disk may be wiped."""


@dataclass(slots=True)
class Written:
    """One ledger."""

    password: bytes
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Entry ids, each with the number of its append."""
    closed: bool = False
    left_at: float | None = None
    """When its writer was done with it, by the loop's clock, if that left it open."""


@dataclass(slots=True)
class Load:
    """What the clients did."""

    uri: str
    seed: int
    ledgers: dict[LedgerId, Written] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Answers that no bookie may give, whoever is at it."""
    errors: Counter[str] = field(default_factory=Counter)
    read: int = 0

    @property
    def acknowledged(self) -> int:
        """Entries."""
        return sum(len(each.acknowledged) for each in self.ledgers.values())

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set. Ledgers that are open then are left open."""
        async with asyncio.TaskGroup() as group:
            for number in range(_WRITERS):
                group.create_task(self._write(random.Random(f"{self.seed}/{number}"), stop))
            group.create_task(self._read(random.Random(f"{self.seed}/reader"), stop))
            group.create_task(self._close_locked(stop))

    async def _write(self, chance: random.Random, stop: asyncio.Event) -> None:
        client = await LedgerClient.connect(self.uri)
        try:
            while not stop.is_set():
                try:
                    await self._one_ledger(client, chance, stop)
                except LedgerError as error:
                    self.errors[type(error).__name__] += 1
                    await asyncio.sleep(10 * _PAUSE_S)
        finally:
            await client.close()

    async def _one_ledger(
        self, client: LedgerClient, chance: random.Random, stop: asyncio.Event
    ) -> None:
        e, wq, aq = chance.choice(SHAPES)
        password = PASSWORD if chance.random() < 0.2 else b""
        writer = await client.create_ledger(
            ensemble_size=e, write_quorum=wq, ack_quorum=aq, password=password
        )
        written = self.ledgers[writer.ledger_id] = Written(password)
        try:
            await self._fill(writer, written, chance, stop)
        finally:
            written.left_at = None if written.closed else asyncio.get_running_loop().time()

    async def _fill(
        self, writer: LedgerWriter, written: Written, chance: random.Random, stop: asyncio.Event
    ) -> None:
        last, at_once = chance.choice((1, 10, 100, 300)), chance.choice((1, 1, 20))
        for start in range(0, last, at_once):
            if stop.is_set():
                return
            await asyncio.gather(
                *(self._append(writer, written, n) for n in range(start, start + at_once))
            )
            await asyncio.sleep(_PAUSE_S * at_once)
        share = chance.random()
        if share < _CLOSED:
            await writer.close()
            written.closed = True
        elif share < _LEFT:
            await writer.abandon()

    async def _append(self, writer: LedgerWriter, written: Written, number: int) -> None:
        entry_id = await writer.append(payload(writer.ledger_id, number))
        written.acknowledged[entry_id] = number

    async def _read(self, chance: random.Random, stop: asyncio.Event) -> None:
        async with await LedgerClient.connect(self.uri) as client:
            while not stop.is_set():
                closed = [each for each, written in self.ledgers.items() if written.closed]
                if closed:
                    await self._read_ledger(client, chance.choice(closed))
                await asyncio.sleep(5 * _PAUSE_S)

    async def _close_locked(self, stop: asyncio.Event) -> None:
        """As an operator who knows the password."""
        async with await LedgerClient.connect(self.uri) as client:
            loop = asyncio.get_running_loop()
            while not stop.is_set():
                await asyncio.sleep(_OPERATOR_S / 4)
                for ledger_id, written in list(self.ledgers.items()):
                    if not written.password or written.closed or written.left_at is None:
                        continue
                    if loop.time() - written.left_at < _OPERATOR_S:
                        continue
                    try:
                        await client.open_ledger(ledger_id, password=written.password, recover=True)
                        written.closed = True
                    except LedgerError as error:
                        self.errors[type(error).__name__] += 1

    async def _read_ledger(self, client: LedgerClient, ledger_id: LedgerId) -> None:
        written = self.ledgers[ledger_id]
        try:
            reader = await client.open_ledger(ledger_id, password=written.password)
            if reader.last_add_confirmed < max(written.acknowledged, default=-1):
                self.faults.append(f"ledger {ledger_id} ends at {reader.last_add_confirmed}")
                return
            if reader.last_add_confirmed < 0:
                return
            async for entry in reader.read(0, reader.last_add_confirmed):
                self.read += 1
                number = written.acknowledged.get(entry.entry_id)
                if number is not None and entry.payload != payload(ledger_id, number):
                    self.faults.append(f"ledger {ledger_id} entry {entry.entry_id} is another")
        except (NoSuchEntryError, NoSuchLedgerError, DigestMismatchError) as error:
            self.faults.append(f"ledger {ledger_id}: {error!r}")
        except LedgerError as error:
            self.errors[type(error).__name__] += 1
