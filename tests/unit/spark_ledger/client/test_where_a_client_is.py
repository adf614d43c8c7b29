"""Whose word counts where a client is: what it was told, before what bookies on its host say."""

from __future__ import annotations

from spark_ledger.client.nearness import distances
from tests.unit.spark_ledger.client.test_nearness import info


def test_rack_that_was_told_counts_and_that_of_a_bookie_on_this_host_does_not() -> None:
    own = info("own", "127.0.0.1:1", "/us/r1")  # as a bookie whose rack was never set right
    told = info("told", "203.0.113.1:1", "/eu/r1")
    same_as_own = info("same", "203.0.113.2:1", "/us/r1")
    bookies = [own, told, same_as_own]
    assert distances(bookies, bookies) == {"own": 0, "told": 3, "same": 1}
    assert distances(bookies, bookies, "/eu/r1") == {"own": 0, "told": 1, "same": 3}
