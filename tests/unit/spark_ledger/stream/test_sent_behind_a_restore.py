"""What was read before ZooKeeper was restored is not written behind it, though versions fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import AsyncMock

import pyarrow as pa
import pytest

from spark_ledger.errors import MetadataRestoredError
from spark_ledger.metadata.base import Check, Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer, sealer
from spark_ledger.stream.commit.committer import Attempt
from spark_ledger.stream.model import Commit, Head, Retention
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.packs.store import read_packs
from spark_ledger.stream.retention import handle, search
from spark_ledger.stream.retention.handle import StreamRetention
from spark_ledger.stream.retention.rules import Hold
from spark_ledger.stream.several import commit_to
from spark_ledger.types import LedgerId, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeNaming, FakeWriter
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

    async def restore(self, *, ids_given_again: int = 0) -> None:
        """Once. So many ids of the ledgers that were made last are given again."""
        backup, self.backup = self.backup, None
        if backup is None:
            return
        backup.restore(self.mine)
        assert len(self.ledgers.ledgers) >= 1, "those that it has lost are forgotten"
        del self.ledgers.writers[len(self.ledgers.writers) - ids_given_again :]
        _, theirs = another(self.ledgers)
        for name in self.names:
            await (await theirs.open(name)).append(table(10, 3))

    def restore_before(self, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Restore as ``mine`` makes its next ledger, or as it is about to name it: then another
        has that id."""
        create = self.mine.create_ledger

        async def made(**options: Any) -> FakeWriter:
            await self.restore()
            return await create(**options)

        async def operations(_naming: FakeNaming, *_: Any) -> list[Operation]:
            await self.restore(ids_given_again=1)
            return []

        if step == "the ledger":
            monkeypatch.setattr(self.mine, "create_ledger", made)
        else:
            monkeypatch.setattr(FakeNaming, "operations", operations)

    async def rows(self, name: str) -> list[int]:
        _, fresh = another(self.ledgers)
        return await numbers((await fresh.open(name)).read())


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
@pytest.mark.parametrize(
    "what", ["append", "append and grow", "merge_schema", "write", "write before and commit"]
)
def test_columns_that_a_restore_has_lost_are_not_taken_for_those_of_their_number(
    what: str, theirs: str | None
) -> None:
    """No commit was lost, so none tells: rows would have their values in columns of others."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await (await StreamCatalog(ledgers).create("a", SCHEMA)).append(table(0))
        connected, streams = another(ledgers)
        mine = await streams.open("a")
        writer = mine.writer()
        await writer.write(table(8))
        await writer.finish()  # its ledger is in the backup
        backup = Backup(ledgers)
        lost = pa.schema([*SCHEMA, pa.field("mine", pa.int64())])
        await mine.merge_schema(lost)
        data = table(2).append_column("mine", pa.array([7]))
        if what == "write before and commit":
            await writer.write(data)
        segments = await writer.finish()
        backup.restore(connected)
        if theirs is not None:
            other = await another(ledgers)[1].open("a")
            await other.merge_schema(pa.schema([*SCHEMA, pa.field(theirs, pa.int64())]))
            await other.append(table(1).append_column(theirs, pa.array([77])))
        with pytest.raises(MetadataRestoredError, match="has not the columns"):
            if what == "append":
                await mine.append(data)
            elif what == "write":  # who commits it may be another process
                await writer.write(data)
            elif segments:
                await mine.commit_segments(segments)
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


@pytest.mark.parametrize("step", ["the look", "the ledger", "the transaction"])
def test_commits_that_were_read_before_a_restore_are_not_sealed_behind_it(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leaf with lost commits would take the place of those that have their numbers now."""
    small_manifests(monkeypatch, kept=0)
    monkeypatch.setattr(sealer, "SEAL_EVERY", 1000)

    async def scenario() -> None:
        world = Overtaken()
        await world.begin("s")
        mine = await world.streams.open("s")
        with monkeypatch.context() as patch:
            world.restore_before(step, patch)
            if step == "the look":
                assert await numbers(mine.read()) == [0, 1]
                await world.restore()
            with pytest.raises(MetadataRestoredError) if step == "the look" else nullcontext():
                await mine._committer.sealer.seal(2)
        assert world.backup is None, "it was restored meanwhile"
        assert await world.rows("s") == [0, 10, 11, 12]
        fresh = await another(world.ledgers)[1].open("s")
        await fresh._committer.sealer.seal(2)
        assert await fresh.sealed_commits() == 2
        assert await world.rows("s") == [0, 10, 11, 12]

    run(scenario())


@pytest.mark.parametrize("is_sealed_again", [True, False])
def test_root_that_a_restore_has_lost_is_not_gone_on_with(
    is_sealed_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commits are there still, so none tells. The ledger of its leaf is not."""
    small_manifests(monkeypatch, kept=0, fan_out=10)
    monkeypatch.setattr(sealer, "SEAL_EVERY", 1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        first = await StreamCatalog(ledgers).create("s", SCHEMA)
        await first.append(table(0))
        await first.append(table(1))
        connected, streams = another(ledgers)
        mine = await streams.open("s")
        assert await numbers(mine.read()) == [0, 1]
        backup = Backup(ledgers)
        await mine._committer.sealer.seal(2)
        backup.restore(connected)
        theirs = await another(ledgers)[1].open("s")
        if is_sealed_again:
            await theirs._committer.sealer.seal(2)
        await theirs.append(table(2))
        await theirs.append(table(3))
        assert (await mine._log.manifests.root()).sealed == (2 if is_sealed_again else 0)
        assert await numbers(mine.read()) == [0, 1, 2, 3]
        await mine._committer.sealer.seal(4)
        fresh = await another(ledgers)[1].open("s")
        assert await fresh.sealed_commits() == 4
        assert await numbers(fresh.read()) == [0, 1, 2, 3]

    run(scenario())


@pytest.mark.parametrize("has_seen", [True, False])
@pytest.mark.parametrize("step", ["the ledger", "the transaction"])
def test_commits_that_were_read_before_a_restore_are_not_packed_behind_it(
    step: str, has_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the former ledgers are given back, only the pack would have these commits. Who has seen
    the head of the lost history is told; who has not packs what is there now."""

    async def scenario() -> None:
        world = Overtaken()
        await world.begin("s")
        calm = await world.calm.open("s")
        await calm.append(table(2))
        await calm.retention.allow_packs()
        world.backup = Backup(world.ledgers)
        await calm.append(table(3))  # it is lost, and its ledger is not
        mine = await world.streams.open("s")
        if has_seen:
            assert await numbers(mine.read()) == [0, 1, 2, 3]
        with monkeypatch.context() as patch:
            world.restore_before(step, patch)
            with pytest.raises(MetadataRestoredError) if has_seen else nullcontext():
                (packed,) = await mine.optimizer.run_all(entries_min=1)
        assert world.backup is None, "it was restored meanwhile"
        copies = (step == "the transaction") + (not has_seen)
        assert world.mine.appends == 2 * copies, "nothing is copied for nothing"
        fresh = await another(world.ledgers)[1].open("s")
        if has_seen:
            assert (await read_packs(fresh._nodes)).value.packs == ()
            assert await world.rows("s") == [0, 1, 2, 10, 11, 12]
            (packed,) = await fresh.optimizer.run_all(entries_min=1)
        assert packed.rows == 6 and packed.pack is not None
        assert (await read_packs(fresh._nodes)).value.packs == (packed.pack,)
        assert await world.rows("s") == [0, 1, 2, 10, 11, 12]

    run(scenario())


@pytest.mark.parametrize("what", ["rows", "list", "list ahead", "page", "pack"])
def test_who_names_ledgers_says_which_of_their_ids_are_meant(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what was written before a restore is not looked for in a ledger that has got its
    id."""
    said: list[set[tuple[LedgerId, bytes]]] = []

    async def operations(_naming: FakeNaming, _ids: Any, whose: Any = ()) -> list[Operation]:
        said.append(set(whose))
        return []

    async def scenario() -> None:
        small_manifests(monkeypatch, kept=0)
        monkeypatch.setattr(sealer, "SEAL_EVERY", 1000)
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("a", SCHEMA)
        await stream.append(table(0))
        await stream.append(table(1))
        monkeypatch.setattr(FakeNaming, "operations", operations)
        if what == "rows":
            await stream.append(table(2))
        elif what == "page":
            await stream._committer.sealer.seal(2)
        elif what == "pack":
            await stream.optimizer.run_all(entries_min=1)
        else:
            monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)
            if what == "list ahead":
                monkeypatch.setattr(committer, "LEDGERS_NAMED_BY_COMMIT_MAX", 8)
                left = [[LedgerId(n) for n in range(9)]]
                monkeypatch.setattr(FakeNaming, "unsettled", lambda *_: left.pop() if left else [])
            await stream.commit_segments([loose(ledger_id=n) for n in range(9)])
        made = list(ledgers.ledgers.values())[-1]
        assert len(said) == (2 if what == "list ahead" else 1)
        for whose in said:
            assert {each for each in whose if each[1]} == {(made.ledger_id, made.incarnation)}

    run(scenario())


def test_ledgers_are_named_ahead_over_the_connection_over_which_they_were_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the unnamed node of another ledger goes, which has got the id behind a restore."""
    monkeypatch.setattr(committer, "LEDGERS_NAMED_BY_COMMIT_MAX", 8)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("a", SCHEMA)
        many = [LedgerId(n) for n in range(9)]
        left, sent = [many, many], list[tuple[int, list[str]]]()
        send = ledgers.store.transaction
        reconnects = iter([ledgers.store.reconnect])

        async def operations(*_: Any) -> list[Operation]:
            looked = ledgers.store.connections
            next(reconnects, lambda: None)()
            return [Check(f"looked/{looked}", 0)]

        async def transaction(operations: Sequence[Operation]) -> None:
            paths = [each.path for each in operations]
            sent.append((ledgers.store.connections, paths))
            await send([each for each in operations if not each.path.startswith("looked/")])

        monkeypatch.setattr(FakeNaming, "operations", operations)
        monkeypatch.setattr(FakeNaming, "unsettled", lambda *_: left.pop() if left else [])
        monkeypatch.setattr(ledgers.store, "transaction", transaction)
        monkeypatch.setattr(Attempt, "_refuse_deleted", AsyncMock())
        await stream.commit_segments([loose(ledger_id=n) for n in many])
        assert len(sent) == 2 and len(sent[0][1]) == 1, "the ledgers, and the commit"
        for connection, paths in sent:
            assert f"looked/{connection}" in paths

    run(scenario())
