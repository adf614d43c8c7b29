"""spark-submit: an executor process and the driver are killed, and the job is submitted again."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection
from tests.spark.conftest import eventually
from tests.spark.faulty import WRITE, Faults
from tests.spark.submitting import Submitter

JOB = Path(__file__).with_name("copy_job.py")

COMMITS, COMMIT_ROWS = 60, 10
ROWS = COMMITS * COMMIT_ROWS
TIMEOUT_S = 120


@pytest.fixture
def source(client: StreamConnection) -> str:
    """A stream of the numbers below ROWS, in many commits."""
    schema = pa.schema([("id", pa.int64())])
    stream = client.create_stream("submit-source", schema)
    for first in range(0, ROWS, COMMIT_ROWS):
        stream.append(pa.table({"id": range(first, first + COMMIT_ROWS)}, schema))
    return stream.name


def test_executor_and_driver_killed_and_submitted_again(
    cluster: LocalCluster,
    client: StreamConnection,
    source: str,
    submitter: Submitter,
    tmp_path: Path,
) -> None:
    """Two executor processes at first. One dies when a task of it has written its rows, which
    another task writes again; then the driver is killed, and one process does the rest."""
    target, faults = "submit-copy", Faults(tmp_path)
    arguments = (cluster.uri, source, target, str(tmp_path / "checkpoint"))

    def rows() -> int:
        return client.stream(target).head().rows if target in client.list_streams() else 0

    driver = submitter.submit(
        "local-cluster[2,1,600]", JOB, *arguments, str(2 * COMMIT_ROWS), str(tmp_path)
    )

    def reached(wanted: int) -> bool:
        assert driver.poll() is None, submitter.log_end()
        return rows() >= wanted

    try:
        eventually(lambda: reached(2 * COMMIT_ROWS), submitter.log_end(), 180.0)
        faults.arm(WRITE, "kill-executor")
        eventually(lambda: faults.has_happened(WRITE), "an executor is killed")
        done = rows()
        eventually(lambda: reached(done + 4 * COMMIT_ROWS), "it goes on with the other executor")
    finally:
        submitter.kill(driver)
    assert driver.returncode == -signal.SIGKILL
    assert rows() < ROWS, "it was not killed in the middle"

    driver = submitter.submit("local[2]", JOB, *arguments, str(ROWS))
    try:
        assert driver.wait(TIMEOUT_S) == 0, submitter.log_end()
    finally:
        submitter.kill(driver)
    batches = client.stream(target).read()
    copied = [number for batch in batches for number in batch.column("id").to_pylist()]
    assert copied == list(range(ROWS))
