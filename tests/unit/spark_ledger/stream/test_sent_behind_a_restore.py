"""What was read before ZooKeeper was restored is not written behind it, though versions fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import ConflictError, MetadataRestoredError
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.sealer import Sealer
from spark_ledger.stream.model import Commit, Head, Retention
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.packs.optimizer import Optimizer
from spark_ledger.stream.retention import handle, search
from spark_ledger.stream.retention.handle import StreamRetention
from spark_ledger.stream.retention.rules import Hold
from spark_ledger.stream.several import commit_to
from spark_ledger.types import LedgerId, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeNaming
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Backup,
    another,
    loose,
    numbers,
    run,
    small_manifests,
    table,
)


class Overtaken:
    """Streams whose ZooKeeper is restored while ``mine`` prepares a transaction; others have
    committed as often by then as the lost history had, with more rows."""

    def __init__(self) -> None:
        self.ledgers = FakeLedgers()
        self.calm = StreamCatalog(self.ledgers)
        self.mine, self.streams = another(self.ledgers)
        self.backup: Backup | None = None
        self.names: Sequence[str] = ()

    async def begin(self, *names: str) -> None:
        self.names = names
        for name in names:
            stream = await self.calm.create(name, SCHEMA)
            await stream.retention.set_limits(Retention(rows=1))
            await stream.append(table(0))
        self.backup = Backup(self.ledgers)
        for name in names:
            await (await self.calm.open(name)).append(table(1))  # it is lost

    async def restore(self) -> None:
        """Once."""
        backup, self.backup = self.backup, None
        if backup is None:
            return
        backup.restore(self.mine)
        _, theirs = another(self.ledgers)
        for name in self.names:
            await (await theirs.open(name)).append(table(10, 3))

    async def rows(self, name: str) -> list[int]:
        _, fresh = another(self.ledgers)
        return await numbers((await fresh.open(name)).read())


def told_deletions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which ledgers somebody deletes by their id from now on."""
    deleted: list[int] = []

    async def delete(_ledgers: FakeLedgers, ledger_id: int, *_: Any) -> None:
        deleted.append(ledger_id)

    monkeypatch.setattr(FakeLedgers, "delete_ledger", delete)
    return deleted


@pytest.mark.parametrize("names", ["a", "ab"])
def test_commit_decided_before_a_restore_is_not_sent_behind_it(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = Overtaken()
        await world.begin(*names)

        async def operations(_naming: FakeNaming, *_: Any) -> list[Operation]:
            await world.restore()
            return []

        parts = [(await world.streams.open(name), [loose(1)]) for name in names]
        with monkeypatch.context() as patch:
            patch.setattr(FakeNaming, "operations", operations)
            with pytest.raises(MetadataRestoredError, match="commit 1 is not the one"):
                if len(parts) == 1:
                    await parts[0][0].commit_segments(parts[0][1])
                else:
                    await commit_to(parts, sink_id="q", transaction_id=7)
        for name in names:
            assert await world.rows(name) == [0, 10, 11, 12]

    run(scenario())


@pytest.mark.parametrize("who", ["truncate", "apply"])
def test_truncation_decided_before_a_restore_is_not_sent_behind_it(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head that it writes has the rows of the history that was read."""

    async def scenario() -> None:
        world = Overtaken()
        await world.begin("a")
        retention = (await world.streams.open("a")).retention
        find, keep = StreamRetention._commit_of, search.first_kept

        async def found(*words: Any) -> Commit | None:
            commit = await find(*words)
            await world.restore()
            return commit

        async def kept(*words: Any) -> Commit | None:
            commit = await keep(*words)
            await world.restore()
            return commit

        monkeypatch.setattr(StreamRetention, "_commit_of", found)
        monkeypatch.setattr(handle, "first_kept", kept)
        if who == "truncate":
            await retention.truncate((1,))
        else:
            assert await retention.apply(1 << 50) == 1
        assert world.backup is None, "it was restored meanwhile"
        fresh = await another(world.ledgers)[1].open("a")
        assert (await fresh.head()).rows == 4
        assert await numbers(fresh.read()) == [10, 11, 12]
        await fresh.append(table(20))
        assert await world.rows("a") == [10, 11, 12, 20]

    run(scenario())


@pytest.mark.parametrize("who", ["hold", "release", "release_void"])
def test_holds_that_were_read_before_a_restore_are_not_written_behind_it(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows would be dropped that somebody else was told to hold."""

    async def scenario() -> None:
        world = Overtaken()
        await world.begin("a")
        mine = (await world.streams.open("a")).retention
        await (await world.calm.open("a")).retention.hold("lost", "earliest", for_s=3600)
        head, read = StreamNodes.head, StreamRetention._holds

        async def restore() -> None:
            if world.backup is not None:
                await world.restore()
                theirs = (await another(world.ledgers)[1].open("a")).retention
                await theirs.hold("theirs", "earliest", for_s=3600)

        async def late_head(nodes: StreamNodes, *, latest: bool = False) -> Versioned[Head]:
            if latest and nodes is mine._nodes:
                await restore()
            return await head(nodes, latest=latest)

        async def late_holds(retention: StreamRetention) -> Versioned[tuple[Hold, ...]]:
            holds = await read(retention)
            if retention is mine:
                await restore()
            return holds

        with monkeypatch.context() as patch:
            patch.setattr(StreamNodes, "head", late_head)
            if who == "hold":
                await mine.hold("mine", "earliest", for_s=3600)
            else:
                patch.setattr(StreamRetention, "_holds", late_holds)
                if who == "release":
                    await mine.release("lost")
                else:
                    assert await mine.release_void(1 << 50) == []
        assert world.backup is None, "it was restored meanwhile"
        fresh = (await another(world.ledgers)[1].open("a")).retention
        assert "theirs" in [hold.name for hold in await fresh.holds()]
        assert await fresh.apply(int(time.time() * 1000)) == 0

    run(scenario())


@pytest.mark.parametrize("theirs", ["theirs", None])
@pytest.mark.parametrize("what", ["append", "append and grow", "merge_schema"])
def test_columns_that_a_restore_has_lost_are_not_taken_for_those_of_their_number(
    what: str, theirs: str | None
) -> None:
    """No commit was lost, so none tells: rows would have their values in columns of others."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await (await StreamCatalog(ledgers).create("a", SCHEMA)).append(table(0))
        connected, streams = another(ledgers)
        mine = await streams.open("a")
        backup = Backup(ledgers)
        lost = pa.schema([*SCHEMA, pa.field("mine", pa.int64())])
        await mine.merge_schema(lost)
        backup.restore(connected)
        if theirs is not None:
            other = await another(ledgers)[1].open("a")
            await other.merge_schema(pa.schema([*SCHEMA, pa.field(theirs, pa.int64())]))
            await other.append(table(1).append_column(theirs, pa.array([77])))
        data = table(2).append_column("mine", pa.array([7]))
        with pytest.raises(MetadataRestoredError, match="has not the columns"):
            if what == "append":
                await mine.append(data)
            elif what == "merge_schema":
                await mine.merge_schema(pa.schema([*lost, pa.field("more", pa.int64())]))
            else:
                await mine.append(data.append_column("more", pa.array([8])), merge_schema=True)
        fresh = await another(ledgers)[1].open("a")
        assert fresh.config.schema.names == [*SCHEMA.names, *([theirs] if theirs else [])]
        found = [row async for batch in fresh.read() for row in batch.to_pylist()]
        assert [row.get("theirs") for row in found] == ([None, 77] if theirs else [None])
        if theirs is None:  # a new handle goes on
            again = await another(ledgers)[1].open("a")
            await again.append(data, merge_schema=True)

    run(scenario())


def test_columns_that_others_have_added_over_a_new_connection_do_no_harm() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("a", SCHEMA)
        connected, streams = another(ledgers)
        mine = await streams.open("a")
        other = await another(ledgers)[1].open("a")
        await other.merge_schema(pa.schema([*SCHEMA, pa.field("theirs", pa.int64())]))
        connected.store.reconnect()
        await mine.merge_schema(pa.schema([*SCHEMA, pa.field("mine", pa.int64())]))
        assert mine.config.schema.names == [*SCHEMA.names, "theirs", "mine"]
        connected.store.reconnect()
        await mine.append(table(1))

    run(scenario())


@pytest.mark.parametrize("at", ["create", "send"])
def test_commits_that_were_read_before_a_restore_are_not_sealed_behind_it(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of the commits that others have made since would go with it."""

    async def scenario() -> None:
        small_manifests(monkeypatch)
        world, made = Overtaken(), list[LedgerId]()
        deleted = told_deletions(monkeypatch)
        await world.begin("a")
        mine = await world.streams.open("a")
        write = Sealer._write

        async def restored(sealer: Sealer, make: Any) -> LedgerId:
            if at == "create":
                await world.restore()
            made.append(await write(sealer, make))
            if at == "send":
                await world.restore()
            return made[-1]

        monkeypatch.setattr(Sealer, "_write", restored)
        for n in (2, 3):
            await mine.append(table(n))
        await mine.close()
        assert made and world.backup is None
        assert await world.rows("a") == [0, 10, 11, 12]
        assert not deleted, "somebody else may have the id"

    run(scenario())


def test_rows_of_lost_commits_are_not_named_as_the_pack_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = Overtaken()
        mine = await world.streams.create("a", SCHEMA)
        await mine.append(table(0))
        await mine.retention.allow_packs()
        deleted = told_deletions(monkeypatch)
        world.backup, world.names = Backup(world.ledgers), ("a",)
        await mine.append(table(1))
        write = Optimizer._write

        async def restored(optimizer: Optimizer, *words: Any) -> Any:
            await world.restore()
            return await write(optimizer, *words)

        monkeypatch.setattr(Optimizer, "_write", restored)
        with pytest.raises(ConflictError, match="the connection to the metadata store broke"):
            await mine.optimizer.run_all(entries_min=2)
        assert await world.rows("a") == [0, 10, 11, 12]
        assert not deleted, "somebody else may have the id"

    run(scenario())


def test_commit_says_which_ledgers_of_their_ids_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows of before a restore are not looked for in a ledger that has got their id."""
    said: list[set[tuple[LedgerId, bytes]]] = []

    async def operations(_naming: FakeNaming, _ids: Any, whose: Any = ()) -> list[Operation]:
        said.append(set(whose))
        return []

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("a", SCHEMA)
        monkeypatch.setattr(FakeNaming, "operations", operations)
        commit = await stream.append(table(0))
        (segment,) = commit.segments
        assert said == [{(segment.ledger_id, b"%016d" % segment.ledger_id)}]

    run(scenario())


def test_root_of_manifests_that_went_back_is_read_behind_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        small_manifests(monkeypatch)
        ledgers = FakeLedgers()
        connected, streams = another(ledgers)
        mine = await streams.create("a", SCHEMA)
        backup = Backup(ledgers)
        for n in range(4):
            await mine.append(table(n))
        await mine.close()
        manifests = mine._committer.log.manifests
        assert (await manifests.read_root()).sealed == 2
        backup.restore(connected)
        assert (await manifests.read_root()).sealed == 0

    run(scenario())
