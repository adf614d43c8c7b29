"""A crash at every operation of a workload: what was answered is there afterwards, always.

The workload runs over a file system that is asked before every operation. At each that changes
something the machine is copied as a kill or a power cut would leave it, in every way that ``disk``
knows; a bookie opens the copy and must agree with the promises made so far. Openings are crashed
in the same way, and the openings after those, up to three deep. The workload itself goes through
several lives, each on what a crash left of the one before, so later openings meet the remains of
earlier ones.

    python -m tests.crash --points 5000 --seed 1
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from tests.crash.disk import LOST, POWER_CUTS, PowerCut, after_kill, after_power_cut
from tests.crash.promises import Promises
from tests.crash.workload import CONFIG, Workload, compact
from tests.unit.bookie_server.storage.support import Machine, formatted

LIVES = 3
STEPS = 24
DEPTH_MAX = 3
_READS = frozenset({"pread", "open", "list"})
_NESTED = 0.15
"""Share of power cuts after which the opening is crashed, too. After a kill the opening sees more
than the disk holds: there that is tried every time, beside an opening that nothing disturbs."""


class StopError(BaseException):
    """The machine stopped. Not an Exception: nothing in the storage may catch it."""


@dataclass
class Tally:
    """What was done, for reports."""

    seed: int
    points: int = 0
    workloads: int = 0
    operations: int = 0
    acknowledged: int = 0
    seconds: float = 0.0
    by_kind: Counter[str] = field(default_factory=Counter)
    by_depth: Counter[int] = field(default_factory=Counter)
    by_operation: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "seed": self.seed,
            "crash_points": self.points,
            "workloads": self.workloads,
            "operations": self.operations,
            "acknowledged_entries": self.acknowledged,
            "by_kind": dict(sorted(self.by_kind.items())),
            "by_depth": {str(depth): count for depth, count in sorted(self.by_depth.items())},
            "by_operation": dict(sorted(self.by_operation.items())),
            "seconds": round(self.seconds, 1),
        }


class _Stop:
    """A plan that stops the machine before operation ``at``, and at every one after it."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, operation: Operation) -> Fault | None:
        if operation.number >= self.at:
            raise StopError(f"{operation}")
        return None


class CrashLoop:
    """Crashes, recovers and compares. One object counts for a whole run."""

    def __init__(self, seed: int) -> None:
        self.tally = Tally(seed)
        self._choose = random.Random(f"crash points {seed}")
        self._choose_space = random.Random(f"space {seed}")

    def run(self, points: int) -> Tally:
        """Workload after workload until so many crash points were recovered."""
        started = time.perf_counter()
        while self.tally.points < points:
            self.workload(self.tally.seed + self.tally.workloads)
        self.tally.seconds = time.perf_counter() - started
        return self.tally

    def workload(self, seed: int) -> None:
        """All crash points of one workload."""
        promises = Promises()
        workload = Workload(seed, promises)
        disk = formatted()
        for life in range(LIVES):
            observer = _Observer(self, disk, promises, f"seed {seed}, life {life}")
            files = FaultFileSystem(disk, observer)
            if life < LIVES - 1:
                observer.stop_at = self._choose.randint(40, 260)
            with suppress(StopError):
                machine = workload.live(files, STEPS)
                assert machine is not None, "nothing fails here"
                machine.close()
            self.tally.operations += files.operations
            cut = self._any_crash()
            disk = after_power_cut(disk, cut, self._choose) if cut else after_kill(disk)
        assert not promises.unreadable and not promises.refused_by_fault(), "nothing fails here"
        self.tally.acknowledged += promises.acknowledged
        self.tally.workloads += 1

    def points_at(self, disk: MemoryFileSystem, promises: Promises, where: str) -> None:
        """Two crashes here, one of which loses everything unsynced; both are recovered."""
        self._crash(disk, promises, where, depth=1, cut=LOST)
        self._crash(disk, promises, where, depth=1, cut=self._any_crash())

    def _any_crash(self) -> PowerCut | None:
        """A power cut of any kind, or None for a kill."""
        return self._choose.choice((*POWER_CUTS[1:], None))

    def _crash(
        self,
        disk: MemoryFileSystem,
        promises: Promises,
        where: str,
        *,
        depth: int,
        cut: PowerCut | None,
    ) -> None:
        seed = self._choose.getrandbits(32)
        if cut is None:
            image, kind = after_kill(disk), "kill"
        else:
            image, kind = after_power_cut(disk, cut, random.Random(seed)), cut.name
        self.recover(image, promises, f"{where}: {kind} ({seed})", depth=depth, kind=kind)

    def recover(
        self, disk: MemoryFileSystem, promises: Promises, context: str, *, depth: int, kind: str
    ) -> None:
        """Open, perhaps crash that as well, and compare."""
        self.tally.points += 1
        self.tally.by_kind[kind] += 1
        self.tally.by_depth[depth] += 1
        killed = kind == "kill"
        if depth < DEPTH_MAX and (killed or self._choose.random() < _NESTED):
            at = self._choose.randint(1, 60)
            again = after_kill(disk)
            with suppress(StopError):
                Machine(FaultFileSystem(again, _Stop(at)), CONFIG)
            cut = LOST if self._choose.random() < (0.8 if killed else 0.4) else self._any_crash()
            where = f"{context}; opening stopped at {at}"
            self._crash(again, promises, where, depth=depth + 1, cut=cut)
            if not killed:
                return
        machine = Machine(disk, CONFIG)
        promises.check(machine, context, self._choose)
        if self._choose_space.random() < 0.2:
            self._check_space(disk, machine, promises, context)
            return
        if self._choose.random() < 0.2:
            self._check_shown_is_durable(disk, machine, promises, context)

    def _check_space(
        self, disk: MemoryFileSystem, machine: Machine, promises: Promises, context: str
    ) -> None:
        """Compaction of what a crash left loses nothing; what was deleted goes, for good."""
        promises.check_gone(machine, context)
        compact(machine)
        promises.check(machine, f"{context}, compacted")
        machine.flush()
        second = Machine(after_power_cut(disk, LOST, self._choose_space), CONFIG)
        promises.check(second, f"{context}, compacted and opened again")
        for ledger_id in promises.deleted:
            assert not second.held(ledger_id), f"{context}: ledger {ledger_id} is back"

    def _check_shown_is_durable(
        self, disk: MemoryFileSystem, machine: Machine, promises: Promises, context: str
    ) -> None:
        """What an opened bookie shows was synced before: it survives the next power cut."""
        shown = {ledger_id: machine.held(ledger_id) for ledger_id in promises.ledgers}
        fenced = {ledger_id for ledger_id in promises.ledgers if machine.is_fenced(ledger_id)}
        second = Machine(after_power_cut(disk, LOST, self._choose), CONFIG)
        for ledger_id, entries in shown.items():
            assert second.held(ledger_id) == entries, (
                f"{context}: ledger {ledger_id} showed {sorted(entries)}, and after a power cut "
                f"{sorted(second.held(ledger_id))}"
            )
            assert second.is_fenced(ledger_id) == (ledger_id in fenced), context


class _Observer:
    """A plan that lets everything pass and has every crash point tried."""

    def __init__(
        self, loop: CrashLoop, disk: MemoryFileSystem, promises: Promises, where: str
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._promises = promises
        self._where = where
        self.stop_at = 1 << 60

    def __call__(self, operation: Operation) -> Fault | None:
        if operation.number >= self.stop_at:
            raise StopError(f"{operation}")
        if operation.kind not in _READS:
            self._loop.tally.by_operation[operation.kind] += 1
            where = f"{self._where}, operation {operation.number} ({operation.kind})"
            self._loop.points_at(self._disk, self._promises, where)
        return None
