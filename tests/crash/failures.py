"""The nth operation of the disk fails, for every n: nothing false is ever acknowledged.

One workload is run again and again over a file system whose nth operation fails, n = 1, 2, ...
until a run meets no fault any more. Operations are all of them, reads and openings of files
included; faults are errno values, writes that stop half-way or that were done all the same; they
last for one operation, for one directory from then on, or for everything from then on.

What must hold, in each run: a store that cannot open says so; a journal that failed once answers
nothing any more and the process is told to end; an entry that was acknowledged is never denied,
only unreadable; and a restart without faults keeps every promise.

    python -m tests.crash --failures 0 --seed 1
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.errors import ConfigurationError, CorruptionError
from tests.crash.disk import LOST, SECTORS, after_kill, after_power_cut
from tests.crash.promises import Promises
from tests.crash.workload import CONFIG, Workload
from tests.unit.bookie_server.storage.support import JOURNAL, Machine, formatted

STEPS = 18
ONCE, DIRECTORY, FOR_EVER = "once", "for ever in its directory", "for ever"


class How(NamedTuple):
    """How an operation fails: ``write_part`` of a write is done before."""

    name: str
    error_number: int
    write_part: float
    lasts: str


HOWS = tuple(
    How(f"{name} {lasts}", number, part, lasts)
    for name, number, part in (
        ("EIO", errno.EIO, 0.0),
        ("ENOSPC", errno.ENOSPC, 0.0),
        ("EINTR", errno.EINTR, 0.0),
        ("EDQUOT", errno.EDQUOT, 0.0),
        ("short write, ENOSPC", errno.ENOSPC, 0.5),
        ("whole write, EIO", errno.EIO, 1.0),
    )
    for lasts in (ONCE, DIRECTORY, FOR_EVER)
)


@dataclass
class FailNth:
    """A plan whose nth operation fails, and perhaps others after it."""

    at: int
    how: How
    hits: list[Operation] = field(default_factory=list)

    def __call__(self, operation: Operation) -> Fault | None:
        if operation.number < self.at:
            return None
        if operation.number > self.at:
            if self.how.lasts == ONCE:
                return None
            if self.how.lasts == DIRECTORY and not self._same_directory(operation):
                return None
        self.hits.append(operation)
        return Fault(self.how.error_number, self.how.write_part)

    def _same_directory(self, operation: Operation) -> bool:
        return operation.path.parts[:3] == self.hits[0].path.parts[:3]


@dataclass
class FailureTally:
    """What was done, for reports."""

    seed: int
    runs: int = 0
    operations: int = 0
    faults: int = 0
    refused_to_open: int = 0
    ended: int = 0
    ran_on: int = 0
    by_site: Counter[str] = field(default_factory=Counter)
    by_how: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "seed": self.seed,
            "runs": self.runs,
            "operations_of_the_workload": self.operations,
            "faults": self.faults,
            "refused_to_open": self.refused_to_open,
            "process_ended": self.ended,
            "ran_on": self.ran_on,
            "by_site": dict(sorted(self.by_site.items())),
            "by_how": dict(sorted(self.by_how.items())),
        }


def every_failure(seed: int, *, ways: int = len(HOWS)) -> FailureTally:
    """Fail every operation of the seed's workload: in so many ways each, by turns, or in all."""
    tally = FailureTally(seed)
    at = 0
    while True:
        at += 1
        faults = [_run(seed, at, how, tally) for how in _hows(at, ways)]
        if not any(faults):
            break
    tally.operations = at - 1
    return tally


def _hows(at: int, ways: int) -> Iterator[How]:
    if ways == len(HOWS):
        yield from HOWS
        return
    once = HOWS[at * 3 % len(HOWS)]  # each errno in turn
    lasting = HOWS[(at * 3 + 1 + at // 6 % 2) % len(HOWS)]
    yield from (once, lasting)[:ways] if at % 2 else (lasting, once)[:ways]


def _run(seed: int, at: int, how: How, tally: FailureTally) -> int:
    """One run; the number of faults it met."""
    plan = FailNth(at, how)
    disk, promises = formatted(), Promises()
    files = FaultFileSystem(disk, plan)
    where = f"seed {seed}, operation {at} fails with {how.name}"
    workload = Workload(seed, promises, faults=True)
    try:
        machine = workload.live(files, STEPS)
    except (ConfigurationError, CorruptionError):
        assert plan.hits, f"{where}: opening fails without a fault"
        tally.refused_to_open += 1
    else:
        if not plan.hits:
            return 0
        if machine is not None:
            where += f" ({plan.hits[0].kind} {plan.hits[0].path.name})"
            _check_living(machine, plan, promises, where, tally, closed=workload.closed)
    choose = random.Random(at)
    for name, image in (
        ("restarted", after_kill(disk)),
        ("power cut, unsynced lost", after_power_cut(disk, LOST, choose)),
        ("power cut, lottery", after_power_cut(disk, SECTORS, choose)),
    ):
        promises.check(Machine(image, CONFIG), f"{where}, {name}", choose)
    tally.runs += 1
    tally.faults += len(plan.hits)
    tally.by_how[how.name] += 1
    tally.by_site[f"{plan.hits[0].kind} in {_place(plan.hits[0])}"] += 1
    return len(plan.hits)


def _check_living(
    machine: Machine,
    plan: FailNth,
    promises: Promises,
    where: str,
    tally: FailureTally,
    *,
    closed: bool,
) -> None:
    """The process as it is after the faults: told to end, or honest and, once healthy, whole."""
    failed_journal = any(_ends_the_process(hit, plan.how.error_number) for hit in plan.hits)
    promises.check_honest(machine, where)
    if machine.fatal:
        assert machine.bookie.stats().failure, f"{where}: the failure is shown"
        with suppress(OSError):  # what waits for room is refused, and there is some, or it is told
            machine.bookie.flush()
        machine.bookie.on_flushed()
        machine.settle()
        refused = len(promises.refused)
        answer = machine.add(0, [70_000]).name  # on a disk that is also full it says that
        assert answer in ("IO_ERROR", "READ_ONLY"), f"{where}: takes adds again"
        assert machine.fence(0).name == "IO_ERROR", f"{where}: takes fences again"
        assert len(promises.refused) == refused
        tally.ended += 1
        return
    assert closed or not failed_journal, f"{where}: the journal failed and the bookie goes on"
    tally.ran_on += 1
    if plan.how.lasts == ONCE:
        machine.flush()
        promises.check(machine, f"{where}, running on")


def _ends_the_process(hit: Operation, error_number: int) -> bool:
    """Whether a batch failed, or the file that it was to go to. A file that is only being prepared
    harms nobody, and neither does one that there is no space for: nothing was written to it."""
    if not hit.path.is_relative_to(JOURNAL):
        return False
    if hit.kind not in ("pwritev", "fdatasync", "preallocate"):
        return False
    if hit.path.name.endswith(".log"):
        return True
    is_prepared = hit.path.name.endswith(".free.tmp")
    return not is_prepared and error_number not in (errno.ENOSPC, errno.EDQUOT)


def _place(operation: Operation) -> str:
    name = operation.path.name
    for part in ("journal-", "entries-", "index.json", "bookie.json"):
        if name.startswith(part):
            return part.rstrip("-")
    return operation.path.parts[2] if len(operation.path.parts) > 2 else str(operation.path)
