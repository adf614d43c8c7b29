"""A pipeline written for Spark's Kafka source reads a stream: what is behind ``load()`` stays."""

from __future__ import annotations

from typing import Any

from tests.spark.conftest import Lab


def pipeline(frame: Any) -> Any:
    """As Spark's Kafka guide has it, with a watermark and a filter on the offset."""
    from pyspark.sql import functions as F

    events = frame.selectExpr(
        "CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset", "timestamp"
    )
    return (
        events.withWatermark("timestamp", "1 minute")
        .where((F.col("partition") == 0) & (F.col("offset") >= 2))
        .selectExpr("key", "concat(topic, '-', offset, '-', value) AS value")
    )


def test_kafka_pipeline_runs_unchanged_behind_load(lab: Lab, spark: Any) -> None:
    messages = spark.range(0, 4, 1, 1).selectExpr(
        "concat('k', id) AS key", "concat('v', id) AS value"
    )
    lab.append(messages)
    rows = lab.follow(includeMetadata="kafka", includeHeaders="true")
    assert [f"{name} {kind}" for name, kind in rows.dtypes] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ]
    found, _ = lab.collect(pipeline(rows))
    expected = [("k2", f"{lab.name}-2-v2"), ("k3", f"{lab.name}-3-v3")]
    assert [(row.key, row.value) for row in found] == expected
