"""Simulated clients of a stream: sinks that commit, die between any two steps and start again from
their checkpoint; rivals with a copy of the checkpoint; readers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataRestoredError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits import KIB
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.manifest.format import decode_root
from spark_ledger.stream.model import Commit, Segment
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.stream.segment_writer import SegmentWriter
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.history.final import FinalCommit, FinalStream
from tests.history.model import Phase
from tests.history.values import value
from tests.sim.clients import Client
from tests.sim.options import StreamPlan

if TYPE_CHECKING:
    from tests.sim.dropping import Drops
    from tests.sim.world import World

NAME: Final = "stream"
SCHEMA: Final = pa.schema([("v", pa.string())])


@dataclass(slots=True)
class Checkpoint:
    """What survives the process of a sink: its id, and the next transaction to commit."""

    sink_id: str
    transactions: int
    following: int = 0
    starts: int = 0


class StreamClient(Client):
    """A process that uses the stream."""

    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name)
        self.plan = plan
        self._counter = 0

    @property
    def drops(self) -> Drops:
        """What watches over the beginning of the stream, in a schedule that drops rows."""
        assert self.world.drops is not None, "this schedule drops rows"
        return self.world.drops

    async def open_stream(self) -> Stream:
        """Connect and open the stream; the first process creates it."""
        client = await self.connect()
        size, write, ack = self.plan.quorums
        while True:
            try:
                stream = await StreamCatalog(client).create(
                    NAME,
                    SCHEMA,
                    ensemble_size=size,
                    write_quorum=write,
                    ack_quorum=ack,
                    entry_bytes=64 * KIB if self.world.options.packs else KIB,
                    exist_ok=True,
                )
                if self.world.options.packs:
                    await stream.retention.allow_packs()
            except LedgerError as error:
                self.world.say(f"{self.name} cannot open the stream: {type(error).__name__}")
                await asyncio.sleep(0.1)
            else:
                stream._committer.rng = self.world.random_for(f"jitter {self.name}")
                return stream

    async def opened_anew(self, stream: Stream) -> Stream:
        """The stream as a restored ZooKeeper has it, over another connection."""
        await stream.close()
        return await self.open_stream()

    def new_values(self, target: str) -> tuple[str, ...]:
        """The rows of one batch."""
        rows = self.draw.choice([1, 2, 5, 40])
        texts = []
        for _ in range(rows):
            texts.append(value(self.name, target, self._counter))
            self._counter += 1
        return tuple(texts)

    def begin(self, sink_id: str, transaction_id: int, values: tuple[str, ...]) -> int:
        """Record that a commit is attempted."""
        if self.world.drops is not None:
            self.world.drops.attempted((sink_id, transaction_id), values)
        return self.invoke(
            "commit", stream=NAME, sink_id=sink_id, transaction_id=transaction_id, values=values
        )

    def committed(self, operation: int, commit: Commit, sink_id: str, transaction_id: int) -> None:
        """Record that a commit was acknowledged."""
        self.world.counts["commits applied" if commit.applied else "commits repeated"] += 1
        self.end(
            operation,
            Phase.OK,
            "commit",
            stream=NAME,
            sink_id=sink_id,
            transaction_id=transaction_id,
            commit=commit.number,
            applied=commit.applied,
        )

    def refused(
        self, operation: int, error: LedgerError, sink_id: str, transaction_id: int
    ) -> None:
        """Record that a commit failed. A conflict means that this attempt was not applied."""
        certain = isinstance(error, ConflictError) and not error.outcome_unknown
        self.end(
            operation,
            Phase.FAIL if certain else Phase.UNKNOWN,
            "commit",
            stream=NAME,
            sink_id=sink_id,
            transaction_id=transaction_id,
            error=type(error).__name__,
        )


class SinkClient(StreamClient):
    """A driver: commits one transaction after the other, beginning at its checkpoint."""

    def __init__(self, world: World, name: str, plan: StreamPlan, checkpoint: Checkpoint) -> None:
        super().__init__(world, name, plan)
        self.checkpoint = checkpoint
        self.start(self._run())

    async def _step(self) -> None:
        """Die here, with the probability of the plan."""
        if not self.world.healing and self.draw.random() < self.plan.crash:
            self.world.fault("sink crash", self.name)
            self.crash()
            await asyncio.sleep(0)  # a dead process never returns from here

    def crash(self) -> None:
        if self.process.alive:
            super().crash()
            self.world.sink_died(self.checkpoint, self.plan)

    async def _run(self) -> None:
        stream = await self.open_stream()
        checkpoint = self.checkpoint
        writer = stream.writer()
        following = checkpoint.following
        while following < checkpoint.transactions:
            await asyncio.sleep(self.draw.uniform(0, 0.2))
            try:
                done = await self._transaction(stream, writer, following)
            except ConflictError:
                self.world.counts["slower sinks refused"] += 1
                break
            except MetadataRestoredError:  # another process goes on, with the same checkpoint
                self.crash()
                await asyncio.sleep(0)
            except LedgerError as error:
                self.world.say(f"{self.name}: {type(error).__name__}: {error}")
                await asyncio.sleep(self.draw.uniform(0.01, 0.2))
                continue
            await self._step()
            if done:
                following += 1
                checkpoint.following = max(checkpoint.following, following)
        await writer.close()
        await stream.close()

    async def _transaction(self, stream: Stream, writer: SegmentWriter, number: int) -> bool:
        sink_id = self.checkpoint.sink_id
        values = self.new_values(sink_id)
        if self.draw.random() < 0.3:
            await stream.last_transaction(sink_id)
        await self._step()
        await writer.write(pa.table({"v": list(values)}, SCHEMA))
        await self._step()
        segments = await writer.finish()
        await self._step()
        if self.world.drops is not None and self.draw.random() < 0.3:
            await asyncio.sleep(self.draw.uniform(0.0, 1.5))  # what is before it may be dropped
        if self.world.options.audits and self.draw.random() < 0.5:
            await self._name_ahead(stream, segments)
            await asyncio.sleep(self.draw.uniform(0.0, 2.0))  # an audit may find what it named
            await self._step()
        operation = self.begin(sink_id, number, values)
        commit_s = self.draw.uniform(0.0, 0.1) if self.draw.random() < self.plan.crash else None
        try:
            async with asyncio.timeout(commit_s):
                commit = await stream.commit_segments(
                    segments, sink_id=sink_id, transaction_id=number, run_id=self.name
                )
        except TimeoutError:
            self.world.counts["commits cancelled"] += 1
            self.refused(operation, OutcomeUnknownError("cancelled"), sink_id, number)
            return False
        except LedgerError as error:
            self.refused(operation, error, sink_id, number)
            raise
        self.committed(operation, commit, sink_id, number)
        return True

    async def _name_ahead(self, stream: Stream, segments: Sequence[Segment]) -> None:
        """Begin as a commit of more than a thousand ledgers does; it may end here, or come late."""
        naming = stream._ledgers.naming
        ledger_ids = naming.unsettled(segment.ledger_id for segment in segments)
        with contextlib.suppress(LedgerError):
            await stream._ledgers.store.transaction(await naming.operations(ledger_ids))
            naming.named(ledger_ids)
            self.world.counts["ledgers named ahead"] += len(ledger_ids)


class AppendClient(StreamClient):
    """Appends under sink ids of its own; each append is repeated until its outcome is known."""

    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name, plan)
        self.start(self._run())

    async def _run(self) -> None:
        stream = await self.open_stream()
        for number in range(self.plan.appends):
            sink_id = f"{self.name}.{number}"
            for _ in range(6):
                values = self.new_values(sink_id)
                operation = self.begin(sink_id, 0, values)
                try:
                    commit = await stream.append(
                        pa.table({"v": list(values)}, SCHEMA), sink_id=sink_id, transaction_id=0
                    )
                except LedgerError as error:
                    self.refused(operation, error, sink_id, 0)
                    await asyncio.sleep(self.draw.uniform(0.01, 0.2))
                else:
                    self.committed(operation, commit, sink_id, 0)
                    break
        await stream.close()


class StreamReaderClient(StreamClient):
    """Reads the whole stream, several times."""

    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name, plan)
        self.start(self._run())

    async def _run(self) -> None:
        stream = await self.open_stream()
        for _ in range(self.draw.randint(2, 6)):
            operation = self.invoke("stream_read", stream=NAME, entry_id=0)
            try:
                values = await read_stream(stream)
            except LedgerError as error:
                name = type(error).__name__
                self.end(operation, Phase.UNKNOWN, "stream_read", stream=NAME, error=name)
            else:
                self.world.counts["rows read"] += len(values)
                self.end(operation, Phase.OK, "stream_read", stream=NAME, entry_id=0, values=values)
            await asyncio.sleep(self.draw.uniform(0.05, 0.6))
        await stream.close()


async def read_stream(stream: Stream) -> tuple[str, ...]:
    """Every value from the beginning to the head."""
    texts: list[str] = []
    async with aclosing(stream.read()) as batches:
        async for batch in batches:
            texts += [str(text) for text in batch.column("v").to_pylist()]
    return tuple(texts)


async def judge_stream(client: LedgerClient) -> FinalStream:
    """The stream as read by a client that took no part."""
    try:
        stream = await StreamCatalog(client).open(NAME)
        head = await stream.head()
        commits = await stream.commits(head.earliest_commit, head.next_commit)
        found = [await judge_commit(stream, commit) for commit in commits]
        misplaced = await _misplaced(client, head.next_commit)
        if misplaced:
            return FinalStream(NAME, unreadable=misplaced)
        values = await read_stream(stream)
        return FinalStream(NAME, tuple(found), values, first=head.earliest_commit)
    except NotFoundError:
        return FinalStream(NAME)
    except LedgerError as error:
        return FinalStream(NAME, unreadable=f"{type(error).__name__}: {error}")


async def _misplaced(client: LedgerClient, next_commit: int) -> str:
    """What is wrong with where commits are: each is in a manifest or has a node (rule T11)."""
    nodes = StreamNodes(client.store, NAME)
    root = decode_root((await client.store.get(nodes.manifests_path)).value, "the root")
    buckets = await client.store.children(nodes.commits_path)
    found = [await client.store.children(f"{nodes.commits_path}/{each}") for each in buckets]
    numbers = [int(name) for names in found for name in names]
    if numbers == list(range(root.sealed, next_commit)):
        return ""
    return f"{root.sealed} of {next_commit} commits are sealed, and {numbers} have nodes"


async def judge_commit(stream: Stream, commit: Commit) -> FinalCommit:
    """A commit with its rows."""
    ranges = ranges_between([commit], Dlsn(commit.first_segment), Dlsn(commit.end_segment))
    texts: list[str] = []
    batches: Any = stream.read_ranges(ranges)
    async with aclosing(batches):
        async for positioned in batches:
            texts += positioned.batch.column("v").to_pylist()
    return FinalCommit(
        commit.number, commit.sink_id, commit.transaction_id, tuple(texts), commit.time_ms
    )
