"""Ledgers that commits name: each until it was named, and again where it may be deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from spark_ledger.errors import NoSuchLedgerError, OutcomeUnknownError, RetryableError
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.metadata.base import Check, Create, Operation
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.naming import Naming
from spark_ledger.metadata.unsettled import UNNAMED_PATH, id_path
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer, existing
from spark_ledger.stream.commit.existing import ExistingLedgers
from spark_ledger.stream.model import Retention, Segment, StreamConfig
from spark_ledger.stream.several import commit_to
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeNaming, FakeWriter
from tests.unit.spark_ledger.stream.world import SCHEMA, lagging_heads, loose, run


class NamedLedgers(FakeLedgers):
    """Ledgers with the nodes of those that nothing has named yet; notes what is checked of them."""

    def __init__(self, store: MemoryMetadataStore | None = None) -> None:
        super().__init__(store)
        self._naming = Naming(self.store)
        self.sent: list[tuple[set[int], set[int]]] = []
        """Of each transaction: the ledgers that it names first, and those that it checks only."""
        self._change = self.store.transaction
        self.store.transaction = self._noting  # type: ignore[method-assign]

    @property
    def naming(self) -> Naming:  # type: ignore[override]
        return self._naming

    async def _noting(self, operations: Sequence[Operation]) -> None:
        paths = {each.path for each in operations}
        first = {n for n in self._ledgers if id_path(UNNAMED_PATH, LedgerId(n)) in paths}
        checks = {each.path for each in operations if isinstance(each, Check)}
        known = {n for n in self._ledgers if ledger_path(LedgerId(n)) in checks}
        self.sent.append((first, known - first))
        await self._change(operations)

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        custom_metadata: Mapping[str, str] | None = None,
        until_named: bool = False,
    ) -> FakeWriter:
        made = await super().create_ledger(custom_metadata=custom_metadata)
        path, tree = id_path(UNNAMED_PATH, made.ledger_id), self.store.tree
        tree.make_parents(path)
        tree.apply([Create(path, b"")])
        return made

    async def made(self, count: int) -> list[Segment]:
        """A segment in each of so many new ledgers."""
        ids = [(await self.create_ledger()).ledger_id for _ in range(count)]
        return [loose(ledger_id=each) for each in ids]

    def unnamed(self) -> list[int]:
        nodes = self.store.tree._nodes
        return [n for n in self.ledgers if id_path(UNNAMED_PATH, LedgerId(n)) in nodes]


def ids(segments: Sequence[Segment]) -> set[int]:
    return {each.ledger_id for each in segments}


async def stream_of(ledgers: FakeLedgers, name: str = "s", *, drops: bool = False) -> Stream:
    limits = Retention(rows=1 << 40) if drops else None
    return await StreamCatalog(ledgers).create(name, SCHEMA, retention=limits)


async def change(stream: Stream) -> None:
    """Another version of the configuration, behind which ledgers may have been deleted."""
    rows = (stream.config.retention.rows or 1 << 40) + 1
    await stream.retention.set_limits(Retention(rows=rows))


def test_ledger_is_named_once_and_then_known() -> None:
    async def scenario() -> None:
        ledgers = NamedLedgers()
        stream = await stream_of(ledgers)
        segments = await ledgers.made(2)
        ledgers.sent.clear()
        for _ in range(2):
            await stream.commit_segments(segments)
        assert ledgers.sent == [(ids(segments), set()), (set(), set())]
        assert ledgers.unnamed() == []

    run(scenario())


def test_ledgers_are_checked_once_for_each_version_of_the_configuration() -> None:
    """In a stream that drops rows one that was named may have been deleted since (rule T17)."""

    async def scenario() -> None:
        ledgers = NamedLedgers()
        stream = await stream_of(ledgers, drops=True)
        segments = await ledgers.made(2)
        ledgers.sent.clear()
        for _ in range(2):
            await stream.commit_segments(segments)
        assert ledgers.sent == [(ids(segments), set()), (set(), set())]
        for _ in range(2):
            await change(stream)
            ledgers.sent.clear()
            more = await ledgers.made(1)
            for _ in range(2):
                await stream.commit_segments([*segments, *more])
            assert ledgers.sent == [(ids(more), ids(segments)), (set(), set())]
            segments += more

    run(scenario())


@pytest.mark.parametrize("together", [1, 2])
def test_ledgers_of_a_big_commit_are_named_some_at_a_time(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many in a transaction as ZooKeeper takes, of all streams of a commit together."""
    bound = 4 if together == 1 else 8  # of several half is room of their lists
    monkeypatch.setattr(committer, "LEDGERS_NAMED_BY_COMMIT_MAX", bound)

    async def scenario() -> None:
        ledgers = NamedLedgers()
        streams = [await stream_of(ledgers, name, drops=True) for name in "st"[:together]]
        parts = [await ledgers.made(9 if together == 1 else 4) for _ in streams]
        ledgers.sent.clear()
        await commit_to(list(zip(streams, parts, strict=True)))
        assert ledgers.unnamed() == []
        assert max(len(first) for first, _ in ledgers.sent) == 4
        for stream in streams:
            await change(stream)
        ledgers.sent.clear()
        await commit_to(list(zip(streams, parts, strict=True)))
        checked = [known for _, known in ledgers.sent]
        assert max(map(len, checked)) == 4
        assert set().union(*checked) == set().union(*map(ids, parts))

    run(scenario())


def test_ledger_of_a_long_list_is_named_with_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = NamedLedgers()
        stream = await stream_of(ledgers)
        segments = await ledgers.made(3)
        await stream.commit_segments(segments)
        assert len(ledgers.ledgers) == 4 and ledgers.unnamed() == []

    run(scenario())


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("named_before", [False, True])
def test_commit_of_rows_that_were_deleted_is_refused(
    many: bool, named_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own transaction, or in one of those ahead of it."""
    monkeypatch.setattr(committer, "COMMIT_TIMEOUT_S", 2.0)
    if many:
        monkeypatch.setattr(committer, "LEDGERS_NAMED_BY_COMMIT_MAX", 2)

    async def scenario() -> None:
        ledgers = NamedLedgers()
        stream = await stream_of(ledgers, drops=True)
        segments = await ledgers.made(5)
        if named_before:
            await stream.commit_segments(segments)
            await change(stream)
        before = await stream._watch.read()
        await ledgers.delete_ledger(segments[0].ledger_id)
        with pytest.raises(NoSuchLedgerError, match="write the rows again"):
            await stream.commit_segments(segments)
        assert await stream._watch.read() == before

    run(scenario())


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("named_before", [False, True])
def test_commit_of_rows_that_are_about_to_be_deleted_is_refused(
    knows: bool, named_before: bool
) -> None:
    """The keeper has looked whether a commit names them, and looks no more (rule T17)."""

    async def scenario() -> None:
        ledgers = NamedLedgers()
        stream = await stream_of(ledgers, drops=True)
        segments = await ledgers.made(2)
        if named_before:
            await stream.commit_segments(segments)
        before = await stream._watch.read()
        keeper = await StreamCatalog(ledgers).open("s")
        listed = replace(await keeper.refresh(), dropping=(segments[1].ledger_id,))
        assert await keeper.retention._replace_config(listed)
        if knows:
            await stream.refresh()
        with pytest.raises(NoSuchLedgerError, match=r"is being deleted.*write the rows again"):
            await stream.commit_segments(segments)
        assert await stream._watch.read() == before
        await stream.commit_segments(segments[:1])
        await keeper.refresh()
        assert await keeper.retention._replace_config(replace(listed, dropping=()))
        assert (await stream.commit_segments(segments)).number == before.next_commit + 1

    run(scenario())


def test_big_commit_behind_a_change_of_the_configuration_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "COMMIT_TIMEOUT_S", 2.0)
    monkeypatch.setattr(committer, "LEDGERS_NAMED_BY_COMMIT_MAX", 2)

    async def scenario() -> None:
        ledgers = NamedLedgers()
        stream = await stream_of(ledgers, drops=True)
        segments = await ledgers.made(5)
        await stream.commit_segments(segments)
        await change(stream)  # all of them are checked again
        await change(await StreamCatalog(ledgers).open("s"))
        assert (await stream.commit_segments(segments)).number == 1

    run(scenario())


def test_ledgers_that_cannot_be_named_ahead_end_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "LEDGERS_NAMED_BY_COMMIT_MAX", 2)

    async def scenario() -> None:
        ledgers = NamedLedgers()
        stream = await stream_of(ledgers)
        segments = await ledgers.made(3)
        sent = 0

        async def lost(operations: Sequence[Operation]) -> None:
            nonlocal sent
            sent += 1
            assert sent < 20, "for ever"
            raise OutcomeUnknownError("no answer")

        ledgers.store.transaction = lost  # type: ignore[method-assign]
        with pytest.raises(RetryableError, match="nothing was committed"):
            await stream.commit_segments(segments)
        assert sent == METADATA_ATTEMPTS

    run(scenario())


def config_of(version: int, *, drops: bool = True) -> Versioned[StreamConfig]:
    return Versioned(StreamConfig("s", "id", (SCHEMA,), has_retention=drops), version)


def test_ledgers_known_to_exist_are_those_of_the_newest_version_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(existing, "NAMED_LEDGERS_KEPT", 3)
    known = ExistingLedgers(FakeNaming(FakeLedgers()))
    one, two, three, four = wanted = [LedgerId(n) for n in range(4)]
    assert known.unknown(wanted, config_of(1, drops=False)) == []
    known.exist([one, two], 5)
    assert known.unknown(wanted, config_of(5)) == [three, four]
    assert known.unknown(wanted, config_of(6)) == wanted == known.unknown(wanted, config_of(4))
    known.exist([three], 4)  # of a transaction whose reply came late
    assert known.unknown(wanted, config_of(5)) == [three, four]
    known.exist([three], 6)
    assert known.unknown(wanted, config_of(6)) == [one, two, four]
    known.exist([one, two, four], 6)
    assert known.unknown(wanted, config_of(6)) == []
    known.exist([two], 6)  # so many are not kept
    assert known.unknown(wanted, config_of(6)) == [one, three, four]


@pytest.mark.parametrize("named_before", [False, True])
def test_commit_that_was_made_is_found_though_its_ledger_is_gone_since(
    named_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply was lost, and it is sent again as the head is read from a server that lags: that
    the head has another version is what counts then, and not that the ledger is missing."""

    async def scenario() -> None:
        ledgers = NamedLedgers()
        stream = await stream_of(ledgers, drops=True)
        segments = await ledgers.made(1)
        if named_before:
            await stream.commit_segments(segments)
            await change(stream)
        number = (await stream.head()).next_commit
        send, sent = ledgers.store.transaction, 0

        async def lost(operations: Sequence[Operation]) -> None:
            nonlocal sent
            sent += 1
            await send(operations)
            if sent == 1:
                await ledgers.delete_ledger(segments[0].ledger_id)
                raise OutcomeUnknownError("no reply")

        monkeypatch.setattr(ledgers.store, "transaction", lost)
        lagging_heads(monkeypatch, 2)
        commit = await stream.commit_segments(segments)
        assert (commit.number, commit.applied, sent) == (number, True, 2)

    run(scenario())


@pytest.mark.parametrize("which", [0, 1])
def test_commit_to_streams_of_which_one_has_to_look_again_is_made_in_all(which: int) -> None:
    """A handle knows a list of ledgers to be deleted that was taken back since."""

    async def scenario() -> None:
        ledgers = NamedLedgers()
        streams = [await stream_of(ledgers, name, drops=True) for name in "st"]
        parts = [await ledgers.made(1) for _ in streams]
        keeper = await StreamCatalog(ledgers).open("st"[which])
        listed = replace(await keeper.refresh(), dropping=(parts[which][0].ledger_id,))
        assert await keeper.retention._replace_config(listed)
        await streams[which].refresh()
        await keeper.refresh()
        assert await keeper.retention._replace_config(replace(listed, dropping=()))
        commits = await commit_to(list(zip(streams, parts, strict=True)))
        assert [(each.number, each.applied, each.rows) for each in commits] == [(0, True, 1)] * 2
        for stream in streams:
            assert (await stream.head()).rows == 1

    run(scenario())
