"""The nth change of the disk fails, for every n: nothing false is ever acknowledged."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fault_fs import FaultFileSystem
from spark_ledger.errors import ConfigurationError
from tests.crash.workload import FailNth, Promises, run_workload
from tests.unit.bookie_server.storage.support import Machine, formatted

STEPS = 22


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize(
    ("error_number", "part"),
    [(errno.EIO, 0.0), (errno.ENOSPC, 0.0), (errno.ENOSPC, 0.5), (errno.EIO, 1.0)],
    ids=["EIO", "ENOSPC", "short write", "whole write then EIO"],
)
def test_every_change(error_number: int, part: float, for_ever: bool) -> None:
    at = 0
    survived_without_restart = 0
    while True:
        at += 1
        plan = FailNth(at, error_number, part, for_ever)
        disk, promises = formatted(), Promises()
        files = FaultFileSystem(disk, plan)
        context = f"change {at} fails ({plan.error_number}, {plan.part}, {plan.for_ever})"
        try:
            machine = Machine(files)
        except ConfigurationError:
            assert plan.hits, "opening only fails when the disk does"
        else:
            run_workload(machine, promises, seed=7, steps=STEPS)
            if not plan.hits:
                break
            if machine.fatal:
                assert promises.refused, "waiters of a failed batch are told"
            else:
                assert not for_ever or "remove" in {hit.kind for hit in plan.hits}, context
                promises.check(machine, f"{context}, running on")
                survived_without_restart += 1
        for name, after in (
            ("killed", disk.crash_clone(None)),
            ("power cut with lottery", disk.crash_clone(at)),
        ):
            reopened = Machine(after)
            promises.check(reopened, f"{context}, {name}")
            reopened.close()
    assert at > 60, "the workload changes the disk often"
    assert for_ever or survived_without_restart > 10, "failed checkpoints do not stop a bookie"
