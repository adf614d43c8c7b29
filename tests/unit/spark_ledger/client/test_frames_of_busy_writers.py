"""Frames of a writer that never pauses: what all bookies hold is let go while others are sent."""

from __future__ import annotations

import sys

from spark_ledger.types import NO_ENTRY
from tests.unit.spark_ledger.client.test_frames import payloads_of, store


def test_writer_that_always_has_something_in_flight_keeps_about_twice_of_that() -> None:
    """It never has a moment in which all of its frames are of no more use."""
    frames = store()
    payloads = [b"%d" % number * 100 for number in range(1_000)]
    unkept = {sys.getrefcount(each) for each in payloads}
    assert len(unkept) == 1
    frames.seal(payloads[:10], NO_ENTRY)
    for number in range(10, 1_000):
        frames.seal([payloads[number]], NO_ENTRY)
        frames.release(number - 10)
        kept = sum(sys.getrefcount(each) not in unkept for each in payloads)
        assert 10 <= kept <= 22
    assert payloads_of(frames, 1, 990, 999) == dict(enumerate(payloads[990:], start=990))
