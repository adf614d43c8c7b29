"""Builder: writes histories by hand, one call per operation, for the tests of the checkers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spark_ledger.types import BookieId, EntryId, Fragment, Quorums
from tests.history.checkers import check_all
from tests.history.final import Final, FinalLedger
from tests.history.model import Event, History, Phase, value

BOOKIES = ("a", "b", "c")


class Builder:
    """Writes a history. Time is the number of events so far. Every method returns the operation's
    number."""

    def __init__(self) -> None:
        self.history = History()
        self._operations = 0

    def begin(self, name: str, process: str = "w", **fields: Any) -> Event:
        """Record the INVOKE of an operation that ``finish`` will end."""
        self._operations += 1
        return self._record(process, self._operations, Phase.INVOKE, name, **fields)

    def finish(self, invoke: Event, phase: Phase = Phase.OK, **fields: Any) -> int:
        """Record the end of an operation; ``fields`` are those that differ from its INVOKE."""
        event = replace(invoke, time_ns=self._now(), phase=phase, values=())
        self.history.record(replace(event, **fields))
        return invoke.operation

    def _record(
        self, process: str, operation: int, phase: Phase, name: str, **fields: Any
    ) -> Event:
        event = Event(self._now(), process, operation, phase, name, **fields)
        self.history.record(event)
        return event

    def _now(self) -> int:
        return len(self.history.events) * 1000

    # -- whole operations --------------------------------------------------------------------------

    def create(self, ledger_id: int = 1, process: str = "w") -> int:
        return self.finish(self.begin("create", process), ledger_id=ledger_id)

    def append(
        self,
        entry_id: int,
        text: str = "",
        *,
        ledger_id: int = 1,
        process: str = "w",
        phase: Phase = Phase.OK,
        error: str = "",
    ) -> int:
        invoke = self.begin_append(text or entry(entry_id, ledger_id), ledger_id, process)
        return self.finish(invoke, phase, entry_id=entry_id, error=error)

    def begin_append(self, text: str, ledger_id: int = 1, process: str = "w") -> Event:
        return self.begin("append", process, ledger_id=ledger_id, values=(text,))

    def read(
        self,
        first: int,
        values: Sequence[str],
        *,
        last: int | None = None,
        ledger_id: int = 1,
        process: str = "r",
        name: str = "read",
        **fields: Any,
    ) -> int:
        last = first + len(values) - 1 if last is None else last
        invoke = self.begin(name, process, ledger_id=ledger_id, entry_id=first, last_entry=last)
        return self.finish(invoke, **{"values": tuple(values), **fields})

    def look(
        self, name: str, last_add_confirmed: int, *, process: str = "r", closed: bool = False
    ) -> int:
        """Record an open or a refresh."""
        invoke = self.begin(name, process, ledger_id=1)
        return self.finish(invoke, last_add_confirmed=last_add_confirmed, closed=closed)

    def close(
        self, end: int, *, name: str = "close", process: str = "w", ledger_id: int = 1
    ) -> int:
        """Record a close or a recovery."""
        return self.finish(self.begin(name, process, ledger_id=ledger_id), entry_id=end)

    def commit(
        self,
        number: int,
        values: Sequence[str],
        transaction_id: int,
        *,
        sink_id: str = "sink",
        process: str = "s",
        applied: bool = True,
        phase: Phase = Phase.OK,
    ) -> int:
        invoke = self.begin(
            "commit",
            process,
            stream="rows",
            sink_id=sink_id,
            transaction_id=transaction_id,
            values=tuple(values),
        )
        return self.finish(invoke, phase, commit=number, applied=applied)

    def stream_read(self, values: Sequence[str], *, first: int = 0, process: str = "s") -> int:
        invoke = self.begin("stream_read", process, stream="rows", entry_id=first)
        return self.finish(invoke, values=tuple(values))


def entry(entry_id: int, ledger_id: int = 1) -> str:
    """The value of an entry in these histories."""
    return value("w", f"L{ledger_id}", entry_id)


def entries(count: int, ledger_id: int = 1) -> tuple[str, ...]:
    return tuple(entry(e, ledger_id) for e in range(count))


def row(number: int) -> str:
    """A value of a stream."""
    return value("s", "sink", number)


def final_ledger(
    values: Sequence[str], *, ledger_id: int = 1, quorums: Quorums | None = None, **fields: Any
) -> FinalLedger:
    """A closed ledger whose entries are on all of its bookies."""
    held = dict(enumerate(values))
    made = FinalLedger(
        ledger_id,
        quorums or Quorums(3, 3, 2),
        (Fragment(EntryId(0), tuple(BookieId(b) for b in BOOKIES)),),
        closed=True,
        end=len(values) - 1,
        values=tuple(values),
        replicas=dict.fromkeys(BOOKIES, held),
    )
    return replace(made, **fields)


def names(history: History, *final: FinalLedger, exact: bool = True) -> set[str]:
    """The names of the violations that the checkers find."""
    return {v.name for v in check_all(history, Final.of(*final), exact=exact)}


def written(b: Builder, count: int = 3) -> None:
    """Ledger 1 with so many acknowledged entries."""
    b.create()
    for entry_id in range(count):
        b.append(entry_id)
