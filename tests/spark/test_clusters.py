"""Jobs on a standalone cluster of two hosts, as users hand them to spark-submit.

The hosts are two addresses of loopback, because Spark repeats a slow task on another host only. The
executors have working directories and environments of their own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection
from tests.spark.clusters import (
    ROOT,
    SPECULATION,
    StandaloneCluster,
    bare_environment,
    conf,
    package_archive,
)
from tests.spark.conftest import eventually
from tests.spark.faulty import BEFORE_COMMIT, READ, WRITE, Faults
from tests.spark.submitting import Submitter

JOB = Path(__file__).with_name("cluster_job.py")
COPY = Path(__file__).with_name("copy_job.py")
DEFAULTS = ROOT / "conf" / "spark-defaults.conf"
ROWS = 400
SUM = sum(range(ROWS))
DEADLINE_S = 240.0

ON_THE_CLUSTER = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.task.maxFailures": "8",
    **SPECULATION,
}
"""What a careful user would switch on."""


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path) as running:
        yield running


def ended(process: subprocess.Popen[bytes], submitter: Submitter) -> str:
    """What a job wrote that has ended well."""
    try:
        code = process.wait(DEADLINE_S)
    finally:
        submitter.kill(process)
    assert code == 0, submitter.log_end()
    return submitter.log_end()


def test_package_comes_with_the_job(
    cluster: LocalCluster, standalone: StandaloneCluster, submitter: Submitter, tmp_path: Path
) -> None:
    """No machine has the package. It travels as a zip, by the three places that CLUSTERS.md names,
    with the settings of conf/spark-defaults.conf."""
    python = str(bare_environment(tmp_path / "environment"))
    package = package_archive(tmp_path / "spark_ledger.zip")
    job = submitter.submit(
        standalone.url,
        JOB,
        *(cluster.uri, "carried", str(tmp_path / "checkpoint"), str(ROWS)),
        options=(
            *("--properties-file", str(DEFAULTS), "--py-files", str(package)),
            *conf({"spark.executorEnv.PYTHONPATH": package.name}),
        ),
        environment={
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PYTHONPATH": package.name,  # from the directory where the job is submitted
        },
    )
    assert f"counted {ROWS} {SUM}" in ended(job, submitter)


def test_executors_die_and_a_task_hangs_and_each_row_is_there_once(
    cluster: LocalCluster,
    client: StreamConnection,
    standalone: StandaloneCluster,
    submitter: Submitter,
    tmp_path: Path,
) -> None:
    """Executors are killed in the middle of a read, of a write and of a commit. Then a task hangs
    for good after it has written its rows: another attempt has to do its work."""
    schema = pa.schema([("id", pa.int64())])
    stream = client.create_stream("hosts-source", schema)
    for first in range(0, ROWS, 10):
        stream.append(pa.table({"id": range(first, first + 10)}, schema))
    faults, target = Faults(tmp_path), "hosts-copy"
    faults.arm(READ, "kill-executor")
    faults.arm(WRITE, "kill-executor")
    faults.arm(BEFORE_COMMIT, "wait")
    job = submitter.submit(
        standalone.url,
        COPY,
        *(cluster.uri, stream.name, target, str(tmp_path / "checkpoint"), "20", str(tmp_path)),
        options=conf(ON_THE_CLUSTER),
    )

    def happened(step: str) -> bool:
        assert job.poll() is None, submitter.log_end()
        return faults.has_happened(step)

    try:
        eventually(lambda: happened(BEFORE_COMMIT), "a commit waits", DEADLINE_S)
        assert happened(READ) and happened(WRITE)
        eventually(lambda: bool(standalone.executors()), "an executor is there", DEADLINE_S)
        standalone.executors()[0].kill()
        faults.forget(WRITE)
        faults.arm(WRITE, "hang")
        faults.release()
        eventually(lambda: happened(WRITE), "a task hangs", DEADLINE_S)
    except BaseException:
        submitter.kill(job)
        raise
    ended(job, submitter)
    batches = client.stream(target).read()
    copied = [number for batch in batches for number in batch.column("id").to_pylist()]
    assert copied == list(range(ROWS))
