"""What a request does to a record: who may add, fence and confirm, in every order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from itertools import permutations, product

import pytest

from bookie_server.core.ledger_record import Change, LedgerRecord
from bookie_server.core.transitions import (
    Accepted,
    KnownLedger,
    Step,
    end_of_ledger,
    on_add,
    on_fence,
    on_last_confirmed,
)
from spark_ledger.bookie_api import LedgerEnd, Refusal
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import access_key_hash

L = LedgerId(7)
KEY = hashlib.sha256(b"key").digest()
OTHER = hashlib.sha256(b"other").digest()
NONE = b""


def add(
    record: LedgerRecord | None,
    entry: int = 0,
    lac: int = -1,
    *,
    key_hash: bytes = NONE,
    recovery: bool = False,
    in_metadata: bytes | KnownLedger | None = None,
) -> Accepted | Refusal:
    return on_add(
        record,
        L,
        key_hash,
        recovery=recovery,
        last_entry=EntryId(entry),
        last_add_confirmed=EntryId(lac),
        in_metadata=_known(key_hash, in_metadata),
    )


def fence(
    record: LedgerRecord | None,
    *,
    key_hash: bytes = NONE,
    in_metadata: bytes | KnownLedger | None = None,
) -> Accepted | Refusal:
    return on_fence(record, L, key_hash, in_metadata=_known(key_hash, in_metadata))


def confirm(
    record: LedgerRecord | None,
    lac: int = 0,
    *,
    key_hash: bytes = NONE,
    in_metadata: bytes | KnownLedger | None = None,
) -> Accepted | Refusal:
    known = _known(key_hash, in_metadata)
    return on_last_confirmed(record, L, key_hash, EntryId(lac), in_metadata=known)


def _known(key_hash: bytes, in_metadata: bytes | KnownLedger | None) -> KnownLedger:
    """The metadata have the key that is shown, of an open ledger, unless a test says otherwise."""
    if isinstance(in_metadata, KnownLedger):
        return in_metadata
    return KnownLedger(key_hash if in_metadata is None else in_metadata)


def accepted(decision: Accepted | Refusal) -> Accepted:
    assert isinstance(decision, Accepted), decision
    return decision


# -- keys ------------------------------------------------------------------------------------------


def test_hash_of_a_key_is_the_one_in_the_metadata() -> None:
    assert access_key_hash(b"key") == KEY and len(KEY) == 32


@pytest.mark.parametrize("request_of", [add, fence, confirm])
@pytest.mark.parametrize(
    ("known", "shown", "allowed"),
    [
        pytest.param(None, NONE, True, id="unknown-none"),
        pytest.param(None, KEY, True, id="unknown-key"),
        pytest.param(NONE, NONE, True, id="none-none"),
        pytest.param(KEY, KEY, True, id="key-key"),
        pytest.param(KEY, NONE, False, id="key-none"),
        pytest.param(KEY, OTHER, False, id="key-other"),
        pytest.param(NONE, KEY, False, id="none-key"),
    ],
)
def test_change_with_another_key_is_refused(
    request_of: Callable[..., Accepted | Refusal],
    known: bytes | None,
    shown: bytes,
    *,
    allowed: bool,
) -> None:
    record = None if known is None else LedgerRecord(access_key_hash=known)
    decision = request_of(record, key_hash=shown)
    if allowed:
        assert isinstance(decision, Accepted) and decision.record.access_key_hash == shown
    else:
        assert isinstance(decision, Refusal)
        assert decision.status is BookieStatus.UNAUTHORIZED and "ledger 7" in decision.message


def test_writer_of_a_closed_ledger_is_refused_at_the_first_contact() -> None:
    """A record that said so may have been here, and given back (rule P25)."""
    decision = add(None, key_hash=KEY, in_metadata=KnownLedger(KEY, is_closed=True))
    assert isinstance(decision, Refusal) and decision.status is BookieStatus.FENCED


@pytest.mark.parametrize(
    "request_of", [partial(add, recovery=True), fence, confirm], ids=["copy", "fence", "confirm"]
)
@pytest.mark.parametrize("key_hash", [KEY, NONE])
def test_closed_ledger_is_fenced_durably_from_its_first_contact_on(
    request_of: Callable[..., Accepted | Refusal], key_hash: bytes
) -> None:
    known = KnownLedger(key_hash, is_closed=True)
    decision = accepted(request_of(None, key_hash=key_hash, in_metadata=known))
    assert decision.record.fenced
    assert Change(L, fenced=True) in [step.change for step in decision.steps]
    assert isinstance(add(decision.record, key_hash=key_hash), Refusal)


@pytest.mark.parametrize(
    "request_of", [partial(add, recovery=True), fence, confirm], ids=["copy", "fence", "confirm"]
)
def test_record_without_the_fence_of_a_closed_ledger_gets_it(
    request_of: Callable[..., Accepted | Refusal],
) -> None:
    """A bookie of an older version was killed between the key and the fence (rule P25)."""
    known = KnownLedger(KEY, is_closed=True)
    for record in (LedgerRecord(KEY), LedgerRecord(KEY, last_entry=EntryId(9))):
        decision = accepted(request_of(record, key_hash=KEY, in_metadata=known))
        assert decision.record.fenced and decision.record.grew_from(record)
        assert decision.steps[0].change == Change(L, fenced=True)
        again = accepted(request_of(decision.record, key_hash=KEY, in_metadata=known))
        assert not [step for step in again.steps if step.change.fenced], "once"
        is_open = accepted(request_of(record, key_hash=KEY, in_metadata=KnownLedger(KEY)))
        assert is_open.record.fenced == (request_of is fence)


@pytest.mark.parametrize("request_of", [add, fence, confirm])
@pytest.mark.parametrize(("shown", "known"), [(KEY, OTHER), (KEY, NONE), (NONE, KEY)])
def test_first_contact_with_another_key_than_the_metadata_is_refused(
    request_of: Callable[..., Accepted | Refusal], shown: bytes, known: bytes
) -> None:
    decision = request_of(None, key_hash=shown, in_metadata=known)
    assert isinstance(decision, Refusal) and decision.status is BookieStatus.UNAUTHORIZED


@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("fenced", [False, True])
def test_add_with_wrong_key_is_unauthorized_whether_fenced_or_not(
    *, fenced: bool, recovery: bool
) -> None:
    decision = add(LedgerRecord(KEY, fenced), key_hash=OTHER, recovery=recovery)
    assert isinstance(decision, Refusal) and decision.status is BookieStatus.UNAUTHORIZED


@pytest.mark.parametrize("position", [0, 3, 15, 16, 31])
def test_key_is_compared_to_its_last_byte(position: int) -> None:
    wrong = bytes(byte ^ (1 if at == position else 0) for at, byte in enumerate(KEY))
    record = LedgerRecord(access_key_hash=KEY)
    assert isinstance(add(record, key_hash=KEY), Accepted)
    decision = add(record, key_hash=wrong)
    assert isinstance(decision, Refusal) and decision.status is BookieStatus.UNAUTHORIZED


@pytest.mark.parametrize(
    "key_hash", [b"key", KEY[:31], KEY + b"\0"], ids=["key", "cut", "too-long"]
)
def test_key_itself_in_the_place_of_its_hash_is_a_bug(key_hash: bytes) -> None:
    for request_of in (add, fence, confirm):
        with pytest.raises(AssertionError, match="not the key"):
            request_of(None, key_hash=key_hash)


def test_first_contact_journals_the_key_before_anything_else() -> None:
    learned = Step(LedgerRecord(KEY), Change(L, access_key_hash=KEY))
    assert accepted(add(None, 3, 1, key_hash=KEY)).steps == (learned,)
    assert accepted(fence(None, key_hash=KEY)).steps == (
        learned,
        Step(LedgerRecord(KEY, fenced=True), Change(L, fenced=True)),
    )
    assert accepted(confirm(None, 4, key_hash=KEY)).steps == (
        learned,
        Step(
            LedgerRecord(KEY, last_add_confirmed=EntryId(4)),
            Change(L, last_add_confirmed=EntryId(4)),
        ),
    )
    assert accepted(confirm(None, -1, key_hash=KEY)) == Accepted(LedgerRecord(KEY), (learned,))


def test_first_contact_without_a_key_journals_no_key() -> None:
    assert accepted(add(None)).steps == ()
    assert [step.change for step in accepted(fence(None)).steps] == [Change(L, fenced=True)]
    assert accepted(confirm(None, -1)) == Accepted(LedgerRecord())


# -- adds and fences -------------------------------------------------------------------------------


@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("fenced", [None, False, True])
def test_add_to_a_fenced_ledger_is_refused_unless_it_is_of_a_recovery(
    fenced: bool | None, *, recovery: bool
) -> None:
    record = None if fenced is None else LedgerRecord(fenced=fenced)
    decision = add(record, recovery=recovery)
    assert isinstance(decision, Refusal) == (fenced is True and not recovery)
    if isinstance(decision, Refusal):
        assert decision.status is BookieStatus.FENCED and "ledger 7" in decision.message


def test_add_moves_both_ends_up_and_never_back() -> None:
    record = accepted(add(None, 6, 4)).record
    assert record == LedgerRecord(NONE, False, EntryId(4), EntryId(6))
    late = accepted(add(record, 3, 1, recovery=True))
    assert late.record == record and not late.lac_advanced
    later = accepted(add(record, 7, 5))
    assert (later.record.last_entry, later.record.last_add_confirmed) == (7, 5)
    assert later.lac_advanced and later.steps == ()
    assert not accepted(add(record, 7, 4)).lac_advanced
    with pytest.raises(AssertionError, match="at least one entry"):
        add(record, -1)


def test_second_fence_changes_nothing() -> None:
    first = accepted(fence(None, key_hash=KEY))
    assert first.record.fenced and len(first.steps) == 2
    assert accepted(fence(first.record, key_hash=KEY)) == Accepted(first.record)


@pytest.mark.parametrize("fenced", [False, True])
def test_last_confirmed_grows_or_is_not_written(*, fenced: bool) -> None:
    record = LedgerRecord(KEY, fenced, EntryId(4), EntryId(6))
    for lac in (-1, 3, 4):
        assert confirm(record, lac, key_hash=KEY) == Accepted(record)
    grown = accepted(confirm(record, 5, key_hash=KEY))
    assert grown.lac_advanced and grown.record == record._replace(last_add_confirmed=EntryId(5))
    assert [step.change for step in grown.steps] == [Change(L, last_add_confirmed=EntryId(5))]


REQUESTS: dict[str, Callable[[LedgerRecord | None], Accepted | Refusal]] = {
    "add 0": lambda record: add(record, 0, -1, key_hash=KEY),
    "add 1": lambda record: add(record, 1, 0, key_hash=KEY),
    "recovery add 1": lambda record: add(record, 1, 0, key_hash=KEY, recovery=True),
    "fence": lambda record: fence(record, key_hash=KEY),
    "lac 1": lambda record: confirm(record, 1, key_hash=KEY),
}


@pytest.mark.parametrize("order", list(permutations(REQUESTS)), ids=", ".join)
def test_every_order_of_requests_refuses_only_adds_behind_the_fence(order: tuple[str, ...]) -> None:
    """And whatever the order: the record only grows, and replay of the journal comes to it."""
    record: LedgerRecord | None = None
    replayed: LedgerRecord | None = None
    fenced = False
    held = {-1}
    confirmed = {-1}
    for name in order:
        decision = REQUESTS[name](record)
        if fenced and name in ("add 0", "add 1"):
            assert isinstance(decision, Refusal) and decision.status is BookieStatus.FENCED
            continue
        (after, steps, advanced, _held) = accepted(decision)
        assert after.grew_from(record)
        assert advanced == (after.last_add_confirmed > max(confirmed))
        fenced = fenced or name == "fence"
        held |= {int(name[-1])} if "add" in name else set()
        confirmed |= {"add 0": {-1}, "fence": {-1}, "lac 1": {1}}.get(name, {0})
        for step in steps:
            replayed = (replayed or LedgerRecord()).with_change(step.change)
            assert step.record.with_change(step.change) == step.record
        if "add" in name:
            replayed = (replayed or LedgerRecord()).with_run(
                EntryId(int(name[-1])), EntryId(int(name[-1]) - 1)
            )
        assert replayed == after
        record = after
    assert record == LedgerRecord(KEY, fenced, EntryId(max(confirmed)), EntryId(max(held)))


@pytest.mark.parametrize(
    "names", list(product(REQUESTS, repeat=2)), ids=lambda names: " then ".join(names)
)
def test_same_request_again_changes_nothing_more(names: tuple[str, str]) -> None:
    """A client that lost the answer sends again: behind its request, or behind that of another."""
    first, second = names
    record = accepted(REQUESTS[first](None)).record
    after = REQUESTS[second](record)
    for again in (first, second):
        if isinstance(after, Accepted):
            repeated = REQUESTS[again](after.record)
            if isinstance(repeated, Accepted):
                assert repeated._replace(held_up_to=NO_ENTRY) == Accepted(after.record)
            else:
                assert repeated.status is BookieStatus.FENCED and after.record.fenced


def test_an_add_says_up_to_where_entries_may_be_held() -> None:
    assert accepted(add(None, 5)).held_up_to == NO_ENTRY
    assert accepted(add(LedgerRecord(last_entry=EntryId(3)), 5)).held_up_to == 3
    assert accepted(add(LedgerRecord(last_entry=EntryId(9)), 5)).held_up_to == 9


# -- the end of a ledger ---------------------------------------------------------------------------


def test_end_of_an_unknown_ledger_is_a_denial() -> None:
    end = end_of_ledger(None, L, KEY)
    assert end == (BookieStatus.NO_SUCH_LEDGER, -1, -1, False, "ledger 7 is not known here")


@pytest.mark.parametrize(
    ("known", "shown", "status"),
    [
        (KEY, NONE, BookieStatus.OK),
        (KEY, KEY, BookieStatus.OK),
        (KEY, OTHER, BookieStatus.UNAUTHORIZED),
        (NONE, KEY, BookieStatus.UNAUTHORIZED),
    ],
    ids=["not-shown", "right", "wrong", "not-expected"],
)
def test_end_is_told_unless_a_wrong_key_is_shown(
    known: bytes, shown: bytes, status: BookieStatus
) -> None:
    end = end_of_ledger(LedgerRecord(known, True, EntryId(3), EntryId(5)), L, shown)
    told = (3, 5, True) if status is BookieStatus.OK else (NO_ENTRY, NO_ENTRY, False)
    assert end.status is status and end[1:4] == told
    assert ("ledger 7" in end.message) == (status is not BookieStatus.OK)


def test_answer_without_an_end_is_not_ok() -> None:
    assert LedgerEnd.without_end(BookieStatus.IO_ERROR, "bad").fenced is False
    with pytest.raises(AssertionError):
        LedgerEnd.without_end(BookieStatus.OK, "")
