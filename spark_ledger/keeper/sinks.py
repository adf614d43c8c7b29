"""Records of sinks whose queries are gone: they are removed only where somebody asked for it.

A record stops a transaction from being applied twice (rule T3). Without it the first commit of the
sink is taken as it comes, so a record may go once nobody will repeat its last transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_ledger.errors import ConflictError, DataLossError, NotFoundError
from spark_ledger.metadata.base import Check, Delete, MetadataStore
from spark_ledger.stream.commit.commit_log import ascending_parts
from spark_ledger.stream.model import Head, SinkRecord
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.stream import Stream

logger = logging.getLogger(__name__)


async def forget_sinks(
    store: MetadataStore,
    stream: Stream,
    guard: Callable[[], Check],
    *,
    older_than_s: float,
    now_ms: int,
) -> int:
    """Remove the records of sinks that have committed nothing for so long; how many.

    The age is the time that the stream has gone on since: where nobody commits, nothing gets old.
    ``now_ms`` is the time of the keeper (rule K7). A record that changes meanwhile stays. Raises
    what the store raises.
    """
    nodes, head, count = StreamNodes(store, stream.name), await stream.head(), 0
    for record in await nodes.sinks():
        found = await nodes.sink(record.sink_id)
        if found is None or await _age_ms(stream, head, found.value, now_ms) < older_than_s * 1000:
            continue
        gone = Delete(nodes.sink_path(record.sink_id), found.version)
        try:
            await store.transaction([guard(), Check(nodes.identity_path(head.stream_id), 0), gone])
        except (ConflictError, NotFoundError) as error:
            logger.info("sink %r stays, it has just changed: %s", record.sink_id, error)
            continue
        count += 1
        logger.info("the record of sink %r of stream %r is removed", record.sink_id, stream.name)
    return count


async def _age_ms(stream: Stream, head: Head, record: SinkRecord, now_ms: int) -> int:
    """For how long the stream has gone on behind the first commit after the sink's, at least. Of a
    commit that was truncated it is known that it is older than the first that is left.

    Commits are dated by their drivers, of which some are a month behind or a year ahead (rule T10).
    So it counts from the latest time up to the commit behind, and to the smaller of two clocks.
    """
    number = max(record.commit + 1, head.earliest_commit)
    if number >= head.next_commit:
        return 0
    # Times ascend in each part, so none before is later than these.
    ends = [end - 1 for _, end in ascending_parts(head) if end <= number]
    try:
        latest_ms = max([(await stream.commit(each)).time_ms for each in (*ends, number)])
    except (DataLossError, NotFoundError):
        return 0  # truncated meanwhile: the next sweep knows
    return min(now_ms, head.time_ms) - latest_ms
