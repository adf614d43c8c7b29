"""Processes of a query die, or are slow, at each step of a micro-batch; each row is committed once.

Streams have one partition and commits of ten rows, so the order is known and compared as well.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from tests.spark.conftest import DEADLINE_S, Lab, eventually
from tests.spark.faulty import (
    AFTER_COMMIT,
    AFTER_TRANSACTION,
    BEFORE_TRANSACTION,
    COMMITTED,
    IN_TASKS,
    PLAN,
    READ,
    STEPS,
    WRITE,
    Faults,
)
from tests.spark.submitting import Submitter

STEP_ROWS = 10


def follow(lab: Lab, faults: Faults) -> Any:
    options = {"faults": str(faults.directory), "maxRowsPerTrigger": STEP_ROWS}
    return lab._given(lab.spark.readStream, options, "ledger_faulty").load()


def stored(copy: Lab) -> list[int]:
    return copy.stored() if copy.name in copy.client.list_streams() else []


def run(lab: Lab, copy: Lab, faults: Faults) -> None:
    """Copy all that is there. Raises what the query ended with."""
    sink = copy.sink(follow(lab, faults), "ledger_faulty", faults=str(faults.directory))
    query = sink.trigger(availableNow=True).start()
    assert query.awaitTermination(60), "the query did not end"


def test_killed_processes_lose_and_double_nothing(lab: Lab, faulty_source: str) -> None:
    """SIGKILL, and an exception. A task is repeated by Spark; otherwise the query ends, Spark calls
    abort, and the next run begins with what the last one left undone."""
    copy, faults = lab.another(), Faults(lab.directory)
    accidents: list[tuple[str, ...]] = [
        (READ, WRITE),
        (PLAN,),
        (BEFORE_TRANSACTION,),
        (AFTER_TRANSACTION,),
        (AFTER_COMMIT,),
    ]
    for number, steps in enumerate(accidents):
        lab.numbers(STEP_ROWS * number, STEP_ROWS * (number + 1))
        before = len(stored(copy))
        for step in steps:
            faults.arm(step, "raise" if step == AFTER_COMMIT else "kill")
        failed = True
        with contextlib.suppress(Exception):
            run(lab, copy, faults)
            failed = False
        after = stored(copy)
        assert all(faults.has_happened(step) for step in steps)
        assert failed == IN_TASKS.isdisjoint(steps), steps
        assert after == list(range(len(after))), f"after {steps}"
        assert failed or len(after) == STEP_ROWS * (number + 1)
        assert AFTER_TRANSACTION not in steps or len(after) > before
    run(lab, copy, faults)
    assert copy.stored() == list(range(STEP_ROWS * len(accidents)))


def test_slow_driver_cannot_commit_after_a_second_one(
    lab: Lab, faulty_source: str, submitter: Submitter
) -> None:
    """A driver is held at each step of a micro-batch, by one query for each; a second driver on the
    same checkpoints does the rest. Then the first goes on, and can neither commit nor change what
    is there."""
    lab.numbers(0, STEP_ROWS)
    copies = {step: Lab(lab.spark, lab.cluster, lab.client, lab.directory / step) for step in STEPS}
    for step, copy in copies.items():
        copy.directory.mkdir()
        copy.name = f"{lab.name}-{step}"
    faults = {step: Faults(copies[step].directory) for step in STEPS}
    job = Path(__file__).with_name("slow_driver.py")
    slots = len(IN_TASKS) + 1  # a task that is held keeps its slot
    driver = submitter.submit(f"local[{slots}]", job, lab.cluster.uri, lab.name, str(lab.directory))
    try:

        def first_batches_done() -> bool:
            assert driver.poll() is None, submitter.log_end()
            return all(Path(copy.checkpoint, "commits/0").exists() for copy in copies.values())

        eventually(first_batches_done, "the first micro-batch of each query", 2 * DEADLINE_S)
        for step in STEPS:
            faults[step].arm(step, "wait")
        lab.numbers(STEP_ROWS, 2 * STEP_ROWS)
        lab.numbers(2 * STEP_ROWS, 3 * STEP_ROWS)
        eventually(lambda: all(faults[step].has_happened(step) for step in STEPS), "all are held")
        for step, copy in copies.items():
            done = 2 * STEP_ROWS if step in COMMITTED else STEP_ROWS
            assert copy.stored() == list(range(done)), step
            run(lab, copy, faults[step])
            assert copy.stored() == list(range(3 * STEP_ROWS)), step
        for each in faults.values():
            each.release()
        assert driver.wait(60) == 0, submitter.log_end()
    finally:
        submitter.kill(driver)
    ends = json.loads((lab.directory / "ends.json").read_text())
    for step, copy in copies.items():
        assert "ConflictError" in ends[step] or "oncurrent" in ends[step], (step, ends[step])
        assert copy.stored() == list(range(3 * STEP_ROWS)), step
