"""Streams that anything happens to, compared with a list: commits, merges, truncations, overwrites,
deletions, writers and keepers that die at any step, lost replies, readers with old roots."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from spark_ledger.errors import (
    ConflictError,
    DataLossError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchStreamError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Commit, Segment
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import TAG_STREAM_ID
from tests.effort import RANDOM_STREAMS, in_shares
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    commit_nodes,
    free_merged,
    loose,
    pages_of,
    root_of,
    run,
    small_manifests,
)

STEPS = 50
LOST = 0.06
SINKS = ("a", "b", "c")


class Trouble:
    """What happens to the calls of one process: replies get lost, and at some call it dies."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.calls_left = draw.choice([3, 10, 30, 100, 10_000])

    def __call__(self, name: str, path: str) -> Fault:
        self.calls_left -= 1
        if self.calls_left < 0:
            return Fault(Outcome.UNAVAILABLE)
        if name not in ("get", "children") and self.draw.random() < LOST:
            return Fault(self.draw.choice([Outcome.LOST_REPLY, Outcome.LOST_REQUEST]))
        return Fault()


class Life:
    """One stream, and the list that it should be."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.ledgers = FakeLedgers()
        self.commits: list[Commit] = []
        self.earliest = 0
        self.transactions = dict.fromkeys(SINKS, -1)
        self.now_ms = 1000
        self.log: list[str] = []
        self.readers: list[Stream] = []
        self.named: set[int] = set()
        """Ledgers of manifests that some root has named."""

    async def begin(self) -> None:
        await self.ledgers.store.create("keeper", b"")
        await self.anew()

    async def anew(self) -> None:
        await StreamCatalog(self.ledgers).create("s", SCHEMA)
        self.commits, self.earliest, self.readers, self.named = [], 0, [], set()
        self.transactions = dict.fromkeys(SINKS, -1)

    async def healthy(self) -> Stream:
        stream = await another(self.ledgers)[1].open("s")
        stream._committer.clock_ms = lambda: self.now_ms
        return stream

    async def write(self) -> None:
        """A process makes some commits. Where its end leaves a doubt, the next one repeats it."""
        other, streams = another(self.ledgers)
        stream = await streams.open("s")
        stream._committer.clock_ms = lambda: self.now_ms
        other.store.interpose = Trouble(self.draw)
        for _ in range(self.draw.choice([1, 2, 5, 12])):
            self.now_ms += self.draw.choice([0, 0, 1, 50])
            sink, is_overwrite = self.draw.choice(SINKS), self.draw.random() < 0.03
            number = self.transactions[sink] + self.draw.choice([1, 1, 1, 3])
            segments = await self.segments(stream, self.draw.choice([0, 1, 1, 3]))
            offer = {"sink_id": sink, "transaction_id": number, "overwrite": is_overwrite}
            try:
                made = await stream.commit_segments(segments, **offer)  # type: ignore[arg-type]
            except (OutcomeUnknownError, MetadataUnavailableError):
                self.end(stream)
                again = await self.healthy()
                made = await again.commit_segments(segments, **offer)  # type: ignore[arg-type]
                await again.close()
            self.transactions[sink] = number
            assert (made.sink_id, made.transaction_id) == (sink, number)
            assert made.number == len(self.commits) and list(made.segments) == [
                segment.placed(made.first_segment + n) for n, segment in enumerate(segments)
            ]
            self.commits.append(made)
            if is_overwrite:
                self.earliest = made.number
        if self.draw.random() < 0.5:
            await stream.close()
        self.end(stream)

    async def segments(self, stream: Stream, count: int) -> list[Segment]:
        """What a task has written: some segments, in one or two closed ledgers of their own."""
        tags = {TAG_STREAM_ID: stream.config.stream_id}
        made = [
            await self.ledgers.create_ledger(custom_metadata=tags) for _ in range(min(count, 2))
        ]
        for writer in made:
            await writer.close()
        return [loose(2, ledger_id=self.draw.choice(made).ledger_id) for _ in range(count)]

    def end(self, stream: Stream) -> None:
        """The process is killed."""
        work = stream._committer.sealer._work
        if work is not None:
            work.cancel()

    async def repeat(self) -> None:
        sink = self.draw.choice(SINKS)
        newest = self.transactions[sink]
        if newest < 1:
            return
        stream = await self.healthy()
        offer = {"sink_id": sink, "transaction_id": newest}
        assert not (await stream.commit_segments([loose(2)], **offer)).applied  # type: ignore[arg-type]
        with pytest.raises(ConflictError):
            await stream.commit_segments([], sink_id=sink, transaction_id=newest - 1)

    async def truncate(self) -> None:
        if len(self.commits) - self.earliest < 2:
            return
        commit = self.commits[self.draw.randrange(self.earliest, len(self.commits))]
        stream = await self.healthy()
        await stream.retention.truncate((commit.first_segment, 0, 0))
        head = await stream.head()
        assert self.earliest <= head.earliest_commit <= len(self.commits)
        assert head.earliest.segment <= commit.first_segment, "at least what was asked for is kept"
        self.earliest = head.earliest_commit

    async def reclaim(self) -> None:
        """A keeper gives space back, or dies at it."""
        other, streams = another(self.ledgers)
        stream = await streams.open("s")
        if self.draw.random() < 0.7:
            other.store.interpose = Trouble(self.draw)
        names = LiveNames()
        try:
            for _ in range(3):
                step = await stream.retention.reclaimer(ClosedDeletions(other), names).step(
                    self.earliest
                )
                if step.is_done:
                    break
            root = await stream._log.manifests.read_root()
            upto = self.draw.choice([0, root.merged_upto, root.freed + root.span(1)])
            reclaimer = stream.retention.reclaimer(ClosedDeletions(other), names)
            await reclaimer.free_merged(min(upto, root.merged_upto))
        except (ConflictError, OutcomeUnknownError, MetadataUnavailableError):
            pass

    async def write_beside_a_keeper(self) -> None:
        await asyncio.gather(self.write(), self.reclaim())

    async def delete(self) -> None:
        other, streams = another(self.ledgers)
        other.store.interpose = Trouble(self.draw)
        try:
            await streams.delete("s")
        except NoSuchStreamError:
            pass
        except LedgerError:
            with contextlib.suppress(NoSuchStreamError):
                await StreamCatalog(self.ledgers).delete("s")
        assert self.ledgers.store.tree.children("streams") == []
        named = {each.ledger_id for commit in self.commits for each in commit.segments}
        assert not (named | self.named) & set(self.ledgers.ledgers), "nothing leads to them"
        await self.anew()

    async def read(self) -> None:
        """A new reader, or one with an old root, looks things up."""
        if not self.readers or self.draw.random() < 0.3:
            self.readers.append(await self.healthy())
        stream = self.draw.choice(self.readers[-3:])
        stream._watch.invalidate()
        if self.earliest >= len(self.commits):
            return
        commit = self.commits[self.draw.randrange(self.earliest, len(self.commits))]
        assert await stream.commit(commit.number) == commit
        if commit.segments:
            assert await stream.commit_at(commit.first_segment) == commit
        found = await stream.first_commit_since(commit.time_ms)
        live = self.commits[self.earliest :]
        assert found == next(each for each in live if each.time_ms >= commit.time_ms)
        following = [
            each
            for each in live
            if each.sink_id == commit.sink_id and each.transaction_id >= commit.transaction_id - 1
        ]
        position = await stream.position_of(commit.sink_id, commit.transaction_id - 1)
        assert position == (following[0].first_segment, 0, 0)
        assert (
            await stream.commits(commit.number, len(self.commits)) == self.commits[commit.number :]
        )
        if self.earliest and self.draw.random() < 0.3:
            fresh = await self.healthy()
            try:
                gone = await fresh.commit(self.earliest - 1)
            except DataLossError:
                pass
            else:
                assert gone == self.commits[self.earliest - 1], "it was not given back yet"

    async def check(self) -> None:
        """The stream is the list, and each commit is in one place."""
        stream = await self.healthy()
        head = await stream.head()
        assert (head.earliest_commit, head.next_commit) == (self.earliest, len(self.commits))
        assert (
            await stream.commits(self.earliest, len(self.commits)) == self.commits[self.earliest :]
        )
        root = root_of(self.ledgers)
        assert commit_nodes(self.ledgers) == list(range(root.sealed, len(self.commits)))
        assert root.dropped <= self.earliest
        self.named |= root.ledgers()

    async def _reclaimed(self, stream: Stream) -> None:
        reclaimer = stream.retention.reclaimer(ClosedDeletions(self.ledgers), LiveNames())
        while not (await reclaimer.step(self.earliest)).is_done:
            pass
        await free_merged(self.ledgers)

    async def settled(self) -> None:
        """All is done that is to be done: what is there beside what never was named is named."""
        stream = await self.healthy()
        # A keeper that died between deleting leaves and writing the root is followed by another:
        # what the root still names of dropped commits cannot be merged (rule T18).
        await self._reclaimed(stream)
        await stream._committer.sealer.seal(len(self.commits))
        await self._reclaimed(stream)
        await self.check()
        root = root_of(self.ledgers)
        assert root.dropped == self.earliest
        pages = [page for page in await pages_of(stream) if not root.is_dropped(page)]
        now = {page.pointer.ledger_id for page in pages}
        assert now & self.named == set(self.ledgers.ledgers) & self.named, "no more, and no less"
        live = {each.ledger_id for c in self.commits[self.earliest :] for each in c.segments}
        gone = {each.ledger_id for c in self.commits for each in c.segments} - live
        assert live <= set(self.ledgers.ledgers) and not gone & set(self.ledgers.ledgers)


@pytest.mark.parametrize("part", in_shares(list(range(RANDOM_STREAMS.proof)), RANDOM_STREAMS))
@pytest.mark.parametrize("sizes", [(1, 2), (2, 3), (5, 2)])
def test_stream_that_anything_happens_to_is_the_list_that_it_should_be(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], part: int
) -> None:
    leaf, fan_out = sizes
    small_manifests(monkeypatch, leaf=leaf, fan_out=fan_out, kept=leaf)

    async def scenario(seed: int) -> None:
        life = Life(seed)
        await life.begin()
        acts = [life.write] * 8 + [life.read] * 4 + [life.repeat, life.truncate, life.reclaim]
        acts += [life.write_beside_a_keeper] * 2
        try:
            for _ in range(STEPS):
                act = life.delete if life.draw.random() < 0.01 else life.draw.choice(acts)
                life.log.append(act.__name__)
                await act()
                await life.check()
            await life.settled()
            await life.delete()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {' '.join(life.log)}: {error!r}") from error

    run(scenario(random.randrange(1 << 30)))
