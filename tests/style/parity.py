"""What stands here for each option and column of Kafka's, Pulsar's and Delta's connectors.

``python -m tests.style.parity`` writes connector/PARITY.md from the rows below. Each row that says
that something is here names a test that holds it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from connector.foreign_options import INSTEAD
from tests.style.sources import ROOT

PAGE: Final = ROOT / "connector" / "PARITY.md"

OPTIONS_TEST: Final = "unit/connector/test_options.py"
KAFKA_TEST: Final = "unit/connector/read/test_kafka_columns.py"
SEVERAL_TEST: Final = "unit/connector/read/test_several.py"
SOURCE_TEST: Final = "unit/connector/read/test_stream_source.py"
WRITER_TEST: Final = "unit/connector/write/test_batch_writer.py"
REFUSED_TEST: Final = f"{OPTIONS_TEST}::test_options_of_other_connectors_name_ours"
CLIENTS_TEST: Final = f"{OPTIONS_TEST}::test_settings_of_other_clients_are_refused_in_a_sentence"
TYPES_TEST: Final = (
    f"{KAFKA_TEST}::test_kafka_columns_have_the_names_order_and_types_of_spark_s_kafka_source"
)


class Row(NamedTuple):
    """What is theirs, what is ours instead ("" if nothing is), what to know, the test of it."""

    theirs: str
    ours: str
    says: str
    test: str


class Section(NamedTuple):
    """A table of the page."""

    title: str
    rows: tuple[Row, ...]


def instead(theirs: str, ours: str, test: str = REFUSED_TEST) -> Row:
    """A row that says what the message of the connector says."""
    return Row(theirs, ours, INSTEAD[theirs], test)


_POSITIONS: Final = f"{SEVERAL_TEST}::test_starting_position_by_stream_is_where_each_begins"
_TIMES: Final = f"{SEVERAL_TEST}::test_times_and_ends_by_stream_bound_each"
_HEADERS: Final = f"{KAFKA_TEST}::test_headers_come_last_and_only_where_asked_for"
_ASYNC: Final = f"{OPTIONS_TEST}::test_asynchronous_progress_is_refused"
_TOPIC: Final = f"{KAFKA_TEST}::test_topic_is_the_stream_of_each_row"
_OFFSET: Final = f"{KAFKA_TEST}::test_offset_of_a_row_counts_all_rows_committed_before_it"
_OWN_TIME: Final = f"{KAFKA_TEST}::test_own_time_of_a_row_wins_over_that_of_its_commit"
_ONCE: Final = (
    "spark/test_streaming_write.py::test_driver_that_dies_after_its_commit_repeats_nothing"
)
_COLUMNS: Final = f"{WRITER_TEST}::test_missing_and_unknown_columns_are_named_as_spark_does"
_DELAY: Final = f"{SOURCE_TEST}::test_latest_offset_with_minimum_rows_waits_for_rows_or_the_delay"
_LIMIT: Final = f"{SOURCE_TEST}::test_latest_offset_with_limits_cuts_at_entries"
_LOSS: Final = f"{SOURCE_TEST}::test_rows_truncated_under_a_query_fail_or_are_skipped"
_PATTERN: Final = f"{SEVERAL_TEST}::test_new_stream_that_fits_the_pattern_joins_the_running_query"
_WIDEST: Final = f"{SEVERAL_TEST}::test_streams_of_several_schemas_are_read_in_the_widest"
_EMPTY: Final = f"{SEVERAL_TEST}::test_query_begins_before_there_is_a_stream"
_SEVERAL: Final = f"{SEVERAL_TEST}::test_batch_read_of_two_streams_has_the_rows_of_each_in_order"
_MERGED: Final = f"{WRITER_TEST}::test_merge_schema_adds_the_columns_with_the_commit"
_METADATA: Final = f"{OPTIONS_TEST}::test_metadata_from_the_environment"
_PATH: Final = f"{OPTIONS_TEST}::test_path_names_the_stream"
_LATE: Final = f"{SOURCE_TEST}::test_timestamp_between_the_last_commit_and_now_is_the_end"
_SLICES: Final = "spark/test_batch.py::test_read_is_cut_into_partitions"
_KEPT: Final = "spark/test_streaming_read.py::test_a_restart_goes_on_where_it_stopped"
_POSITION_COLUMN: Final = "spark/test_batch.py::test_metadata_column_has_the_position_of_each_row"
_LAG: Final = f"{SEVERAL_TEST}::test_progress_has_the_lag_of_each_stream"
_VIEW: Final = "spark/test_batch.py::test_catalog_table_is_refused_with_what_to_use"
_IN_BATCHES: Final = "spark/test_streaming_write.py::test_foreach_batch_with_transactions"
_MODES: Final = "spark/test_streaming_write.py::test_other_output_modes_are_refused"
_TYPES_KEPT: Final = "spark/test_batch.py::test_appended_rows_are_read"

SECTIONS: Final = (
    Section(
        "Kafka's source: options",
        (
            instead("kafka.bootstrap.servers", "metadata", _METADATA),
            instead("subscribe", "streams", _SEVERAL),
            instead("subscribePattern", "streamPattern", _PATTERN),
            instead("assign", "streams", _SEVERAL),
            instead("startingOffsets", "startingPosition", _POSITIONS),
            Row(
                "startingTimestamp",
                "startingTimestamp",
                "the same, by the time of the commit; also as ISO 8601",
                _TIMES,
            ),
            instead("startingOffsetsByTimestamp", "startingTimestamp", _TIMES),
            instead("startingOffsetsByTimestampStrategy", "", _LATE),
            instead("endingOffsets", "endingPosition", _TIMES),
            Row(
                "endingTimestamp",
                "endingTimestamp",
                "the same, by the time of the commit; also as ISO 8601",
                _TIMES,
            ),
            instead("endingOffsetsByTimestamp", "endingTimestamp", _TIMES),
            Row("failOnDataLoss", "failOnDataLoss", "the same; no false alarms", _LOSS),
            instead("maxOffsetsPerTrigger", "maxRowsPerTrigger", _LIMIT),
            instead("minOffsetsPerTrigger", "minRowsPerTrigger", _DELAY),
            Row("maxTriggerDelay", "maxTriggerDelay", "the same", _DELAY),
            Row(
                "minPartitions",
                "minPartitions",
                "the same, and never fewer than asked for unless there are fewer entries",
                _SLICES,
            ),
            instead("maxRecordsPerPartition", "maxBytesPerPartition", _SLICES),
            Row(
                "includeHeaders", "includeHeaders", "the same, with includeMetadata=kafka", _HEADERS
            ),
            instead("kafkaConsumer.pollTimeoutMs", "readTimeout"),
            instead("fetchOffset.numRetries", ""),
            instead("fetchOffset.retryIntervalMs", ""),
            instead("groupIdPrefix", "", _KEPT),
            instead("kafka.group.id", "", _KEPT),
            Row("kafka.*", "", "settings of Kafka's clients mean nothing here", CLIENTS_TEST),
            Row(
                "progress: minOffsetsBehindLatest and its like",
                "",
                "`rowsBehind` of each stream in `latestOffset`, also `bytesBehind`, `millisBehind`",
                _LAG,
            ),
            Row(
                "CREATE TABLE ... USING kafka OPTIONS (...)",
                "",
                "`CREATE TEMPORARY VIEW ... USING ledger OPTIONS (...)`: Spark does not hand the "
                "options of a table to a Python data source",
                _VIEW,
            ),
        ),
    ),
    Section(
        "Kafka's source: columns, with `includeMetadata=kafka`",
        (
            Row("key", "", "the same; null where the stream has no such column", TYPES_TEST),
            Row("value", "", "the same; the stream may have it as text", TYPES_TEST),
            Row("topic", "", "the name of the stream", _TOPIC),
            Row("partition", "", "0: a stream has one order", _OFFSET),
            Row(
                "offset",
                "",
                "how many rows were committed before: dense, the same for ever",
                _OFFSET,
            ),
            Row("timestamp", "", "the row's own, else that of its commit", _OWN_TIME),
            Row("timestampType", "", "0 where the row has its own time, else 1", _OWN_TIME),
            Row("headers", "", "the same", _HEADERS),
        ),
    ),
    Section(
        "Kafka's sink",
        (
            Row("column key", "", "a column as any other, of any type", _TYPES_KEPT),
            Row(
                "column value",
                "",
                "a column as any other; a stream takes columns with types, so "
                "to_json is not needed",
                _TYPES_KEPT,
            ),
            Row("column headers", "", "a column as any other", _HEADERS),
            Row(
                "column topic",
                "routeColumn",
                "set routeColumn=topic: each row goes to the stream that it names, all of a "
                "micro-batch in one transaction; without it a column of this name is stored",
                "unit/connector/write/test_routed.py"
                "::test_rows_go_to_the_streams_that_they_name_in_order",
            ),
            Row(
                "column partition",
                "",
                "a stream has one partition: it is stored as a column; order by "
                "key comes from repartition(key)",
                "spark/test_streaming_write.py::test_partitions_are_committed_in_order",
            ),
            Row("option topic", "stream", INSTEAD["topic"], _PATH),
            Row(
                "option includeHeaders",
                "",
                "not needed: what the DataFrame has is stored",
                _HEADERS,
            ),
            Row(
                "option asyncProgressTrackingEnabled",
                "",
                "refused: it repeats batches with other boundaries, which would break exactly-once",
                _ASYNC,
            ),
            Row("at least once", "sinkId", "exactly once, by the checkpoint", _ONCE),
            Row(
                "a batch write in foreachBatch, at least once",
                "txnAppId",
                "exactly once, with a name of the query and the number of the batch: "
                '`.options(txnAppId="clicks", txnVersion=batch_id)`',
                _IN_BATCHES,
            ),
            Row(
                "outputMode update and complete",
                "txnAppId",
                "refused; in `foreachBatch` with that mode, as in the row before, the rows of "
                "each micro-batch are appended",
                _MODES,
            ),
        ),
    ),
    Section(
        "Pulsar's connector",
        (
            instead("service.url", "metadata", _METADATA),
            instead("admin.url", "maxBytesPerTrigger"),
            instead("topic", "stream", _PATH),
            instead("topics", "streams", _SEVERAL),
            instead("topicsPattern", "streamPattern", _PATTERN),
            Row(
                "startingOffsets, endingOffsets",
                "startingPosition",
                "as for Kafka's source",
                _POSITIONS,
            ),
            Row("failOnDataLoss", "failOnDataLoss", "the same; no false alarms", _LOSS),
            Row(
                "maxBytesPerTrigger",
                "maxBytesPerTrigger",
                "the same, and exact to an entry",
                _LIMIT,
            ),
            instead("pollTimeoutMs", "readTimeout"),
            instead("predefinedSubscription", "", _KEPT),
            instead("subscriptionPrefix", "", _KEPT),
            instead("waitingForNonExistedTopic", "streamPattern", _EMPTY),
            instead("allowDifferentTopicSchemas", "", _WIDEST),
            Row(
                "pulsar.client.*, pulsar.admin.*, pulsar.reader.*, pulsar.producer.*",
                "",
                "settings of Pulsar's clients mean nothing here",
                CLIENTS_TEST,
            ),
            Row("columns of the message's schema", "", "columns with types, as here", _TYPES_KEPT),
            Row(
                "column __key, __messageProperties",
                "",
                "columns as any other, under a name of yours",
                _COLUMNS,
            ),
            Row("column __topic", "streams", "`_ledger.stream`", _SEVERAL),
            Row(
                "column __messageId",
                "includeMetadata",
                "`_ledger`: segment, entry, slot",
                _POSITION_COLUMN,
            ),
            Row(
                "column __publishTime", "includeMetadata", "`_ledger.commit_time`", _POSITION_COLUMN
            ),
            Row("column __eventTime", "", "a column as any other", _TYPES_KEPT),
            Row("at least once", "sinkId", "exactly once, by the checkpoint", _ONCE),
        ),
    ),
    Section(
        "Delta's source and sink",
        (
            instead("versionAsOf", "endingPosition"),
            instead("timestampAsOf", "endingTimestamp", _TIMES),
            instead("startingVersion", "startingPosition", _POSITIONS),
            instead("endingVersion", "endingPosition"),
            Row("startingTimestamp", "startingTimestamp", "the time of the commit", _TIMES),
            instead("maxFilesPerTrigger", "maxRowsPerTrigger", _LIMIT),
            Row("maxBytesPerTrigger", "maxBytesPerTrigger", "the same, exact to an entry", _LIMIT),
            instead("ignoreChanges", ""),
            instead("ignoreDeletes", ""),
            instead("skipChangeCommits", ""),
            instead("readChangeFeed", ""),
            Row("txnAppId, txnVersion", "txnAppId", "the same", _IN_BATCHES),
            Row("mergeSchema", "mergeSchema", "the same", _MERGED),
            instead("overwriteSchema", "mergeSchema"),
            instead("replaceWhere", ""),
            instead("partitionOverwriteMode", ""),
            instead("userMetadata", ""),
            instead("maxRecordsPerFile", "entryBytes"),
            instead("optimizeWrite", ""),
            instead("autoCompact", ""),
        ),
    ),
)


def page() -> str:
    """The text of the page."""
    lines = [
        "# What stands here for Kafka's, Pulsar's and Delta's options",
        "",
        "Of Spark's Kafka source and sink, of Pulsar's connector, and of Delta's: what",
        "to use here instead, and the test that holds it. An option of theirs that is left in is",
        "refused with the same words. How to move a pipeline is in",
        "[the connector's README](README.md#moving-from-kafka).",
        "`python -m tests.style.parity` writes this page.",
    ]
    for section in SECTIONS:
        lines += [
            "",
            f"## {section.title}",
            "",
            "| theirs | here | | held by |",
            "|---|---|---|---|",
        ]
        for row in section.rows:
            ours = f"`{row.ours}`" if row.ours else ""
            theirs = f"{row.theirs}"
            file, _, name = row.test.partition("::")
            held = f"[{name.removeprefix('test_').replace('_', ' ')}](../tests/{file})"
            lines.append(f"| {theirs} | {ours} | {row.says} | {held} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
