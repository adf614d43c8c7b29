"""A standalone Spark cluster of processes, and environments that have the package or have not.

Spark's own master and workers run on loopback, each a process, started by ``bin/spark-class`` as
the scripts in ``sbin`` of a full distribution do. An executor of theirs is a process too, in
another working directory and with an environment of its own: what a driver knows it knows only if
Spark carries it there.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from tests.spark.submitting import JAVA_OPTIONS, SPARK_HOME

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("spark_ledger", "connector", "bookie_server")
START_S: Final = 60.0

SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
"""Half of the tasks have to end before one is repeated, on another host."""


def conf(values: Mapping[str, str]) -> list[str]:
    """Settings as arguments of spark-submit."""
    return [part for item in values.items() for part in ("--conf", "=".join(item))]


class StandaloneCluster:
    """A master and workers with one core each, of which each has an address of its own: a host."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self.directory = directory
        self.url = ""
        self._wanted = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
            self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
            for number in range(self._wanted):
                work = str(self.directory / f"work{number}")
                limits = ("--cores", "1", "--memory", "1g", "--work-dir", work)
                name, host = f"worker{number}", f"127.0.0.{number + 1}"
                self._start(name, "worker.Worker", *limits, "--host", host, self.url, host=host)
                self._said(name, r"(Successfully registered with master)")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def executor_logs(self) -> str:
        """What all executors have written to their standard error."""
        return "\n".join(
            path.read_text(errors="replace") for path in self.directory.glob("work*/*/*/stderr")
        )

    def executors(self) -> list[psutil.Process]:
        """The processes of executors."""
        found = []
        for worker in self._processes[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(worker.pid).children()
        return found

    def _start(self, name: str, main: str, *arguments: str, host: str = "127.0.0.1") -> None:
        # Nothing of the test's environment: a worker on another machine would not have it.
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "PYSPARK", "SPARK_LEDGER"))
        }
        environment |= {
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": host,
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                cwd=self.directory,
                env=environment,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)

    def _said(self, name: str, pattern: str) -> str:
        """The group of a pattern in the log of a process, once it is there."""
        deadline = time.monotonic() + START_S
        while True:
            log = (self.directory / f"{name}.log").read_text(errors="replace")
            found = re.search(pattern, log)
            if found:
                return found.group(1)
            assert self._processes[-1].poll() is None, log[-2000:]
            assert time.monotonic() < deadline, f"{name} says nothing:\n{log[-2000:]}"
            time.sleep(0.05)

    def _stop(self) -> None:
        left = []
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                left += psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait()
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(left, timeout=10)


def bare_environment(directory: Path) -> Path:
    """An environment that has everything that the package needs, and not the package. Its
    interpreter; what it has is linked, so it costs no copies."""
    venv.create(directory, with_pip=False, symlinks=True)
    to = Path(sysconfig.get_path("purelib", "venv", {"base": str(directory)}))
    ours = (*PACKAGES, "pyspark_ledger", "__editable__", "__pycache__")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(ours) and entry.suffix != ".pth":
            (to / entry.name).symlink_to(entry)
    return directory / "bin" / Path(sys.executable).name


def package_archive(path: Path) -> Path:
    """A zip for ``--py-files``, as the wheel is one: the packages and the module of discovery."""
    with zipfile.ZipFile(path, "w") as archive:
        for package in PACKAGES:
            for source in sorted((ROOT / package).rglob("*.py")):
                name = source.relative_to(ROOT)
                if source.name != "pyspark_ledger.py":
                    archive.write(source, name)
        archive.write(ROOT / "connector" / "pyspark_ledger.py", "pyspark_ledger.py")
    return path
