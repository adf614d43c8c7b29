"""A workload on a bookie over a crashable file system, and what it was promised.

Everything that happens is decided by the seed: adds of several ledgers in order, resends, adds of
a recovery with gaps, fences, access keys, explicit LACs, checkpoints, in batches of random length.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field

from bookie_server.storage.fault_fs import Fault, Operation
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import Answer, Machine, expected, make_run

LEDGER_COUNT = 5


class PowerCutError(BaseException):
    """The machine stopped. Not an Exception: nothing in the storage may catch it."""


@dataclass
class PowerCut:
    """A plan that stops the machine before operation ``at``, and at every one after it."""

    at: int

    def __call__(self, operation: Operation) -> Fault | None:
        if operation.number >= self.at:
            raise PowerCutError(f"{operation}")
        return None


@dataclass
class FailNth:
    """A plan that fails the nth change, once or from then on. Reads pass."""

    at: int
    error_number: int
    part: float
    for_ever: bool
    count: int = 0
    hits: list[Operation] = field(default_factory=list)

    def __call__(self, operation: Operation) -> Fault | None:
        if operation.kind in ("pread", "open", "list"):
            return None
        self.count += 1
        if self.count == self.at or (self.for_ever and self.count > self.at):
            self.hits.append(operation)
            return Fault(self.error_number, self.part)
        return None


@dataclass
class Promises:
    """What was answered OK, and what was sent at all."""

    entries: dict[int, set[int]] = field(default_factory=dict)
    sent: dict[int, set[int]] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    lacs: dict[int, int] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    refused: list[Answer] = field(default_factory=list)

    def check(self, machine: Machine, context: str) -> None:
        """Every promise is kept, and nothing was invented."""
        for ledger_id in range(LEDGER_COUNT):
            held = machine.held(ledger_id)
            promised = expected(ledger_id, sorted(self.entries.get(ledger_id, ())))
            missing = promised.keys() - held.keys()
            assert not missing, f"{context}: ledger {ledger_id} lost {sorted(missing)}"
            invented = held.keys() - self.sent.get(ledger_id, set())
            assert not invented, f"{context}: ledger {ledger_id} invented {sorted(invented)}"
            assert held == expected(ledger_id, sorted(held)), f"{context}: wrong bytes"
            if ledger_id in self.fenced:
                assert machine.is_fenced(ledger_id), f"{context}: {ledger_id} is not fenced"
                status = machine.add(
                    ledger_id, [10_000], key=self.keys.get(ledger_id, key_of(ledger_id))
                )
                assert status is BookieStatus.FENCED, f"{context}: {status.name}"
            lac = self.lacs.get(ledger_id, -1)
            assert machine.lac(ledger_id) >= lac, f"{context}: LAC of {ledger_id} went back"
            if promised or ledger_id in self.fenced:
                wrong = machine.bookie.check_access(LedgerId(ledger_id), b"wrong")
                assert wrong is BookieStatus.UNAUTHORIZED, f"{context}: key of {ledger_id} is lost"


def key_of(ledger_id: int) -> bytes:
    """Odd ledgers have an access key."""
    return b"key of %d" % ledger_id if ledger_id % 2 else b""


def run_workload(machine: Machine, promises: Promises, *, seed: int, steps: int) -> None:
    """Do ``steps`` random things and collect what is promised."""
    choose = random.Random(seed)
    next_entry = dict.fromkeys(range(LEDGER_COUNT), 0)
    for _step in range(steps):
        for _request in range(choose.randint(1, 4)):
            _request_once(machine, promises, choose, next_entry)
        machine.settle()
        if choose.random() < 0.2:
            try:
                machine.flush()
            except OSError as error:  # the disk failed a checkpoint: nothing is promised by it
                assert error.errno in (errno.EIO, errno.ENOSPC)


def _request_once(
    machine: Machine, promises: Promises, choose: random.Random, next_entry: dict[int, int]
) -> None:
    ledger_id = choose.randrange(LEDGER_COUNT)
    key = key_of(ledger_id)
    kind = choose.random()
    if kind < 0.03:
        _fence(machine, promises, ledger_id, key)
    elif kind < 0.09:
        _write_lac(machine, promises, ledger_id, key, next_entry[ledger_id] - 1)
    else:
        start = next_entry[ledger_id]
        recovery = False
        if kind < 0.24 and start:  # sent again, or copied by a recovery: overlaps what is stored
            start = choose.randrange(start)
            recovery = True
        ids = list(range(start, start + choose.randint(1, 8)))
        if kind > 0.85 or recovery:
            ids = sorted(choose.sample(ids, choose.randint(1, len(ids))))
        next_entry[ledger_id] = max(next_entry[ledger_id], ids[-1] + 1)
        _add(machine, promises, ledger_id, key, ids, recovery)


def _add(
    machine: Machine,
    promises: Promises,
    ledger_id: int,
    key: bytes,
    ids: list[int],
    recovery: bool,
) -> None:
    promises.sent.setdefault(ledger_id, set()).update(ids)

    def done(status: BookieStatus, message: str) -> None:
        if status is BookieStatus.OK:
            promises.entries.setdefault(ledger_id, set()).update(ids)
            promises.lacs[ledger_id] = max(promises.lacs.get(ledger_id, -1), ids[0] - 1)
        else:
            promises.refused.append((status, message))

    machine.bookie.add(
        make_run(ledger_id, ids),
        access_key=key,
        recovery=recovery,
        last_add_confirmed=EntryId(ids[0] - 1),
        done=done,
    )


def _fence(machine: Machine, promises: Promises, ledger_id: int, key: bytes) -> None:
    def done(status: BookieStatus, message: str) -> None:
        if status is BookieStatus.OK:
            promises.fenced.add(ledger_id)
        else:
            promises.refused.append((status, message))

    machine.bookie.fence(LedgerId(ledger_id), access_key=key, done=done)


def _write_lac(machine: Machine, promises: Promises, ledger_id: int, key: bytes, lac: int) -> None:
    def done(status: BookieStatus, message: str) -> None:
        if status is BookieStatus.OK:
            promises.lacs[ledger_id] = max(promises.lacs.get(ledger_id, -1), lac)
        else:
            promises.refused.append((status, message))

    machine.bookie.write_last_confirmed(
        LedgerId(ledger_id), EntryId(lac), access_key=key, done=done
    )
