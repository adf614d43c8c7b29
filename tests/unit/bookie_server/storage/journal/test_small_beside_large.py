"""Small adds of a batch are answered before its large runs are written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.journal.test_run_log import (
    CONFIG,
    LARGE,
    LEDGER,
    OK,
    RUN_LOG,
    lost,
)
from tests.unit.bookie_server.storage.support import JOURNAL, Machine, expected, formatted


@pytest.mark.parametrize("failing_logs", [[], [RUN_LOG], [RUN_LOG, JOURNAL]])
def test_small_add_beside_large_ones_waits_for_the_journal_alone(failing_logs: list[Path]) -> None:
    """But not if its ledger has a large one in the batch: its client takes an answer for all that
    came before it."""
    files = formatted()
    answers: dict[str, list[tuple[BookieStatus, str]]] = {}
    answered: list[dict[str, int]] = []

    def plan(operation: Operation) -> Fault | None:
        if "journal-" not in operation.path.name or operation.kind != "pwritev":
            return None
        if operation.path.parent == RUN_LOG:
            while machine.posted:
                machine.posted.popleft()()
            answered.append({name: len(answer) for name, answer in answers.items()})
        return Fault(errno.EIO) if answered and operation.path.parent in failing_logs else None

    machine = Machine(FaultFileSystem(files, plan), CONFIG)
    with machine.bookie.batch():
        answers["small"] = machine.start_add(LEDGER + 2, [0], size=50)
        answers["large"] = machine.start_add(LEDGER, [0], size=LARGE)
        answers["behind"] = machine.start_add(LEDGER, [1], size=50)
        answers["fence"] = machine.start_fence(LEDGER + 4)
    machine.settle()
    assert answered[0] == {"small": 1, "large": 0, "behind": 0, "fence": 1}
    assert answers["small"] == answers["fence"] == [(OK, "")], "once"
    fails = JOURNAL in failing_logs  # it takes the run if the run log does not
    assert [len(answer) for answer in answers.values()] == [1] * 4
    assert answers["large"][0][0] is (BookieStatus.IO_ERROR if fails else OK)
    assert answers["large"] == answers["behind"]
    assert bool(machine.fatal) is fails
    assert machine.bookie.stats().journal.bytes_in_flight == 0
    again = Machine(lost(files), CONFIG)
    assert again.held(LEDGER + 2) == expected(LEDGER + 2, [0], 50)
    assert again.is_fenced(LEDGER + 4)
