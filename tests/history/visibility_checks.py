"""What readers see and when: nothing unconfirmed, never less than before, never too late."""

from __future__ import annotations

from tests.history.facts import LOOKING, WRITING, LedgerFacts, Steps, entry_of, facts_of
from tests.history.final import Final
from tests.history.model import NOT_REPORTED, Event, History, Operation, Phase
from tests.history.violation import Violation


def dirty_read(history: History, final: Final, *, exact: bool = False) -> list[Violation]:
    """I5: nobody reads an entry that is unconfirmed, or that the ledger then does not have. Once
    somebody has begun to close the ledger, entries that were never acknowledged may become part of
    it."""
    found = []
    for ledger in facts_of(history):
        for read in ledger.reads:
            if read.ok and read.values:
                why = _why_dirty(ledger, read, final, exact=exact)
                if why:
                    text = f"ledger {ledger.ledger_id}: entry {read.last_entry} was read, {why}"
                    found.append(Violation("I5", "dirty-read", text, (read.number,)))
    return found


def _why_dirty(ledger: LedgerFacts, read: Operation, final: Final, *, exact: bool) -> str | None:
    assert read.end is not None
    last = final.ledgers.get(ledger.ledger_id)
    ended = last is not None and not (last.deleted or last.unreadable or last.beyond_tolerance)
    if ended and last is not None and last.closed and read.last_entry > last.end:
        return f"and the ledger ends at {last.end}"
    known = read.end.last_add_confirmed
    if known != NOT_REPORTED and read.last_entry > known:
        return f"above the reader's last add confirmed {known}"
    if ledger.closing_began < read.ended:
        return None
    confirmed = ledger.confirmed_by(read.ended, exact=exact)
    if read.last_entry > confirmed:
        return f"and no more than {confirmed} can have been confirmed by then"
    return None


def last_confirmed(history: History, final: Final, *, exact: bool = False) -> list[Violation]:
    """I6: a handle's last add confirmed never goes back, and never exceeds what is confirmed."""
    found = _backwards(history)
    for ledger in facts_of(history):
        last = final.ledgers.get(ledger.ledger_id)
        for operation in [*ledger.appends, *ledger.reads, *ledger.others]:
            end = operation.end
            if end is None or not operation.ok or end.last_add_confirmed < 0:
                continue
            said = end.last_add_confirmed
            # A writer is told of several entries at once, and records them one by one.
            strictly = exact and operation.invoke.name not in WRITING
            limit = ledger.confirmed_by(operation.ended, exact=strictly)
            why = f"no more than {limit} can have been confirmed by then"
            if end.closed or ledger.closing_began < operation.ended:
                if last is None or not last.closed or last.unreadable or last.deleted:
                    continue
                limit, why = last.end, f"the ledger ends at {last.end}"
            if said > limit:
                text = f"ledger {ledger.ledger_id}: {said} is said to be confirmed, {why}"
                found.append(Violation("I6", "lac-beyond", text, (operation.number,)))
    return found


def _backwards(history: History) -> list[Violation]:
    found: list[Violation] = []
    highest: dict[tuple[str, int, bool], tuple[int, int]] = {}
    asked: dict[int, tuple[int, int]] = {}
    for event in history.events:
        if event.ledger_id < 0 or event.stream:
            continue
        # One process may write a ledger and read it through two handles.
        handle = (event.process, event.ledger_id, event.name in WRITING)
        if event.phase is Phase.INVOKE:
            asked[event.operation] = highest.get(handle, (-1, 0))
            continue
        if event.phase is not Phase.OK or event.last_add_confirmed == NOT_REPORTED:
            continue
        if event.name in ("open", "recover", "create"):  # a new handle
            highest[handle] = (event.last_add_confirmed, event.operation)
            continue
        before, operation = asked.get(event.operation, (-1, 0))
        said = event.last_add_confirmed
        if said < before:
            text = (
                f"ledger {event.ledger_id}: the last add confirmed of {event.process} went from "
                f"{before} back to {said}"
            )
            found.append(Violation("I6", "lac-backwards", text, (operation, event.operation)))
        if said > highest.get(handle, (-1, 0))[0]:
            highest[handle] = (said, event.operation)
    return found


def real_time(history: History, _final: Final) -> list[Violation]:
    """I6: whoever opens or refreshes a ledger sees what was confirmed when its last acknowledged
    append began. That append carried the LAC of its time to AQ bookies, and a reader hears one of
    them."""
    found = []
    for ledger in facts_of(history):
        visible = Steps(
            [
                (append.ended, ledger.acknowledged_before(append.began))
                for append in ledger.acknowledged
            ]
        )
        for operation in ledger.others:
            end = operation.end
            if operation.invoke.name not in LOOKING or end is None or not operation.ok:
                continue
            wanted, said = visible.before(operation.began), _said(operation, end)
            if said != NOT_REPORTED and said < wanted:
                text = (
                    f"ledger {ledger.ledger_id}: {operation.invoke.name} says that {said} is the "
                    f"last entry, {wanted} was acknowledged long before"
                )
                found.append(Violation("I6", "stale", text, (operation.number,)))
    return found


def _said(operation: Operation, end: Event) -> int:
    return entry_of(operation) if operation.invoke.name == "recover" else end.last_add_confirmed
