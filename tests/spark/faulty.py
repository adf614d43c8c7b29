"""A data source that fails on demand: ``ledger`` with faults taken from files in a directory.

The option ``faults`` names the directory. A file named after a fault makes it happen; the file is
removed when it does, so a fault happens once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from connector.datasource import LedgerDataSource
from connector.messages import TaskWritten
from connector.options import write_options
from connector.stream_writer import LedgerStreamWriter

TASK_FAILS_LATE = "task-fails-late"
COMMIT_FAILS_BEFORE = "commit-fails-before"
COMMIT_FAILS_AFTER = "commit-fails-after"


class FaultyDataSource(LedgerDataSource):
    """``format("ledger_faulty")``."""

    @classmethod
    def name(cls) -> str:
        return "ledger_faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        options = dict(self.options)
        faults = Path(options.pop("faults"))
        return FaultyWriter(
            write_options(options, streaming=True), schema, overwrite=overwrite, faults=faults
        )


class FaultyWriter(LedgerStreamWriter):
    """Fails as told."""

    def __init__(self, *given: Any, faults: Path, **named: Any) -> None:
        super().__init__(*given, **named)
        self._faults = faults

    def _fail(self, fault: str) -> None:
        marker = self._faults / fault
        if marker.exists():
            marker.unlink()
            (self._faults / f"{fault}.done").touch()
            raise RuntimeError(f"injected: {fault}")

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            self._fail(TASK_FAILS_LATE)
        return written

    def commit(self, messages: Sequence[TaskWritten | None], batchId: int) -> None:
        self._fail(COMMIT_FAILS_BEFORE)
        super().commit(messages, batchId)
        self._fail(COMMIT_FAILS_AFTER)
