"""Reads and extends the summaries of a stream's buckets. Best effort: nothing depends on them.

A summary grows by steps of commits. Whoever completes a step writes it: the committer that made
the last of them, or a reader that had to read them one by one. A summary is replaced only in the
version that was read, so of two that extend it one loses; both wrote the same commits (rule T6).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from spark_ledger.errors import CorruptionError, LedgerError, NotFoundError
from spark_ledger.stream.commit.summary_format import decode_summary, encode_summary
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, COMMITS_PER_SUMMARY_STEP, StreamNodes

COMMITS_WORTH_A_SUMMARY = 8
"""Fewer commits of one bucket are cheaper to read one by one than from a summary."""

SUMMARIES_KEPT_MAX = 8
"""A few hundred KiB each: a reader that advances in small steps stays within a few buckets."""

EXTEND_TIMEOUT_S = 1.0
"""Whoever extends a summary has other work to do, and does not wait longer for it."""

logger = logging.getLogger(__name__)


class Summary(NamedTuple):
    """The nodes of a bucket's commits from ``first`` on, and the version of the bucket's node."""

    first: int
    nodes: tuple[bytes, ...]
    version: int

    @property
    def end(self) -> int:
        """One above the last commit it reaches."""
        return self.first + len(self.nodes)

    def node(self, commit: int) -> bytes:
        """The node of a commit of this bucket; empty when the summary does not have it."""
        assert commit >= self.first, "a commit of this bucket"
        index = commit - self.first
        return self.nodes[index] if index < len(self.nodes) else b""


class SummaryStore:
    """The summaries of one stream. Bound to one event loop."""

    def __init__(self, nodes: StreamNodes, stream_id: str) -> None:
        self._nodes = nodes
        self._stream_id = stream_id
        self._kept: OrderedDict[int, Summary] = OrderedDict()

    async def find(self, bucket: int, commits: Sequence[int]) -> Summary | None:
        """A summary in which to look up ascending commits of a bucket, or None if not worth it.

        It is read if it is not kept here, or if by now it should have many more of these commits.
        """
        kept = self._kept.get(bucket)
        if kept is None:
            return await self.load(bucket) if len(commits) >= COMMITS_WORTH_A_SUMMARY else None
        self._kept.move_to_end(bucket)
        reach = (commits[-1] + 1) // COMMITS_PER_SUMMARY_STEP * COMMITS_PER_SUMMARY_STEP
        gain = sum(1 for commit in commits if kept.end <= commit < reach)
        return await self.load(bucket) if gain >= COMMITS_WORTH_A_SUMMARY else kept

    def kept(self, bucket: int) -> Summary | None:
        """The summary of a bucket as it was last read or written here, unless it was dropped."""
        return self._kept.get(bucket)

    async def load(self, bucket: int) -> Summary | None:
        """Read a bucket's summary. It has no commits if it is not made yet, or is damaged.

        None if there is no such bucket: the stream was deleted, or this metadata server lags.
        """
        path, first = self._nodes.bucket_path_of(bucket), bucket * COMMITS_PER_BUCKET
        try:
            node = await self._nodes.store.get(path)
        except NotFoundError:
            return None
        rows: tuple[bytes, ...] = ()
        if node.value:
            try:
                rows = decode_summary(node.value, self._stream_id, first, path)
            except CorruptionError as error:
                logger.warning("%s; its commits are read one by one", error)
        return self._keep(bucket, Summary(first, rows, node.version))

    def _keep(self, bucket: int, summary: Summary) -> Summary:
        self._kept[bucket] = summary
        self._kept.move_to_end(bucket)
        if len(self._kept) > SUMMARIES_KEPT_MAX:
            self._kept.popitem(last=False)
        return summary

    async def extend(self, bucket: int, summary: Summary, more: Sequence[bytes]) -> None:
        """Write the summary again, with the nodes of the commits from ``summary.end`` on added."""
        path, nodes = self._nodes.bucket_path_of(bucket), (*summary.nodes, *more)
        assert len(nodes) <= COMMITS_PER_BUCKET, "commits of one bucket"
        data = encode_summary(self._stream_id, summary.first, nodes)
        try:
            async with asyncio.timeout(EXTEND_TIMEOUT_S):
                version = await self._nodes.store.put(path, data, summary.version)
        except (LedgerError, TimeoutError) as error:
            # Another writer was first, or this one may not write or has no connection. Nothing is
            # lost: every commit has its own node.
            logger.debug("the summary in metadata node %s stays as it is: %s", path, error)
            self._kept.pop(bucket, None)
        else:
            self._keep(bucket, Summary(summary.first, nodes, version))
