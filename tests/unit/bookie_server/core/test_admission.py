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
from spark_ledger.types import BookieStatus

REFUSED = Refusal(BookieStatus.IO_ERROR, "flush fails: no room")


@pytest.mark.parametrize(
    ("is_full", "others_wait", "flush_failure", "decision"),
    [
        (False, False, None, Admission.ADD),
        (False, False, "no room", Admission.ADD),
        (True, False, None, Admission.WAIT),
        (False, True, None, Admission.WAIT),
        (True, True, None, Admission.WAIT),
        (True, False, "no room", REFUSED),
        (False, True, "no room", REFUSED),
        (True, True, "no room", REFUSED),
    ],
)
def test_add_waits_behind_others_and_is_refused_after_a_failed_flush(
    *, is_full: bool, others_wait: bool, flush_failure: str | None, decision: Admission | Refusal
) -> None:
    found = admit(is_full=is_full, others_wait=others_wait, flush_failure=flush_failure)
    assert found == decision


def test_refusal_for_a_failed_flush_says_what_failed() -> None:
    with pytest.raises(AssertionError, match="what failed"):
        refuse_for_failed_flush("")


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
