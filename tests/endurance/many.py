"""``python -m tests.endurance.many --minutes 6 --queries 10``: many queries on one driver, watched.

Every second query writes numbers with their times to a stream, the others copy those streams; the
session is in a zone that is not UTC. A keeper cleans up. Exit code 1 if the memory of the driver
(its JVM, its Python) or of the Python processes beside it grows, if a row is missing, there twice
or at another instant, or if ledgers are left open or unnamed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, cast

import psutil
import pyarrow as pa

from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection
from tests.endurance.judging import leftovers
from tests.endurance.keeping import keep, settle
from tests.endurance.memory import Memory, Told, measured, memory_growth, thirds
from tests.endurance.rows import (
    COPIES,
    NUMBERS,
    Found,
    Timed,
    wrong_copy,
    wrong_numbers,
    wrong_reading,
)

LOOK_S: Final = 5.0
START_S: Final = 600.0
"""For the start of Spark and of each query, one behind the other."""

STOP_S: Final = 180.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.many")
    parser.add_argument("--minutes", type=float, default=6.0, help="how long memory is watched")
    parser.add_argument(
        "--warm", type=float, default=60.0, metavar="SECONDS", help="before that; not judged"
    )
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--rows", type=int, default=50, metavar="PER_SECOND", help="of a query")
    parser.add_argument("--trigger", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--zone", default="America/St_Johns", help="of the Spark session")
    parser.add_argument("--json", type=Path, default=None, help="write the looks and verdict here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="endurance-") as directory:
        samples, rows, wrong = run(options, Path(directory))
    medians = thirds(samples) if len(samples) >= 3 else {}
    for name, (first, last) in medians.items():
        print(f"{name:>18}: {first:9.1f} in the first third, {last:9.1f} in the last")
    print(f"{rows} rows in {options.queries} streams, {samples[-1].batches} micro-batches")
    for each in wrong:
        print(f"WRONG: {each}")
    if options.json is not None:
        figures: dict[str, Any] = {"samples": [each._asdict() for each in samples]}
        figures |= {"thirds": medians, "rows": rows, "wrong": wrong}
        options.json.write_text(json.dumps(figures, indent=1))
    return 1 if wrong else 0


def run(options: argparse.Namespace, directory: Path) -> tuple[list[Memory], int, list[str]]:
    """The looks, the rows of all streams, and what is wrong."""
    began_us = time.time_ns() // 1_000
    with LocalCluster(bookies=3) as cluster:
        keep(cluster)
        driver = Driver(directory, cluster.uri, options)
        try:
            samples = driver.watched(options.warm, options.minutes * 60)
        finally:
            code = driver.stop()
        ended_us = time.time_ns() // 1_000
        wrong = memory_growth(samples)
        if code:
            wrong.append(f"the driver ended with {code}: {driver.log()}")
        stored = {name: timed(cluster.uri, name) for name in names(options.queries)}
        for name, rows in stored.items():
            if name.startswith(COPIES.format("")):
                source = name.replace(COPIES.format(""), NUMBERS.format(""))
                wrong += wrong_copy(name, rows, stored[source])
            else:
                wrong += wrong_numbers(
                    name,
                    rows,
                    rows_per_s=options.rows,
                    began_us=began_us,
                    ended_us=ended_us,
                )
        for found in driver.found():
            wrong += wrong_reading(found, stored[found.stream])
        wrong += leftovers(asyncio.run(settle(cluster.uri, NUMBERS.format(0))))
    return samples, sum(map(len, stored.values())), wrong


def names(queries: int) -> list[str]:
    """The streams that so many queries write."""
    return [(COPIES if n % 2 else NUMBERS).format(n // 2) for n in range(queries)]


def timed(uri: str, name: str) -> list[Timed]:
    """The rows of a stream, read without Spark."""
    with StreamConnection.connect(uri) as client:
        table = pa.Table.from_batches(list(client.stream(name).read()))
    micros = table.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    values = cast("list[int]", table.column("value").to_pylist())
    return list(map(Timed, values, cast("list[int]", micros.to_pylist())))


class Driver:
    """``many_queries`` in a process of its own."""

    def __init__(self, directory: Path, uri: str, options: argparse.Namespace) -> None:
        self._log, self._said = directory / "driver.log", directory / "driver.out"
        arguments = (uri, directory, options.queries, options.rows, round(1_000 * options.trigger))
        with self._log.open("wb") as log, self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.endurance.many_queries"),
                    *map(str, arguments),
                    options.zone,
                ],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=log,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            )

    def log(self) -> str:
        """The end of what went to standard error."""
        return self._log.read_text(errors="replace")[-3000:]

    def _lines(self) -> list[dict[str, Any]]:
        whole = self._said.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    def _told(self) -> Told | None:
        told = [each for each in self._lines() if "heap_bytes" in each]
        return Told(**told[-1]) if told else None

    def found(self) -> list[Found]:
        """What Spark found in the streams at the end."""
        return [Found(**each) for line in self._lines() for each in line.get("found", ())]

    def watched(self, warm_s: float, watched_s: float) -> list[Memory]:
        """Looks for as long as it is to be watched, from when all queries have run for a while."""
        deadline = time.monotonic() + START_S
        while self._told() is None:
            assert self._process.poll() is None, f"the driver has ended: {self.log()}"
            assert time.monotonic() < deadline, f"not all queries have started: {self.log()}"
            time.sleep(1.0)
        process, samples = psutil.Process(self._process.pid), []
        began = time.monotonic() + warm_s
        while (seconds := time.monotonic() - began) < watched_s and self._process.poll() is None:
            told = self._told()
            assert told is not None, "seen above"
            if seconds >= 0:
                samples.append(measured(process, told, seconds))
                print(samples[-1], flush=True)
            time.sleep(LOOK_S)
        return samples

    def stop(self) -> int:
        """End the queries; the driver's exit code."""
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.close()
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


if __name__ == "__main__":
    sys.exit(main())
