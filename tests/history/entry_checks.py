"""Entries: none is lost, invented, changed, reordered or missing in between."""

from __future__ import annotations

from collections.abc import Iterator

from tests.history.facts import LedgerFacts, entry_of, facts_of
from tests.history.final import Final, FinalLedger
from tests.history.model import FOREVER, History, Operation, Phase
from tests.history.values import short, verify
from tests.history.violation import Violation

DENIALS = frozenset({"NoSuchEntryError", "DigestMismatchError", "DataLossError", "CorruptionError"})


def lost(history: History, final: Final) -> list[Violation]:
    """I1, I2: every acknowledged append is in the ledger at the end, under the id it was told."""
    found = []
    for ledger in facts_of(history):
        last = final.ledgers.get(ledger.ledger_id)
        if last is not None and last.beyond_tolerance:
            continue
        if last is None or last.deleted:
            found += _gone(ledger, was_looked_for=last is not None or bool(final.ledgers))
            continue
        if last.unreadable:
            numbers = tuple(o.number for o in ledger.acknowledged[:3])
            text = f"ledger {ledger.ledger_id} cannot be read after healing: {last.unreadable}"
            found.append(Violation("I13", "unreadable", text, numbers))
            continue
        found += [v for o in ledger.acknowledged if (v := _lost_append(o, last)) is not None]
    return found


def _gone(ledger: LedgerFacts, *, was_looked_for: bool) -> list[Violation]:
    """A ledger that is missing at the end must have been deleted."""
    if not was_looked_for or ledger.delete_began < FOREVER:
        return []
    known = [o for o in [ledger.created, *ledger.acknowledged[:1]] if o is not None and o.ok]
    if not known:
        return []
    text = f"ledger {ledger.ledger_id} is gone, and nobody deleted it"
    return [Violation("I2", "lost", text, tuple(o.number for o in known))]


def _lost_append(operation: Operation, last: FinalLedger) -> Violation | None:
    entry_id, (value,) = entry_of(operation), operation.invoke.values
    where = f"ledger {last.ledger_id}, entry {entry_id}"
    if entry_id > last.end:
        text = f"{where}: acknowledged, but the ledger ends at {last.end}"
        return Violation("I1", "lost", text, (operation.number,))
    if entry_id < len(last.values) and last.values[entry_id] != value:
        text = f"{where}: {short(value)} was acknowledged, {short(last.values[entry_id])} is there"
        return Violation("I2", "lost", text, (operation.number,))
    return None


def phantom(history: History, final: Final) -> list[Violation]:
    """I4: whatever is read was appended to this ledger before, and its append did not fail."""
    found = []
    for ledger in facts_of(history):
        for where, values, index, number in _sightings(ledger, final):
            for offset, value in enumerate(values):
                why = _why_phantom(ledger, value, index)
                if why:
                    text = f"ledger {ledger.ledger_id}, {where}, value {offset}: {why}"
                    found.append(Violation("I4", "phantom", text, number))
    return found


def _sightings(
    ledger: LedgerFacts, final: Final
) -> Iterator[tuple[str, tuple[str, ...], int, tuple[int, ...]]]:
    """Everything that was read from a ledger: where, the values, when, by which operation."""
    for read in ledger.reads:
        if read.ok:
            where = f"read of {read.first_entry} to {read.last_entry}"
            yield where, read.values, read.ended, (read.number,)
    last = final.ledgers.get(ledger.ledger_id)
    if last is None:
        return
    yield "at the end", last.values, FOREVER, ()
    for bookie, held in last.replicas.items():
        values = tuple(v for e, v in held.items() if e <= last.end and verify(v))
        yield f"bookie {bookie}", values, FOREVER, ()


def _why_phantom(ledger: LedgerFacts, value: str, index: int) -> str | None:
    origin = ledger.by_value.get(value)
    if origin is None:
        kind = "nobody appended" if verify(value) else "damaged:"
        return f"{kind} {short(value)}"
    if origin.phase is Phase.FAIL:
        return f"{short(value)} is there, but its append (operation {origin.number}) failed"
    if origin.began > index:
        return f"{short(value)} was read before it was appended (operation {origin.number})"
    return None


def divergence(history: History, final: Final) -> list[Violation]:
    """I4: an entry has one content, for every reader and on every bookie, up to the ledger's
    end."""
    found = []
    for ledger in facts_of(history):
        said: dict[int, tuple[str, tuple[int, ...]]] = {}
        for first, values, numbers in _contents(ledger, final):
            for entry_id, value in enumerate(values, first):
                before = said.setdefault(entry_id, (value, numbers))
                if before[0] != value:
                    text = (
                        f"ledger {ledger.ledger_id}, entry {entry_id} is both "
                        f"{short(before[0])} and {short(value)}"
                    )
                    found.append(Violation("I4", "divergence", text, before[1] + numbers))
    for last in final.ledgers.values():
        found += _replica_divergence(last)
    return found


def _contents(
    ledger: LedgerFacts, final: Final
) -> Iterator[tuple[int, tuple[str, ...], tuple[int, ...]]]:
    for append in ledger.acknowledged:
        yield entry_of(append), append.invoke.values, (append.number,)
    for read in ledger.reads:
        if read.ok:
            yield read.first_entry, read.values, (read.number,)
    last = final.ledgers.get(ledger.ledger_id)
    if last is not None:
        yield 0, last.values, ()


def _replica_divergence(last: FinalLedger) -> Iterator[Violation]:
    """Compare bookies with each other, and with what was read if they hold values."""
    said: dict[int, tuple[str, str]] = {}
    for bookie, held in last.replicas.items():
        for entry_id, content in held.items():
            if entry_id > last.end:
                continue
            before, other = said.setdefault(entry_id, (content, bookie))
            where = f"ledger {last.ledger_id}, entry {entry_id}: bookie {bookie} holds "
            if before != content:
                text = f"{where}{short(content)}, bookie {other} {short(before)}"
                yield Violation("I4", "divergence", text)
            read = last.values[entry_id] if entry_id < len(last.values) else content
            if verify(content) and read != content:
                yield Violation("I4", "divergence", f"{where}{short(content)}, not {short(read)}")


def order(history: History, final: Final) -> list[Violation]:
    """I4: entry ids and reads follow the order in which the writer appended."""
    found = []
    for ledger in facts_of(history):
        highest, before = -1, 0
        for append in ledger.acknowledged:
            if entry_of(append) <= highest:
                text = (
                    f"ledger {ledger.ledger_id}: entry {entry_of(append)} was appended after entry "
                    f"{highest} was"
                )
                found.append(Violation("I4", "order", text, (before, append.number)))
            else:
                highest, before = entry_of(append), append.number
        for where, values, _, number in _sightings(ledger, final):
            if not where.startswith("bookie"):
                found += _disorder(ledger, where, values, number)
    return found


def _disorder(
    ledger: LedgerFacts, where: str, values: tuple[str, ...], number: tuple[int, ...]
) -> Iterator[Violation]:
    previous: Operation | None = None
    seen: set[str] = set()
    for value in values:
        origin = ledger.by_value.get(value)
        if value in seen:
            text = f"ledger {ledger.ledger_id}, {where}: {short(value)} twice"
            yield Violation("I4", "duplicate", text, number)
        elif origin is not None and previous is not None and origin.began < previous.began:
            text = (
                f"ledger {ledger.ledger_id}, {where}: {short(value)} stands behind "
                f"{short(previous.invoke.values[0])}, which was appended after it"
            )
            yield Violation("I4", "order", text, (previous.number, origin.number, *number))
        seen.add(value)
        previous = origin or previous


def hole(history: History, final: Final) -> list[Violation]:
    """I4: a read returns all it was asked for, a tail skips nothing, a ledger is dense."""
    found = []
    for ledger in facts_of(history):
        for read in ledger.reads:
            if not read.ok:
                continue
            wanted = read.invoke.last_entry - read.first_entry + 1
            assert read.end is not None
            if read.invoke.name == "read" and len(read.values) != wanted:
                text = f"asked for {wanted} entries from {read.first_entry}, got {len(read.values)}"
            elif read.end.entry_id not in (read.first_entry, -1):
                text = f"from {read.first_entry} on was asked, {read.end.entry_id} came first"
            else:
                continue
            text = f"ledger {ledger.ledger_id}: {text}"
            found.append(Violation("I4", "hole", text, (read.number,)))
    for last in final.ledgers.values():
        readable = not (last.unreadable or last.deleted or last.beyond_tolerance)
        if readable and last.closed and len(last.values) != last.end + 1:
            text = (
                f"ledger {last.ledger_id} ends at {last.end}, and {len(last.values)} entries are "
                "there"
            )
            found.append(Violation("I4", "hole", text))
    return found


def denied(history: History, _final: Final) -> list[Violation]:
    """I10: nobody is told that an entry or ledger does not exist which is known to exist."""
    found = []
    for ledger in facts_of(history):
        for operation in [*ledger.reads, *ledger.others]:
            end = operation.end
            if end is None or operation.ok or ledger.delete_began < operation.ended:
                continue
            number = (operation.number,)
            if end.error == "NoSuchLedgerError" and _was_there(ledger, operation.began):
                text = f"ledger {ledger.ledger_id} exists, and a client was told that it does not"
                found.append(Violation("I2", "denied", text, number))
            known = ledger.known_before(operation.began)
            if end.error in DENIALS and operation.first_entry <= known:
                text = (
                    f"ledger {ledger.ledger_id}: {end.error} at a read from {operation.first_entry}"
                    f" on; entries up to {known} were known to be there"
                )
                found.append(Violation("I10", "denied", text, number))
    return found


def _was_there(ledger: LedgerFacts, index: int) -> bool:
    created = ledger.created is not None and ledger.created.ok and ledger.created.ended < index
    return created or ledger.known_before(index) >= 0
