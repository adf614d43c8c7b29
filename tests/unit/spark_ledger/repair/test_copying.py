"""Copies of one lane: what a target must have said before a copy counts, and who is blamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from spark_ledger.errors import BookieUnavailableError, NoSuchEntryError
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.repair import merging
from spark_ledger.repair.copying import Copier, TargetFailedError
from spark_ledger.repair.ledger import _access
from spark_ledger.repair.plan import LaneCopy, final_fragments, lane_copies
from spark_ledger.repair.throttle import Throttles
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult, ReadChunk, Transport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled

OK, BUSY = BookieStatus.OK, BookieStatus.TOO_MANY_REQUESTS


class Target:
    """A bookie that answers each run with the next of these statuses; None: with an OK that lacks
    the last entry. Behind the last of them it is silent."""

    def __init__(self, answers: Sequence[BookieStatus | None]) -> None:
        self.answers = list(answers)
        self.sent: list[EntryRun] = []
        self.open = self.most_open = 0

    def opened(
        self,
        bookie_id: BookieId,
        *_given: object,
        on_result: Callable[[AddResult], None],
        **_: object,
    ) -> Stream:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        return Stream(self, bookie_id, on_result)


class Stream:
    """An appender to it."""

    def __init__(
        self, target: Target, bookie_id: BookieId, on_result: Callable[[AddResult], None]
    ) -> None:
        self._target, self._bookie_id, self._on_result = target, bookie_id, on_result

    def send(self, run: EntryRun) -> None:
        self._target.sent.append(run)
        if self._target.answers:
            answer = self._target.answers.pop(0)
            last = EntryId(run.last_entry - (answer is None))
            self._on_result(AddResult(self._bookie_id, answer or OK, last, "said so"))

    def close(self) -> None:
        self._target.open -= 1


class Copying:
    """A closed ledger that has lost its first member, and who copies it to a bookie that is new."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()

    async def prepare(self) -> Copying:
        self.client = await self.world.client()
        writer = await filled(self.client)
        await writer.close()
        ledger = (await LedgerStore(self.client.store).read(writer.ledger_id)).value
        (fragment,) = final_fragments(ledger)
        self.lost, *self.others = fragment.bookies
        self.target, *self.strangers = sorted(set(self.world.bookies) - set(fragment.bookies))
        self.ledger_id = writer.ledger_id
        self.lane: LaneCopy
        (self.lane,) = lane_copies(ledger, fragment, 0, lost={self.lost})
        throttles = Throttles(1e12, 1e12)
        self.copier = Copier(
            self.client.context, self.ledger_id, _access(ledger, b""), throttles, self.counts
        )
        return self

    async def to(self, target: Target) -> None:
        transport = self.client.context.transport
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "open_appender", target.opened)
            await self.copier.copy([self.lane], self.target)


@pytest.mark.parametrize(
    ("answers", "suspected"),
    [
        ([BookieStatus.IO_ERROR], True),
        ([BookieStatus.READ_ONLY], True),
        ([BookieStatus.UNAUTHORIZED], False),  # the worker has its lock no more: no fault of it
        ([], True),
        ([None], True),
        ([BookieStatus.STALLED], True),
        ([BUSY, BookieStatus.IO_ERROR], True),
        ([BUSY], True),
    ],
)
def test_copy_that_was_not_stored_whole_counts_as_none_and_its_target_is_blamed(
    answers: list[BookieStatus | None], *, suspected: bool
) -> None:
    async def test(world: World) -> None:
        made, target = await Copying(world).prepare(), Target(answers)
        with pytest.raises(TargetFailedError, match="did not store a copy"):
            await made.to(target)
        assert target.answers == [] and not made.counts
        assert target.open == 0, "nothing of it is left open"
        assert made.client.context.suspects.now() == ({made.target} if suspected else set())

    run_virtually(test, bookies=4)


def test_busy_target_has_one_stream_and_gets_the_same_run_again() -> None:
    async def test(world: World) -> None:
        made, target = await Copying(world).prepare(), Target([BUSY] * 3 + [OK] * 20)
        await made.to(target)
        assert len({run.frames for run in target.sent[:4]}) == 1
        assert (target.open, target.most_open) == (0, 1)
        assert made.counts["entries"] == 20 and not made.client.context.suspects.now()

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("silent", [0, 1])
def test_entry_is_lost_only_if_every_source_says_so(silent: int) -> None:
    """The one that does not answer may have it."""

    async def test(world: World) -> None:
        made = await Copying(world).prepare()
        for name in world.bookies:
            world.bookies[name].ledgers.pop(made.ledger_id, None)
        if silent:
            world.kill(made.others[0])
        error = BookieUnavailableError if silent else NoSuchEntryError
        with pytest.raises(error, match="entry 0"):
            await made.to(Target([OK] * 20))

    run_virtually(test, bookies=4)


def test_lost_member_is_asked_when_nobody_else_has_an_entry() -> None:
    async def test(world: World) -> None:
        made, target = await Copying(world).prepare(), Target([OK] * 20)
        for name in made.others:
            del world.bookies[name].ledgers[made.ledger_id].entries[7]
        directory = made.client.context.directory
        there = [info for info in directory.all() if info.bookie_id != made.lost]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(directory, "all", lambda: there)
            await made.to(target)
        assert made.counts["entries"] == 20

    run_virtually(test, bookies=4)


def test_copies_wait_for_the_rate_of_their_source() -> None:
    async def test(world: World) -> None:
        made = await Copying(world).prepare()
        waited: list[tuple[BookieId, int]] = []

        async def take(source: BookieId, count: int) -> None:
            assert not made.counts["bytes"] - sum(each for _, each in waited), "it waits before"
            waited.append((source, count))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made.copier._throttles, "take", take)
            await made.to(Target([OK] * 20))
        assert {source for source, _ in waited} <= set(made.others)
        assert sum(count for _, count in waited) == made.counts["bytes"] > 0

    run_virtually(test, bookies=4)


class OpenCalls:
    """Reads that have begun and not ended."""

    def __init__(self, transport: Transport) -> None:
        self.now = self.in_all = 0
        self.bounds: set[int] = set()
        self._read = transport.read

    async def read(self, *asked: Any, **how: Any) -> AsyncGenerator[ReadChunk, None]:
        self.now += 1
        self.in_all += 1
        self.bounds.add(how["max_bytes"])
        try:
            async with aclosing(self._read(*asked, **how)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.now -= 1


@pytest.mark.parametrize("entries_at_once", [1, 7, 1000])
@pytest.mark.parametrize("knows_password", [True, False])
def test_no_read_is_open_while_a_copy_waits_for_its_rate_or_its_target(
    entries_at_once: int, *, knows_password: bool
) -> None:
    """A bookie holds the next part of an open read: many copies left no room for other readers."""

    async def test(world: World) -> None:
        made = await Copying(world).prepare()
        if not knows_password:
            made.copier._access = made.copier._access._replace(digest=None)
        calls = OpenCalls(made.client.context.transport)
        waits: list[int] = []

        async def take(_source: BookieId, _count: int) -> None:
            waits.append(calls.now)

        class Watched(Target):
            def opened(self, *given: Any, **how: Any) -> Stream:
                stream = super().opened(*given, **how)
                send = stream.send

                def watched(run: EntryRun) -> None:
                    waits.append(calls.now)
                    send(run)

                stream.send = watched  # type: ignore[method-assign]
                return stream

        target = Watched([OK] * 20)
        with pytest.MonkeyPatch.context() as patch:
            one = made.lane
            size = len(
                next(iter(world.bookies[made.others[0]].ledgers[made.ledger_id].entries.values()))
            )
            patch.setattr(merging, "READ_CHUNK_BYTES_TARGET", size * entries_at_once)
            patch.setattr(made.client.context.transport, "read", calls.read)
            patch.setattr(made.copier._throttles, "take", take)
            await made.to(target)
        assert set(waits) == {0} and calls.now == 0
        assert [e for run in target.sent for e in run.ids()] == list(range(20))
        assert calls.in_all >= 20 / entries_at_once
        assert calls.bounds == {size * entries_at_once}, "else a bookie reads ahead for nobody"
        if knows_password:
            assert made.copier.was_brought(one, made.others[0])

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("goes_on_with", ["the same", "another ledger's", "the next"])
@pytest.mark.parametrize("knows_password", [True, False])
def test_source_that_goes_on_sending_is_heard_no_longer_than_it_was_asked(
    goes_on_with: str, *, knows_password: bool
) -> None:
    """Nothing of an answer is stored before it has ended: and it would fill the memory."""

    async def test(world: World) -> None:
        made, target = await Copying(world).prepare(), Target([OK] * 40)
        if not knows_password:
            made.copier._access = made.copier._access._replace(digest=None)
        transport = made.client.context.transport
        honest, sent = transport.read, list[int]()

        async def read(
            bookie_id: BookieId, ledger_id: LedgerId, first: int, last: int, **how: Any
        ) -> AsyncGenerator[ReadChunk, None]:
            ids = range(first, last + 1)
            if bookie_id != made.others[0]:
                async for chunk in honest(
                    bookie_id, ledger_id, EntryId(first), EntryId(last), **how
                ):
                    yield chunk
                return
            sent.append(0)
            for entry_id in map(EntryId, ids):
                async for chunk in honest(bookie_id, ledger_id, entry_id, entry_id, **how):
                    sent[-1] += 1
                    yield chunk
                while goes_on_with != "the next":
                    wrong = EntryRun(LedgerId(made.ledger_id + 1), entry_id, None, [40], bytes(40))
                    sent[-1] += 1
                    yield chunk if goes_on_with == "the same" else chunk._replace(run=wrong)
                    assert sent[-1] < 10, "what it sends is kept"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "read", read)
            patch.setattr(merging, "READ_CHUNK_BYTES_TARGET", 100)
            await made.to(target)
        assert [e for run in target.sent for e in run.ids()] == list(range(20))
        assert sent and max(sent) <= 3, "of some fifty bytes each"

    run_virtually(test, bookies=4)


def test_entry_that_only_another_bookie_has_is_copied_from_there() -> None:
    """The metadata are a backup from before a move: who is named has given its copy back."""

    async def test(world: World) -> None:
        made, target = await Copying(world).prepare(), Target([OK] * 20)
        (holder,) = made.strangers
        world.bookies[holder].ledgers[made.ledger_id] = world.bookies[made.lost].ledgers.pop(
            made.ledger_id
        )
        for name in made.others:
            world.bookies[name].ledgers.pop(made.ledger_id)
        await made.to(target)
        assert made.counts["entries"] == 20

    run_virtually(test, bookies=5)


def test_entry_that_one_of_its_members_has_is_asked_of_nobody_else() -> None:
    async def test(world: World) -> None:
        made, target = await Copying(world).prepare(), Target([OK] * 20)
        named = {made.lost, *made.others}
        transport = made.client.context.transport
        read, asked = transport.read, set()

        def watched(bookie_id: BookieId, *given: object, **named: object) -> object:
            asked.add(bookie_id)
            return read(bookie_id, *given, **named)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "read", watched)
            await made.to(target)
        assert asked and asked <= named

    run_virtually(test, bookies=6)
