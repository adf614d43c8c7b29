"""Creating, listing and deleting streams, also through crashes and lost replies."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchStreamError,
)
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.stream import catalog
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Compression, StreamConfig
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.retention.test_giving_back import closed_commits
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Faults,
    another,
    loose,
    numbers,
    root_of,
    run,
    small_manifests,
    table,
)


def test_a_created_stream_is_listed_and_opened_with_its_configuration() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        assert await streams.names() == []
        await streams.create(
            "flights",
            pa.schema([pa.field("a", pa.large_string(), nullable=False)]),
            ensemble_size=4,
            write_quorum=3,
            ack_quorum=3,
            compression="zstd",
            entry_bytes=2048,
        )
        await streams.create("b", SCHEMA)
        assert await streams.names() == ["b", "flights"]
        config = (await another(ledgers)[1].open("flights")).config
        assert str(config.quorums) == "E4 WQ3 AQ3"
        assert (config.compression, config.entry_bytes) == (Compression.ZSTD, 2048)
        assert config.schema.equals(pa.schema([pa.field("a", pa.string(), nullable=False)]))
        assert config.created_ms > 0

    run(scenario())


def test_bad_configurations_are_refused_before_anything_is_made() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        for wrong, word in (
            ({"ensemble_size": 2}, "ensemble_size"),
            ({"compression": "snappy"}, "snappy"),
            ({"entry_bytes": 5}, "entry_bytes"),
            ({"entry_bytes": 1 << 30}, "entry_bytes"),
            ({"segment_roll_bytes": 5}, "segment_roll_bytes"),
            ({"segment_roll_age_s": 0.0}, "segment_roll_age_s"),
        ):
            with pytest.raises(ConfigurationError, match=word):
                await streams.create("s", SCHEMA, **wrong)
        with pytest.raises(ConfigurationError, match="stream name"):
            await streams.create("a/b", SCHEMA)
        assert ledgers.store.tree.children("") == []

    run(scenario())


def test_a_name_is_taken_once() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        first = await streams.create("s", SCHEMA)
        with pytest.raises(ConflictError, match="exists already"):
            await streams.create("s", SCHEMA)
        same = await streams.create("s", pa.schema([("x", pa.int8())]), exist_ok=True)
        assert same.config.stream_id == first.config.stream_id
        made = await asyncio.gather(
            *(another(ledgers)[1].create("t", SCHEMA, exist_ok=True) for _ in range(5))
        )
        assert len({stream.config.stream_id for stream in made}) == 1

    run(scenario())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
@pytest.mark.parametrize(("call", "is_first"), [("transaction", False), ("create", True)])
def test_a_lost_reply_while_creating_is_looked_up(
    outcome: Outcome, call: str, is_first: bool
) -> None:
    """Of the stream, and of the root that the first stream of a cluster makes."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        if not is_first:
            await StreamCatalog(ledgers).create("before", SCHEMA)
        _, streams = another(ledgers, Faults([outcome], call))
        stream = await streams.create("s", SCHEMA)
        assert (await stream.append(table(0))).applied

    run(scenario())


def test_deleting_takes_the_ledgers_that_only_this_stream_names() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        other = await streams.create("other", SCHEMA)
        theirs = replace((await other.append(table(0))).segments[0], stream_id="")
        stream = await streams.create("s", SCHEMA)
        mine = (await stream.append(table(0), sink_id="q", transaction_id=1)).segments[0]
        await stream.commit_segments([theirs, loose(1, ledger_id=12345)])
        await streams.delete("s")
        assert ledgers.deleted == [mine.ledger_id]
        assert await streams.names() == ["other"]
        assert ledgers.store.tree.children("streams") == ["other"]
        assert await numbers(other.read()) == [0]
        for call in (streams.open("s"), streams.delete("s")):
            with pytest.raises(NoSuchStreamError, match="'s' does not exist"):
                await call
        assert (await (await streams.create("s", SCHEMA)).append(table(7))).number == 0

    run(scenario())


def test_a_deletion_that_breaks_off_anywhere_can_be_finished() -> None:
    async def scenario() -> None:
        for failing_write in range(1, 8):
            ledgers = FakeLedgers()
            stream = await StreamCatalog(ledgers).create("s", SCHEMA)
            for n in range(3):
                await stream.append(table(n), sink_id=f"q{n}", transaction_id=1)
            await stream.commit_segments([loose(*[1] * 50, ledger_id=n) for n in range(2500)])
            writes = 0

            def interpose(name: str, path: str, at: int = failing_write) -> Fault:
                nonlocal writes
                writes += name != "get" and name != "children"
                return Fault(Outcome.UNAVAILABLE if writes >= at else Outcome.NORMAL)

            _, broken = another(ledgers, interpose)
            try:
                await broken.delete("s")
            except MetadataUnavailableError:
                marked = failing_write > 1
                assert await StreamCatalog(ledgers).names() == ([] if marked else ["s"])
                if marked:
                    with pytest.raises(NoSuchStreamError):
                        await StreamCatalog(ledgers).open("s")
                    with pytest.raises(ConflictError, match="being deleted"):
                        await StreamCatalog(ledgers).create("s", SCHEMA)
                await StreamCatalog(ledgers).delete("s")
            assert ledgers.ledgers == {}
            assert ledgers.store.tree.children("streams") == []

    run(scenario())


@pytest.mark.parametrize("call", ["put", "transaction"])
@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_lost_replies_while_deleting_are_looked_up(call: str, outcome: Outcome) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.append(table(0), sink_id="q", transaction_id=1)
        _, streams = another(ledgers, Faults([outcome] * 2, call))
        await streams.delete("s")
        assert ledgers.store.tree.children("streams") == []

    run(scenario())


def test_several_deletions_at_once_all_succeed_or_find_nothing() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for n in range(150):
            await stream.commit_segments([loose()], sink_id=f"q{n}", transaction_id=1)
        results = await asyncio.gather(
            *(another(ledgers)[1].delete("s") for _ in range(4)), return_exceptions=True
        )
        assert all(result is None or isinstance(result, LedgerError) for result in results)
        assert ledgers.store.tree.children("streams") == []

    run(scenario())


def test_deletion_takes_every_page_of_the_manifests_and_may_break_off_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What names other ledgers goes last: a second deletion finds all that the first one left."""
    small_manifests(monkeypatch, leaf=1, fan_out=2)
    monkeypatch.setattr(catalog, "_LEDGERS_AT_ONCE", 2)

    async def scenario(at: int) -> bool:
        ledgers = FakeLedgers()
        for n in range(9):
            stream = await another(ledgers)[1].create("s", SCHEMA, exist_ok=True)
            await stream.append(table(n))  # each into a ledger of its own
            await stream.close()
        assert len(root_of(ledgers).levels) == 4
        other, streams = another(ledgers)
        deleted = 0

        async def delete(ledger_id: int, checks: object = ()) -> None:
            nonlocal deleted
            deleted += 1
            if deleted >= at:
                raise MetadataUnavailableError("no")
            ledgers.ledgers.pop(ledger_id, None)

        other.delete_ledger = delete  # type: ignore[method-assign]
        try:
            await streams.delete("s")
            is_whole = True
        except MetadataUnavailableError:
            is_whole = False
            await StreamCatalog(ledgers).delete("s")
        assert ledgers.ledgers == {}
        assert ledgers.store.tree.children("streams") == []
        return is_whole

    at = 1
    while not run(scenario(at)):
        at += 1
    assert at > 9 + 6, "nine of rows, and seven of manifests"


@pytest.mark.parametrize("exist_ok", [False, True])
def test_stream_of_a_name_that_is_given_up_meanwhile_is_made(
    exist_ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was in the way is deleted before anybody can look whose it is."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        former = await streams.create("s", pa.schema([("x", pa.int8())]))
        other = another(ledgers)[1]
        look = other._existing

        async def late(nodes: StreamNodes) -> Versioned[StreamConfig] | None:
            if (await streams.names()) and (await look(nodes)).value == former.config:  # type: ignore[union-attr]
                await streams.delete("s")
            return await look(nodes)

        monkeypatch.setattr(other, "_existing", late)
        made = await other.create("s", SCHEMA, exist_ok=exist_ok)
        await made.append(table(7))
        assert await numbers((await streams.open("s")).read()) == [7]

    run(scenario())


def test_stream_whose_name_has_nodes_and_no_configuration_is_not_made_for_ever() -> None:
    """Somebody has tidied up by hand."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        await streams.create("s", SCHEMA)
        await ledgers.store.delete("streams/s/config")
        with pytest.raises(ConflictError, match="choose another name"):
            await streams.create("s", SCHEMA, exist_ok=True)

    run(scenario())


@pytest.mark.parametrize("missing", [[2], [0], [5], [1, 4]])
def test_deletion_takes_the_ledgers_of_all_commits_beside_those_that_are_gone(
    missing: list[int],
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        for n in range(6):
            stream = await StreamCatalog(ledgers).create("s", SCHEMA, exist_ok=True)
            await stream.append(table(n))  # each into a ledger of its own
            await stream.close()
        ids = sorted(ledgers.ledgers)
        for number in missing:
            await ledgers.store.delete(stream._nodes.commit_path(number))
        await StreamCatalog(ledgers).delete("s")
        assert sorted(ledgers.ledgers) == [ids[number] for number in missing], "nobody knows them"
        assert ledgers.store.tree.children("streams") == []

    run(scenario())


@pytest.mark.parametrize("dropped", range(4, 9))
def test_deletion_takes_the_ledgers_of_a_leaf_that_retention_has_dropped_in_part(
    dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch, leaf=4, fan_out=2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 10)
        await stream._committer.sealer.seal(10)
        await stream._committer.sealer.close()
        await stream.retention.truncate((dropped,))
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert (await reclaimer.step(dropped)).is_done
        assert root_of(ledgers).dropped == dropped and ledgers.ledgers
        await StreamCatalog(ledgers).delete("s")
        assert ledgers.ledgers == {}
        assert ledgers.store.tree.children("streams") == []

    run(scenario())
