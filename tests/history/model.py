"""History: what clients asked and were told, in the order in which it happened.

An operation is an INVOKE and at most one end: OK, FAIL (it certainly did not happen) or UNKNOWN
(a timeout, a lost connection, a process that died). An operation without an end counts as
UNKNOWN. Times are nanoseconds of one clock that all processes of the machine share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

import msgspec

from tests.history.values import value, verify

NO_ENTRY = -1
"""The end of an empty ledger, or no entry at all."""

NOT_REPORTED = -2
"""A last add confirmed that the handle did not report."""

FOREVER = sys.maxsize
"""The index of an end that never came."""


class Phase(StrEnum):
    """The part of an operation's life that an event records. A timeout is UNKNOWN, never FAIL."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history.

    ``name`` is one of create, append, close, recover, open, refresh, read, tail, delete, commit,
    stream_read. An append's INVOKE carries its one value in ``values`` and its OK the entry id.
    A close's or recover's OK has the ledger's end in ``entry_id`` (-1: empty). A read asks from
    ``entry_id`` to ``last_entry``, and its OK (like each delivery of a tail) repeats them with
    the values in order. A commit's INVOKE carries the values of the batch.

    ``process`` is one handle's owner: what one process saw must never go backwards in time.
    Handles that know nothing of each other (a fresh open) record as processes of their own, or
    are kept apart by ``ledger_id``: monotonic rules bind per (process, ledger_id).
    """

    time_ns: int
    process: str
    operation: int
    phase: Phase
    name: str
    ledger_id: int = -1
    stream: str = ""
    entry_id: int = NO_ENTRY
    last_entry: int = NO_ENTRY
    values: tuple[str, ...] = ()
    last_add_confirmed: int = NOT_REPORTED
    closed: bool = False
    sink_id: str = ""
    transaction_id: int = -1
    commit: int = -1
    applied: bool = True
    error: str = ""


_encoder = msgspec.json.Encoder()
_DEFAULTS = [(f.name, f.default) for f in fields(Event)]


def encode_line(event: Event) -> bytes:
    """An event as a line of JSON, without the fields that have their default."""
    fields_given = {
        name: given for name, default in _DEFAULTS if (given := getattr(event, name)) != default
    }
    return _encoder.encode(fields_given) + b"\n"


class Operation(NamedTuple):
    """A whole operation. ``end`` is None if its end was never recorded. ``began`` and ``ended`` are
    the indexes of its events in the history, which is its order."""

    invoke: Event
    end: Event | None
    began: int = 0
    ended: int = FOREVER

    @property
    def phase(self) -> Phase:
        """OK, FAIL or UNKNOWN."""
        return Phase.UNKNOWN if self.end is None else self.end.phase

    @property
    def ok(self) -> bool:
        return self.end is not None and self.end.phase is Phase.OK

    @property
    def number(self) -> int:
        return self.invoke.operation

    @property
    def ledger_id(self) -> int:
        """The ledger; -1 for a creation whose result is unknown."""
        return self.invoke.ledger_id if self.end is None else self.end.ledger_id

    @property
    def first_entry(self) -> int:
        """The first entry of a read."""
        return self.invoke.entry_id

    @property
    def values(self) -> tuple[str, ...]:
        """What the operation returned; it must have ended."""
        assert self.end is not None, "only an operation that ended brought something"
        return self.end.values

    @property
    def last_entry(self) -> int:
        """The last entry that a read returned; below ``first_entry`` for none."""
        return self.first_entry + len(self.values) - 1


class History:
    """Events in order of time. With a file, each event is one JSON line that survives a kill."""

    def __init__(self, events: Iterable[Event] = (), *, path: Path | None = None) -> None:
        self.events: list[Event] = list(events)
        self._paired: tuple[int, list[Operation]] = (0, [])
        self._file: IO[bytes] | None = None if path is None else path.open("ab")

    def record(self, event: Event) -> None:
        """Append an event. With a file, the kernel has the line when this returns."""
        self.events.append(event)
        if self._file is not None:
            self._file.write(encode_line(event))
            self._file.flush()

    def close(self) -> None:
        """Close the file; the events stay."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> History:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @classmethod
    def load(cls, *paths: Path) -> History:
        """Merge files by time. A last line that a kill cut short is left out; other damage raises
        ValueError. Of two events in the same nanosecond, an INVOKE goes before an end, so that
        nothing seems to be known before it was asked."""
        events: list[Event] = []
        for path in paths:
            events.extend(_lines(path))
        events.sort(key=lambda event: (event.time_ns, event.phase is not Phase.INVOKE))
        return cls(events)

    def operations(self, *names: str) -> list[Operation]:
        """Operations (of these names, or all) in order of invocation, each with its end. Each
        delivery of a tail becomes an operation of its own, invoked when the tail began to wait."""
        if self._paired[0] != len(self.events):
            self._paired = (len(self.events), self._pair())
        paired = self._paired[1]
        return [o for o in paired if o.invoke.name in names] if names else paired

    def _pair(self) -> list[Operation]:
        ends: dict[int, tuple[int, Event]] = {}
        invokes: list[tuple[int, Event]] = []
        for index, event in enumerate(self.events):
            if event.phase is Phase.INVOKE:
                invokes.append((index, event))
                continue
            assert event.operation not in ends, f"operation {event.operation} ends twice"
            ends[event.operation] = (index, event)
        paired = []
        for began, event in invokes:
            ended, end = ends.pop(event.operation, (FOREVER, None))
            paired.append(Operation(event, end, began, ended))
        assert not ends, f"operations {sorted(ends)[:5]} end without an invocation"
        return paired

    def __len__(self) -> int:
        return len(self.events)


def _lines(path: Path) -> Iterator[Event]:
    decoder = msgspec.json.Decoder(Event)
    data = path.read_bytes()
    complete, _, _ = data.rpartition(b"\n")
    for number, line in enumerate(complete.split(b"\n") if complete else (), start=1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error


__all__ = ["NOT_REPORTED", "NO_ENTRY", "Event", "History", "Operation", "Phase", "value", "verify"]
