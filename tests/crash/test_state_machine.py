"""A bookie against the model, step by step, in whatever order Hypothesis thinks of.

Crashes, restarts, failing operations and rotten bytes come between ordinary requests, and a
sequence that fails is cut down to its shortest form. Examples are the same in every run; other ones
are tried with ``HYPOTHESIS_PROFILE=thorough``.
"""

from __future__ import annotations

import errno
import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.ledgers.entry_log import log_ids, log_path
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.crash.disk import POWER_CUTS, PowerCut, after_kill, after_power_cut
from tests.crash.promises import Promises, key_of, run_of
from tests.crash.workload import CONFIG
from tests.unit.bookie_server.storage.support import LEDGERS, Machine, formatted

LEDGER_IDS = st.integers(0, 4)
CHANGES = (
    "pwritev",
    "fdatasync",
    "create",
    "preallocate",
    "rename",
    "sync_directory",
    "remove",
    "punch",
)


class _FailNext:
    """A plan that fails the next operation of a kind, once."""

    def __init__(self) -> None:
        self.kind = ""
        self.error_number = 0
        self.write_part = 0.0
        self.hits: list[Operation] = []

    def __call__(self, operation: Operation) -> Fault | None:
        if operation.kind != self.kind:
            return None
        self.kind = ""
        self.hits.append(operation)
        return Fault(self.error_number, self.write_part)


class BookieAgainstModel(RuleBasedStateMachine):
    """Rules are what may happen to a bookie; ``Promises`` is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.promises = Promises()
        self.plan = _FailNext()
        self.disk: MemoryFileSystem = formatted()
        self.machine: Machine | None = None
        self.next_entry = dict.fromkeys(range(5), 0)

    @initialize(eager=st.booleans())
    def start(self, eager: bool) -> None:
        self._open(eager=eager)

    # -- requests ------------------------------------------------------------------------------

    @rule(ledger=LEDGER_IDS, count=st.integers(1, 9), settle=st.booleans())
    def add(self, ledger: int, count: int, settle: bool) -> None:
        first = self.next_entry[ledger]
        self._add(ledger, list(range(first, first + count)), recovery=False)
        self._settle(settle)

    @rule(ledger=LEDGER_IDS, gaps=st.lists(st.integers(1, 4), min_size=1, max_size=6))
    def recovery_add(self, ledger: int, gaps: list[int]) -> None:
        start = self.next_entry[ledger] // 2
        self._add(ledger, [start + sum(gaps[:n]) for n in range(len(gaps))], recovery=True)
        self._settle(True)

    @rule(ledger=LEDGER_IDS, settle=st.booleans())
    def fence(self, ledger: int, settle: bool) -> None:
        assert self.machine is not None
        self.promises.fences_sent.add(ledger)

        def done(status: BookieStatus, message: str) -> None:
            if status is BookieStatus.OK:
                self.promises.fenced.add(ledger)
            else:
                self.promises.refused.append((status, message))

        self.machine.keys.learn(ledger, key_of(ledger))
        self.machine.bookie.fence(LedgerId(ledger), access_key=key_of(ledger), done=done)
        self._settle(settle)

    @rule(ledger=LEDGER_IDS, choice=st.integers(0, 2**32))
    def read(self, ledger: int, choice: int) -> None:
        assert self.machine is not None
        promised = sorted(self.promises.entries.get(ledger, ()))
        if promised:
            entry = promised[choice % len(promised)]
            self.promises.check_entry(self.machine, ledger, entry, "read")

    @rule(ledger=LEDGER_IDS)
    def list_entries(self, ledger: int) -> None:
        assert self.machine is not None
        held = self.machine.held(ledger).keys()
        assert held >= self.promises.entries.get(ledger, set()), f"ledger {ledger}: {held}"
        assert held <= self.promises.sent.get(ledger, set()), f"ledger {ledger}: {held}"

    # -- what the bookie does by itself ----------------------------------------------------------

    @rule(times=st.integers(1, 2))
    def flush(self, times: int) -> None:
        """Twice in a row gives up journal files."""
        assert self.machine is not None
        for _time in range(times):
            try:
                self.machine.flush()
            except OSError as error:
                assert self.plan.hits, error

    @rule()
    def fill_a_journal_file(self) -> None:
        """Single batches until the journal has rolled."""
        assert self.machine is not None
        before = self.machine.bookie.stats().journal.file_number
        for _batch in range(20):
            first = self.next_entry[4]
            self._add(4, [first], recovery=True)
            self._settle(True)
            if self.machine.fatal or self.machine.bookie.stats().journal.file_number > before:
                break

    # -- what happens to it ------------------------------------------------------------------------

    @rule(eager=st.booleans())
    def restart(self, eager: bool) -> None:
        assert self.machine is not None
        try:
            self.machine.close()
        except OSError as error:
            assert self.plan.hits, error
        self.plan.kind = ""
        self.disk = after_kill(self.disk)
        self._open(eager=eager)

    @rule(cut=st.sampled_from(POWER_CUTS), seed=st.integers(0, 2**32), eager=st.booleans())
    def power_cut(self, cut: PowerCut, seed: int, eager: bool) -> None:
        self.plan.kind = ""
        self.disk = after_power_cut(self.disk, cut, random.Random(seed))
        self._open(eager=eager)

    @rule(eager=st.booleans())
    def kill(self, eager: bool) -> None:
        self.plan.kind = ""
        self.disk = after_kill(self.disk)
        self._open(eager=eager)

    @precondition(lambda self: not self.plan.kind)
    @rule(
        kind=st.sampled_from(CHANGES),
        error_number=st.sampled_from((errno.EIO, errno.ENOSPC)),
        part=st.sampled_from((0.0, 0.5, 1.0)),
    )
    def fail_next(self, kind: str, error_number: int, part: float) -> None:
        self.plan.kind, self.plan.error_number = kind, error_number
        self.plan.write_part = part

    @rule(choice=st.integers(0, 2**32), bit=st.integers(0, 7))
    def rot_and_repair(self, choice: int, bit: int) -> None:
        """A bit of an entry log flips, everything is asked for, and the bit flips back."""
        assert self.machine is not None
        logs = [log_path(where, log) for where in LEDGERS for log in log_ids(self.disk, where)]
        if not logs:
            return
        path = logs[choice % len(logs)]
        place = choice % self.disk.open(path).size()
        byte = self.disk.open(path).pread(1, place)
        self._put_byte(path, place, bytes([byte[0] ^ 1 << bit]))
        self.promises.check_honest(self.machine, f"{path} rotten at {place}")
        self._put_byte(path, place, byte)

    # -- always ------------------------------------------------------------------------------------

    @invariant()
    def a_failed_journal_ends_the_process(self) -> None:
        if self.machine is None:
            return
        if self.machine.fatal:
            assert self.plan.hits, "nothing failed"
            self.machine.settle()
            self.plan.kind = ""
            self.disk = after_kill(self.disk)
            self._open(eager=False)

    def teardown(self) -> None:
        if self.machine is None:
            return
        self.plan.kind = ""
        cut = after_power_cut(self.disk, POWER_CUTS[0], random.Random(0))
        self.promises.check(Machine(cut, CONFIG), "at the end", random.Random(0))

    # -- parts -------------------------------------------------------------------------------------

    def _open(self, *, eager: bool) -> None:
        while True:
            self.plan.hits.clear()
            files = FaultFileSystem(self.disk, self.plan)
            try:
                self.machine = Machine(files, CONFIG, eager=eager)
            except ConfigurationError:
                assert self.plan.hits, "opening fails only when the disk does"
                self.disk = after_kill(self.disk)
                continue
            break
        self.promises.check(self.machine, "opened")

    def _settle(self, settle: bool) -> None:
        assert self.machine is not None
        if settle:
            self.machine.settle()

    def _add(self, ledger: int, ids: list[int], *, recovery: bool) -> None:
        machine, promises = self.machine, self.promises
        assert machine is not None
        lac = ids[0] - 1
        self.next_entry[ledger] = max(self.next_entry[ledger], ids[-1] + 1)
        promises.sent.setdefault(ledger, set()).update(ids)
        promises.lacs_sent[ledger] = max(promises.lacs_sent.get(ledger, -1), lac)

        def done(status: BookieStatus, message: str) -> None:
            if status is BookieStatus.OK:
                assert not machine.fatal, "a journal that failed answers nothing any more"
                promises.entries.setdefault(ledger, set()).update(ids)
                promises.lacs[ledger] = max(promises.lacs.get(ledger, -1), lac)
            else:
                promises.refused.append((status, message))

        machine.keys.learn(ledger, key_of(ledger))
        machine.bookie.add(
            run_of(ledger, ids),
            access_key=key_of(ledger),
            recovery=recovery,
            last_add_confirmed=EntryId(lac),
            done=done,
        )

    def _put_byte(self, path: os.PathLike[str], place: int, byte: bytes) -> None:
        """What the disk holds and what the page cache shows, without making either durable."""
        inode = self.disk._inode(path)  # type: ignore[arg-type]
        inode.data[place : place + 1] = byte
        if place < len(inode.durable):
            inode.durable[place : place + 1] = byte


_COMMON = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestBookieAgainstModel = pytest.mark.timeout(600)(BookieAgainstModel.TestCase)
TestBookieAgainstModel.settings = (
    settings(_COMMON, max_examples=3000, stateful_step_count=80)
    if os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
    else settings(
        _COMMON, max_examples=120, stateful_step_count=40, derandomize=True, database=None
    )
)
