"""What packs and merged manifests have replaced is kept for a while: a backup of ZooKeeper names it
(rules T12, T25)."""

from __future__ import annotations

import json

import pytest

from spark_ledger.errors import ConflictError, CorruptionError, DataLossError
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Commit
from spark_ledger.stream.packs.format import decode_packs, encode_packs
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.stream.retention import reclaim
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import optimize, packs_of, write, written
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Backup,
    another,
    former_of,
    free_merged,
    loose,
    numbers,
    pages_of,
    root_of,
    run,
    small_manifests,
)


async def committed(stream: Stream, count: int) -> list[Commit]:
    """Commits of a writer that is slow enough for each leaf to get a ledger of its own."""
    found = []
    for _ in range(count):
        found.append(await stream.commit_segments([loose()]))
        await stream._committer.sealer.close()
    return found


async def sweep(ledgers: FakeLedgers, *, upto: int = 0, packs: int | None = None) -> None:
    """A keeper's visit: what the first so many packs have replaced may go."""
    stream = await another(ledgers)[1].open("s")
    reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames(), packs)
    if upto:
        await reclaimer.step(upto)
    await reclaimer.free_packed()


@pytest.mark.parametrize("packs", [0, 1])
def test_rows_that_were_packed_since_the_backup_are_read_if_their_ledgers_were_kept(
    packs: int,
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        reader = await another(ledgers)[1].open("s")
        backup, there = Backup(ledgers), dict(ledgers.ledgers)
        await optimize(stream)
        await sweep(ledgers, packs=packs)
        assert await numbers(reader.read()) == list(range(12))
        left = set(ledgers.ledgers)
        assert (set(there) <= left) is not bool(packs)
        backup.restore(ledgers, reader._ledgers)  # type: ignore[arg-type]
        ledgers.ledgers = {each: ledger for each, ledger in there.items() if each in left}
        reader._ledgers.ledgers = ledgers.ledgers  # type: ignore[attr-defined]
        for stream in (reader, await another(ledgers)[1].open("s")):
            if packs:
                with pytest.raises(DataLossError):
                    await numbers(stream.read())
            else:
                assert await numbers(stream.read()) == list(range(12))

    run(scenario())


def test_each_pack_is_freed_in_its_turn_and_says_so() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        first = set(ledgers.ledgers)
        await optimize(stream)
        await write(stream, range(6, 12))
        later = set(ledgers.ledgers) - first - {p.ledger_id for p in packs_of(ledgers).packs}
        await optimize(stream)
        packs = packs_of(ledgers)
        assert packs.made == 2 and [n for _, n in packs.waiting] == [1, 2]
        own = {pack.ledger_id for pack in packs.packs}
        await sweep(ledgers, packs=0)
        assert set(ledgers.ledgers) == first | later | own
        await sweep(ledgers, packs=1)
        assert set(ledgers.ledgers) == later | own
        assert packs_of(ledgers).waiting == packs.waiting[1:]
        await sweep(ledgers, packs=2)
        assert set(ledgers.ledgers) == own
        assert packs_of(ledgers).waiting == () and packs_of(ledgers).made == 2
        assert await numbers((await another(ledgers)[1].open("s")).read()) == list(range(24))

    run(scenario())


def test_ledger_of_dropped_rows_stays_while_a_pack_that_was_made_lately_has_others_of_it() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)  # all six commits are in the same two ledgers
        former = set(ledgers.ledgers)
        await optimize(stream)
        await stream.retention.truncate((6,))
        await sweep(ledgers, upto=3, packs=0)
        assert former <= set(ledgers.ledgers)
        await sweep(ledgers, packs=None)
        assert not former & set(ledgers.ledgers)
        assert await numbers((await another(ledgers)[1].open("s")).read()) == list(range(6, 12))

    run(scenario())


def test_dropped_packs_take_what_they_have_replaced_along() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        await stream.retention.truncate((12,))
        await sweep(ledgers, upto=6, packs=0)
        assert ledgers.ledgers == {} and packs_of(ledgers).packs == ()
        await write(stream, range(6, 12))
        await optimize(stream)
        assert packs_of(ledgers).waiting[0][1] == packs_of(ledgers).made == 2, "another one"

    run(scenario())


@pytest.mark.parametrize(
    "change",
    [{"waiting": [[1, 2]]}, {"made": 0}, {"waiting": [[99, 1]]}, {"waiting": [[1, 0]]}],
    ids=str,
)
def test_packs_that_wait_without_being_there_are_damage(change: dict[str, object]) -> None:
    packs = Packs().with_pack(Pack(0, 2, 0, 2, LedgerId(1), 1, 2, 10))
    data = encode_packs(packs)
    assert decode_packs(data, "p") == packs
    with pytest.raises(CorruptionError, match="wait to be freed"):
        decode_packs(json.dumps({**json.loads(data), **change}).encode(), "p")


def test_commits_of_pages_that_were_merged_since_the_backup_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=4)

    async def scenario(*, is_kept: bool) -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 8)
        backup, there = Backup(ledgers), dict(ledgers.ledgers)
        await committed(stream, 10)
        assert len(root_of(ledgers).levels) == 2
        assert await former_of(stream) >= set(there)
        if not is_kept:
            await free_merged(ledgers)
        left = set(ledgers.ledgers)
        backup.restore(ledgers)
        ledgers.ledgers = {each: ledger for each, ledger in there.items() if each in left}
        restored = await another(ledgers)[1].open("s")
        if is_kept:
            assert await restored.commits(0, 8) == commits
        else:
            with pytest.raises(DataLossError):
                await restored.commits(0, 8)

    for is_kept in (True, False):
        run(scenario(is_kept=is_kept))


def test_former_ledgers_go_with_their_page_when_its_commits_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, 30)
        former = await former_of(stream)
        assert len(former) == 12 and former < set(ledgers.ledgers)
        await stream.retention.truncate((13,))
        await sweep_step(ledgers, 13)
        assert len(await former_of(stream)) == 6
        root = root_of(ledgers)
        pages = [page for page in await pages_of(stream) if not root.is_dropped(page)]
        named = {page.pointer.ledger_id for page in pages}
        assert set(ledgers.ledgers) == await former_of(stream) | named

    async def sweep_step(ledgers: FakeLedgers, upto: int) -> None:
        stream = await another(ledgers)[1].open("s")
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        while not (await reclaimer.step(upto)).is_done:
            pass

    run(scenario())


def test_deleted_stream_leaves_none_of_its_former_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, 30)
        assert await former_of(stream)
        await StreamCatalog(ledgers).delete("s")
        assert ledgers.ledgers == {}

    run(scenario())


def test_former_ledgers_go_a_part_at_each_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)
    monkeypatch.setattr(reclaim, "MERGED_LEDGERS_PER_SWEEP", 4)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 44)
        freed = []
        while count := await free_merged(ledgers):
            freed.append((count, root_of(ledgers).freed))
        assert freed == [(6, 12), (6, 24), (6, 36), (3, 42)]
        pages = {page.pointer.ledger_id for page in await pages_of(stream)}
        assert set(ledgers.ledgers) == pages
        assert await (await another(ledgers)[1].open("s")).commits(0, 44) == commits

    run(scenario())


def test_former_ledgers_go_though_the_root_is_replaced_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by the writers of a busy stream: else each visit would look at all of them again."""
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def scenario(races: int) -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, 14)
        keeper = await another(ledgers)[1].open("s")
        upto, left = root_of(ledgers).merged_upto, races
        inner = keeper._nodes.store.transaction

        async def transaction(operations: list[Operation]) -> None:
            nonlocal left
            if left and any(each.path == "streams/s/manifests" for each in operations):
                left -= 1
                await committed(stream, 2)
            await inner(operations)

        monkeypatch.setattr(keeper._nodes.store, "transaction", transaction)
        reclaimer = keeper.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        if races > 10:
            with pytest.raises(ConflictError):
                await reclaimer.free_merged(upto)
        else:
            assert await reclaimer.free_merged(upto) == 6
            assert root_of(ledgers).freed == upto
        assert len(await (await another(ledgers)[1].open("s")).commits(0, 14)) == 14

    run(scenario(2))
    run(scenario(100))


@pytest.mark.parametrize("level", [1, 2])
def test_lost_page_costs_only_what_it_says_of_former_ledgers(
    level: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 33)
        pages = [page for page in await pages_of(stream) if page.level == level]
        lost = min(pages, key=lambda page: page.first)
        all_former = await former_of(stream)
        del ledgers.ledgers[lost.pointer.ledger_id]
        await free_merged(ledgers)
        root = root_of(ledgers)
        assert root.freed == root.merged_upto
        behind = lost.first + root.span(level)
        kept = all_former & set(ledgers.ledgers)
        assert len(kept) == root.span(level) // 2 and kept < all_former
        assert [each for each in caplog.messages if f"commits {lost.first} to" in each]
        reader = await another(ledgers)[1].open("s")
        assert await reader.commits(behind, 33) == commits[behind:]

    run(scenario())
