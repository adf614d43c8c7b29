"""Records of sinks whose queries are gone: they are removed only where somebody asked for it.

A record stops a transaction from being applied twice (rule T3). Without it the first commit of the
sink is taken as it comes, so a record may go once nobody will repeat its last transaction.
"""

from __future__ import annotations

import logging

from spark_ledger.errors import ConflictError, DataLossError, NotFoundError
from spark_ledger.metadata.base import Check, Delete, MetadataStore
from spark_ledger.stream.model import Head, SinkRecord
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.stream import Stream

logger = logging.getLogger(__name__)


async def forget_sinks(
    store: MetadataStore, stream: Stream, elected: Check, *, older_than_s: float
) -> int:
    """Remove the records of sinks that have committed nothing for so long; how many.

    The age is the time between commits of the stream, and no clock has a part in it: where nobody
    commits, nothing gets old. A record that changes meanwhile stays. Raises what the store raises.
    """
    nodes, head, count = StreamNodes(store, stream.name), await stream.head(), 0
    for record in await nodes.sinks():
        found = await nodes.sink(record.sink_id)
        if found is None or await _age_ms(stream, head, found.value) < older_than_s * 1000:
            continue
        gone = Delete(nodes.sink_path(record.sink_id), found.version)
        try:
            await store.transaction([elected, Check(nodes.identity_path(head.stream_id), 0), gone])
        except (ConflictError, NotFoundError) as error:
            logger.info("sink %r stays, it has just changed: %s", record.sink_id, error)
            continue
        count += 1
        logger.info("the record of sink %r of stream %r is removed", record.sink_id, stream.name)
    return count


async def _age_ms(stream: Stream, head: Head, record: SinkRecord) -> int:
    """For how long the stream has gone on without the sink. Of a commit that was truncated it is
    known that it is older than the first that is left."""
    number = max(record.commit, head.earliest_commit)
    if number >= head.next_commit:
        return 0
    try:
        return head.time_ms - (await stream.commit(number)).time_ms
    except (DataLossError, NotFoundError):
        return 0  # truncated meanwhile: the next sweep knows
