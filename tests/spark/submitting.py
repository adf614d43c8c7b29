"""Starts jobs with spark-submit, and kills the processes they leave behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
SUBMIT = SPARK_HOME / "bin" / "spark-submit"

# Most of the time goes into the start of virtual machines: they compile quickly, and not well.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.ui.enabled": "false",
}


class Submitter:
    """Starts jobs in a directory, and kills the processes they leave behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._left: list[psutil.Process] = []

    def submit(
        self,
        master: str,
        job: Path,
        *arguments: str,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """``spark-submit`` replaces itself by the JVM of the driver: they are one process."""
        conf = [part for item in CONF.items() for part in ("--conf", "=".join(item))]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [SUBMIT, "--master", master, *conf, *options, job, *arguments],
                cwd=self.directory,
                env={**os.environ, "SPARK_HOME": str(SPARK_HOME), **(environment or {})},
                stdout=log,
                stderr=log,
            )

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """SIGKILL for the driver alone: executors and Python workers notice by themselves."""
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
