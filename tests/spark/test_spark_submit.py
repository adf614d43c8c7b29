"""spark-submit: separate executors, a driver that is killed, and the same job submitted again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyspark
import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection

SPARK_HOME = Path(pyspark.__file__).parent
JOB = Path(__file__).with_name("copy_job.py")

COMMITS, COMMIT_ROWS = 60, 10
ROWS = COMMITS * COMMIT_ROWS
TIMEOUT_S = 120
POLL_S = 0.1

# Most of the time goes into the start of virtual machines: they compile quickly, and not well.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
}


class Submitter:
    """Starts jobs in a directory, and ends what they have left behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._left: list[psutil.Process] = []

    def submit(self, master: str, *arguments: str) -> subprocess.Popen[bytes]:
        """``spark-submit`` replaces itself by the JVM of the driver: they are one process."""
        conf = [part for item in CONF.items() for part in ("--conf", "=".join(item))]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-submit", "--master", master, *conf, JOB, *arguments],
                cwd=self.directory,
                env={**os.environ, "SPARK_HOME": str(SPARK_HOME)},
                stdout=log,
                stderr=log,
            )

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """SIGKILL for the driver alone: executors and Python workers find out by themselves."""
        if driver.poll() is None:
            self._left += psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
        driver.wait()

    def clean_up(self) -> None:
        for process in self._left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def log_end(self) -> str:
        return (self.directory / "log").read_text()[-5000:]


@pytest.fixture
def submitter(tmp_path: Path) -> Iterator[Submitter]:
    made = Submitter(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture
def source(client: StreamConnection) -> str:
    """A stream of the numbers below ROWS, in many commits."""
    schema = pa.schema([("id", pa.int64())])
    stream = client.create_stream("submit-source", schema)
    for first in range(0, ROWS, COMMIT_ROWS):
        stream.append(pa.table({"id": range(first, first + COMMIT_ROWS)}, schema))
    return stream.name


def test_driver_killed_and_submitted_again(
    cluster: LocalCluster, client: StreamConnection, source: str, submitter: Submitter
) -> None:
    """Two executor processes at first, whose driver is killed; then one process does the rest."""
    target = "submit-copy"
    arguments = (cluster.uri, source, target, str(submitter.directory / "checkpoint"))

    def rows() -> int:
        return client.stream(target).head().rows if target in client.list_streams() else 0

    driver = submitter.submit("local-cluster[2,1,600]", *arguments, str(2 * COMMIT_ROWS))
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while rows() < 6 * COMMIT_ROWS:
            assert driver.poll() is None, submitter.log_end()
            assert time.monotonic() < deadline, submitter.log_end()
            time.sleep(POLL_S)
    finally:
        submitter.kill(driver)
    assert driver.returncode == -signal.SIGKILL
    assert rows() < ROWS, "it was not killed in the middle"

    driver = submitter.submit("local[2]", *arguments, str(ROWS))
    try:
        assert driver.wait(TIMEOUT_S) == 0, submitter.log_end()
    finally:
        submitter.kill(driver)
    batches = client.stream(target).read()
    copied = [number for batch in batches for number in batch.column("id").to_pylist()]
    assert sorted(copied) == list(range(ROWS))
