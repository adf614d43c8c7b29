"""Since when ledgers of one page are noted, in seconds in which keepers worked (rule K9)."""

from __future__ import annotations

import pytest

from spark_ledger.keeper.unlisted import Noted
from spark_ledger.types import LedgerId

FIRST, SECOND = LedgerId(20_001), LedgerId(29_999)


def test_ledger_is_noted_since_the_first_look_that_found_it() -> None:
    looks = Noted(2, (), 100.0).after([FIRST])
    assert looks == ((100.0, (1,)),)
    noted = Noted(2, looks, 160.0)
    assert (noted.since_s(FIRST), noted.since_s(SECOND)) == (60.0, None)
    assert noted.after([SECOND, FIRST]) == ((100.0, (1,)), (160.0, (9_999,)))
    assert noted.after([SECOND]) == ((160.0, (9_999,)),), "one that was not found is forgotten"


@pytest.mark.parametrize("at_s", [160.1, 1e9])
def test_note_of_a_time_to_come_begins_again(at_s: float) -> None:
    noted = Noted(2, ((at_s, (1,)),), 160.0)
    assert noted.since_s(FIRST) == 0.0
    assert Noted(2, noted.after([FIRST]), 200.0).since_s(FIRST) == 40.0
