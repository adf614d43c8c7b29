"""Options of Kafka's, Pulsar's and Delta's connectors for Spark: what to use here instead.

A user who moves a pipeline over and leaves one in is told its name here, not that it is unknown.
``connector/PARITY.md`` has the same as a table.
"""

from __future__ import annotations

from typing import Final

_BY_STREAM: Final = (
    'one time for each stream and none by partition, such as {"a": 1700000000000}; it is the time '
    "of commits, and for that of rows there are startingEventTime and endingEventTime"
)
_OFFSETS: Final = (
    'values by stream, such as {"a": {"offset": 23}, "b": "latest"} (for -1; earliest for -2): '
    "offsets count the rows of a stream, not those of a topic's partition"
)
_PATTERN: Final = (
    "use streamPattern, which the whole name has to fit, written for Python's re: [A-Za-z] where "
    r"Java has \p{Alpha}"
)
_NO_CONSUMER: Final = (
    "there are no consumer groups here: the checkpoint has the position; remove it"
)

_NEVER_CHANGE: Final = (
    "rows of a stream never change; whether lost ones fail the query says failOnDataLoss; remove it"
)
_ALL_ROWS: Final = 'mode("overwrite") replaces all rows of a stream; remove it'
_PACKED: Final = "the keeper packs small commits, as ledger streams optimize does; remove it"

INSTEAD: Final = {
    # which cluster
    "kafka.bootstrap.servers": "use metadata, such as zk://host:2181/ledgers",
    "service.url": "use metadata, such as zk://host:2181/ledgers",
    "admin.url": "use metadata, such as zk://host:2181/ledgers; maxBytesPerTrigger needs no more",
    # which rows
    "subscribe": "use stream for one, streams for several",
    "subscribePattern": _PATTERN,
    "assign": "a stream has one partition: use stream or streams",
    "topic": "use stream",
    "topics": "use streams",
    "topicsPattern": _PATTERN,
    # from where to where
    "startingOffsets": "use startingPosition, whose default is earliest also for streaming; with "
    f"{_OFFSETS}",
    "endingOffsets": f"use endingPosition, with {_OFFSETS}",
    "startingOffsetsByTimestamp": f"use startingTimestamp, with {_BY_STREAM}",
    "endingOffsetsByTimestamp": f"use endingTimestamp, with {_BY_STREAM}",
    "startingOffsetsByTimestampStrategy": "startingTimestamp behind the last commit begins at the "
    "stream's end, as the strategy latest does; remove it",
    # how much
    "maxOffsetsPerTrigger": "use maxRowsPerTrigger",
    "minOffsetsPerTrigger": "use minRowsPerTrigger",
    "maxRecordsPerPartition": "use maxBytesPerPartition",
    # how
    "kafkaConsumer.pollTimeoutMs": "use readTimeout, and speculativeReadDelay",
    "pollTimeoutMs": "use readTimeout, and speculativeReadDelay",
    "fetchOffset.numRetries": "retries are bounded by time, two minutes for a query; remove it",
    "fetchOffset.retryIntervalMs": "retries are bounded by time; remove it",
    "groupIdPrefix": _NO_CONSUMER,
    "kafka.group.id": _NO_CONSUMER,
    "predefinedSubscription": _NO_CONSUMER,
    "subscriptionPrefix": _NO_CONSUMER,
    "waitingForNonExistedTopic": "use streamPattern with a declared schema: it waits for streams "
    "that are to come",
    "allowDifferentTopicSchemas": "streams of different columns are read together, each column in "
    "its widest type; remove it",
    # Delta's
    "versionAsOf": 'use endingPosition, such as {"segment": 5}, whose row is the first not read',
    "timestampAsOf": "use endingTimestamp: a commit made at this time or later is not read",
    "startingVersion": 'use startingPosition, such as {"segment": 5}, or startingTimestamp',
    "endingVersion": 'use endingPosition, such as {"segment": 5}, whose row is the first not read',
    "maxFilesPerTrigger": "use maxRowsPerTrigger or maxBytesPerTrigger",
    "ignoreChanges": _NEVER_CHANGE,
    "ignoreDeletes": _NEVER_CHANGE,
    "skipChangeCommits": _NEVER_CHANGE,
    "readChangeFeed": _NEVER_CHANGE,
    "replaceWhere": _ALL_ROWS,
    "partitionOverwriteMode": _ALL_ROWS,
    "overwriteSchema": 'columns stay, also with mode("overwrite"): use mergeSchema to add some, or '
    "another stream",
    "userMetadata": "commits have no text of yours; remove it",
    "maxRecordsPerFile": "use entryBytes",
    "optimizeWrite": _PACKED,
    "autoCompact": _PACKED,
}
"""By the name as their documents write it."""

_PREFIXES: Final = {
    "kafka.": "settings of Kafka's clients mean nothing here; remove it",
    "pulsar.": "settings of Pulsar's clients mean nothing here; remove it",
}
_BY_KEY: Final = {name.lower(): name for name in INSTEAD}


def instead_of(given: str) -> tuple[str, str] | None:
    """An option of theirs as they spell it (Spark gives names in lower case), and what to use
    instead; None if it is none of theirs."""
    key = given.lower()
    if key in _BY_KEY:
        return _BY_KEY[key], INSTEAD[_BY_KEY[key]]
    says = next((says for prefix, says in _PREFIXES.items() if key.startswith(prefix)), None)
    return None if says is None else (given, says)
