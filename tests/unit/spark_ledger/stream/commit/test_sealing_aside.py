"""Sealing beside the commits: what waits for it, what it reads, and what a lost page stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    CorruptionError,
    NoSuchStreamError,
)
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import sealer
from spark_ledger.stream.manifest.store import ManifestStore
from spark_ledger.stream.manifest.tree import ManifestRoot
from spark_ledger.stream.model import Commit
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeReader
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Faults,
    another,
    commit_nodes,
    former_of,
    free_merged,
    loose,
    pages_of,
    root_of,
    run,
    small_manifests,
)


async def committed(stream: Stream, count: int) -> list[Commit]:
    return [await stream.commit_segments([loose(2)]) for _ in range(count)]


def test_commit_does_not_wait_for_its_sealing(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch)
    monkeypatch.setattr(sealer, "SEAL_WAIT_S", 1000.0)
    monkeypatch.setattr(sealer, "SEAL_CLOSE_S", 30.0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 20)
        assert root_of(ledgers).sealed == 0 and len(ledgers.writers) == 1
        ledgers.hold = False
        ledgers.writers[0].deliver()
        await stream._committer.sealer.close()
        assert root_of(ledgers).sealed == 18, "also what was made meanwhile"
        assert await (await another(ledgers)[1].open("s")).commits(0, 20) == commits

    run(scenario())


def test_commit_waits_for_a_moment_where_too_many_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends right behind each of its commits would otherwise never seal any."""
    small_manifests(monkeypatch)
    monkeypatch.setattr(sealer, "UNSEALED_MAX", 6)
    monkeypatch.setattr(sealer, "SEAL_WAIT_S", 0.05)
    monkeypatch.setattr(sealer, "SEAL_CLOSE_S", 0.01)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        began = time.monotonic()
        commits = await committed(stream, 9)
        assert time.monotonic() - began >= 0.05, "the eighth has waited"
        assert len(ledgers.writers) == 1, "one sealing at a time"
        await stream.close()
        assert root_of(ledgers).sealed == 0
        ledgers.hold = False
        for number in range(9, 20):
            commits += await committed(await another(ledgers)[1].open("s"), 1)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()  # the process ends
            assert len(commit_nodes(ledgers)) <= 8, number
        assert await (await another(ledgers)[1].open("s")).commits(0, 20) == commits

    run(scenario())


def test_commit_of_a_long_stream_whose_commits_are_sealed_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What counts is how many commits have nodes, and not how many there are."""
    small_manifests(monkeypatch)
    monkeypatch.setattr(sealer, "UNSEALED_MAX", 6)
    monkeypatch.setattr(sealer, "SEAL_WAIT_S", 1000.0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for _ in range(10):
            await committed(stream, 2)
            await stream._committer.sealer.close()
        assert root_of(ledgers).sealed == 18
        ledgers.hold = True
        await committed(stream, 4)
        assert root_of(ledgers).sealed == 18, "the sealing waits for a bookie, and no commit for it"
        ledgers.hold = False
        ledgers.writers[-1].deliver()
        await stream._committer.sealer.close()
        assert root_of(ledgers).sealed == 22

    run(scenario())


def test_pages_that_were_sealed_here_are_merged_without_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=5)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 50)
        await stream._committer.sealer.close()
        assert len(root_of(ledgers).levels) == 2
        # Of those that a merge has parted from others of their ledger, the page above the others.
        assert all(first == 5 for _, first, _ in ledgers.reads)
        kept = stream._log.manifests._pages
        assert await free_merged(ledgers)
        assert {key[0] for key in kept} <= set(ledgers.ledgers), "nor are those kept that are gone"
        assert stream._log.manifests.memory_bytes == 1024 * len(kept)
        assert await (await another(ledgers)[1].open("s")).commits(0, 50) == commits

    run(scenario())


def test_sealing_that_dies_anywhere_leaves_no_ledger_that_a_root_has_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that no root has named is the keeper's (rule K4); of the others nobody would know."""
    small_manifests(monkeypatch, leaf=1, fan_out=3, kept=1000)
    named: set[int] = set()
    wrote = ManifestStore.wrote

    def noted(self: ManifestStore, root: ManifestRoot, version: int) -> None:
        named.update(root.ledgers())
        wrote(self, root, version)

    monkeypatch.setattr(ManifestStore, "wrote", noted)

    async def scenario(step: int) -> bool:
        named.clear()
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, 8)
        await stream.close()
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        monkeypatch.setattr(sealer, "LEAVES_PER_SEAL_MAX", 1)
        calls = 0

        def interpose(name: str, path: str) -> Fault:
            nonlocal calls
            calls += 1
            return Fault(Outcome.UNAVAILABLE if calls >= step else Outcome.NORMAL)

        _, streams = another(ledgers)
        dying = await streams.open("s")
        dying._nodes.store.interpose = interpose  # type: ignore[attr-defined]
        dying._committer.sealer._wanted = 8
        await dying._committer.sealer._seal_quietly()
        reader = await another(ledgers)[1].open("s")
        now = {page.pointer.ledger_id for page in await pages_of(reader)}
        now |= await former_of(reader)
        assert set(ledgers.ledgers) & named <= now, step
        assert len(await reader.commits(0, 8)) == 8
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1000)
        return calls >= step

    step = 1
    while run(scenario(step)):
        step += 1
    assert step > 10


def test_leaf_that_is_gone_and_was_kept_here_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a keeper has deleted a leaf that was dropped, and died before it wrote the root."""
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, 4)
        await stream._committer.sealer.close()
        (gone,) = root_of(ledgers).ledgers()
        await ledgers.delete_ledger(gone)
        await committed(stream, 20)  # it has kept the leaf
        await stream._committer.sealer.close()
        assert root_of(ledgers).sealed == 22
        assert len(root_of(ledgers).levels) == 3
        named = {page.pointer.ledger_id for page in await pages_of(stream)}
        assert set(ledgers.ledgers) == named | await former_of(stream) - {gone}
        assert len(await (await another(ledgers)[1].open("s")).commits(0, 24)) == 24

    run(scenario())


@pytest.mark.parametrize("is_damaged", [False, True])
def test_lost_leaf_keeps_no_page_from_being_named_by_another(
    is_damaged: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A root that named each leaf behind it would grow until no commit could be sealed."""
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 4)
        await stream._committer.sealer.close()
        (lost,) = root_of(ledgers).ledgers()
        if is_damaged:
            ledgers.ledgers[lost].payloads[0] = b"damaged"
        else:
            del ledgers.ledgers[lost]
        later = await another(ledgers)[1].open("s")
        for _ in range(58):
            commits += await committed(later, 2)
            await later._committer.sealer.close()
        root = root_of(ledgers)
        assert root.sealed == 118
        assert all(len(pages) < root.fan_out for pages in root.levels) and len(root.levels) == 4
        reader = await another(ledgers)[1].open("s")
        assert await reader.commits(2, 120) == commits[2:]
        with pytest.raises(CorruptionError):
            await reader.commit(0)
        (said,) = [each for each in caplog.messages if "stay where they are" in each]
        assert "commits 0 to 5" in said
        assert await free_merged(ledgers)
        named = {page.pointer.ledger_id for page in await pages_of(stream)}
        assert set(ledgers.ledgers) == named - ({lost} if not is_damaged else set())
        assert await reader.commits(2, 120) == commits[2:]

    run(scenario())


@pytest.mark.parametrize("loses", ["leaf", "page above", "nothing"])
def test_ledger_in_which_a_leaf_has_stayed_is_no_former_one(
    loses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal of many commits has put several leaves into it, and a merge takes only some."""
    small_manifests(monkeypatch, leaf=2, fan_out=3, kept=1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 15)
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 6)
        monkeypatch.setattr(ManifestRoot, "level_to_merge", lambda _: None)
        await (await another(ledgers)[1].open("s"))._committer.sealer.seal(15)
        (shared,) = root_of(ledgers).ledgers()
        assert len(root_of(ledgers).levels[0]) == 4
        if loses == "leaf":
            ledgers.ledgers[shared].payloads[0] = b"damaged"
        monkeypatch.undo()
        small_manifests(monkeypatch, leaf=2, fan_out=3, kept=6)
        await (await another(ledgers)[1].open("s"))._committer.sealer.seal(15)
        above = root_of(ledgers).levels[1][0].ledger_id
        if loses == "page above":
            del ledgers.ledgers[above]
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        await (await another(ledgers)[1].open("s"))._committer.sealer.seal(15)
        assert [len(pages) for pages in root_of(ledgers).levels] == [1, 2]
        await free_merged(ledgers)
        assert (shared in ledgers.ledgers) is (loses != "nothing")
        first = {"leaf": 2, "page above": 6, "nothing": 0}[loses]
        reader = await another(ledgers)[1].open("s")
        assert await reader.commits(first, 15) == commits[first:]

    run(scenario())


def test_leaf_whose_bookies_are_away_keeps_no_commit_from_being_sealed_and_is_merged_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, 5)
        await stream._committer.sealer.close()
        client, streams = another(ledgers)
        stream = await streams.open("s")
        opened = client.open_unconfirmed

        async def away(ledger_id: int) -> FakeReader:
            raise BookieUnavailableError("no answer")

        monkeypatch.setattr(client, "open_unconfirmed", away)
        for _ in range(6):
            await committed(stream, 2)
            await stream._committer.sealer.close()
        assert root_of(ledgers).sealed == 14 and len(root_of(ledgers).levels) == 1
        monkeypatch.setattr(client, "open_unconfirmed", opened)
        await committed(stream, 2)
        await stream._committer.sealer.close()
        root = root_of(ledgers)
        assert all(len(pages) < root.fan_out for pages in root.levels)

    run(scenario())


def test_sealing_that_the_store_refuses_leaves_no_ledger_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a transaction that is too large: each try would leave one, for as long as its maker."""
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        inner = ledgers.store.transaction

        async def transaction(operations: Sequence[Operation]) -> None:
            if any(each.path == "streams/s/manifests" for each in operations):
                raise ConfigurationError("the transaction is too large")
            await inner(operations)

        monkeypatch.setattr(ledgers.store, "transaction", transaction)
        for _ in range(4):
            await committed(stream, 2)
            await stream._committer.sealer.close()
        assert len(ledgers.writers) > 2 and ledgers.ledgers == {}
        assert len([each for each in caplog.messages if "too large" in each]) == 1

    run(scenario())


def test_ledger_of_a_sealing_whose_stream_went_behind_the_lost_reply_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No root names it, and none will: neither that of the stream, nor of the next of its name."""
    small_manifests(monkeypatch, kept=1000)

    async def scenario(again: bool) -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, 5)
        await stream._committer.sealer.close()  # it has nothing to do yet
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        other = await another(ledgers, Faults([Outcome.LOST_REQUEST]))[1].open("s")
        read = other._log.manifests.read_root

        async def late(*, latest: bool = False) -> ManifestRoot:
            if latest:
                await StreamCatalog(ledgers).delete("s")
                if again:
                    await StreamCatalog(ledgers).create("s", SCHEMA)
            return await read(latest=latest)

        monkeypatch.setattr(other._log.manifests, "read_root", late)
        with pytest.raises(NoSuchStreamError):
            await other._committer.sealer.seal(5)
        assert len(ledgers.writers) == 1 and ledgers.ledgers == {}
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1000)

    for again in (False, True):
        run(scenario(again))


def test_pages_are_deleted_if_the_root_is_replaced_by_another_that_has_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a keeper: the transaction of the lost request has no effect any more (rule T12)."""
    small_manifests(monkeypatch, kept=1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 5)
        await stream._committer.sealer.close()  # it has nothing to do yet
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        other = await another(ledgers, Faults([Outcome.LOST_REQUEST]))[1].open("s")
        read = other._log.manifests.read_root

        async def late(*, latest: bool = False) -> ManifestRoot:
            if latest and len(ledgers.writers) == 1:
                root = await ledgers.store.get("streams/s/manifests")
                await ledgers.store.put("streams/s/manifests", root.value, root.version)
            return await read(latest=latest)

        monkeypatch.setattr(other._log.manifests, "read_root", late)
        await other._committer.sealer.seal(5)
        assert len(ledgers.writers) == 1 and ledgers.ledgers == {}
        assert root_of(ledgers).sealed == 0 and commit_nodes(ledgers) == list(range(5))
        await other._committer.sealer.seal(5)
        assert await free_merged(ledgers) == 1
        assert root_of(ledgers).sealed == 4 and len(ledgers.ledgers) == 1
        assert await (await another(ledgers)[1].open("s")).commits(0, 5) == commits

    run(scenario())
