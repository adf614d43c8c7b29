"""A data source that fails on demand: ``ledger`` with faults taken from files in a directory.

The option ``faults`` names the directory. A file named after a step of a micro-batch makes a fault
happen when that step is reached; the file is removed then, so a fault happens once, and a file
``<step>.done`` says so. The text of the file is what happens:

    raise           an exception
    kill            SIGKILL for the process that is at this step
    kill-executor   SIGKILL for the JVM that runs this task
    wait            nothing, until the directory has a file ``go``
    hang            nothing more: somebody has to kill the process
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import psutil
import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from connector.datasource import LedgerDataSource
from connector.options import ReadOptions, WriteOptions, read_options, write_options
from connector.read.offsets import AnyOffset
from connector.read.readers import LedgerStreamReader
from connector.write.task import TaskWritten
from connector.write.writers import LedgerStreamWriter
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore

BEFORE_OFFSETS = "before-offsets"  # the end of the micro-batch is chosen, Spark has not noted it
PLAN = "plan"  # Spark has noted the offsets
READ = "read"  # a task has read a part
WRITE = "write"  # a task has appended all of its rows
BEFORE_COMMIT = "before-commit"  # all tasks have ended
BEFORE_TRANSACTION = "before-transaction"  # the commit was decided
AFTER_TRANSACTION = "after-transaction"  # ZooKeeper has applied it, the client does not know yet
AFTER_COMMIT = "after-commit"  # Spark has not noted that the micro-batch is done

STEPS = (
    BEFORE_OFFSETS,
    PLAN,
    READ,
    WRITE,
    BEFORE_COMMIT,
    BEFORE_TRANSACTION,
    AFTER_TRANSACTION,
    AFTER_COMMIT,
)

IN_TASKS = frozenset({READ, WRITE})
"""Steps of tasks, which Spark repeats by itself; after the others the query ends."""

COMMITTED = frozenset({AFTER_TRANSACTION, AFTER_COMMIT})
"""Steps at which the micro-batch is visible."""

WAIT_S_MAX = 200.0
POLL_S = 0.05


class Faults:
    """The directory of one query."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def arm(self, step: str, action: str) -> None:
        """Make something happen when the query reaches a step."""
        (self.directory / f"{step}.new").write_text(action)
        (self.directory / f"{step}.new").rename(self.directory / step)

    def has_happened(self, step: str) -> bool:
        """Whether the fault of a step has happened."""
        return (self.directory / f"{step}.done").exists()

    def release(self) -> None:
        """Let all processes that wait go on."""
        (self.directory / "go").touch()

    def forget(self, step: str) -> None:
        """The fault of a step may happen once more."""
        (self.directory / f"{step}.done").unlink()

    def reach(self, step: str) -> None:
        """Say that this process is at a step, and take what is armed for it."""
        for _ in self._happening(step):
            time.sleep(POLL_S)

    async def reach_in_loop(self, step: str) -> None:
        """As ``reach``, without blocking the event loop."""
        for _ in self._happening(step):
            await asyncio.sleep(POLL_S)

    def _happening(self, step: str) -> Iterator[None]:
        """Do what is armed for a step. Yields as long as the caller has to wait."""
        armed = self.directory / step
        if not armed.exists():
            return
        action = armed.read_text()
        armed.rename(self.directory / f"{step}.done")
        if action == "raise":
            raise RuntimeError(f"injected: {step}")
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "kill-executor":
            jvms = [each for each in psutil.Process().parents() if each.name() == "java"]
            jvms[0].kill()
        assert action in ("wait", "hang", "kill-executor"), action
        deadline = time.monotonic() + WAIT_S_MAX
        while action == "hang" or not (self.directory / "go").exists():
            assert time.monotonic() < deadline, f"nobody released {step}"
            yield


class FaultyDataSource(LedgerDataSource):
    """``format("ledger_faulty")``."""

    @classmethod
    def name(cls) -> str:
        return "ledger_faulty"

    def _split(self) -> tuple[dict[str, str], Faults]:
        options = dict(self.options)
        return options, Faults(Path(options.pop("faults")))

    def schema(self) -> StructType:
        return LedgerDataSource(self._split()[0]).schema()

    def streamReader(self, schema: StructType) -> LedgerStreamReader:
        options, faults = self._split()
        return FaultyReader(read_options(options, streaming=True), schema, faults)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LedgerStreamWriter:
        options, faults = self._split()
        checked = write_options(options, streaming=True)
        return FaultyWriter(checked, schema, overwrite=overwrite, faults=faults)


class FaultyReader(LedgerStreamReader):
    """A reader with the steps BEFORE_OFFSETS, PLAN and READ."""

    def __init__(self, options: ReadOptions, schema: StructType, faults: Faults) -> None:
        super().__init__(options, schema)
        self._faults = faults

    def latestOffset(self, start: AnyOffset, limit: ReadLimit) -> AnyOffset:
        end = super().latestOffset(start, limit)
        if end != start:
            self._faults.reach(BEFORE_OFFSETS)
        return end

    def partitions(self, start: AnyOffset, end: AnyOffset) -> Sequence[InputPartition]:
        planned = super().partitions(start, end)
        if planned:
            self._faults.reach(PLAN)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch
            self._faults.reach(READ)


class FaultyWriter(LedgerStreamWriter):
    """A writer with the other steps."""

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, faults: Faults
    ) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._faults = faults

    def write(  # type: ignore[override]  # as in LedgerStreamWriter
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskWritten:
        written = super().write(iterator)
        if written.segments:
            self._faults.reach(WRITE)
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._faults.reach(BEFORE_COMMIT)
        faults, transaction = self._faults, ZooKeeperStore.transaction

        async def faulty_transaction(
            store: ZooKeeperStore, operations: Sequence[Operation]
        ) -> None:
            await faults.reach_in_loop(BEFORE_TRANSACTION)
            await transaction(store, operations)
            await faults.reach_in_loop(AFTER_TRANSACTION)

        with mock.patch.object(ZooKeeperStore, "transaction", faulty_transaction):
            super().commit(messages, batchId)
        self._faults.reach(AFTER_COMMIT)
