"""Values that cross layers: a value that exists is valid."""

from __future__ import annotations

import copy
import json
import operator
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.entries import ENSEMBLE_SIZE_MAX
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieState,
    BookieStatus,
    Dlsn,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
    Versioned,
)
from spark_ledger.wire import bookie_pb2


def fragment(first: int, *names: str) -> Fragment:
    return Fragment(EntryId(first), tuple(BookieId(name) for name in names))


def metadata(*fragments: Fragment) -> LedgerMetadata:
    return LedgerMetadata(LedgerId(7), Quorums(2, 2, 1), fragments)


def test_quorums_are_ordered() -> None:
    for e, wq, aq in product(range(-1, 5), repeat=3):
        if e >= wq >= aq >= 1:
            assert Quorums(e, wq, aq).ensemble_size == e
        else:
            with pytest.raises(ConfigurationError, match=f"ensemble_size {e}, write_quorum {wq}"):
                Quorums(e, wq, aq)


def test_quorums_are_bounded() -> None:
    assert Quorums(ENSEMBLE_SIZE_MAX, 3, 2)
    with pytest.raises(ConfigurationError, match=f"at most {ENSEMBLE_SIZE_MAX}"):
        Quorums(ENSEMBLE_SIZE_MAX + 1, 3, 2)


@pytest.mark.parametrize("wrong", ["3", 3.0, None, True])
def test_quorums_are_whole_numbers(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^write_quorum .* needs a whole number"):
        Quorums(3, wrong, 1)  # type: ignore[arg-type]


def test_states_equal_and_print_as_their_text() -> None:
    state: str = LedgerState.IN_RECOVERY
    assert state == "in_recovery" and str(LedgerState.OPEN) == "open"
    info = BookieInfo(BookieId("b0"), "127.0.0.1:1", BookieState.READ_ONLY)
    assert info.state == "readonly" and f"{info.state}" == "readonly"
    assert info.id == info.bookie_id == "b0"


def test_quorums_have_sane_defaults_and_a_short_form() -> None:
    assert str(Quorums()) == "E3 WQ3 AQ2"


@pytest.mark.parametrize(
    ("fragments", "message"),
    [
        ((), "starts at 0"),
        ((fragment(1, "b0", "b1"),), "starts at 0"),
        ((fragment(0, "b0", "b1"), fragment(0, "b0", "b2")), "strictly increasing"),
        ((fragment(0, "b0"),), "E members"),
        ((fragment(0, "b0", "b0"),), "distinct"),
    ],
)
def test_fragments_out_of_order_or_of_wrong_size_are_refused(
    fragments: tuple[Fragment, ...], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        metadata(*fragments)


def test_metadata() -> None:
    first = metadata(fragment(0, "b0", "b1"), fragment(4, "b0", "b2"))
    assert first.last_fragment.first_entry == 4 and not first.is_closed
    closed = first.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(9))
    assert closed.is_closed and closed.fragments == first.fragments
    assert first.state is LedgerState.OPEN, "a change makes a copy"
    with pytest.raises(AssertionError, match="starts at 0"):
        first.with_changes(fragments=())


def test_fragments_are_a_list_of_pairs_as_users_write_them() -> None:
    fragments = metadata(fragment(0, "b0", "b1"), fragment(4, "b0", "b2")).fragments
    assert isinstance(fragments, list) and len(fragments) == 2
    assert fragments == [(0, ["b0", "b1"]), (4, ("b0", "b2"))]
    assert not operator.ne(fragments, [(0, ["b0", "b1"]), (4, ["b0", "b2"])])
    as_tuple: object = (fragment(0, "b0", "b1"), fragment(4, "b0", "b2"))
    assert fragments == as_tuple
    assert fragments != [(0, ["b1", "b0"]), (4, ["b0", "b2"])] and fragments[:1] != fragments
    assert [(first, list(bookies)) for first, bookies in fragments][1] == (4, ["b0", "b2"])
    assert fragments[-1][1] == ["b0", "b2"] and fragments[0].bookies[0] == "b0"
    assert fragments[0][1] != ["b0"] and len({bookies for _, bookies in fragments}) == 2
    assert json.loads(json.dumps(fragments)) == [[0, ["b0", "b1"]], [4, ["b0", "b2"]]]
    for same in (copy.deepcopy(fragments), pickle.loads(pickle.dumps(fragments))):
        assert same == fragments and type(same) is type(fragments)


@pytest.mark.parametrize(
    "change",
    [
        lambda fragments: fragments.append(fragment(9, "b0", "b1")),
        lambda fragments: fragments.pop(),
        lambda fragments: fragments.sort(reverse=True),
        lambda fragments: fragments.__setitem__(0, fragments[1]),
        lambda fragments: fragments.__delitem__(0),
        lambda fragments: fragments.__iadd__([]),
    ],
)
def test_nobody_changes_the_fragments_of_a_ledger(change: Callable[[Any], None]) -> None:
    held = metadata(fragment(0, "b0", "b1"), fragment(4, "b0", "b2"))
    with pytest.raises(TypeError, match="make a list of them"):
        change(held.fragments)
    assert len(held.fragments) == 2


def test_is_denial_only_for_no_such_ledger_and_no_such_entry() -> None:
    denials = {status for status in BookieStatus if status.is_denial}
    assert denials == {BookieStatus.NO_SUCH_LEDGER, BookieStatus.NO_SUCH_ENTRY}


def test_statuses_are_those_of_the_wire() -> None:
    wire = {name.removeprefix("STATUS_"): number for name, number in bookie_pb2.Status.items()}
    ours = {status.name: status.value for status in BookieStatus if status < 100}
    assert wire == ours


def test_positions_are_in_stream_order() -> None:
    assert Dlsn(1) == (1, 0, 0)
    assert sorted([Dlsn(2), Dlsn(1, 5, 2), Dlsn(1, 5), Dlsn(1, 10)]) == [
        (1, 5, 0),
        (1, 5, 2),
        (1, 10, 0),
        (2, 0, 0),
    ]


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Versioned("x", 1).version = 2  # type: ignore[misc]
