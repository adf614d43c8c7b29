"""What tasks report is added up, except what a process holds: that is the largest of them."""

from __future__ import annotations

from spark_ledger.spark.reports import Report


def test_reports_are_added_up_and_caches_are_those_of_the_largest_process() -> None:
    one = Report(7, "read", rows=3, seconds=1.5, cache_bytes=100, cache_bytes_max=400)
    other = Report(7, "read", rows=4, seconds=0.5, cache_bytes=300, cache_bytes_max=200)
    both = one.plus(other)
    assert (both.tasks, both.rows, both.seconds) == (2, 7, 2.0)
    assert (both.cache_bytes, both.cache_bytes_max) == (300, 400)
