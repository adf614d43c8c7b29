"""What a request does to a ledger record: the request is refused, or the record grows. Pure.

Each function takes the ledger record as it is (None for a ledger never heard of) and a request. It
returns a ``Refusal``, or ``Accepted`` with what has to be kept and journalled. ``in_metadata`` is
what the metadata say of the ledger: needed without a record, and a copy always comes with it. The
caller keeps first and journals second (rule S2), and answers once the journal is synced (rules S1
and P3).

Nothing comes between a decision and its change. All requests run on one thread, and the record in
memory is changed before the next request is looked at. An add that comes after a fence is therefore
refused although the fence is not on the disk yet. Nothing stops an add that came before it and is
in the write cache, and its acknowledgement may still leave after the fence was answered. That is
safe: the add is before the fence in memory and in the journal, so the read that fences sees the
entry (rule P12), and recovery keeps it (rule P16).
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from bookie_server.core.ledger_record import KEY_HASH_BYTES, Change, LedgerRecord
from spark_ledger.bookie_api import LedgerEnd, Refusal
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId


class KnownLedger(NamedTuple):
    """What the metadata say of a ledger that a bookie has no record of."""

    access_key_hash: bytes
    """Empty: it was made by an older version, and has no key."""
    is_closed: bool = False


class Step(NamedTuple):
    """A record to keep in memory, and the change that is journalled after that."""

    record: LedgerRecord
    change: Change


class Accepted(NamedTuple):
    """A request that is served.

    ``record`` is the ledger's record at the end. ``steps`` lead to it, in the order in which they
    are journalled, all in one batch; for an add they come before the run, which is no step. Without
    any step there is nothing to write for a fence or a last add confirmed.
    ``lac_advanced``: the last add confirmed is higher than before, readers wait for that.
    ``held_up_to``: entries of an add up to this one may be held already. The caller compares them
    before it keeps anything; a writer's new entries are above it, so they cost no look.
    """

    record: LedgerRecord
    steps: tuple[Step, ...] = ()
    lac_advanced: bool = False
    held_up_to: EntryId = NO_ENTRY


def on_add(
    record: LedgerRecord | None,
    ledger_id: LedgerId,
    key_hash: bytes,
    *,
    recovery: bool,
    last_entry: EntryId,
    last_add_confirmed: EntryId,
    in_metadata: KnownLedger | None = None,
) -> Accepted | Refusal:
    """Decide the add of a run that ends with ``last_entry``.

    Only the ledger's writer stops at the fence. A recovery fences first and then copies what it
    found (rule P16), so its adds must pass (rule P12); what keeps others from passing for a
    recovery is the access key.
    """
    before = record
    steps: tuple[Step, ...] = ()
    if before is None or in_metadata is not None:
        contact = _contact(before, ledger_id, key_hash, in_metadata)
        if isinstance(contact, Refusal):
            return contact
        before, steps = contact.record, contact.steps
    elif (refusal := _refuse_key(before.access_key_hash, ledger_id, key_hash)) is not None:
        return refusal
    if before.fenced and not recovery:
        message = f"ledger {ledger_id} is fenced: another client has recovered it"
        return Refusal(BookieStatus.FENCED, message)
    after = before.with_run(last_entry, last_add_confirmed)
    assert recovery or not after.fenced, "a writer's add never follows a fence (rule P12)"
    advanced = after.last_add_confirmed > before.last_add_confirmed
    return Accepted(after, steps, advanced, before.last_entry)


def on_fence(
    record: LedgerRecord | None,
    ledger_id: LedgerId,
    key_hash: bytes,
    *,
    in_metadata: KnownLedger | None = None,
) -> Accepted | Refusal:
    """Decide a fence.

    A ledger never heard of is fenced as well (rule P12): otherwise its writer's first entries
    could arrive here after a recovery has been told that there are none. Accepted without steps
    means that the fence is there. It need not be durable yet: the caller knows which are in flight.
    """
    contact = _contact(record, ledger_id, key_hash, in_metadata)
    if isinstance(contact, Refusal):
        return contact
    if contact.record.fenced:
        return contact
    accepted = _then(contact, Change(ledger_id, fenced=True))
    assert accepted.record.fenced and accepted.record.grew_from(record)
    return accepted


def on_last_confirmed(
    record: LedgerRecord | None,
    ledger_id: LedgerId,
    key_hash: bytes,
    last_add_confirmed: EntryId,
    *,
    in_metadata: KnownLedger | None = None,
) -> Accepted | Refusal:
    """Decide the explicit last add confirmed of an idle writer.

    It never goes back (rule P5). A fence does not stop it: it adds no entry, and says only what the
    writer had confirmed before.
    """
    contact = _contact(record, ledger_id, key_hash, in_metadata)
    if isinstance(contact, Refusal) or last_add_confirmed <= contact.record.last_add_confirmed:
        return contact
    accepted = _then(contact, Change(ledger_id, last_add_confirmed=last_add_confirmed))
    assert accepted.record.last_add_confirmed == last_add_confirmed
    assert accepted.record.grew_from(record)
    return accepted._replace(lac_advanced=True)


def end_of_ledger(record: LedgerRecord | None, ledger_id: LedgerId, key_hash: bytes) -> LedgerEnd:
    """Where the ledger ends here. A key that is shown must be right; none is needed."""
    if record is None:
        message = f"ledger {ledger_id} is not known here"
        return LedgerEnd.without_end(BookieStatus.NO_SUCH_LEDGER, message)
    refusal = _refuse_key(record.access_key_hash, ledger_id, key_hash) if key_hash else None
    if refusal is not None:
        return LedgerEnd.without_end(*refusal)
    return LedgerEnd(
        BookieStatus.OK, record.last_add_confirmed, record.last_entry, record.fenced, ""
    )


def _contact(
    record: LedgerRecord | None,
    ledger_id: LedgerId,
    key_hash: bytes,
    in_metadata: KnownLedger | None,
) -> Accepted | Refusal:
    """Check the key of a request that may change something, or learn it at the first contact.

    The first contact is compared with the metadata (rule P20): otherwise whoever came first would
    own the ledger here, with any key. The key is a step of its own and comes before what the
    request itself changes. So neither a crash nor a checkpoint leaves an entry or a fence on the
    disk without the key that protects it. A ledger without a key, of an older version, needs no
    step: its record says so by an empty hash, and so does no record at all.

    A closed ledger is fenced from its first contact on (rule P25): a record that said so may have
    been here, and given back. One that is there without a fence gets it with the next copy: an
    older version may have been killed between the key and the fence.
    """
    assert len(key_hash) in (0, KEY_HASH_BYTES), "the hash of a key, and not the key"
    known_by = record if record is not None else in_metadata
    assert known_by is not None, "the first contact is compared with the metadata (rule P20)"
    refusal = _refuse_key(known_by.access_key_hash, ledger_id, key_hash)
    if refusal is not None:
        return refusal
    known = Accepted(LedgerRecord() if record is None else record)
    if record is None and key_hash:
        known = _then(known, Change(ledger_id, access_key_hash=key_hash))
    if in_metadata is not None and in_metadata.is_closed and not known.record.fenced:
        known = _then(known, Change(ledger_id, fenced=True))
    return known


def _refuse_key(known: bytes, ledger_id: LedgerId, key_hash: bytes) -> Refusal | None:
    """Refusal of the wrong key. Compared in constant time: the first bytes tell nothing."""
    if hmac.compare_digest(known, key_hash):
        return None
    message = (
        f"ledger {ledger_id}: wrong password, or a password is missing or not expected, or this is "
        "another ledger with the same id"
    )
    return Refusal(BookieStatus.UNAUTHORIZED, message)


def _then(accepted: Accepted, change: Change) -> Accepted:
    """The request with one more step."""
    record = accepted.record.with_change(change)
    assert record != accepted.record, "what changes nothing is not journalled"
    return Accepted(record, (*accepted.steps, Step(record, change)))
