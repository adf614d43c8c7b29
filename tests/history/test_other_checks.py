"""Visibility, closing, copies and fragments: each anomaly in at least three shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_ledger.types import BookieId, EntryId, Fragment, Quorums
from tests.history.build import Builder, entries, entry, final_ledger
from tests.history.final import FinalLedger
from tests.history.model import Phase
from tests.history.test_entry_checks import names, written

Case = Callable[[Builder], FinalLedger]


# -- dirty read ------------------------------------------------------------------------------------


def dirty_read_of_an_entry_in_flight(b: Builder) -> FinalLedger:
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.read(0, entries(3))
    b.finish(flying, entry_id=2)
    return final_ledger(entries(3))


def dirty_read_that_vanished(b: Builder) -> FinalLedger:
    written(b, 2)
    b.begin_append(entry(2))
    b.close(1, name="recover", process="r2")
    b.read(0, entries(3))
    return final_ledger(entries(2))


def dirty_read_above_the_own_lac(b: Builder) -> FinalLedger:
    written(b, 3)
    b.read(0, entries(3), last_add_confirmed=1)
    return final_ledger(entries(3))


def dirty_tail_of_what_failed_later(b: Builder) -> FinalLedger:
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.read(2, (entry(2),), name="tail", last=-1)
    b.finish(flying, Phase.UNKNOWN, error="FencedError")
    b.close(2, name="recover", process="r2")
    return final_ledger(entries(3))


# -- last add confirmed ----------------------------------------------------------------------------


def lac_backwards_at_a_refresh(b: Builder) -> FinalLedger:
    written(b, 3)
    b.look("open", 1)
    b.look("refresh", 2)
    b.look("refresh", 1)
    return final_ledger(entries(3))


def lac_backwards_after_a_read(b: Builder) -> FinalLedger:
    written(b, 3)
    b.read(0, entries(3), last_add_confirmed=2)
    b.read(0, entries(1), last_add_confirmed=0)
    return final_ledger(entries(3))


def lac_backwards_of_the_writer(b: Builder) -> FinalLedger:
    b.create()
    for entry_id, lac in ((0, 0), (1, 1), (2, 0)):
        flying = b.begin_append(entry(entry_id))
        b.finish(flying, entry_id=entry_id, last_add_confirmed=lac)
    return final_ledger(entries(3))


def lac_beyond_what_is_acknowledged(b: Builder) -> FinalLedger:
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.look("open", 2)
    b.finish(flying, entry_id=2)
    return final_ledger(entries(3))


def lac_beyond_what_was_written(b: Builder) -> FinalLedger:
    written(b, 2)
    b.look("refresh", 5)
    return final_ledger(entries(2))


def lac_beyond_the_end(b: Builder) -> FinalLedger:
    written(b, 2)
    b.begin_append(entry(2))
    b.close(1, name="recover", process="r2")
    b.look("refresh", 2)
    return final_ledger(entries(2))


# -- real time -------------------------------------------------------------------------------------


def stale_open(b: Builder) -> FinalLedger:
    written(b, 5)
    b.look("open", 2)
    return final_ledger(entries(5))


def stale_refresh(b: Builder) -> FinalLedger:
    written(b, 5)
    b.look("open", 3)
    for entry_id in (5, 6, 7):
        b.append(entry_id)
    b.look("refresh", 5)
    return final_ledger(entries(8))


def stale_recovery(b: Builder) -> FinalLedger:
    written(b, 3)
    b.close(0, name="recover", process="r")
    return final_ledger(entries(1))


# -- close -----------------------------------------------------------------------------------------


def close_disagreement_of_two_recoveries(b: Builder) -> FinalLedger:
    written(b, 2)
    b.begin_append(entry(2))
    b.close(1, name="recover", process="r")
    b.close(2, name="recover", process="r2")
    return final_ledger(entries(3))


def close_disagreement_with_the_writer(b: Builder) -> FinalLedger:
    written(b, 2)
    b.close(1)
    b.close(0, name="recover", process="r")
    return final_ledger(entries(2))


def close_disagreement_of_an_open(b: Builder) -> FinalLedger:
    written(b, 2)
    b.close(1)
    b.look("open", 0, closed=True)
    return final_ledger(entries(2))


def close_disagreement_at_the_end(b: Builder) -> FinalLedger:
    written(b, 2)
    b.begin_append(entry(2))
    b.close(1)
    return final_ledger(entries(3))


# -- acknowledged after close ----------------------------------------------------------------------


def acknowledged_though_it_began_later(b: Builder) -> FinalLedger:
    written(b, 2)
    b.close(1, name="recover", process="r")
    b.append(2)
    return final_ledger(entries(3))


def acknowledged_behind_the_end(b: Builder) -> FinalLedger:
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.close(1, name="recover", process="r")
    b.finish(flying, entry_id=2)
    return final_ledger(entries(2))


def acknowledged_in_a_place_that_is_taken(b: Builder) -> FinalLedger:
    written(b, 2)
    b.close(1)
    b.append(1, entry(9))
    return final_ledger(entries(2))


# -- state of a ledger -----------------------------------------------------------------------------


def open_after_it_was_closed(b: Builder) -> FinalLedger:
    written(b, 1)
    b.close(0)
    b.look("open", 0)
    return final_ledger(entries(1))


def closed_before_anybody_closed_it(b: Builder) -> FinalLedger:
    written(b, 1)
    b.look("open", 0, closed=True)
    b.close(0)
    return final_ledger(entries(1))


def there_after_it_was_deleted(b: Builder) -> FinalLedger:
    written(b, 1)
    b.finish(b.begin("delete", "r", ledger_id=1))
    b.look("open", 0)
    return final_ledger((), fragments=(), replicas={}, deleted=True)


def gone_and_back(b: Builder) -> FinalLedger:
    b.create()
    b.finish(b.begin("refresh", "r", ledger_id=1), Phase.FAIL, error="NoSuchLedgerError")
    b.look("refresh", -1)
    return final_ledger(())


# -- copies ----------------------------------------------------------------------------------------


def thin_entry(b: Builder) -> FinalLedger:
    written(b, 2)
    full, none = dict(enumerate(entries(2))), {0: entry(0)}
    return final_ledger(entries(2), replicas={"a": full, "b": none, "c": none})


def thin_ledger(b: Builder) -> FinalLedger:
    written(b, 1)
    return final_ledger(entries(1), replicas={"a": {0: entry(0)}, "b": {}, "c": {}})


def thin_because_a_stranger_holds_it(b: Builder) -> FinalLedger:
    written(b, 1)
    held = {0: entry(0)}
    return final_ledger(entries(1), replicas={"a": held, "b": {}, "c": {}, "d": held})


def thin_stripe(b: Builder) -> FinalLedger:
    written(b, 2)  # entry 1 belongs to b and c
    held = {0: entry(0), 1: entry(1)}
    return final_ledger(
        entries(2), quorums=Quorums(3, 2, 2), replicas={"a": held, "b": held, "c": {}}
    )


def fragments_of(*fragments: tuple[int, str]) -> tuple[Fragment, ...]:
    return tuple(Fragment(EntryId(e), tuple(BookieId(x) for x in names)) for e, names in fragments)


def fragments_out_of_order(b: Builder) -> FinalLedger:
    written(b, 3)
    return final_ledger(entries(3), fragments=fragments_of((0, "abc"), (2, "abd"), (1, "abe")))


def fragment_behind_the_end(b: Builder) -> FinalLedger:
    written(b, 3)
    return final_ledger(entries(3), fragments=fragments_of((0, "abc"), (4, "abd")))


def fragment_with_one_bookie_twice(b: Builder) -> FinalLedger:
    written(b, 3)
    return final_ledger(entries(3), fragments=fragments_of((0, "aab")))


def fragment_too_small(b: Builder) -> FinalLedger:
    written(b, 3)
    return final_ledger(entries(3), fragments=fragments_of((0, "ab")))


CASES = [
    ("dirty-read", dirty_read_of_an_entry_in_flight),
    ("dirty-read", dirty_read_that_vanished),
    ("dirty-read", dirty_read_above_the_own_lac),
    ("dirty-read", dirty_tail_of_what_failed_later),
    ("lac-backwards", lac_backwards_at_a_refresh),
    ("lac-backwards", lac_backwards_after_a_read),
    ("lac-backwards", lac_backwards_of_the_writer),
    ("lac-beyond", lac_beyond_what_is_acknowledged),
    ("lac-beyond", lac_beyond_what_was_written),
    ("lac-beyond", lac_beyond_the_end),
    ("stale", stale_open),
    ("stale", stale_refresh),
    ("stale", stale_recovery),
    ("close-disagreement", close_disagreement_of_two_recoveries),
    ("close-disagreement", close_disagreement_with_the_writer),
    ("close-disagreement", close_disagreement_of_an_open),
    ("close-disagreement", close_disagreement_at_the_end),
    ("acknowledged-after-close", acknowledged_though_it_began_later),
    ("acknowledged-after-close", acknowledged_behind_the_end),
    ("acknowledged-after-close", acknowledged_in_a_place_that_is_taken),
    ("not-linearizable", open_after_it_was_closed),
    ("not-linearizable", closed_before_anybody_closed_it),
    ("not-linearizable", there_after_it_was_deleted),
    ("not-linearizable", gone_and_back),
    ("under-replicated", thin_entry),
    ("under-replicated", thin_ledger),
    ("under-replicated", thin_because_a_stranger_holds_it),
    ("under-replicated", thin_stripe),
    ("fragments", fragments_out_of_order),
    ("fragments", fragment_behind_the_end),
    ("fragments", fragment_with_one_bookie_twice),
    ("fragments", fragment_too_small),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case.__name__ for _, case in CASES])
def test_a_bad_history_is_named(name: str, case: Case) -> None:
    builder = Builder()
    final = case(builder)
    assert name in names(builder.history, final)


def test_a_paused_writer_may_write_down_late_what_it_was_told() -> None:
    b = Builder()
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.read(0, entries(3), last_add_confirmed=2)
    b.finish(flying, entry_id=2)
    assert names(b.history, final_ledger(entries(3)), exact=False) == set()
    assert names(b.history, final_ledger(entries(3))) == {"dirty-read", "lac-beyond"}


def test_a_killed_writer_may_have_been_told_more_than_it_wrote_down() -> None:
    b = Builder()
    written(b, 2)
    b.begin_append(entry(2))
    b.begin_append(entry(3))
    b.read(0, entries(3), last_add_confirmed=2)
    assert names(b.history, final_ledger(entries(4)), exact=False) == set()


def test_what_is_known_to_be_unconfirmed_is_dirty_even_with_late_records() -> None:
    b = Builder()
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.read(0, entries(3))
    b.finish(flying, Phase.UNKNOWN, error="EnsembleLostError")
    assert names(b.history, final_ledger(entries(3)), exact=False) == {"dirty-read"}


def test_the_last_add_confirmed_may_lag_by_the_entries_in_flight() -> None:
    b = Builder()
    written(b, 3)
    b.look("open", 1)
    b.look("refresh", 1)
    b.look("open", 1, process="r2")
    assert names(b.history, final_ledger(entries(3))) == set()


def test_a_new_handle_may_know_less_than_an_old_one() -> None:
    b = Builder()
    written(b, 3)
    b.look("open", 2)
    b.look("open", 1)
    b.look("refresh", 1)
    assert names(b.history, final_ledger(entries(3))) == set()


def test_an_acknowledgement_in_flight_at_the_close_may_come_late() -> None:
    b = Builder()
    written(b, 2)
    flying = b.begin_append(entry(2))
    b.close(2, name="recover", process="r")
    b.finish(flying, entry_id=2)
    assert names(b.history, final_ledger(entries(3))) == set()


def test_a_failed_close_may_take_effect_later() -> None:
    b = Builder()
    written(b, 1)
    closing = b.begin("close", ledger_id=1)
    b.finish(closing, Phase.UNKNOWN, error="OutcomeUnknownError")
    b.look("open", 0)
    b.look("refresh", 0, closed=True)
    assert names(b.history, final_ledger(entries(1))) == set()


def test_a_writer_that_lost_its_ensemble_may_have_closed_its_ledger() -> None:
    b = Builder()
    written(b, 1)
    b.append(-1, entry(1), phase=Phase.UNKNOWN, error="EnsembleLostError")
    b.look("open", 0, closed=True)
    assert names(b.history, final_ledger(entries(1))) == set()


def test_a_bookie_that_could_not_be_asked_may_hold_anything() -> None:
    b = Builder()
    written(b, 1)
    assert names(b.history, final_ledger(entries(1), replicas={"a": {0: entry(0)}})) == set()


def test_a_fragment_may_begin_just_behind_the_end() -> None:
    b = Builder()
    written(b, 3)
    last = final_ledger(entries(3), fragments=fragments_of((0, "abc"), (3, "abd")))
    assert names(b.history, last) == set()
