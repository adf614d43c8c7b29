"""Bytes in flight are counted exactly, and adds wait in order or are refused."""

from __future__ import annotations

import pytest

from bookie_server.core.admission import (
    Admission,
    BytesInFlight,
    admit,
    refuse_for_failed_flush,
)
from spark_ledger.bookie_api import Refusal
from spark_ledger.limits.bookie import BOOKIE_WAITING_BYTES_MAX
from spark_ledger.types import BookieStatus

REFUSED = Refusal(BookieStatus.IO_ERROR, "flush fails: no room")
FULL = Refusal(BookieStatus.READ_ONLY, "disk full: /d")


@pytest.mark.parametrize(
    ("is_full", "others_wait", "failure", "decision"),
    [
        (False, False, None, Admission.ADD),
        (False, False, REFUSED, Admission.ADD),
        (True, False, None, Admission.WAIT),
        (False, True, None, Admission.WAIT),
        (True, True, None, Admission.WAIT),
        (True, False, REFUSED, REFUSED),
        (False, True, REFUSED, REFUSED),
        (True, True, REFUSED, REFUSED),
    ],
)
def test_add_waits_behind_others_and_is_refused_after_a_failed_flush(
    *, is_full: bool, others_wait: bool, failure: Refusal | None, decision: Admission | Refusal
) -> None:
    for recovery in (False, True):
        found = admit(
            recovery=recovery,
            disk_full="",
            is_full=is_full,
            others_wait=others_wait,
            waiting_bytes=BOOKIE_WAITING_BYTES_MAX - 1,
            flush_failure=failure,
        )
        assert found == decision


@pytest.mark.parametrize("recovery", [False, True])
def test_add_is_told_to_come_later_when_many_bytes_wait(recovery: bool) -> None:
    decisions = [
        admit(
            recovery=recovery,
            disk_full="",
            is_full=is_full,
            others_wait=is_full,
            waiting_bytes=BOOKIE_WAITING_BYTES_MAX,
            flush_failure=failure,
        )
        for is_full, failure in ((False, None), (True, REFUSED), (True, None))
    ]
    assert decisions[:2] == [Admission.ADD, REFUSED]
    assert isinstance(decisions[2], Refusal)
    assert decisions[2].status is BookieStatus.TOO_MANY_REQUESTS


def test_full_disk_refuses_writers_and_lets_recoveries_in() -> None:
    for is_full in (False, True):
        answers = [
            admit(
                recovery=recovery,
                disk_full="disk full: /d",
                is_full=is_full,
                others_wait=False,
                waiting_bytes=0,
                flush_failure=None,
            )
            for recovery in (False, True)
        ]
        assert answers == [FULL, Admission.WAIT if is_full else Admission.ADD]


def test_refusal_for_a_failed_flush_says_what_failed() -> None:
    assert refuse_for_failed_flush("no room", disk_full=False) == REFUSED
    assert refuse_for_failed_flush("/d", disk_full=True) == FULL
    for disk_full in (False, True):
        with pytest.raises(AssertionError, match="what failed"):
            refuse_for_failed_flush("", disk_full=disk_full)


def test_bytes_in_flight_released_twice_is_a_bug() -> None:
    bytes_in_flight = BytesInFlight()
    bytes_in_flight.acquire(9)
    bytes_in_flight.acquire(5)
    assert bytes_in_flight.count == 14
    bytes_in_flight.release(4)
    bytes_in_flight.release(10)
    assert bytes_in_flight.count == 0
    with pytest.raises(AssertionError, match="more is released"):
        bytes_in_flight.release(1)
    with pytest.raises(AssertionError):
        bytes_in_flight.acquire(-1)
