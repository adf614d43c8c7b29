"""What a commit is decided from: the head and its sink's record, read or expected.

A writer that is alone finds both as its last commit has left them, each time. So it expects them
without reading: the transaction names their versions, and fails if somebody else was there (rule
T2). Then they are read, as they are by whoever is not alone.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.commit.head_reader import HeadReader
from spark_ledger.stream.concurrency import task_group
from spark_ledger.stream.model import Head, SinkRecord
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.types import Versioned


class Reading(NamedTuple):
    """A head and a record with their versions. The two may be of different moments: the transaction
    fails if either is outdated."""

    head: Versioned[Head]
    sink: Versioned[SinkRecord] | None
    over: OneConnection


class Readings:
    """Of one stream, for the commits of this process. Belongs to the loop of the store."""

    def __init__(self, nodes: StreamNodes, heads: HeadReader) -> None:
        self._nodes = nodes
        self._heads = heads
        self._left: Reading | None = None
        """What our last commit has left; None if another has been seen behind it."""
        self._is_alone = False
        """The head was as we had left it when it was last read."""

    async def of(self, proposal: Proposal, *, latest: bool) -> Reading:
        """What to decide the proposal from; ``latest``: read it, whatever is expected. Raises as
        ``HeadReader.read``."""
        expected = None if latest else self._expected(proposal)
        return expected or await self._read(proposal)

    def _expected(self, proposal: Proposal) -> Reading | None:
        """Only where the proposal is new to its sink then: that a transaction was applied before,
        or is older than one that was, is never told from memory (rule T3). Nor that a hold keeps
        rows, which may be dropped by now (rule T16)."""
        left = self._left
        if proposal.overwrites or left is None or not self._is_alone or left.over.has_ended:
            return None
        if not proposal.is_remembered:
            return left._replace(sink=None)
        record = None if left.sink is None else left.sink.value
        if record is None or record.sink_id != proposal.sink_id:
            return None
        return left if record.transaction_id < proposal.transaction_id else None

    async def _read(self, proposal: Proposal) -> Reading:
        over = OneConnection(self._nodes.store)
        async with task_group() as group:
            reading_head = group.create_task(self._heads.read())
            reading_sink = group.create_task(self._sink(proposal))
        head = reading_head.result()
        self._is_alone = self._left is not None and self._left.head == head
        return Reading(head, reading_sink.result(), over)

    async def _sink(self, proposal: Proposal) -> Versioned[SinkRecord] | None:
        return await self._nodes.sink(proposal.sink_id) if proposal.is_remembered else None

    def left(self, left: Reading) -> None:
        """A commit was made, and this is there now."""
        self._left = left

    def refused(self) -> None:
        """A commit was not made, as somebody else was there before."""
        self._left, self._is_alone = None, False
