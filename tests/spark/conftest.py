"""One Spark session and one cluster of real bookies for all Spark tests."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection
from tests.spark.faulty import FaultyDataSource
from tests.spark.submitting import JAVA_OPTIONS, Submitter

ROOT = Path(__file__).resolve().parents[2]

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)

_names = itertools.count()
DEADLINE_S = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: LocalCluster) -> Iterator[StreamConnection]:
    with StreamConnection.connect(cluster.uri) as connection:
        yield connection


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """local[2,4]: two cores, and four attempts for a task as on a cluster."""
    from pyspark.sql import SparkSession

    work = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("spark-ledger tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.python.authenticate.socketTimeout", "60s")  # busy machines
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@dataclass
class Lab:
    """A stream's name, and short ways to write to it and read from it."""

    spark: Any
    cluster: LocalCluster
    client: StreamConnection
    directory: Path
    name: str = field(default_factory=lambda: f"s{next(_names)}")

    @property
    def checkpoint(self) -> str:
        return str(self.directory / "checkpoint")

    def another(self) -> Lab:
        directory = self.directory / f"other{next(_names)}"
        directory.mkdir()
        return Lab(self.spark, self.cluster, self.client, directory)

    def _given(self, api: Any, options: dict[str, Any], source: str = "ledger") -> Any:
        given = {"metadata": self.cluster.uri, "stream": self.name, **options}
        return api.format(source).options(**{k: v for k, v in given.items() if v is not None})

    def append(self, frame: Any, mode: str = "append", **options: Any) -> None:
        self._given(frame.write, options).mode(mode).save()

    def numbers(self, first: int, end: int, partitions: int = 1, **options: Any) -> None:
        """Append the numbers first .. end - 1 as one commit."""
        self.append(self.spark.range(first, end, 1, partitions), **options)

    def read(self, **options: Any) -> Any:
        return self._given(self.spark.read, options).load()

    def ids(self, **options: Any) -> list[int]:
        return [row.id for row in self.read(**options).collect()]

    def stored(self) -> list[int]:
        """The numbers in the stream in stream order, read without Spark."""
        return [
            value
            for batch in self.client.stream(self.name).read()
            for value in cast("list[int]", batch.column("id").to_pylist())
        ]

    def follow(self, **options: Any) -> Any:
        return self._given(self.spark.readStream, options).load()

    def sink(self, frame: Any, source: str = "ledger", **options: Any) -> Any:
        writer = self._given(frame.writeStream, options, source)
        return writer.option("checkpointLocation", self.checkpoint)

    def collect(self, frame: Any, **trigger: Any) -> tuple[list[Any], list[dict[str, Any]]]:
        """Run a streaming read to its end. Its rows, and the progress of batches with rows."""
        table = f"t{next(_names)}"
        writer = frame.writeStream.format("memory").queryName(table).outputMode("append")
        query = writer.trigger(**(trigger or {"availableNow": True})).start()
        try:
            assert query.awaitTermination(int(DEADLINE_S)), "the query did not end"
            progress = [one for one in query.recentProgress if one["numInputRows"]]
        finally:
            query.stop()
        return self.spark.table(table).collect(), progress


@pytest.fixture
def lab(spark: Any, cluster: LocalCluster, client: StreamConnection, tmp_path: Path) -> Lab:
    return Lab(spark, cluster, client, tmp_path)


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


@pytest.fixture
def until() -> Callable[[Callable[[], bool], str], None]:
    return eventually


@pytest.fixture(scope="session")
def faulty_source(spark: Any) -> str:
    """The format that fails on demand; see ``faulty``."""
    spark.dataSource.register(FaultyDataSource)
    return FaultyDataSource.name()


@pytest.fixture
def submitter(tmp_path: Path) -> Iterator[Submitter]:
    made = Submitter(tmp_path)
    yield made
    made.clean_up()
