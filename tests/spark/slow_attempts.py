"""A data source of which one task is slow: ``ledger`` with two attempts of partition 0 at once.

The option ``attempts`` names a directory, ``pace`` what the attempts of partition 0 do in it:

    meet   each appends all of its rows, and then waits for the other one, so both end at once
    hang   the first one appends a part of its rows, and then goes on for ever

A file ``appended.NUMBER`` in the directory says that an attempt has come so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from connector.datasource import LedgerDataSource
from connector.options import WriteOptions, write_options
from connector.write.task import TaskWritten
from connector.write.writers import LedgerBatchWriter, LedgerStreamWriter

MEET, HANG = "meet", "hang"
PACES: Final = (MEET, HANG)

WAIT_S_MAX: Final = 120.0
POLL_S: Final = 0.02

Write = Callable[[Iterator[pa.RecordBatch]], TaskWritten]


class Attempts(NamedTuple):
    """The directory of one write, and what its attempts do."""

    directory: Path
    pace: str

    def appended(self) -> list[int]:
        """The attempts that have come so far, by number."""
        return sorted(int(each.suffix[1:]) for each in self.directory.glob("appended.*"))

    def write(self, write: Write, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
        """What ``write`` does with the rows of this task, in this task's pace."""
        context = TaskContext.get()
        assert context is not None, "Spark writes in tasks"
        if context.partitionId() != 0:
            return write(batches)
        number = context.attemptNumber()
        if self.pace == HANG and number == 0:
            return write(self._without_end(batches))
        written = write(batches)
        self._come(number)
        if self.pace == MEET:
            self._wait_for_another()
        return written

    def _come(self, number: int) -> None:
        (self.directory / f"appended.{number}").touch()

    def _without_end(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        self._come(0)
        time.sleep(WAIT_S_MAX)
        raise AssertionError("nobody has killed this attempt")

    def _wait_for_another(self) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while len(self.appended()) < 2:
            assert time.monotonic() < deadline, "there was no other attempt"
            time.sleep(POLL_S)


class SlowDataSource(LedgerDataSource):
    """``format("ledger_slow")``, a sink."""

    @classmethod
    def name(cls) -> str:
        return "ledger_slow"

    def _split(self, *, streaming: bool) -> tuple[WriteOptions, Attempts]:
        options = dict(self.options)
        attempts = Attempts(Path(options.pop("attempts")), options.pop("pace"))
        return write_options(options, streaming=streaming), attempts

    def writer(self, schema: StructType, overwrite: bool) -> LedgerBatchWriter:
        options, attempts = self._split(streaming=False)
        return SlowBatchWriter(options, schema, attempts)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LedgerStreamWriter:
        options, attempts = self._split(streaming=True)
        return SlowStreamWriter(options, schema, attempts)


class SlowBatchWriter(LedgerBatchWriter):
    """A batch write with a slow task."""

    def __init__(self, options: WriteOptions, schema: StructType, attempts: Attempts) -> None:
        super().__init__(options, schema, overwrite=False)
        self._attempts = attempts

    def write(  # type: ignore[override]  # as in LedgerBatchWriter
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskWritten:
        return self._attempts.write(super().write, iterator)


class SlowStreamWriter(LedgerStreamWriter):
    """A streaming write with a slow task."""

    def __init__(self, options: WriteOptions, schema: StructType, attempts: Attempts) -> None:
        super().__init__(options, schema, overwrite=False)
        self._attempts = attempts

    def write(  # type: ignore[override]  # as in LedgerStreamWriter
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TaskWritten:
        return self._attempts.write(super().write, iterator)
