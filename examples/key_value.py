"""A key-value store on ledgers: one member writes, the others follow, and any of them takes over.

An epoch is a snapshot in one ledger and the puts since then in another; the rows of a stream name
them, in order. Who takes over fences the last log, writes all it knows as the snapshot of the next
epoch, and commits its row: a stream takes each transaction once, so one member begins an epoch.
"""

from __future__ import annotations

import json

import pyarrow as pa

from spark_ledger.errors import ConflictError
from spark_ledger.stream.blocking import StreamConnection

EPOCHS = pa.schema([("epoch", pa.int64()), ("snapshot", pa.int64()), ("log", pa.int64())])
SILENCE_S = 2.0  # nobody has written for so long: take over. Wrong guesses cost time, never data.
SNAPSHOT_EVERY = 50


class Member:
    """One copy of the store: a standby, or the active when it has a writer."""

    def __init__(self, client: StreamConnection) -> None:
        self.client = client
        self.epochs = client.create_stream("kv-epochs", EPOCHS, exist_ok=True)
        self.state: dict[str, int] = {}
        self.last = {"epoch": 0, "snapshot": -1, "log": -1}
        self.applied = 0  # entries of the last epoch's log

    def newest(self) -> dict[str, int]:
        rows = [row for batch in self.epochs.read() for row in batch.to_pylist()]
        return rows[-1] if rows else self.last

    def follow(self) -> None:
        """Apply what the active writes, until nobody writes any more."""
        while True:
            if (newest := self.newest()) != self.last:
                self.last, self.applied, self.state = newest, 0, {}
                for entry in self.client.open_ledger(newest["snapshot"]).tail():
                    self.state.update(json.loads(entry.payload))
            if not self.last["epoch"]:
                return  # nobody has ever written
            log = self.client.open_ledger(self.last["log"])
            for entry in log.tail(self.applied, idle_timeout=SILENCE_S):
                self.apply(entry.payload)
            if self.newest() == self.last:
                return

    def apply(self, payload: bytes) -> None:
        self.state.update(json.loads(payload))
        self.applied += 1

    def take_over(self) -> None:
        """Fence the last active, and begin an epoch. Raises ConflictError: another was first."""
        if self.last["epoch"]:
            log = self.client.open_ledger(self.last["log"], recover=True)
            for entry in log.tail(self.applied):  # it is closed: up to its end
                self.apply(entry.payload)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        with self.client.create_ledger() as snapshot:
            snapshot.append(json.dumps(self.state).encode())
        self.writer = self.client.create_ledger()
        number = self.last["epoch"] + 1
        row = {"epoch": number, "snapshot": snapshot.ledger_id, "log": self.writer.ledger_id}
        table = pa.Table.from_pylist([row], EPOCHS)
        self.epochs.append(table, sink_id="epochs", transaction_id=number)
        if self.newest() != row:
            raise ConflictError(f"another member began epoch {number}")
        self.last, self.applied = row, 0

    def put(self, key: str, value: int) -> None:
        """Returns when it is safe. Raises FencedError once another member has taken over."""
        payload = json.dumps({key: value}).encode()
        self.writer.append(payload)
        self.apply(payload)
        if self.applied == SNAPSHOT_EVERY:
            self.writer.close()
            self.begin_epoch()
