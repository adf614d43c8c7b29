"""Damaged metadata of a ledger, whatever it holds: it keeps the space of no other (rule K6)."""

from __future__ import annotations

import logging

import pytest

from spark_ledger.errors import CorruptionError, MetadataRestoredError
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.retention import reclaim
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.names import read_names
from spark_ledger.stream.retention.reclaim import Reclaimer
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeReader
from tests.unit.spark_ledger.stream.packs.test_packs import packs_of
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.retention.test_giving_back import closed_commits, packed_apart
from tests.unit.spark_ledger.stream.world import (
    free_merged,
    pages_of,
    root_of,
    run,
    small_manifests,
)

COMMITS = 14


class Damaged(FakeLedgers):
    """Ledgers of which some have metadata that do not decode: they are there, and no more."""

    def __init__(self, store: MemoryMetadataStore | None = None) -> None:
        super().__init__(store)
        self.damaged: set[int] = set()
        self.error: type[CorruptionError] = CorruptionError

    def look(self, ledger_id: int) -> None:
        if ledger_id in self.damaged and ledger_id in self.ledgers:
            raise self.error(f"metadata node of {ledger_id}: damaged")

    async def open_unconfirmed(self, ledger_id: int) -> FakeReader:
        self.look(ledger_id)
        return await super().open_unconfirmed(ledger_id)

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        self.look(ledger_id)
        return await super().ledger_metadata(ledger_id)

    async def fresh(self) -> Stream:
        """The stream as a program finds it that has read nothing of it."""
        other = Damaged(self.store.tree.open_session())
        other.ledgers, other.writers = self.ledgers, self.writers
        other.damaged, other.error = self.damaged, self.error
        return await StreamCatalog(other).open("s")

    async def visit(self, upto: int, names: LiveNames | None = None) -> int:
        """A keeper's; how many ledgers it deletes."""
        reclaimer = await keeper_of(self, names)
        deleted = 0
        while True:
            step = await reclaimer.step(upto)
            deleted += step.ledgers
            if step.is_done:
                return deleted


class DamagedDeletions(ClosedDeletions):
    ledgers: Damaged

    async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        self.ledgers.look(ledger_id)
        return await super().read(ledger_id)


async def keeper_of(ledgers: Damaged, names: LiveNames | None = None) -> Reclaimer:
    retention = (await ledgers.fresh()).retention
    return retention.reclaimer(DamagedDeletions(ledgers), names or LiveNames())


async def sealed(ledgers: Damaged, *, leaf_of: int) -> tuple[list[LedgerId], int]:
    """A stream with manifests: the ledger of each commit's rows, and that of the leaf of one."""
    stream = await closed_commits(ledgers, COMMITS)
    await stream._committer.sealer.seal(COMMITS)
    await stream._committer.sealer.close()
    rows = [(await stream.commit(n)).segments[0].ledger_id for n in range(COMMITS)]
    leaf = root_of(ledgers).leaf_commits
    (page,) = [
        each for each in await pages_of(stream) if (each.level, each.first // leaf) == (0, leaf_of)
    ]
    return rows, page.pointer.ledger_id


@pytest.mark.parametrize("per_step", [2, 5, 1000])
@pytest.mark.parametrize("fan_out", [2, 100], ids=["merged", "in-the-root"])
@pytest.mark.parametrize("leaf_of", [0, 1, 3])
def test_page_that_cannot_be_read_keeps_the_rows_of_no_other_page(
    leaf_of: int, fan_out: int, per_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is, also behind the commits of one step. What leads to it stays (rule T18)."""
    small_manifests(monkeypatch, leaf=2, fan_out=fan_out)
    monkeypatch.setattr(reclaim, "DROPPED_PER_STEP", per_step)

    async def scenario() -> None:
        ledgers, names = Damaged(), LiveNames()
        rows, damaged = await sealed(ledgers, leaf_of=leaf_of)
        await (await ledgers.fresh()).retention.truncate((1,))
        await ledgers.visit(1)  # a page may be dropped in part
        ledgers.damaged = {damaged}
        with pytest.raises(CorruptionError):
            await (await ledgers.fresh()).commit(2 * leaf_of + 1)
        stream = await ledgers.fresh()
        lost = {n for n in range(1, 12) if not await can_read(ledgers, n)}
        assert 2 * leaf_of + 1 in lost and len(lost) <= 8
        await stream.retention.truncate((12,))
        deleted = await ledgers.visit(12, names)
        assert set(ledgers.ledgers) >= {rows[n] for n in [*lost, 12, 13]} | {damaged}
        gone = set(range(12)) - lost
        assert deleted > 0 and not set(ledgers.ledgers) & {rows[n] for n in gone}
        assert root_of(ledgers).dropped == min(lost)
        assert await ledgers.visit(12, names) == 0, "all else is gone"
        ledgers.damaged.clear()
        await ledgers.visit(12, names)
        assert root_of(ledgers).dropped == 12
        root = root_of(ledgers)
        kept = [page for page in await pages_of(stream) if not root.is_dropped(page)]
        assert set(ledgers.ledgers) == {*rows[12:], *(p.pointer.ledger_id for p in kept)}

    run(scenario())


@pytest.mark.parametrize("is_lost", [False, True])
def test_page_that_cannot_be_read_is_not_read_for_each_of_its_commits(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch, leaf=10, fan_out=100)

    async def scenario() -> None:
        ledgers = Damaged()
        _, damaged = await sealed(ledgers, leaf_of=0)
        await (await ledgers.fresh()).retention.truncate((10,))
        if is_lost:
            await ledgers.delete_ledger(damaged)
        else:
            ledgers.damaged = {damaged}
        stream = await ledgers.fresh()
        reads: list[int] = []
        opens = stream._log._ledgers.open_unconfirmed

        async def open_unconfirmed(ledger_id: LedgerId) -> object:
            reads.append(ledger_id)
            return await opens(ledger_id)

        monkeypatch.setattr(stream._log._ledgers, "open_unconfirmed", open_unconfirmed)
        found = await read_names(stream._log, range(10))
        assert not found.named and list(found.unread) == ([] if is_lost else list(range(10)))
        assert reads and set(reads) == {damaged}
        assert len(reads) <= 3

    run(scenario())


def test_page_that_can_be_read_again_gives_its_rows_back_behind_one_that_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A keeper that goes on behind the first one looks again at what it has passed over."""
    small_manifests(monkeypatch, leaf=2, fan_out=100)
    monkeypatch.setattr(reclaim, "DROPPED_PER_STEP", 2)

    async def scenario() -> None:
        ledgers, names = Damaged(), LiveNames()
        rows, first = await sealed(ledgers, leaf_of=0)
        stream = await ledgers.fresh()
        second = {p.first: p.pointer.ledger_id for p in await pages_of(stream)}[6]
        await stream.retention.truncate((12,))
        ledgers.damaged = {first, second}
        lost = [n for n in range(12) if not await can_read(ledgers, n)]
        assert lost == [0, 1, 6, 7]
        await ledgers.visit(12, names)
        assert {*rows[:12]} & set(ledgers.ledgers) == {rows[n] for n in lost}
        ledgers.damaged = {first}
        await ledgers.visit(12, names)
        assert {*rows[:12]} & set(ledgers.ledgers) == {*rows[:2]}
        assert root_of(ledgers).dropped == 0

    run(scenario())


async def can_read(ledgers: Damaged, number: int) -> bool:
    try:
        await (await ledgers.fresh()).commit(number)
    except CorruptionError:
        return False
    return True


def test_segment_list_that_cannot_be_read_keeps_the_rows_of_its_commit_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 50)

    async def scenario() -> None:
        ledgers, names = Damaged(), LiveNames()
        stream = await closed_commits(ledgers, 6)
        named = await stream._log.ledgers(range(6))
        damaged = named[2].segment_list
        assert damaged is not None
        ledgers.damaged = {damaged}
        await stream.retention.truncate((5,))
        live = {*named[5].rows, named[5].segment_list}
        for _ in range(3):
            await ledgers.visit(5, names)
            # The lists of later commits stay with the root, which stays at this one.
            later = {named[n].segment_list for n in (3, 4)}
            assert set(ledgers.ledgers) == {*named[2].rows, damaged, *later, *live}
        ledgers.damaged.clear()
        await ledgers.visit(5, names)
        assert set(ledgers.ledgers) == live

    with caplog.at_level(logging.WARNING):
        run(scenario())
    said = [text for text in caplog.messages if "what dropped commit 2 names is left" in text]
    assert len(said) == 1, "once, and not at each visit"


@pytest.mark.parametrize("what", ["list", "page"])
def test_what_names_others_stays_in_the_root_if_its_node_is_damaged_at_its_deletion(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been read just before."""
    small_manifests(monkeypatch, leaf=2, fan_out=100)
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 50)

    async def scenario() -> None:
        ledgers = Damaged()
        _, page = await sealed(ledgers, leaf_of=0)
        stream = await ledgers.fresh()
        named = await stream._log.ledgers(range(COMMITS))
        damaged = named[2].segment_list if what == "list" else page
        assert damaged is not None
        await stream.retention.truncate((12,))

        class Late(DamagedDeletions):
            async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
                if ledger_id == damaged:
                    raise CorruptionError("damaged since")
                return await super().read(ledger_id)

        retention = (await ledgers.fresh()).retention
        step = await retention.reclaimer(Late(ledgers), LiveNames()).step(12)
        dropped = 2 if what == "list" else 0
        assert (step.commits, root_of(ledgers).dropped) == (dropped, dropped)
        assert damaged in ledgers.ledgers
        assert not set(ledgers.ledgers) & {each for n in range(12) for each in named[n].rows}
        await ledgers.visit(12)
        assert root_of(ledgers).dropped == 12 and damaged not in ledgers.ledgers

    run(scenario())


def test_pack_that_cannot_be_read_and_one_over_such_a_commit_wait_and_the_others_are_freed() -> (
    None
):
    async def scenario() -> None:
        ledgers = Damaged()
        stream = await packed_apart(ledgers, 4)
        packs = packs_of(ledgers).packs
        await stream.retention.truncate((5,))
        await ledgers.visit(2)
        node = await ledgers.store.get("streams/s/commits/0000000/0000000004")
        await ledgers.store.put("streams/s/commits/0000000/0000000004", b"{", node.version)
        ledgers.damaged = {packs[0].ledger_id}
        for _ in range(2):
            await (await keeper_of(ledgers)).free_packed()
            found = packs_of(ledgers).packs
            assert [each.first for each in found] == [0, 2, 4, 6]
            assert [each.first for each in found if each.is_freed] == [0, 2, 6]
        current = await ledgers.store.get("streams/s/commits/0000000/0000000004")
        await ledgers.store.put("streams/s/commits/0000000/0000000004", node.value, current.version)
        ledgers.damaged.clear()
        await (await keeper_of(ledgers)).free_packed()
        assert [(each.first, each.is_freed) for each in packs_of(ledgers).packs] == [
            (2, True),
            (4, True),
            (6, True),
        ]
        assert set(ledgers.ledgers) == {each.ledger_id for each in packs_of(ledgers).packs}

    run(scenario())


def test_extent_of_a_stream_with_a_dropped_commit_that_cannot_be_read_begins_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=100)

    async def scenario() -> None:
        ledgers = Damaged()
        _, damaged = await sealed(ledgers, leaf_of=0)
        await (await ledgers.fresh()).retention.truncate((6,))
        ledgers.damaged = {damaged}
        lost = [n for n in range(6) if not await can_read(ledgers, n)]
        retention = (await ledgers.fresh()).retention
        extent = await retention.extent()
        assert (extent.reclaimable_rows, extent.dropped_commits) == (6 - len(lost), 0)
        assert lost == [0, 1]
        assert (await retention.crowded(1), await retention.crowded(10**9)) == (5, 0)

    run(scenario())


def test_metadata_that_were_restored_end_the_step_and_the_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are not of one ledger only."""
    small_manifests(monkeypatch, leaf=2, fan_out=2)

    async def scenario() -> None:
        ledgers = Damaged()
        _, page = await sealed(ledgers, leaf_of=0)
        await (await ledgers.fresh()).retention.truncate((6,))
        before = set(ledgers.ledgers)
        ledgers.damaged, ledgers.error = {page}, MetadataRestoredError
        with pytest.raises(MetadataRestoredError):
            await (await keeper_of(ledgers)).step(6)
        with pytest.raises(MetadataRestoredError):
            await StreamCatalog(ledgers).delete("s")
        assert set(ledgers.ledgers) == before

    run(scenario())


@pytest.mark.parametrize("what", ["leaf", "index", "list", "commit"])
def test_deletion_takes_the_rows_of_all_beside_what_cannot_be_read_and_says_so(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=2, kept=4)
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 50)

    async def scenario() -> None:
        ledgers = Damaged()
        rows, leaf = await sealed(ledgers, leaf_of=0)
        stream = await ledgers.fresh()
        assert await free_merged(ledgers)
        pages, last = await pages_of(stream), COMMITS - 1
        (index,) = {page.pointer.ledger_id for page in pages if page.level == 2}
        path = stream._nodes.commit_path(last)
        if what == "commit":
            node = await ledgers.store.get(path)
            await ledgers.store.put(path, b"{", node.version)
            lost = {last}
        else:
            named = (await stream._log.ledgers([last]))[last]
            damaged = {"leaf": leaf, "index": index, "list": named.segment_list or 0}[what]
            ledgers.damaged = {damaged}
            lost = {n for n in range(COMMITS) if not await can_read(ledgers, n)}
        assert lost and len(lost) < COMMITS
        naming = set(ledgers.ledgers) - set(rows)
        for _ in range(2):
            with pytest.raises(CorruptionError, match="'s' is deleted but for 1 of its ledgers"):
                await StreamCatalog(ledgers).delete("s")
            assert set(ledgers.ledgers) == {rows[n] for n in lost} | naming
        for ledger_id in ledgers.damaged:
            await ledgers.delete_ledger(ledger_id)
        if what == "commit":
            await ledgers.store.delete(path)
        await StreamCatalog(ledgers).delete("s")
        assert set(ledgers.ledgers) <= {rows[n] for n in lost} | naming
        assert ledgers.store.tree.children("streams") == []

    run(scenario())
