"""A stream with a key and an event time, written and read by Spark: what is skipped, and order."""

from __future__ import annotations

from tests.spark.conftest import Lab


def test_repartition_by_key_keeps_order_per_key_and_reads_of_one_key_or_time_skip(
    lab: Lab,
) -> None:
    """Two commits, an hour apart by event time, of 8 customers in two tasks each."""
    for hour in range(2):
        rows = lab.spark.range(100 * hour, 100 * hour + 100, 1, 1).selectExpr(
            "id", "id % 8 AS customer", f"timestamp'2026-01-01 0{hour}:00:00' AS at"
        )
        keyed = rows.repartition(2, "customer")
        lab.append(keyed, keyColumns="customer", timeColumn="at")
    assert lab.ids(keyEquals="3") == [n for n in range(200) if n % 8 == 3]
    stream = lab.client.stream(lab.name)
    segments = [part for commit in stream.commits(0, 2) for part in commit.segments]
    filters = [part.statistics for part in segments]
    assert len(segments) == 4
    assert all(each is not None and each.times is not None and each.key_filter for each in filters)
    watched = lab.follow(startingEventTime="2026-01-01T01:00:00Z").withWatermark("at", "1 minute")
    found, progress = lab.collect(watched)
    assert sorted(row.id for row in found) == list(range(100, 200))
    assert sum(one["numInputRows"] for one in progress) == 100, "the first commit is not read"
    places = lab.read(includeMetadata=True).select("_ledger").schema
    for options, rows in (({}, 200), ({"keyEquals": "3"}, 25)):
        given = {"metadata": lab.cluster.uri, "includeMetadata": "true", **options}
        of_places = lab.spark.read.format("ledger").schema(places).options(**given).load(lab.name)
        assert of_places.count() == rows, "of no column that is stored"
