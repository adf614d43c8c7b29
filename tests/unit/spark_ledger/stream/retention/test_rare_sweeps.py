"""Sweeps in rare states: what others left behind, ledgers of several commits, lost pages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest

from spark_ledger.errors import (
    ConflictError,
    CorruptionError,
    DataLossError,
    LedgerError,
    NoSuchStreamError,
)
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.naming import Naming
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format import codec
from spark_ledger.stream.retention import reclaim
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.reclaim import Reclaimed, Reclaimer
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import packs_of
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.retention.test_giving_back import closed_commits
from tests.unit.spark_ledger.stream.retention.test_truncation import Between
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    numbers,
    root_of,
    run,
    small_manifests,
    table,
)


async def keeper_of(ledgers: FakeLedgers) -> tuple[Stream, Reclaimer]:
    """A keeper that has just begun."""
    stream = await another(ledgers)[1].open("s")
    return stream, stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())


async def former(ledgers: FakeLedgers, commits: int) -> Stream:
    """A stream of the first format, which has no manifests."""
    stream = await closed_commits(ledgers, commits)
    config = await ledgers.store.get(stream._nodes.config_path)
    before = codec.encode_config(replace(stream.config, has_manifests=False))
    await ledgers.store.put(stream._nodes.config_path, before, config.version)
    await ledgers.store.delete(stream._nodes.manifests_path)
    return await another(ledgers)[1].open("s")


def test_stream_of_the_first_format_is_given_back_from_the_second_step_on() -> None:
    """The first one makes the nodes that say what is given back."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await former(ledgers, 4)
        await stream.retention.truncate((3,))
        _, reclaimer = await keeper_of(ledgers)
        assert await reclaimer.step(0) == Reclaimed(0, 0, is_done=True)
        assert not (await stream.refresh()).has_manifests, "nothing is to be given back"
        steps = [await reclaimer.step(3) for _ in range(3)]
        assert steps == [
            Reclaimed(0, 0, is_done=False),
            Reclaimed(3, 3, is_done=True),
            Reclaimed(0, 0, is_done=True),
        ]
        assert root_of(ledgers).dropped == 3 and len(ledgers.ledgers) == 1

    run(scenario())


def test_stream_of_the_first_format_is_packed() -> None:
    """It gets manifests and holds along with the packs, and programs of before are kept out."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await former(ledgers, 4)
        (packed,) = await stream.optimizer.run_all(entries_min=1)
        assert [packed.pack] == list(packs_of(ledgers).packs)
        config = await stream.refresh()
        assert config.has_manifests and config.has_retention and config.has_packs
        assert root_of(ledgers).dropped == 0 and await stream.retention.holds() == []

    run(scenario())


def test_step_takes_back_the_list_of_a_killed_keeper_also_where_nothing_is_left() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 4)
        await stream.retention.truncate((3,))
        _, reclaimer = await keeper_of(ledgers)
        assert (await reclaimer.step(3)).is_done
        listed = replace(await stream.refresh(), dropping=(LedgerId(103),))
        assert await stream.retention._replace_config(listed)
        _, other = await keeper_of(ledgers)
        assert await other.step(3) == Reclaimed(0, 0, is_done=True)
        assert (await stream.refresh()).dropping == ()

    run(scenario())


async def named_by_two(ledgers: FakeLedgers, large: int) -> tuple[Stream, LedgerId]:
    """Commits 0 and 1 with so many rows, and 2 and 3 of one row, which are in a pack; all of them
    in one ledger."""
    stream = await closed_commits(ledgers, 0)
    writer = stream.writer()
    for first, rows in ((0, large), (large, large), (2 * large, 1), (2 * large + 1, 1)):
        await writer.write(table(first, rows))
        await stream.commit_segments(await writer.finish())
    await writer.close()
    (packed,) = await stream.optimizer.run_all(entry_bytes=16 * 1024, entries_min=1)
    assert (packed.first, packed.commits) == (2, 2)
    return stream, (await stream.commit(0)).segments[0].ledger_id


@pytest.mark.parametrize("earliest", [0, 1, 2])
def test_former_ledger_that_a_commit_before_the_pack_names_stays(earliest: int) -> None:
    """Also where that commit was dropped and is not given back yet: somebody may be reading it."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream, former_id = await named_by_two(ledgers, 200)
        (pack,) = packs_of(ledgers).packs
        if earliest:
            await stream.retention.truncate((earliest,))
        _, reclaimer = await keeper_of(ledgers)
        assert await reclaimer.free_packed() == 0
        assert set(ledgers.ledgers) == {pack.ledger_id, former_id}
        assert packs_of(ledgers).packs[0].is_freed, "it is found with the other commits"
        fresh = await another(ledgers)[1].open("s")
        assert await numbers(fresh.read()) == list(range(200 * earliest, 402))
        await fresh.retention.truncate((2,))
        _, reclaimer = await keeper_of(ledgers)
        assert await reclaimer.step(2) == Reclaimed(1, 2, is_done=True)
        assert set(ledgers.ledgers) == {pack.ledger_id}
        assert await numbers((await another(ledgers)[1].open("s")).read()) == [400, 401]

    run(scenario())


def test_keeper_that_has_just_begun_knows_the_packs() -> None:
    """Commits that are live and in a pack need none of the ledgers that dropped ones name."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 0)
        writer = stream.writer()
        for n in range(4):
            await writer.write(table(n))
            await stream.commit_segments(await writer.finish())
        await writer.close()
        await stream.optimizer.run_all(entries_min=1)
        await stream.retention.truncate((2,))
        _, reclaimer = await keeper_of(ledgers)
        assert await reclaimer.step(2) == Reclaimed(1, 2, is_done=True)
        assert await numbers((await another(ledgers)[1].open("s")).read()) == [2, 3]

    run(scenario())


def test_page_that_is_gone_hides_only_its_own_commits_from_the_next_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One was killed behind its deletion; the commit behind it has a ledger that was open."""
    small_manifests(monkeypatch, leaf=2, fan_out=100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 2)
        writer = stream.writer()
        await writer.write(table(2))
        await stream.commit_segments(await writer.finish())
        for n in range(3, 7):
            other = stream.writer()
            await other.write(table(n))
            segments = await other.finish()
            await other.close()
            await stream.commit_segments(segments)
            await stream._committer.sealer.seal(n + 1)
        (first, *_) = root_of(ledgers).pages()
        await stream.retention.truncate((6,))
        _, reclaimer = await keeper_of(ledgers)
        assert await reclaimer.step(1) == Reclaimed(1, 1, is_done=True)
        assert root_of(ledgers).pages()[0] == first, "it has commit 1 as well"
        gone = (await stream.commit(1)).segments[0].ledger_id, LedgerId(first.pointer.ledger_id)
        for ledger_id in gone:  # in this order
            await ledgers.store.delete(ledger_path(ledger_id))
        _, reclaimer = await keeper_of(ledgers)
        await reclaimer.step(4)
        assert root_of(ledgers).dropped == 2 and writer.ledger_id in ledgers.ledgers
        await writer.close()
        while not (await reclaimer.step(6)).is_done:
            pass
        assert root_of(ledgers).dropped == 6
        fresh = await another(ledgers)[1].open("s")
        with pytest.raises(DataLossError, match="was truncated"):
            await fresh.commit(5)
        named = root_of(ledgers).ledgers()
        assert set(ledgers.ledgers) == named | {(await fresh.commit(6)).segments[0].ledger_id}

    run(scenario())


def test_commit_that_was_given_back_is_not_read_though_its_page_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=4, fan_out=100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 9)
        await stream._committer.sealer.seal(9)
        await stream.retention.truncate((3,))
        _, reclaimer = await keeper_of(ledgers)
        assert (await reclaimer.step(3)).is_done and root_of(ledgers).first == 0
        fresh = await another(ledgers)[1].open("s")
        for number in range(3):
            with pytest.raises(DataLossError, match=f"commit {number} was truncated, like all"):
                await fresh.commit(number)
        assert [(await fresh.commit(n)).number for n in range(3, 9)] == list(range(3, 9))

    run(scenario())


def test_keeper_of_a_stream_that_was_replaced_gives_nothing_back_of_the_new_one() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await closed_commits(ledgers, 3)
        _, reclaimer = await keeper_of(ledgers)
        await StreamCatalog(ledgers).delete("s")
        new = await StreamCatalog(ledgers).create("s", SCHEMA)
        for n in range(3):
            await new.append(table(n))
        await new.retention.truncate((2,))
        for upto in (0, 2):
            with pytest.raises(NoSuchStreamError):
                await reclaimer.step(upto)
        assert root_of(ledgers).dropped == 0 and await numbers(new.read()) == [2]

    run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_ledgers_without_an_owner_are_recovered_as_long_as_there_is_time(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its turn, though no recovery succeeds, and closed ledgers wait for none of them.
    Another error of the stream has no part in it."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 3)
        closed = set(ledgers.ledgers)
        for n in range(4):
            writer = stream.writer()
            await writer.write(table(n))
            await stream.commit_segments(await writer.finish())
        for each in ledgers.ledgers.values():
            each.metadata = replace(each.metadata, owner="")
        await stream.retention.truncate("latest")
        recovered: list[LedgerId] = []
        times = [0]

        class Slow(ClosedDeletions):
            async def recover(self, ledger_id: LedgerId) -> None:
                times.pop()
                recovered.append(ledger_id)

        async def failing(reclaimer: Reclaimer, *_: object) -> None:
            raise CorruptionError("a page")

        if fails:
            monkeypatch.setattr(Reclaimer, "_write_root", failing)
        names, visits = LiveNames(), list[list[LedgerId]]()
        for _ in range(5):
            times[:], recovered = [1, 2, 3], []
            reclaimer = stream.retention.reclaimer(Slow(ledgers), names)
            with pytest.raises(CorruptionError) if fails else nullcontext():
                await reclaimer.step(7, lambda: bool(times))
            assert not closed & set(ledgers.ledgers)
            visits.append(recovered)
        a, b, c, d = sorted(ledgers.ledgers)
        assert visits == [[a, b, c], [d], [a, b, c], [d], [a, b, c]]

    run(scenario())


@pytest.mark.parametrize("owner", ["", "client-7"])
def test_open_ledger_is_recovered_only_if_nobody_owns_it(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To recover one fences its writer; and a closed one has to wait for its turn only."""
    monkeypatch.setattr(reclaim, "DROPPING_LEDGERS_MAX", 1)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 3)
        writer = stream.writer()
        await writer.write(table(3))
        await stream.commit_segments(await writer.finish())
        is_open = ledgers.ledgers[writer.ledger_id or 0]
        is_open.metadata = replace(is_open.metadata, owner=owner)
        await stream.retention.truncate((4,))
        recovered: list[LedgerId] = []

        class Noting(ClosedDeletions):
            async def recover(self, ledger_id: LedgerId) -> None:
                recovered.append(ledger_id)

        reclaimer = stream.retention.reclaimer(Noting(ledgers), LiveNames())
        steps = [await reclaimer.step(4) for _ in range(4)]
        assert [each.ledgers for each in steps] == [3, 0, 0, 0]
        assert set(ledgers.ledgers) == {writer.ledger_id}
        assert recovered == ([] if owner else [writer.ledger_id] * 4)

    run(scenario())


def test_ledger_that_could_not_be_deleted_is_not_counted_and_its_commit_is_found_again() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 4)
        await stream.retention.truncate((4,))
        refused = [(await stream.commit(2)).segments[0].ledger_id]

        class Refusing(ClosedDeletions):
            async def delete(
                self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]
            ) -> bool:
                if ledger.value.ledger_id in refused:
                    refused.clear()
                    return False
                return await super().delete(ledger, checks)

        reclaimer = stream.retention.reclaimer(Refusing(ledgers), LiveNames())
        assert await reclaimer.step(4) == Reclaimed(3, 2, is_done=True)
        assert root_of(ledgers).dropped == 2 and len(ledgers.ledgers) == 1
        assert await reclaimer.step(4) == Reclaimed(1, 2, is_done=True)
        assert not ledgers.ledgers and (await stream.refresh()).dropping == ()

    run(scenario())


def test_pack_is_named_until_its_ledger_is_gone() -> None:
    """What names others goes last: else a keeper that is killed between leaves it (rule T18)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 2)
        await stream.optimizer.run_all(entries_min=1)
        (pack,) = packs_of(ledgers).packs
        await stream.retention.truncate((2,))

        class Late(ClosedDeletions):
            async def delete(
                self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]
            ) -> bool:
                return ledger.value.ledger_id != pack.ledger_id and await super().delete(
                    ledger, checks
                )

        reclaimer = stream.retention.reclaimer(Late(ledgers), LiveNames())
        assert await reclaimer.step(2) == Reclaimed(2, 2, is_done=True)
        with pytest.raises(ConflictError, match="could not be deleted yet"):
            await reclaimer.free_packed()
        assert packs_of(ledgers).packs == (pack,) and set(ledgers.ledgers) == {pack.ledger_id}
        _, other = await keeper_of(ledgers)
        assert await other.free_packed() == 1
        assert not packs_of(ledgers).packs and not ledgers.ledgers

    run(scenario())


@pytest.mark.parametrize("work", ["step", "free_packed", "delete_unlisted"])
def test_ledger_that_a_commit_names_between_any_two_steps_of_a_sweep_stays(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the commit is refused, because the ledger is listed or gone (rule T17)."""
    monkeypatch.setattr(FakeLedgers, "naming", property(lambda each: Naming(each.store)))

    async def scenario(at: int) -> tuple[bool, bool]:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 3)
        segments = (await stream.commit(0)).segments
        if work == "free_packed":
            await stream.optimizer.run_all(entries_min=1)
        else:
            await stream.retention.truncate((1,))
        keeper, reclaimer = await keeper_of(ledgers)
        if work == "delete_unlisted":
            await reclaimer.step(0)
        writer = await another(ledgers)[1].open("s")
        made = False

        async def commit() -> None:
            nonlocal made
            with suppress(LedgerError):
                await writer.commit_segments(segments)
                made = True

        between = Between(keeper._nodes.store, at, commit)
        keeper._nodes.store = between
        with suppress(ConflictError):
            if work == "step":
                await reclaimer.step(1)
            elif work == "free_packed":
                await reclaimer.free_packed()
            else:
                await reclaimer.delete_unlisted([segments[0].ledger_id], 1)
        if made:
            assert segments[0].ledger_id in ledgers.ledgers, at
            fresh = await another(ledgers)[1].open("s")
            assert (await numbers(fresh.read()))[-1] == 0, at
        return between.calls_left > 0, made

    at, found = 1, []
    while True:
        is_over, made = run(scenario(at))
        if is_over:
            break
        found.append(made)
        at += 1
    assert found[0] and at > 4, "the first one is in time"
