"""Recorder: a client process records what it asked and was told, line by line."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_ledger.errors import LedgerError
from tests.history.model import Event, Phase, encode_line

OPERATIONS_PER_CLIENT = 10**9


class Recorder:
    """Events of one process. The kernel has every line before the next step."""

    def __init__(self, path: Path, number: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._next = number * OPERATIONS_PER_CLIENT

    def begin(self, process: str, name: str, **fields: Any) -> Event:
        """Record that an operation begins. Pass the result to one of the other methods."""
        self._next += 1
        event = Event(time.monotonic_ns(), process, self._next, Phase.INVOKE, name, **fields)
        self._file.write(encode_line(event))
        return event

    def ok(self, invoke: Event, **fields: Any) -> None:
        """It succeeded; ``fields`` is what it returned."""
        self._end(invoke, Phase.OK, **fields)

    def error(self, invoke: Event, error: BaseException) -> None:
        """It raised: the class of the error says whether it may have taken effect."""
        unknown = not isinstance(error, LedgerError) or error.outcome_unknown
        phase = Phase.UNKNOWN if unknown else Phase.FAIL
        self._end(invoke, phase, error=type(error).__name__)

    def failed(self, invoke: Event, error: str) -> None:
        """It certainly did not happen, for a reason with this name."""
        self._end(invoke, Phase.FAIL, error=error)

    def _end(self, invoke: Event, phase: Phase, **fields: Any) -> None:
        changes: dict[str, Any] = {"phase": phase, "values": (), **fields}
        event = replace(invoke, time_ns=time.monotonic_ns(), **changes)
        self._file.write(encode_line(event))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
