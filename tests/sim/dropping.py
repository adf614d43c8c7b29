"""Truncation, retention and holds of a stream, and what must hold at each step of them.

Every change of the stream's nodes passes through ``Drops``, which knows all commits that were ever
made, and all packs. It judges each head that drops rows (rules T14 to T16), each deletion of a
ledger (T17, T25), the keeper's clock (K7), what a reader got (T14), and at the end that nothing
dropped is left (T18).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from spark_ledger.errors import (
    DataLossError,
    LedgerError,
    MetadataRestoredError,
    NotFoundError,
)
from spark_ledger.keeper.nodes import CLOCK_PATH
from spark_ledger.lab.simulation.loop import Process, current_process
from spark_ledger.limits.keeper import CLOCK_CATCH_UP
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.stream.format.codec import decode_commit, decode_config, decode_head
from spark_ledger.stream.manifest.format import decode_root
from spark_ledger.stream.model import Commit, Head, Retention
from spark_ledger.stream.packs.format import decode_packs
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.retention.format import decode_holds
from spark_ledger.stream.retention.rules import Hold
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn, LedgerId
from tests.sim.keepers import config_of, time_of
from tests.sim.racing import Listings
from tests.sim.replacing import Replacements, names
from tests.sim.streams import NAME, StreamClient

if TYPE_CHECKING:
    from tests.sim.options import StreamPlan
    from tests.sim.world import World

_COMMIT_PATH: Final = re.compile(rf"streams/{NAME}/commits/\d+/(\d+)")
_LEDGER_PATH: Final = re.compile(r"ledgers/(\d{2})/(\d{4})/L(\d{4})")
_FASTEST_CLOCK: Final = 1.25

Pair = tuple[str, int]


class Drops:
    """What is known of the stream, and the judgement of what is done to its beginning."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._config = config_of(world)
        self._replacements = Replacements(world, self._config.replaced_grace_s / _FASTEST_CLOCK)
        self.listings = Listings(world)
        self.commits: dict[int, Commit] = {}
        """All that were ever made."""
        self.head: Head | None = None
        self.packs = Packs()
        self.ignoring: set[str] = set()
        """Processes that truncate in spite of holds just now."""
        self._ignored_to = 0
        self._given_back = 0
        self._dropped_at: list[tuple[float, int]] = []
        self._limits: list[Retention] = []
        self._holds: tuple[Hold, ...] = ()
        self._attempts: dict[str, tuple[Pair, tuple[str, ...]]] = {}
        self._read: dict[int, tuple[str, ...]] = {}
        self._clocks: list[tuple[float, int]] = []
        """The times that keepers have written down, each with when its keeper read its clocks."""
        self._clock_of: dict[str, int] = {}
        self._looked_at: dict[Process, float] = {}
        """When each keeper has last read its clocks: there it asks what is written down."""
        self._counts_from: dict[Process, tuple[float, int | None]] = {}
        """When it first did so, and what it found."""
        self.restored_at = 0
        """How many events there were when ZooKeeper was restored; 0: it was not."""
        self._deleted: set[LedgerId] = set()
        """Since then: another one may have the id."""
        self.kept = 0
        """The commits below are those that the backup had."""

    @property
    def earliest(self) -> int:
        """The first commit that is not dropped."""
        return 0 if self.head is None else self.head.earliest_commit

    def attempted(self, pair: Pair, values: tuple[str, ...]) -> None:
        """A commit of these values begins."""
        self._attempts[values[0]] = (pair, values)

    def observe(self, path: str, data: bytes | None) -> None:
        """A metadata node has changed."""
        if found := _LEDGER_PATH.fullmatch(path):
            if data is None:
                self._check_deletion(LedgerId(int("".join(found.groups()))))
        elif data is None:
            return
        elif found := _COMMIT_PATH.fullmatch(path):
            number = int(found[1])
            self.commits.setdefault(number, decode_commit(data, number, path)[0])
        elif path == f"streams/{NAME}/head":
            old, self.head = self.head, decode_head(data, path)
            if old is not None and old.earliest != self.head.earliest:
                self._check_drop(old, self.head)
        elif path == f"streams/{NAME}/manifests":
            root = decode_root(data, path)
            self._replacements.sealed(root)
            self._check_given_back(root.dropped)
        elif path == f"streams/{NAME}/config":
            config = decode_config(data, path)
            self._limits.append(config.retention)
            self.listings.listed(config.dropping, current_process())
        elif path == f"streams/{NAME}/packs":
            self._check_packs(decode_packs(data, path))
        elif path == f"streams/{NAME}/holds":
            self._holds = decode_holds(data, path)
        elif path == CLOCK_PATH:
            self._check_clock(time_of(data))

    def asked(self, process: Process, path: str) -> None:
        if path == CLOCK_PATH:
            self._looked_at[process] = self._world.loop.now

    def told(self, process: Process, path: str, data: bytes | None) -> None:
        if path == CLOCK_PATH:
            time_ms = None if data is None else time_of(data)
            self._counts_from.setdefault(process, (self._looked_at[process], time_ms))

    def restored(self, nodes: Mapping[str, bytes], events: int) -> None:
        """All is as these nodes of a backup say: what came after them is lost."""
        head, holds, packs, root = (
            nodes.get(f"streams/{NAME}/{name}") for name in ("head", "holds", "packs", "manifests")
        )
        self.head = None if head is None else decode_head(head, "head")
        self.restored_at, self.kept = events, 0 if self.head is None else self.head.next_commit
        self.commits = {each: self.commits[each] for each in self.commits if each < self.kept}
        self._read = {each: self._read[each] for each in self._read if each < self.kept}
        self.packs = Packs() if packs is None else decode_packs(packs, "packs")
        self._holds = () if holds is None else decode_holds(holds, "holds")
        self._given_back = 0 if root is None else decode_root(root, "manifests").dropped
        self._dropped_at = [each for each in self._dropped_at if each[1] <= self.earliest]
        self._ignored_to = min(self._ignored_to, self.earliest)
        self._replacements.restored(None if root is None else decode_root(root, "manifests"))
        self._deleted.clear()
        if CLOCK_PATH not in nodes:
            self._clocks.clear()

    @property
    def is_collected(self) -> bool:
        """Whether the backup may name what was deleted since, and bookies have collected."""
        return self.restored_at > 0 and self._world.options.collects

    @property
    def is_stopped(self) -> bool:
        """Whether dropped rows may stay: a ledger may be open for ever, as bookies refuse it."""
        metadata = (each.metadata for each in self._world.invariants.ledgers.values())
        is_open = any(each and not each.is_closed for each in metadata)
        return self.is_collected or (self.restored_at > 0 and is_open)

    # -- each step ---------------------------------------------------------------------------------

    def _violate(self, rule: str, text: str) -> None:
        self._world.violate("retention", rule, text)

    def _check_drop(self, old: Head, new: Head) -> None:
        """Rule T14: a truncation moves the beginning to that of a later commit, and nothing else.
        Rules T15, T16: the keeper drops what a limit allows, and nobody what is held."""
        number, process = new.earliest_commit, current_process()
        self._world.counts["truncations"] += 1
        self._world.say(f"{process} drops up to commit {number} of {new.next_commit}")
        self._dropped_at.append((self._world.loop.now, number))
        if number < old.earliest_commit or new.earliest < old.earliest:
            self._violate("T14", f"commits from {number} on are back, {old.earliest_commit} began")
        later = self.commits.get(number)
        begin = Dlsn(new.next_segment if later is None else later.first_segment)
        if (new.earliest, new.next_commit) != (begin, old.next_commit):
            self._violate("T14", f"commit {number} does not begin at {tuple(new.earliest)}")
        if process is None:
            return  # a write of the dead: whose it is nobody can tell here
        if process.name in self.ignoring:
            self._ignored_to = max(self._ignored_to, number)
            return
        now_ms = self._clock_of.get(process.name)
        by_keeper = process.name.startswith("keeper")
        for hold in self._holds:
            over = by_keeper and (now_ms is None or hold.is_void(old, now_ms))
            if hold.commit < number and not over:
                self._violate("T16", f"{process} drops commit {hold.commit}, held by {hold.name}")
        if by_keeper and now_ms is not None:
            self._world.counts["drops by limits"] += 1
            most = max((self._may_drop(old, each, now_ms) for each in self._limits), default=0)
            if number > max(most, old.earliest_commit):
                self._violate("T15", f"{process} drops up to {number}, {most} are allowed")

    def _may_drop(self, head: Head, limits: Retention, now_ms: int) -> int:
        """Up to which commit a retention allows to drop: rule T15, commit by commit."""
        newest = head.next_commit - 1
        there = [self.commits[each] for each in range(head.earliest_commit, newest)]
        most = head.earliest_commit
        if limits.age_s is not None:
            cutoff_ms = min(now_ms, head.time_ms) - int(limits.age_s * 1000)
            young = [each.number for each in there if cutoff_ms <= each.time_ms <= now_ms]
            most = max(most, min(young, default=newest))
        for each in there:
            rows = head.rows - each.rows_before - each.rows
            size = head.size_bytes - each.bytes_before - each.size_bytes
            by_rows = limits.rows is not None and rows >= limits.rows
            if by_rows or (limits.size_bytes is not None and size >= limits.size_bytes):
                most = max(most, each.number + 1)
        return most

    def _check_deletion(self, ledger_id: LedgerId) -> None:
        """Rules T17, T25: no commit that is there needs a ledger that is deleted. A commit needs
        the ledgers that it names, or that of the pack that holds its rows as well."""
        needing = self._needing(ledger_id)
        if ledger_id not in self._deleted:
            self._replacements.check(ledger_id, self.commits, self.earliest, self.packs)
        for number in needing:
            if number >= self.earliest:
                self._violate("T17", f"ledger {ledger_id} of commit {number} is deleted")
        after = [at for at, number in self._dropped_at if number > max(needing, default=-1)]
        if needing and after and ledger_id not in self._deleted:
            passed_s, least_s = self._world.loop.now - after[0], self._surely_there_s(max(needing))
            if passed_s < least_s:
                text = f"ledger {ledger_id} is deleted {passed_s:.3f} s after its rows"
                self._violate("K8", text)
            is_early = passed_s < self._config.dropped_grace_s / _FASTEST_CLOCK
            self._world.counts["ledgers deleted within the grace"] += is_early
        self._deleted.add(ledger_id)
        self._world.counts["ledgers of streams deleted"] += 1
        if not needing and any(names(each, ledger_id) for each in self.commits.values()):
            self._world.counts["former ledgers of packs deleted"] += 1

    def _surely_there_s(self, number: int) -> float:
        """For so long after a truncation the rows of a commit are there, by the fastest of the
        monotonic clocks that keepers count by (rule K8): for the grace, or for the least, if as
        much is dropped behind it as some retention of the stream would keep."""
        grace_s, head = self._config.dropped_grace_s, self.head
        sizes = [each.size_bytes for each in self._limits if each.size_bytes is not None]
        if sizes and head is not None and number in self.commits:
            commit, first = self.commits[number], self.commits.get(self.earliest)
            begin = head.size_bytes if first is None else first.bytes_before
            if begin - commit.bytes_before - commit.size_bytes >= min(sizes):
                grace_s = self._config.dropped_least_s
        return grace_s / _FASTEST_CLOCK

    def _needing(self, ledger_id: LedgerId) -> list[int]:
        """All commits, also dropped ones, whose rows are read from a ledger."""
        for pack in self.packs.packs:
            if pack.ledger_id == ledger_id:
                return list(range(pack.first, pack.end))
        end = 0 if self.head is None else self.head.next_commit
        outside = self.packs.numbers_outside(0, end)
        return [number for number in outside if names(self.commits[number], ledger_id)]

    def _check_packs(self, packs: Packs) -> None:
        """Rule T24: a pack that is named is there, and never changes. Rule T25: it goes when
        nothing is left of all its commits."""
        held = {pack.ledger_id: pack._replace(is_freed=False) for pack in packs.packs}
        for pack in self.packs.packs:
            after = held.pop(pack.ledger_id, None)
            if after is None and pack.end > self._given_back:
                self._violate("T25", f"the pack of commits {pack.first} .. {pack.end - 1} is gone")
            elif after is not None and after != pack._replace(is_freed=False):
                self._violate("T24", f"the pack in ledger {pack.ledger_id} has changed")
        for ledger_id in held:
            if not self._is_there(ledger_id):
                self._violate("T24", f"the pack in ledger {ledger_id} is named and not there")
        self._replacements.packed(packs)
        self.packs = packs

    def _is_there(self, ledger_id: int) -> bool:
        try:
            self._world.zookeeper.tree.get(ledger_path(LedgerId(ledger_id)))
        except NotFoundError:
            return False
        return True

    def _check_given_back(self, dropped: int) -> None:
        """Rule T18: of commits below this number nothing is left, says the root."""
        if dropped == self._given_back:
            return
        self._given_back = dropped
        if self.is_collected:
            return
        live: set[int] = set()
        gone: set[int] = set()
        for number, commit in self.commits.items():
            named = {each.ledger_id for each in commit.segments}
            (live if number >= dropped else gone).update(named)
        for ledger_id in sorted(gone - live - self._deleted):
            if self._is_there(ledger_id):
                text = f"ledger {ledger_id} is there, of commits below {dropped} only"
                self._violate("T18", text)

    def _check_clock(self, time_ms: int) -> None:
        """Rule K7: the keeper's clock cannot jump ahead.

        What counts is when a keeper read its clocks, not when its note arrives: of two notes the
        first may be on its way for longer, and then they arrive closer together.
        """
        process = self._world.zookeeper.writer
        assert process is not None, "somebody writes it down"
        looked_at, (began_at, found_ms) = self._looked_at[process], self._counts_from[process]
        known = self._clocks + ([] if found_ms is None else [(began_at, found_ms)])
        rate = CLOCK_CATCH_UP * _FASTEST_CLOCK * 1000
        most = max((was + rate * (looked_at - at) for at, was in known), default=float(time_ms))
        if time_ms > most + 1:
            self._violate("K7", f"{process}: the clock jumped by {time_ms - most:.0f} ms")
        self._clocks.append((looked_at, time_ms))
        self._clock_of[process.name] = time_ms

    def check_hold(self, hold: Hold) -> None:
        """Rule T16: a hold that was granted holds."""
        self._world.counts["holds granted"] += 1
        latest_ms = max((was for _, was in self._clocks), default=0)
        if hold not in self._holds or self.head is None or hold.is_void(self.head, latest_ms):
            return
        if max(hold.commit, self._ignored_to) < self.earliest:
            self._violate("T16", f"{hold.name} holds commit {hold.commit}, which is dropped")

    # -- what readers get --------------------------------------------------------------------------

    def check_read(self, who: str, values: Sequence[str], since: int, until: int | None) -> None:
        """Rule T14: whole commits, none left out, from the beginning as it was at some time of the
        read (``since``: when it began) up to a commit that was the end then (None: any)."""
        numbers = {(c.sink_id, c.transaction_id): n for n, c in self.commits.items()}
        place, before = 0, -1
        while place < len(values):
            pair, whole = self._attempts.get(values[place], (("", 0), ()))
            number = numbers.get(pair, -1)
            if not whole or number < 0 or tuple(values[place : place + len(whole)]) != whole:
                self._violate("T14", f"{who} reads a part of commit {number}, at row {place}")
                return
            if before >= 0 and number != before + 1:
                self._violate("T14", f"{who} reads commit {number} after {before}")
            if before < 0 and not since <= number <= max(since, self.earliest):
                self._violate("T14", f"{who} begins at {number}: {since} .. {self.earliest} began")
            if self._read.setdefault(number, whole) != whole:
                self._violate("T14", f"{who} reads other rows in commit {number}")
            place, before = place + len(whole), number
        if until is not None and max(before + 1, self.earliest) < until:
            self._violate("T14", f"{who} reads up to commit {before}, {until} were there")
        self._world.counts["commits read beside truncations"] += before >= 0

    def check_missing(self, who: str, first: int, error: LedgerError, *, planned: bool) -> None:
        """A reader of commits from one on was told that rows are gone: some must be."""
        if self.is_collected:
            return
        cut = [at for at, number in self._dropped_at if number > first]
        if not cut:
            self._violate("T17", f"{who} cannot read commit {first}, which is there: {error}")
        elif planned and self._world.loop.now - cut[0] < self._surely_there_s(first):
            self._violate("T17", f"{who} planned commit {first}, and its rows went: {error}")
        self._world.counts["reads of dropped rows"] += 1


class DropClient(StreamClient):
    """Somebody who truncates, changes what is kept, and holds rows, in any order."""

    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name, plan)
        self.start(self._run())

    async def _run(self) -> None:
        stream = await self.open_stream()
        while not self.world.healing:
            await asyncio.sleep(self.draw.uniform(0.05, 0.4))
            work = self.draw.choice([_truncate, _truncate, _keep, _keep, _hold, _hold, _release])
            if work is _truncate:
                self.world.fault("truncation", self.name)
            try:
                await work(self, stream)
            except MetadataRestoredError:
                stream = await self.opened_anew(stream)
            except LedgerError as error:
                self.world.say(f"{self.name} {work.__name__}: {type(error).__name__}: {error}")
        await stream.close()


async def _truncate(client: DropClient, stream: Stream) -> None:
    drops = client.drops
    if not drops.commits:
        return
    commit = drops.commits[client.draw.choice(sorted(drops.commits))]
    ignores = client.draw.random() < 0.3
    if ignores:
        drops.ignoring.add(client.process.name)
    try:
        if client.draw.random() < 0.3:
            await stream.retention.truncate(before_ms=commit.time_ms, ignore_holds=ignores)
        else:
            entry = client.draw.choice([0, 0, 1])
            before = Dlsn(commit.first_segment, entry)
            await stream.retention.truncate(before, ignore_holds=ignores)
    finally:
        drops.ignoring.discard(client.process.name)


async def _keep(client: DropClient, stream: Stream) -> None:
    draw = client.draw
    limits = [
        Retention(),
        Retention(age_s=draw.choice([1.0, 2.0, 3600.0])),
        Retention(rows=draw.choice([1, 20, 60])),
        Retention(size_bytes=draw.choice([1, 500, 4000])),
    ]
    await stream.retention.set_limits(draw.choice(limits))


async def _hold(client: DropClient, stream: Stream) -> None:
    draw, known = client.draw, client.drops.commits
    places: list[Any] = ["earliest", "latest"]
    places += [Dlsn(known[number].first_segment) for number in sorted(known)]
    hold = await stream.retention.hold(
        draw.choice(["a", "b"]),
        draw.choice(places),
        for_s=draw.choice([0.3, 2.0, 3600.0]),
        size_bytes_max=draw.choice([None, None, 2000]),
    )
    client.drops.check_hold(hold)


async def _release(client: DropClient, stream: Stream) -> None:
    await stream.retention.release(client.draw.choice(["a", "b"]))


class DropReaderClient(StreamClient):
    """Reads the stream while its beginning moves: at once, or by a plan that it made before."""

    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name, plan)
        self.start(self._run())

    async def _run(self) -> None:
        stream = await self.open_stream()
        for _ in range(self.draw.randint(4, 10)):
            await asyncio.sleep(self.draw.uniform(0.05, 0.4))
            self._history = self._which_history()
            try:
                await (self._read if self.draw.random() < 0.5 else self._plan)(stream)
            except MetadataRestoredError:
                stream = await self.opened_anew(stream)
            except LedgerError as error:
                self.world.say(f"{self.name}: {type(error).__name__}: {error}")
        await stream.close()

    def _which_history(self) -> int:
        """In which history of ZooKeeper it is; a negative number: nobody can tell."""
        zookeeper, restored_at = self.world.zookeeper, self.drops.restored_at
        is_between = zookeeper.restoring or self.name in zookeeper.returning
        return -1 - restored_at if is_between else restored_at

    async def _read(self, stream: Stream) -> None:
        """From the beginning to the end, as both are found."""
        drops, lags = self.drops, self.world.options.stale_reads
        if drops.head is None:
            return
        since, until = drops.earliest, drops.head.next_commit
        began = 0 if lags else since, None if lags else until
        await self._judge(stream.read(), *began, since, planned=False)

    async def _plan(self, stream: Stream) -> None:
        """Commits that were looked up, a moment later."""
        head = await stream.head()
        first, end = head.earliest_commit, head.next_commit
        await asyncio.sleep(self.draw.choice([0.0, 0.05, 0.5]))
        chunks = stream.read_commit_chunks(range(first, end), head.earliest, head.end)

        async def batches() -> Any:
            async with aclosing(chunks):
                async for chunk in chunks:
                    for positioned in chunk:
                        yield positioned.batch

        await self._judge(batches(), first, end, first, planned=True)

    async def _judge(
        self, batches: Any, since: int, until: int | None, first: int, *, planned: bool
    ) -> None:
        texts: list[str] = []
        try:
            async with aclosing(batches):
                async for batch in batches:
                    texts += [str(text) for text in batch.column("v").to_pylist()]
        except LedgerError as error:
            says_gone = isinstance(error, DataLossError | NotFoundError)
            options = self.world.options
            judges = self._history == self._which_history() >= 0
            if says_gone and judges and not (options.stale_reads or self.world.is_beyond_tolerance):
                self.drops.check_missing(self.name, first, error, planned=planned)
            raise
        if self._history == self._which_history() >= 0:
            self.drops.check_read(self.name, texts, since, until)
