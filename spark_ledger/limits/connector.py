"""Retries, waiting and sizes of the Spark connector."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import MIB

# -- retries and waiting ---------------------------------------------------------------------------

RETRY_S: Final = 120.0
"""On Spark's driver. As long as Spark's own default for a lost network peer
(``spark.network.timeout``)."""

RETRY_AT_START_S: Final = 30.0
"""At the start of a query a store that does not answer is more likely a wrong URI: say so soon."""

RETRY_IN_TASK_S: Final = 20.0
"""In a task, which Spark repeats as well: long enough for bookies that start again."""

RETRY_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Before each attempt; the last one repeats. Short ones first, because most outages are short."""

METADATA_LAG_S: Final = 2.0
"""How far a ZooKeeper server may lag behind the one that a query asked before its restart."""

STREAM_CREATE_ATTEMPTS: Final = 3
"""Opening a stream that others create and delete at the same time."""

POLL_WAIT_S: Final = 0.1
"""How long a poll for the newest rows waits if there are none. Without it Spark asks every 11 ms;
it asks the sources of a query one after the other, so a longer wait would slow the others down."""

TRIGGER_DELAY_S_DEFAULT: Final = 900.0
"""How long ``minRowsPerTrigger`` may hold rows back; 15 minutes, as in Spark's Kafka source."""

# -- sizes -----------------------------------------------------------------------------------------

PARTITIONS_MAX: Final = 2048
"""A partition costs about 50 ms to start: 100 s on one core. Beyond it partitions grow instead."""

PARTITIONS_WANTED: Final = 8
"""A range is cut into this many partitions if their size stays within the two bounds below."""

PARTITION_BYTES_MIN: Final = 16 * MIB
"""Below this the start of a task costs more than its data."""

PARTITION_BYTES_MAX: Final = 128 * MIB
"""Spark's own partition size for files."""

SPARK_BATCH_BYTES_TARGET: Final = 1 * MIB
"""Smaller Arrow batches are joined up to this: Spark moves batches of 1 to 2 MB fastest."""

SPARK_BATCH_BYTES_MAX: Final = 4 * MIB
"""Larger Arrow batches are cut into slices of the target."""

READS_LOGGED_MAX: Final = 20
"""Bookies that the log line of a task names: a line that people can read."""

SEGMENTS_PER_FETCH: Final = 1024
"""Commits are read in steps of this many segments while a limited trigger looks for its end."""

SEGMENTS_PLANNED_MAX: Final = 4096
"""Of a longer read the driver does not look at each segment: at 30 us each, a stream of 100,000
commits of 8 tasks would take half a minute to plan, and a gigabyte."""

SPANS_LOCATED_MAX: Final = 64
"""Of so many partitions of a long read the driver looks at the first commit, to know the bookies: a
page of a manifest each, some milliseconds. With more, which bookie is asked evens out by number."""

COMMITS_CACHED_BYTES_MAX: Final = 16 * MIB
"""Commits between a query and the head that the driver keeps: 6,000 of eight tasks. Beyond that
those that were looked at first are read again, if they are needed again."""

TASK_KEPT_BYTES_MAX: Final = 16 * MIB
"""Arrow bytes a task keeps to write them again: most micro-batches fit, and memory stays small."""

STREAM_HANDLES_MAX: Final = 16
"""Streams of which one process keeps the handle, per connection, with commits and pages of at most
20 MiB each (``limits/stream.py``). One that was let go is opened again with a few reads."""

STREAM_WRITERS_MAX: Final = 100
"""Streams whose writer a task's process keeps, with its open ledger, for the next micro-batch: as
many as one commit takes. A writer looks no commits up, so its stream's handle stays small."""

STREAMS_PER_READ_MAX: Final = 256
"""Streams of one read. Each is looked at in every trigger, some 0.1 ms, and has 100 bytes in each
offset of the checkpoint."""

STREAMS_LISTED_S: Final = 1.0
"""How often a running query looks for new streams that fit its pattern: a list of names, one
metadata read."""

LEDGER_LOOKED_S: Final = 10.0
"""How often a running query looks whether its closed raw ledger is still there: nothing else would
tell it. A deletion is no hurry, and a look is a metadata read."""

LOOKS_BESIDE_TRUNCATIONS: Final = 5
"""How often a trigger over several streams looks again because rows were truncated between two of
its looks. Once is the rule; a truncation takes longer than a look."""

RAW_READERS_MAX: Final = 64
"""Raw ledgers that one process keeps open per connection."""

RUNS_REMEMBERED_MAX: Final = 1024
"""Runs of queries whose first micro-batch the process that commits remembers."""
