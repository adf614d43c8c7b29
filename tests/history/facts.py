"""Facts: a history sorted by ledger once, so that each checker is a short linear walk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from weakref import WeakKeyDictionary

from tests.history.model import FOREVER, History, Operation, Phase

WRITING = frozenset({"create", "append", "close"})
READING = frozenset({"read", "tail"})
CLOSING = frozenset({"close", "recover"})
LOOKING = frozenset({"open", "refresh", "recover"})

_GAVE_UP = frozenset({"", "TimeoutError"})
"""Errors that end the waiting of a caller: the operation may still have happened."""


_HANDS_OVER = frozenset({"AddOutcomeUnknownError", "EnsembleLostError"})
"""Errors behind which a writer's connection may close its ledger. One that was fenced leaves it."""


class Steps:
    """A number that only grows, by index in the history: its value just before an index."""

    def __init__(self, steps: list[tuple[int, int]]) -> None:
        steps.sort()
        self._indexes = [index for index, _ in steps]
        self._values = list(accumulate((value for _, value in steps), max))

    def before(self, index: int) -> int:
        """The value before an index; -1 at the beginning."""
        at = bisect_left(self._indexes, index)
        return -1 if at == 0 else self._values[at - 1]


@dataclass(eq=False)
class LedgerFacts:
    """What a history says of one ledger."""

    ledger_id: int
    created: Operation | None = None
    appends: list[Operation] = field(default_factory=list)
    """In order of invocation, which is the writer's order."""
    reads: list[Operation] = field(default_factory=list)
    """Reads and deliveries of tails that returned entries or an error."""
    others: list[Operation] = field(default_factory=list)
    """close, recover, open, refresh, delete."""
    by_value: dict[str, Operation] = field(default_factory=dict)

    @property
    def own_closes(self) -> frozenset[int]:
        """Those of the writer that ended well, by number."""
        return frozenset(o.number for o in self.others if o.invoke.name == "close" and o.ok)

    def add(self, operation: Operation) -> None:
        match operation.invoke.name:
            case "create":
                self.created = operation
            case "append":
                (value,) = operation.invoke.values
                assert value not in self.by_value, f"value {value[:40]} was appended twice"
                self.by_value[value] = operation
                self.appends.append(operation)
            case name if name in READING:
                self.reads.append(operation)
            case _:
                self.others.append(operation)

    def index(self) -> None:
        """Prepare the questions below. Call it once, when all operations are added."""
        self.acknowledged = [o for o in self.appends if o.ok]
        self._acknowledged_at = Steps([(o.ended, entry_of(o)) for o in self.acknowledged])
        self._possible = Steps(self._possibly_confirmed())
        known = [(o.ended, entry_of(o)) for o in self.acknowledged]
        known += [(o.ended, o.last_entry) for o in self.reads if o.ok]
        known += [(o.ended, entry_of(o)) for o in self.others if o.ok and o.invoke.name in CLOSING]
        self._known_at = Steps(known)
        closings = [o for o in self.others if o.invoke.name in CLOSING]
        # A writer that has ended hands its open ledger over, and its connection closes it.
        handed = [o.ended for o in self.appends if _may_be_handed_over(o)]
        self.closing_began = min((*handed, *(o.began for o in closings)), default=FOREVER)
        deletes = [o for o in self.others if o.invoke.name == "delete"]
        self.delete_began = min((o.began for o in deletes), default=FOREVER)

    def _possibly_confirmed(self) -> list[tuple[int, int]]:
        """The entry of each append that was acknowledged or may have been, with the index of its
        begin."""
        steps, entry_id = [], -1
        for operation in self.appends:
            if operation.phase is Phase.FAIL:
                continue
            entry_id = entry_of(operation) if operation.ok else entry_id + 1
            if operation.ok or _nobody_knows(operation):
                steps.append((operation.began, entry_id))
        return steps

    def acknowledged_before(self, index: int) -> int:
        """The highest entry whose acknowledgement the writer had before this index; -1 for none."""
        return self._acknowledged_at.before(index)

    def known_before(self, index: int) -> int:
        """The highest entry known to anybody to be part of the ledger before this index."""
        return self._known_at.before(index)

    def confirmed_by(self, index: int, *, exact: bool) -> int:
        """The highest entry that may be confirmed at this index, while nobody has begun to close
        the ledger.

        ``exact``: events were recorded at the moment they happened. Otherwise the writer may have
        been told, and was slow, paused or killed before it recorded that.
        """
        return self.acknowledged_before(index) if exact else self._possible.before(index)


def _may_be_handed_over(operation: Operation) -> bool:
    end = operation.end
    return end is not None and end.phase is Phase.UNKNOWN and end.error in _HANDS_OVER


def _nobody_knows(operation: Operation) -> bool:
    return operation.end is None or (
        operation.phase is Phase.UNKNOWN and operation.end.error in _GAVE_UP
    )


def entry_of(operation: Operation) -> int:
    """The entry id of an acknowledged append, or the end that a closing operation found."""
    assert operation.end is not None
    return operation.end.entry_id


class Facts:
    """All ledgers of a history."""

    def __init__(self, history: History) -> None:
        self.ledgers: dict[int, LedgerFacts] = {}
        for operation in history.operations():
            if operation.ledger_id < 0 or operation.invoke.stream:
                continue
            ledger = self.ledgers.get(operation.ledger_id)
            if ledger is None:
                ledger = self.ledgers[operation.ledger_id] = LedgerFacts(operation.ledger_id)
            ledger.add(operation)
        for ledger in self.ledgers.values():
            ledger.index()

    def __iter__(self) -> Iterator[LedgerFacts]:
        return iter(self.ledgers.values())


_known: WeakKeyDictionary[History, tuple[int, Facts]] = WeakKeyDictionary()


def facts_of(history: History) -> Facts:
    """The facts of a history, computed once while it does not grow."""
    size, facts = _known.get(history, (-1, None))
    if facts is None or size != len(history):
        facts = Facts(history)
        _known[history] = (len(history), facts)
    return facts
