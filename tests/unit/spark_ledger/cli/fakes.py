"""A cluster in memory for the command line: the blocking names that commands use, nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from spark_ledger.errors import (
    LedgerClosedError,
    LedgerError,
    NoSuchLedgerError,
    NoSuchStreamError,
    UnauthorizedError,
)
from spark_ledger.types import Entry, EntryId, LedgerId, Quorums


class FakeLedger:
    """A ledger and, in one object, the handles on it."""

    def __init__(self, ledger_id: int, password: bytes, options: dict[str, Any]) -> None:
        self.ledger_id = ledger_id
        self.password = password
        self.options = options
        self.payloads: list[bytes] = []
        self.batches: list[int] = []
        """How many entries were appended together, in order."""
        self.is_closed = False

    def __enter__(self) -> FakeLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed = True

    def append_many_async(self, payloads: list[bytes]) -> Future[range]:
        future: Future[range] = Future()
        if self.is_closed:
            future.set_exception(LedgerClosedError(f"ledger {self.ledger_id} is closed"))
        else:
            self.batches.append(len(payloads))
            first = len(self.payloads)
            self.payloads += payloads
            future.set_result(range(first, len(self.payloads)))
        return future

    @property
    def last_add_confirmed(self) -> int:
        return len(self.payloads) - 1

    def read(self, first: int, last: int) -> Iterator[Entry]:
        for entry_id in range(first, last + 1):
            payload = self.payloads[entry_id]
            yield Entry(LedgerId(self.ledger_id), EntryId(entry_id), payload, EntryId(-1), 0)

    def tail(self, start: int, idle_timeout: float | None) -> Iterator[Entry]:
        yield from self.read(start, self.last_add_confirmed)


class FakeStream:
    """Rows, and the ranges that were asked of them."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches
        self.asked: list[tuple[object, object]] = []

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, start: object, end: object) -> Iterator[Any]:
        self.asked.append((start, end))
        return iter(self.batches)


class FakeClient:
    """Remembers everything, so that a test can look at it afterwards."""

    def __init__(self) -> None:
        self.ledgers: dict[int, FakeLedger] = {}
        self.streams: dict[str, FakeStream] = {}
        self.uris: list[str] = []
        self.recovered: list[int] = []
        self.unreadable: dict[int, LedgerError] = {}
        """Why the metadata of some ledgers cannot be read."""

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stream(self, name: str) -> FakeStream:
        if name not in self.streams:
            raise NoSuchStreamError(f"stream {name} does not exist")
        return self.streams[name]

    def create_ledger(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        password: bytes,
        custom_metadata: dict[str, str],
    ) -> FakeLedger:
        quorums = Quorums(ensemble_size, write_quorum, ack_quorum)  # refuses what the real one does
        options = {"quorums": quorums, "custom_metadata": custom_metadata}
        ledger = FakeLedger(len(self.ledgers) + 1, password, options)
        self.ledgers[ledger.ledger_id] = ledger
        return ledger

    def open_ledger(
        self, ledger_id: int, *, recover: bool = False, password: bytes = b""
    ) -> FakeLedger:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        ledger = self.ledgers[ledger_id]
        if password != ledger.password:
            raise UnauthorizedError(f"ledger {ledger_id}: wrong password")
        if recover:
            self.recovered.append(ledger_id)
            ledger.is_closed = True
        return ledger

    def ledger_metadata(self, ledger_id: int) -> None:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        if ledger_id in self.unreadable:
            raise self.unreadable[ledger_id]

    def delete_ledger(self, ledger_id: int) -> None:
        self.ledgers.pop(ledger_id, None)
