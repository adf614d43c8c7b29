"""Sinks that commit to two streams at once, and die wherever they are, beside somebody who
truncates or deletes one of the two: both streams have the rows, or none has (rule T22)."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataRestoredError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format.codec import decode_commit, decode_head
from spark_ledger.stream.model import Commit
from spark_ledger.stream.several import AppendedStreams
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.history.values import verify
from tests.sim.streams import SCHEMA, Checkpoint, StreamClient, judge_commit

if TYPE_CHECKING:
    from tests.sim.options import StreamPlan
    from tests.sim.world import World

NAMES: Final = ("left", "right")
_COMMIT_PATH: Final = re.compile(r"streams/(left|right)/commits/\d+/(\d+)")
_HEAD_PATHS: Final = {f"streams/{name}/head": name for name in NAMES}
_STARTS_MAX: Final = 12
_DRIVERS: Final = 2
_DELETES: Final = 0.4
_ATTEMPTS: Final = 8

Pair = tuple[str, int]
"""A sink and its transaction."""


class Pairs:
    """What both streams have got, as the metadata saw it. Belongs to the world."""

    def __init__(self, world: World, plan: StreamPlan) -> None:
        self._world = world
        self.plan = plan
        self.is_deleted = False
        """Somebody deletes one of the streams: nobody makes it again."""
        self.restores = 0
        """How often ZooKeeper was restored."""
        self._there: set[str] = set()
        self._made: dict[Pair, dict[str, tuple[int, int]]] = {}
        """The change that made each commit, and its number, by stream."""
        self._attempts: Counter[Pair] = Counter()
        self._refused: set[Pair] = set()
        """Those whose only attempt was refused for certain."""
        for number in range(_DRIVERS):
            self.start(Checkpoint(f"both{number}", plan.transactions))
        world.clients.append(ChangeClient(world, "changer", plan))

    def start(self, checkpoint: Checkpoint) -> None:
        """Start one more driver of a sink."""
        world = self._world
        if not world.healing and checkpoint.starts < _STARTS_MAX:
            name = f"{checkpoint.sink_id}-driver{checkpoint.starts}"
            checkpoint.starts += 1
            world.clients.append(TogetherClient(world, name, self.plan, checkpoint))

    @property
    def are_there(self) -> bool:
        """Whether both streams were made."""
        return len(self._there) == len(NAMES)

    def restored(self, nodes: Mapping[str, bytes]) -> None:
        """All is as these nodes of a backup say: commits that came after it are lost, in both."""
        self.restores += 1
        kept = {  # of one that was deleted before it all commits were made before, too
            name: decode_head(nodes[path], path).next_commit
            for path, name in _HEAD_PATHS.items()
            if path in nodes
        }
        for pair, made in [*self._made.items()]:
            left = {n: each for n, each in made.items() if n not in kept or each[1] < kept[n]}
            self._made[pair] = left
            if not left:
                del self._made[pair]

    def observe(self, path: str, data: bytes | None) -> None:
        """A metadata node has changed: perhaps there is one more commit."""
        if path in _HEAD_PATHS and data is not None:
            self._there.add(_HEAD_PATHS[path])
        found = _COMMIT_PATH.fullmatch(path)
        if found is None or data is None:
            return
        name, number = found[1], int(found[2])
        commit = decode_commit(data, number, path)[0]
        made = self._made.setdefault((commit.sink_id, commit.transaction_id), {})
        if name in made:
            self._violate(f"{name} has {commit.sink_id}/{commit.transaction_id} twice")
        made[name] = (self._world.zookeeper.tree.zxid, number)

    def attempted(self, pair: Pair) -> int:
        """A sink begins to commit a transaction, perhaps again. For ``acknowledged``."""
        self._attempts[pair] += 1
        return self.restores

    def refused(self, pair: Pair, error: LedgerError) -> None:
        """A sink was told that nothing was committed. It gives up."""
        if self._attempts[pair] == 1 and not error.outcome_unknown:
            self._refused.add(pair)

    def acknowledged(self, pair: Pair, commits: Mapping[str, Commit], began: int) -> None:
        """A sink was told that its transaction is there. If ZooKeeper was restored since it began
        that may be lost."""
        if began != self.restores:
            return
        made = self._made.get(pair, {})
        told = {name: commit.number for name, commit in commits.items()}
        if told != {name: number for name, (_, number) in made.items()}:
            self._violate(f"{pair} was acknowledged as {told}, and what was made is {made}")
        self._world.counts["commits to two streams"] += 1

    def check(self) -> None:
        """All is quiet. Each transaction is in both streams, by one change, or in none."""
        for pair, made in self._made.items():
            if made.keys() != set(NAMES) or len({change for change, _ in made.values()}) > 1:
                self._violate(f"{pair} was made in {sorted(made)}, by the changes {made}")
            if pair in self._refused:
                self._violate(f"{pair} is there, and its sink was told that nothing was committed")

    async def judge(self, client: LedgerClient) -> None:
        """The rows that are there are the same in both, and are of that sink."""
        rows = [await self._rows(client, name) for name in NAMES]
        for (sink_id, _), texts in (item for found in rows for item in found.items()):
            if any(not verify(text) or text.split("/")[1] != sink_id for text in texts):
                self._violate(f"{sink_id} has the rows {texts}")
        for pair in rows[0].keys() & rows[1].keys():
            if rows[0][pair] != rows[1][pair]:
                self._violate(
                    f"{pair} has {rows[0][pair]} on the left, {rows[1][pair]} on the right"
                )

    async def _rows(self, client: LedgerClient, name: str) -> dict[Pair, tuple[str, ...]]:
        """The rows of each commit. Those of a stream that was deleted, or whose copies were damaged
        more than the promises allow, need not be there."""
        unreadable = ""
        for attempt in range(_ATTEMPTS):
            await asyncio.sleep(
                min(attempt, 1)
            )  # a bookie whose disk has failed restarts meanwhile
            try:
                stream = await StreamCatalog(client).open(name)
                head = await stream.head()
                commits = await stream.commits(head.earliest_commit, head.next_commit)
                found = [await judge_commit(stream, commit) for commit in commits]
            except LedgerError as error:
                unreadable = f"{name} cannot be read: {type(error).__name__}: {error}"
                if isinstance(error, NotFoundError) and not self.are_there:
                    return {}
            else:
                return {(each.sink_id, each.transaction_id): each.values for each in found}
        is_collected = self.restores > 0 and self._world.options.collects
        if not (self.is_deleted or self._world.is_beyond_tolerance or is_collected):
            self._violate(unreadable)
        return {}

    def _violate(self, text: str) -> None:
        self._world.violate("streams", "T22", text)


class _Catalog(StreamCatalog):
    """Streams whose jitter the seed decides."""

    def __init__(self, client: LedgerClient, jitter: random.Random) -> None:
        super().__init__(client)
        self._jitter = jitter

    async def open(self, name: str) -> Stream:
        stream = await super().open(name)
        stream._committer.rng = self._jitter
        return stream


class TogetherClient(StreamClient):
    """A driver that commits each transaction to both streams."""

    def __init__(self, world: World, name: str, plan: StreamPlan, checkpoint: Checkpoint) -> None:
        super().__init__(world, name, plan)
        self._checkpoint = checkpoint
        self.start(self._run())

    def _die(self) -> None:
        if self.process.alive and not self.is_done and not self.world.healing:
            self.world.fault("sink of two streams crash", self.name)
            self.crash()

    def crash(self) -> None:
        if self.process.alive:
            super().crash()
            again_s = self.draw.uniform(0.0, 0.4)
            self.world.loop.later(again_s, None, self.pairs.start, self._checkpoint)

    @property
    def pairs(self) -> Pairs:
        """What both streams have got."""
        assert self.world.pairs is not None, "this schedule commits to two streams"
        return self.world.pairs

    async def _run(self) -> None:
        client = await self.connect()
        jitter = self.world.random_for(f"jitter {self.name}")
        catalog, checkpoint = _Catalog(client, jitter), self._checkpoint
        if not await self._make(catalog):
            return
        appended = AppendedStreams(catalog)
        while checkpoint.following < checkpoint.transactions:
            await asyncio.sleep(self.draw.uniform(0, 0.3))
            try:
                await self._transaction(appended, checkpoint.following)
            except (NoSuchStreamError, ConflictError) as error:
                self.world.say(f"{self.name} ends: {type(error).__name__}: {error}")
                self.pairs.refused((checkpoint.sink_id, checkpoint.following), error)
                break
            except MetadataRestoredError:  # another process goes on, with the same checkpoint
                self.crash()
                await asyncio.sleep(0)
            except (LedgerError, TimeoutError) as error:
                self.world.say(f"{self.name}: {type(error).__name__}: {error}")
                await asyncio.sleep(self.draw.uniform(0.01, 0.2))
            else:
                checkpoint.following += 1
        await appended.close()

    async def _make(self, catalog: StreamCatalog) -> bool:
        """Make both streams, unless one was deleted."""
        size, write, ack = self.plan.quorums
        for name in NAMES:
            while not self.pairs.is_deleted:
                try:
                    await catalog.create(
                        name,
                        SCHEMA,
                        ensemble_size=size,
                        write_quorum=write,
                        ack_quorum=ack,
                        entry_bytes=1024,
                        exist_ok=True,
                    )
                except LedgerError:
                    await asyncio.sleep(0.1)
                else:
                    break
        return not self.pairs.is_deleted

    async def _transaction(self, appended: AppendedStreams, number: int) -> None:
        sink_id = self._checkpoint.sink_id
        table = pa.table({"v": list(self.new_values(sink_id))}, SCHEMA)
        if self.draw.random() < self.plan.crash:
            self.world.loop.later(self.draw.uniform(0.0, 0.1), None, self._die)
        patience_s = self.draw.uniform(0.0, 0.1) if self.draw.random() < self.plan.crash else None
        began = self.pairs.attempted((sink_id, number))
        async with asyncio.timeout(patience_s):
            commits = await appended.append_to(
                dict.fromkeys(NAMES, table),
                sink_id=sink_id,
                transaction_id=number,
                run_id=self.name,
            )
        self.pairs.acknowledged((sink_id, number), commits, began)


class ChangeClient(StreamClient):
    """Truncates one of the streams now and then, and deletes it in the end, perhaps."""

    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name, plan)
        self.start(self._run())

    async def _run(self) -> None:
        catalog = StreamCatalog(await self.connect())
        name, pairs = self.draw.choice(NAMES), self.world.pairs
        assert pairs is not None, "this schedule commits to two streams"
        deletes_at = self.draw.uniform(0.5, 4.0) if self.draw.random() < _DELETES else 1e9
        while not self.world.healing:
            await asyncio.sleep(self.draw.uniform(0.0, 0.5))
            try:
                if self.world.loop.now < deletes_at:
                    stream = await catalog.open(name)
                    head = await stream.head()
                    await stream.retention.truncate(Dlsn(head.next_segment))
                    await stream.close()
                else:
                    pairs.is_deleted = True
                    await catalog.delete(name)
                    self.world.fault("one stream of two deleted", name)
                    return
            except NotFoundError:
                if pairs.is_deleted:
                    return
            except MetadataRestoredError:
                catalog = StreamCatalog(await self.connect())
            except LedgerError as error:
                self.world.say(f"{self.name}: {type(error).__name__}: {error}")
