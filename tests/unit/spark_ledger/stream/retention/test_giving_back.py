"""Space given back in steps: how much at once, what a step says of it, and what it leaves alone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from spark_ledger.errors import ConflictError
from spark_ledger.metadata.base import Check, Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_log import NamedLedgers
from spark_ledger.stream.packs.format import encode_packs
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.stream.retention import reclaim
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.reclaim import Reclaimed
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import freed, optimize, packs_of, write
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.world import SCHEMA, another, numbers, root_of, run, table


async def closed_commits(ledgers: FakeLedgers, count: int, *, each: int = 1) -> Stream:
    """A stream of commits with so many ledgers of their own each, all closed."""
    await ledgers.store.create("keeper", b"")
    stream = await StreamCatalog(ledgers).create("s", SCHEMA)
    for number in range(count):
        segments = []
        for _ in range(each):
            writer = stream.writer()
            await writer.write(table(number))
            segments += await writer.finish()
            await writer.close()
        await stream.commit_segments(segments)
    return stream


class NotElected(ClosedDeletions):
    """Of a keeper that another one has followed."""

    def guard(self) -> Operation:
        return Check("keeper", 7)


def test_step_gives_back_some_commits_and_says_whether_more_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reclaim, "DROPPED_PER_STEP", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 6)
        await stream.retention.truncate((5,))
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        steps = [await reclaimer.step(5) for _ in range(4)]
        assert steps == [
            Reclaimed(2, 2, is_done=False),
            Reclaimed(2, 2, is_done=False),
            Reclaimed(1, 1, is_done=True),
            Reclaimed(0, 0, is_done=True),
        ]
        assert len(ledgers.ledgers) == 1 and root_of(ledgers).dropped == 5

    run(scenario())


def test_ledgers_are_listed_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration has them, which every commit and every reader reads (rule T17)."""
    monkeypatch.setattr(reclaim, "DROPPING_LEDGERS_MAX", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 2, each=5)
        await stream.retention.truncate((5,))
        listed: list[int] = []

        class Noting(ClosedDeletions):
            async def delete(
                self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]
            ) -> bool:
                listed.append(len((await stream.refresh()).dropping))
                return await super().delete(ledger, checks)

        reclaimer = stream.retention.reclaimer(Noting(ledgers), LiveNames())
        for _ in range(5):
            await reclaimer.step(1)
        assert listed == [2, 2, 2, 2, 1]
        assert len(ledgers.ledgers) == 5 and root_of(ledgers).dropped == 1
        assert (await stream.refresh()).dropping == ()

    run(scenario())


def test_step_that_drops_nothing_leaves_the_configuration_as_it_is() -> None:
    """Each change of it makes the commits that are on their way begin again."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 3)
        await stream.retention.truncate((2,))
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert (await reclaimer.step(2)).is_done
        before = await ledgers.store.get("streams/s/config")
        assert await reclaimer.step(2) == Reclaimed(0, 0, is_done=True)
        await reclaimer.withdraw()
        assert await ledgers.store.get("streams/s/config") == before

    run(scenario())


def test_keeper_that_is_not_elected_any_more_changes_nothing() -> None:
    """Neither the list of ledgers, nor the packs, nor the root."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 4)
        await optimize(stream)
        await stream.retention.truncate((2,))
        former = stream.retention.reclaimer(NotElected(ledgers), LiveNames())
        paths = [f"streams/s/{node}" for node in ("config", "packs", "manifests")]
        before = [await ledgers.store.get(path) for path in paths]
        for work in (former.step(2), former.free_packed()):
            with pytest.raises(ConflictError):
                await work
        assert [await ledgers.store.get(path) for path in paths] == before
        await freed(stream, ledgers)
        packs, looks = packs_of(ledgers).packs, await ledgers.store.get("streams/s/packs")
        again = encode_packs(Packs((packs[0]._replace(is_freed=False),)))
        await ledgers.store.put("streams/s/packs", again, looks.version)
        with pytest.raises(ConflictError):
            await former.free_packed()  # nothing is left to be deleted
        assert not packs_of(ledgers).packs[0].is_freed
        ids = (LedgerId(100),)
        listed = replace(await stream.refresh(), dropping=ids)
        assert await stream.retention._replace_config(listed)
        with pytest.raises(ConflictError):
            await former.withdraw()
        assert (await stream.refresh()).dropping == ids

    run(scenario())


def test_ledger_of_another_stream_that_a_dropped_commit_names_stays() -> None:
    """Its own stream gives it back (rule T7)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 2)
        other = await StreamCatalog(ledgers).create("t", SCHEMA)
        writer = other.writer()
        await writer.write(table(7))
        segments = [replace(each, stream_id="") for each in await writer.finish()]
        await writer.close()
        await stream.commit_segments(segments)
        await stream.retention.truncate("latest")
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert await reclaimer.step(3) == Reclaimed(2, 3, is_done=True)
        assert await reclaimer.delete_unlisted([segments[0].ledger_id], 3) == 0
        assert list(ledgers.ledgers) == [segments[0].ledger_id]

    run(scenario())


def test_ledger_that_a_commit_since_the_audit_began_names_is_not_deleted() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 4)
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        ids = [(await stream.commit(n)).segments[0].ledger_id for n in range(4)]
        assert await reclaimer.delete_unlisted([ids[2], ids[3]], 2) == 0
        # It is told that nothing before commit 2 names it.
        assert await reclaimer.delete_unlisted([ids[1], ids[2]], 2) == 1
        assert set(ledgers.ledgers) == {ids[0], ids[2], ids[3]}
        assert (await stream.refresh()).dropping == ()

    run(scenario())


def test_ledger_that_its_writer_has_open_is_not_deleted_for_an_audit() -> None:
    """Its next rows may be committed."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 2)
        writer = stream.writer()
        await writer.write(table(2))
        segments = await writer.finish()
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert await reclaimer.delete_unlisted([segments[0].ledger_id], 2) == 0
        await stream.commit_segments(segments)
        assert await numbers(stream.read()) == [0, 1, 2]
        await writer.close()

    run(scenario())


def test_ledger_is_not_deleted_once_its_list_was_withdrawn_and_a_commit_names_it() -> None:
    """By the next keeper, while this one was stopped before the deletion (rule T17)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 2)
        segments = (await stream.commit(0)).segments
        await stream.retention.truncate((1,))
        following = await another(ledgers)[1].open("s")

        class Stopped(ClosedDeletions):
            async def delete(
                self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]
            ) -> bool:
                keeper = following.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
                await keeper.withdraw()
                await following.commit_segments(segments)
                return await super().delete(ledger, checks)

        with contextlib.suppress(ConflictError):
            await stream.retention.reclaimer(Stopped(ledgers), LiveNames()).step(1)
        assert await numbers(following.read()) == [1, 0]

    run(scenario())


async def packed_apart(ledgers: FakeLedgers, packs: int) -> Stream:
    """A stream of so many packs of two commits each."""
    stream = await closed_commits(ledgers, 0)
    for number in range(packs):
        await write(stream, range(2 * number, 2 * number + 2))
        await optimize(stream)
    return stream


def test_packs_are_freed_and_dropped_in_one_sweep() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await packed_apart(ledgers, 4)
        await stream.retention.truncate((5,))
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert (await reclaimer.step(2)).ledgers == 2, "former ledgers of the first pack"
        assert await reclaimer.free_packed() == 1 + 3 * 2, "the first pack, and of the others"
        found = packs_of(ledgers).packs
        assert [(pack.first, pack.is_freed) for pack in found] == [(2, True), (4, True), (6, True)]
        assert set(ledgers.ledgers) == {pack.ledger_id for pack in found}
        assert await reclaimer.free_packed() == 0

    run(scenario())


def test_pack_that_came_meanwhile_is_not_forgotten_by_a_sweep() -> None:
    """The node of packs is replaced in the version that was read."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await packed_apart(ledgers, 1)
        other = await another(ledgers)[1].open("s")
        await write(other, range(2, 4))
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        look = stream._reader.packs.read

        async def late() -> Versioned[Packs]:
            found = await look()
            if len(found.value.packs) == 1:
                await optimize(other)
            return found

        stream._reader.packs.read = late  # type: ignore[method-assign]
        with pytest.raises(ConflictError):
            await reclaimer.free_packed()
        assert [pack.first for pack in packs_of(ledgers).packs] == [0, 2]
        stream._reader.packs.read = look  # type: ignore[method-assign]
        await freed(stream, ledgers)
        assert all(pack.is_freed for pack in packs_of(ledgers).packs)

    run(scenario())


class Log:
    """The ledgers that commits name; those below ``dropped`` cannot be read."""

    def __init__(self, *named: Sequence[int], dropped: int = 0) -> None:
        self.named = [{LedgerId(each) for each in of_commit} for of_commit in named]
        self.dropped = dropped
        self.read: list[int] = []

    async def ledgers(self, numbers: Sequence[int]) -> dict[int, NamedLedgers]:
        assert all(n >= self.dropped for n in numbers), "their pages are gone"
        self.read += numbers
        return {n: NamedLedgers(self.named[n], None) for n in numbers}


@pytest.mark.parametrize("kept", [0, 1, 1000])
def test_names_of_live_commits_are_those_that_are_asked_for_now(kept: int) -> None:
    async def scenario() -> None:
        names, log = LiveNames(kept), Log([1], [2], [3, 4], [4], [5])

        async def found(ids: Sequence[int], first: int, end: int) -> list[int]:
            wanted = [LedgerId(each) for each in ids]
            return sorted(await names.named(log, wanted, first, end))  # type: ignore[arg-type]

        assert await found([7], 0, 2) == [], "none of those wanted"
        assert await found([1, 2, 3], 0, 2) == [1, 2]
        assert await found([2, 3], 1, 3) == [2, 3], "the first commit counts"
        log.dropped = 4  # all that was read before, and one more
        assert await found([1, 2, 3, 4, 5], 4, 5) == [5]
        if kept > 4:
            assert log.read == [0, 1, 2, 4], "each commit once"

    run(scenario())


def test_names_of_live_commits_are_read_again_once_others_are_packed() -> None:
    async def scenario() -> None:
        names, log = LiveNames(), Log([1], [2], [1], [3])
        pack = Pack(0, 2, 0, 2, LedgerId(9), 1, 2, 100)
        ids = [LedgerId(n) for n in (1, 2, 3)]
        for packs, found in (
            (Packs(), {1, 2, 3}),
            (Packs((pack,)), {1, 3}),
            (Packs((pack, pack._replace(first=2, end=4))), set()),
            (Packs((pack,)), {1, 3}),
        ):
            assert await names.named(log, ids, 0, 4, packs) == found  # type: ignore[arg-type]

    run(scenario())
