"""Closing: all agree on one end, and nothing is acknowledged beyond it or after it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.history.facts import CLOSING, LedgerFacts, entry_of, facts_of
from tests.history.final import Final
from tests.history.model import FOREVER, NOT_REPORTED, History, Operation
from tests.history.register import Register, linearize
from tests.history.violation import Violation

GIVING_UP = frozenset({"EnsembleLostError", "NotEnoughBookiesError", "UnauthorizedError"})
"""Errors of an append after which the writer closes its ledger by itself (rule P10)."""

TAKEN_OVER = "LedgerTakenOverError"
"""Error of an append whose writer knows that another client has closed the ledger (rule P18)."""


def close_disagreement(history: History, final: Final) -> list[Violation]:
    """I7: whoever closes a ledger, or finds it closed, reports the same end."""
    found = []
    for ledger in facts_of(history):
        said: tuple[int, tuple[int, ...]] | None = None
        last = final.ledgers.get(ledger.ledger_id)
        ends = [*_ends(ledger)]
        if last is not None and last.closed and not (last.deleted or last.unreadable):
            ends.append((last.end, ()))
        for end, numbers in ends:
            if said is None:
                said = (end, numbers)
            elif said[0] != end:
                text = f"ledger {ledger.ledger_id} was closed at {said[0]}, and at {end}"
                found.append(Violation("I7", "close-disagreement", text, said[1] + numbers))
    return found


def _ends(ledger: LedgerFacts) -> Iterator[tuple[int, tuple[int, ...]]]:
    for operation in [*ledger.others, *ledger.reads]:
        end = operation.end
        if end is None or not operation.ok:
            continue
        if operation.invoke.name in CLOSING:
            yield end.entry_id, (operation.number,)
        elif end.closed and end.last_add_confirmed != NOT_REPORTED:
            yield end.last_add_confirmed, (operation.number,)


def acknowledged_after_close(history: History, _final: Final) -> list[Violation]:
    """I8: once a ledger is closed, no add that began later or lies beyond its end is
    acknowledged."""
    found = []
    for ledger in facts_of(history):
        closings = [o for o in ledger.others if o.invoke.name in CLOSING and o.ok]
        if not closings:
            continue
        first = min(closings, key=lambda o: o.ended)
        for append in ledger.acknowledged:
            entry_id, end = entry_of(append), entry_of(first)
            late = append.began > first.ended
            if late or (append.ended > first.ended and entry_id > end):
                when = "began" if late else "was acknowledged"
                text = (
                    f"ledger {ledger.ledger_id}, entry {entry_id}: its append {when} after the "
                    f"ledger was closed at {end}"
                )
                numbers = (first.number, append.number)
                found.append(Violation("I8", "acknowledged-after-close", text, numbers))
    return found


def metadata_register(history: History, _final: Final) -> list[Violation]:
    """I7: creating, closing, finding open or closed, and deleting have one order in real time."""
    found = []
    for ledger in facts_of(history):
        calls = _register_calls(ledger)
        outcome = linearize(calls)
        if outcome is True:
            continue
        why = "do not fit any order" if outcome is False else "could not be put in order in time"
        names = ", ".join(call.what for call in calls[:8])
        text = f"ledger {ledger.ledger_id}: {len(calls)} operations on its state {why}: {names}"
        found.append(Violation("I7", "not-linearizable", text, tuple(c.number for c in calls[:8])))
    return found


def _register_calls(ledger: LedgerFacts) -> list[Register]:
    """The operations that change or show a ledger's state, as calls on a register."""
    created = [ledger.created] if ledger.created is not None else []
    calls = [call for o in [*created, *ledger.others] if (call := _register_call(o)) is not None]
    # A writer that heard that another client closed its ledger asks nobody when it is closed:
    # what it then says of the end it has read before that append failed.
    heard = [o for o in ledger.appends if o.end is not None and o.end.error == TAKEN_OVER]
    if heard:
        first = heard[0]
        calls = [
            call._replace(began=first.began)
            if call.what == "close"
            and call.number in ledger.own_closes
            and call.began > first.ended
            else call
            for call in calls
        ]
    # A writer that has lost too many bookies closes its ledger by itself.
    given_up = [o for o in ledger.appends if o.end is not None and o.end.error in GIVING_UP]
    if given_up:
        calls.append(Register("close", None, given_up[0].began, FOREVER, given_up[0].number))
    calls.sort(key=lambda call: call.began)
    return calls


def _register_call(operation: Operation) -> Register | None:
    name, end = operation.invoke.name, operation.end
    began, ended, number = operation.began, operation.ended, operation.number
    if operation.ok and end is not None:
        match name:
            case "create" | "delete":
                return Register(name, -1, began, ended, number)
            case "close" | "recover":
                return Register("close", end.entry_id, began, ended, number)
            case "open" | "refresh" if not end.closed:
                return Register("is-open", -1, began, ended, number)
            case "open" | "refresh":
                return Register("is-closed", end.last_add_confirmed, began, ended, number)
        return None
    if end is not None and end.error == "NoSuchLedgerError":
        return Register("is-gone", -1, began, ended, number)
    if name in ("close", "recover", "delete"):
        # It may take effect at any later time, or never: an attempt to close that failed may have
        # left its request in the network.
        what = "delete" if name == "delete" else "close"
        return Register(what, None, began, FOREVER, number)
    return None
