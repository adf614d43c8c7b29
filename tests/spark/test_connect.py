"""Spark Connect: a server that has the package, and a client that has not."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.local.ports import free_port
from tests.spark.clusters import ROOT, bare_environment
from tests.spark.conftest import eventually
from tests.spark.submitting import SPARK_HOME, Submitter

JOB = Path(__file__).with_name("cluster_job.py")
ROWS = 400
DEADLINE_S = 180.0

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture
def server(submitter: Submitter) -> Iterator[str]:
    """The address of a server that has the package."""
    port = free_port()
    process = submitter.submit(
        "local[2]",
        Path("spark-internal"),
        options=(
            *("--class", SERVER),
            *("--conf", f"spark.connect.grpc.binding.port={port}"),
            *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        ),
    )

    def answers() -> bool:
        assert process.poll() is None, submitter.log_end()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(answers, "the server listens", DEADLINE_S)
        yield f"sc://127.0.0.1:{port}"
    finally:
        submitter.kill(process)


def client(tmp_path: Path, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The job as a client without the package runs it."""
    python = bare_environment(tmp_path / "environment")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path != str(ROOT)),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_REMOTE": address,
    }
    return subprocess.run(
        [python, JOB, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_thin_client_writes_follows_and_reads(
    cluster: LocalCluster, server: str, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    done = client(tmp_path, server, cluster.uri, "connected", checkpoint, str(ROWS))
    assert done.returncode == 0, done.stderr[-5000:]
    assert f"counted {ROWS} {sum(range(ROWS))}" in done.stdout
    (tmp_path / "again").mkdir()
    wrong = client(tmp_path / "again", server, cluster.uri, "no/slash", checkpoint, "1")
    lines = [line for line in wrong.stderr.splitlines() if "ConfigurationError" in line]
    assert any("stream name 'no/slash'" in line for line in lines), wrong.stderr[-3000:]
