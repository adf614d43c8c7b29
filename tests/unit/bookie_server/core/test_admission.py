"""Bytes in flight are counted exactly."""

from __future__ import annotations

import pytest

from bookie_server.core.admission import BytesInFlight


def test_what_is_taken_is_given_back() -> None:
    bytes_in_flight = BytesInFlight()
    bytes_in_flight.acquire(9)
    bytes_in_flight.acquire(5)
    assert bytes_in_flight.count == 14
    bytes_in_flight.release(4)
    bytes_in_flight.release(10)
    assert bytes_in_flight.count == 0
    with pytest.raises(AssertionError, match="more was given back"):
        bytes_in_flight.release(1)
    with pytest.raises(AssertionError):
        bytes_in_flight.acquire(-1)
