"""Water marks: when a directory is full, when not any more, and what that means for a bookie."""

from __future__ import annotations

import pytest

from bookie_server.core.disk_space import (
    UNKNOWN,
    DirectoryState,
    Space,
    WaterMarks,
    bookie_is_full,
    next_state,
    refuse_for_space,
)
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieStatus

MARKS = WaterMarks(high=0.95, low=0.90, reserve_bytes=100)
OK = DirectoryState(Space(10_000, 5_000))
FULL = DirectoryState(Space(10_000, 10), "disk full: /d", above_marks=True)


def walk(*free: int, marks: WaterMarks = MARKS, refusal: str = "") -> list[bool]:
    """Whether the directory is full after each look at a disk of 10,000 bytes."""
    state, found = UNKNOWN, []
    for free_bytes in free:
        state = next_state(state, "/d", Space(10_000, free_bytes), marks, refusal)
        found.append(bool(state.reason))
    return found


def test_directory_is_full_at_the_high_mark_and_until_the_low_one() -> None:
    assert walk(5000, 501, 500, 501, 999, 1000, 999, 501) == [
        False, False, True, True, True, False, False, False,
    ]  # fmt: skip


def test_directory_without_its_reserve_is_full_whatever_the_share_is() -> None:
    marks = WaterMarks(high=1.0, low=1.0, reserve_bytes=100)
    assert walk(101, 100, 99, 100, 149, 150, 100, marks=marks) == [
        False, False, True, True, True, False, False,
    ]  # fmt: skip


def test_high_mark_of_one_and_no_reserve_switch_the_check_off() -> None:
    assert walk(1, 0, marks=WaterMarks(1.0, 1.0, 0)) == [False, False]


def test_refused_operation_counts_whatever_the_disk_says() -> None:
    assert walk(9000, refusal="quota exceeded") == [True]
    state = next_state(UNKNOWN, "/d", Space(10_000, 9000), MARKS, "quota exceeded")
    assert (state.reason, state.above_marks) == ("disk full: quota exceeded", False)
    assert next_state(state, "/d", Space(10_000, 9000), MARKS, "").reason == ""


@pytest.mark.parametrize("free", [501, 700, 999])
def test_refusal_that_is_over_leaves_a_disk_between_the_marks_as_it_was(free: int) -> None:
    """Only who was above the high mark has to come below the low one."""
    space = Space(10_000, free)
    refused = next_state(UNKNOWN, "/d", space, MARKS, "quota exceeded")
    assert refused.reason and not refused.above_marks
    assert next_state(refused, "/d", space, MARKS, "").reason == ""
    above = next_state(FULL, "/d", space, MARKS, "quota exceeded")
    assert next_state(above, "/d", space, MARKS, "").above_marks


def test_reason_names_the_directory_and_what_is_free() -> None:
    state = next_state(UNKNOWN, "/d", Space(10_000, 40), MARKS, "quota exceeded")
    assert state.reason == "disk full: /d is 99.6 % full, 40 bytes are free"
    assert next_state(UNKNOWN, "/d", Space(0, 0), MARKS, "").above_marks, "nothing is known of it"


def test_bookie_is_full_without_a_journal_or_without_any_ledger_directory() -> None:
    assert bookie_is_full(OK, [OK, OK]) == ""
    assert bookie_is_full(OK, [FULL, OK]) == ""
    assert bookie_is_full(OK, [FULL, FULL]) == FULL.reason
    assert bookie_is_full(FULL, [OK, OK]) == FULL.reason
    with pytest.raises(AssertionError):
        bookie_is_full(OK, [])


def test_refusal_says_which_disk() -> None:
    assert refuse_for_space("disk full: /d") == (BookieStatus.READ_ONLY, "disk full: /d")
    with pytest.raises(AssertionError):
        refuse_for_space("")


@pytest.mark.parametrize(
    ("high", "low", "reserve", "names"),
    [
        (0.9, 0.95, 0, "disk_low_water_mark"),
        (1.1, 0.9, 0, "disk_high_water_mark"),
        (0.9, 0.0, 0, "disk_low_water_mark"),
        (0.9, 0.9, -1, "disk_reserve_bytes"),
    ],
)
def test_marks_that_make_no_sense_are_refused(
    high: float, low: float, reserve: int, names: str
) -> None:
    with pytest.raises(ConfigurationError, match=names):
        WaterMarks(high, low, reserve)


def test_share_of_a_disk_is_one_also_where_its_file_system_says_odd_things() -> None:
    assert Space(10_000, 2_500).used_share == 0.75
    assert Space(10_000, 12_000).used_share == 0.0, "more is free than there is"
    assert Space(0, 0).used_share == 1.0, "there is nothing that could be used"
