"""A damaged node of the keeper is written anew: it stops no sweep, no audit and no packing."""

from __future__ import annotations

import logging

import pytest

from spark_ledger.errors import (
    ConflictError,
    CorruptionError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.keeper import streams
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import (
    AUDIT_PATH,
    CLOCK_PATH,
    NAMES_PATH,
    PACKED_PATH,
    STATE_PATH,
    SWEPT_PATH,
    AuditState,
    DroppedNode,
    ask_for_audit,
    audit_page_path,
    dropped_path,
    read_audit,
    read_audit_page,
    read_clock,
    read_packed,
    read_state,
    read_swept,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.model import Retention
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_audit import CONFIG, ids, left
from tests.unit.spark_ledger.keeper.test_optimizing import looked, optimized, packed
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, keeper, new_stream, passes, read
from tests.unit.spark_ledger.stream.world import small_manifests

NOTE = "keeper/dropped/<stream id>"
DAY_MS = 24 * 3600 * 1000


async def elected(world: World, clock: Clock, **config: object) -> Keeper:
    cared = await keeper(world, clock, **{**CONFIG, "dropped_grace_s": 60.0, **config})
    assert await cared.elect()
    return cared


async def damage(store: MetadataStore, path: str) -> None:
    """Have a node be one that does not decode, whether it was there or not."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        try:
            await store.create("/".join(parts[:count]), b"")
        except ConflictError:
            continue
    try:
        await store.put(path, b"{", (await store.get(path)).version)
    except NotFoundError:
        await store.create(path, b"{")


async def saved(cared: Keeper) -> None:
    """What a keeper does behind each pass."""
    try:
        await cared._save()
    except ConflictError:
        await cared._take_over()


async def all_decode(store: MetadataStore, stream_id: str) -> None:
    """Raises CorruptionError if a node of the keeper does not decode."""
    await read_state(store)
    await read_clock(store)
    await read_swept(store)
    await read_packed(store)
    await read_audit(store)
    await read_audit_page(store, 0)
    await read_node(store, DroppedNode, dropped_path(stream_id))


@pytest.mark.parametrize("takes_over", [False, True])
@pytest.mark.parametrize(
    "path", [CLOCK_PATH, SWEPT_PATH, STATE_PATH, NOTE, AUDIT_PATH, audit_page_path(0), NAMES_PATH]
)
def test_keeper_drops_gives_back_and_audits_past_a_damaged_node_of_its(
    path: str, takes_over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        stream = await new_stream(client)
        await closed_commits(world, stream, 4)
        lost = await left(world, 99)
        await stream.retention.truncate((1,))
        cared = await elected(world, clock)
        await passes(cared, clock, 70)  # one sweep drops, and the audit has begun
        damaged = path.replace("<stream id>", stream.config.stream_id)
        await damage(client.store, damaged)
        if takes_over:
            await cared._election.resign()
            cared = await elected(world, clock)
        await stream.retention.set_limits(Retention(rows=2))
        for _ in range(45):
            await passes(cared, clock, 10)
            await saved(cared)
        assert await read(await StreamCatalog(client).open("s")) == [2, 3]
        assert not set(ids(lost)) & await ledgers(world), "two audits have found it"
        assert len(await ledgers(world)) == 2, "what was dropped is given back"
        await all_decode(client.store, stream.config.stream_id)
        assert not cared._stream_keeper.last_error

    with caplog.at_level(logging.WARNING):
        run(test)
    said = [each.getMessage() for each in caplog.records if "damaged" in each.getMessage()]
    assert 1 <= len(said) <= 2, "it is said, and not at each pass"


async def killed(*_: object) -> None:
    raise OutcomeUnknownError("and the keeper dies")


def test_time_of_a_damaged_clock_is_the_one_that_the_keeper_believes() -> None:
    """No wall clock that is a year ahead (rule K7): the keeper may die behind that."""

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        stream = await new_stream(client)
        await stream.retention.set_limits(Retention(age_s=7 * 24 * 3600.0))
        await closed_commits(world, stream, 3)
        cared = await elected(world, clock)
        await passes(cared, clock, 10)
        before, wall_ms = await read_clock(client.store), cared._stream_keeper._wall_ms
        assert before is not None
        cared._stream_keeper._wall_ms = lambda: wall_ms() + 365 * DAY_MS
        await damage(client.store, CLOCK_PATH)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "write_clock", killed)
            with pytest.raises(OutcomeUnknownError):
                await cared._stream_keeper.sweep()
        await cared._election.resign()
        cared = await elected(world, clock)
        cared._stream_keeper._wall_ms = lambda: wall_ms() + 365 * DAY_MS
        await passes(cared, clock, 120)
        after = await read_clock(client.store)
        assert after is not None
        assert 0 < after.value.time_ms - before.value.time_ms <= 2 * 1_200_000
        assert await read(stream) == [0, 1, 2]

    run(test)


def test_note_of_a_stream_that_is_gone_is_removed_though_it_is_damaged() -> None:
    """And what waits of the others is written down: the note stops no sweep before its end."""

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        stream = await new_stream(client)
        await closed_commits(world, stream, 4)
        await stream.retention.truncate((3,))
        gone, later = dropped_path("11" * 16), dropped_path("22" * 16)
        await damage(client.store, gone)
        await client.store.create(later, b'{"format_version":99}')
        cared = await elected(world, clock)
        await passes(cared, clock, 10)
        waits = await read_swept(client.store)
        assert waits is not None and waits.value.reclaimable_commits == 3
        kept = [stream.config.stream_id, later.rpartition("/")[2]]
        assert set(await client.store.children("keeper/dropped")) == set(kept)

    run(test)


def test_damaged_count_of_packs_stops_no_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ledger.keeper.optimizing.OPTIMIZED_ENTRIES_MIN", 3)

    async def test(world: World) -> None:
        both, clock = [await optimized(world, name) for name in ("a", "b")], Clock()
        for stream in both:
            await closed_commits(world, stream, 4)
        cared = await elected(world, clock, optimize_s=3600.0, dropped_grace_s=0.0)
        await damage(cared._store, PACKED_PATH)
        await looked(cared, clock)
        assert [await packed(each) for each in both] == [[(0, 2), (2, 6)]] * 2
        found = await read_packed(cared._store)
        assert found is not None and found.value.packs == 2

    run(test)


def test_audit_that_is_asked_for_begins_though_its_node_was_damaged() -> None:
    async def test(world: World) -> None:
        store = MemoryMetadataStore(world.tree)
        await damage(store, AUDIT_PATH)
        await ask_for_audit(store)
        found = await read_audit(store)
        assert found is not None and found.value == AuditState(is_asked=True)

    run(test)


def test_audit_begins_in_time_though_the_work_of_keepers_is_counted_anew() -> None:
    """The node that says for how long keepers have worked was damaged. Audits count by that."""

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        await new_stream(client)
        cared = await elected(world, clock)
        await passes(cared, clock, 10 * 120)
        first = await read_audit(client.store)
        assert first is not None and first.value.ended_s > 1_000
        await damage(client.store, STATE_PATH)
        await cared._client.close()
        successor = await elected(world, clock)
        await passes(successor, clock, 120)
        second = await read_audit(client.store)
        assert second is not None and 0 < second.value.ended_s <= 120

    run(test)


def test_look_of_an_audit_past_a_damaged_page_writes_nothing() -> None:
    async def test(world: World) -> None:
        await new_stream(await world.client())
        lost = await left(world, 99)
        store = MemoryMetadataStore(world.tree)
        await damage(store, audit_page_path(0))
        cared = await keeper(world, Clock(), dry_run=True)
        found = [each async for page in cared.audit() for each in page]
        assert [each.ledger.value.ledger_id for each in found] == ids(lost)
        assert found[0].noted_s is None
        assert (await store.get(audit_page_path(0))).value == b"{"

    run(test)


def test_ledger_that_cannot_be_read_keeps_the_space_of_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor the keeper, nor who deletes the stream, stops at it; it stays, with what leads to it."""

    async def test(world: World) -> None:
        clock, user = Clock(), await world.client()
        stream = await new_stream(user)
        await closed_commits(world, stream, 6)
        before = sorted(await ledgers(world))
        dropped, live, damaged = before[:4], before[4:], (before[1], before[4])
        await stream.retention.truncate((4,))
        for ledger_id in damaged:
            path = ledger_path(LedgerId(ledger_id))
            node = await user.store.get(path)
            await user.store.put(path, b"?", node.version)
        cared = await elected(world, clock)
        await passes(cared, clock, 600)
        assert await ledgers(world) == {damaged[0], *live}, f"of {dropped}"
        assert caplog.text.count(f"ledger {damaged[0]} of dropped rows is left") == 1
        with pytest.raises(CorruptionError, match="deleted but for 2 of its ledgers"):
            await StreamCatalog(user).delete("s")
        assert await ledgers(world) == set(damaged)
        for ledger_id in damaged:
            await user.delete_ledger(ledger_id)
        await StreamCatalog(user).delete("s")
        assert await user.store.children("streams") == []

    run(test)


def test_page_of_manifests_that_cannot_be_read_keeps_only_what_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch)

    async def test(world: World) -> None:
        clock, user = Clock(), await world.client()
        stream = await new_stream(user)
        await closed_commits(world, stream, 12)
        rows = [(await stream.commit(n)).segments[0].ledger_id for n in range(12)]
        log = CommitLog(user, stream._nodes, stream.config.stream_id)
        (damaged,) = {p.pointer.ledger_id async for p in log.manifests.walk() if p.first == 0} - {
            p.pointer.ledger_id async for p in log.manifests.walk() if p.level == 2
        }
        await stream.retention.set_limits(Retention(rows=2, size_bytes=1))
        path = ledger_path(LedgerId(damaged))
        node = await user.store.get(path)
        await user.store.put(path, b"?", node.version)
        cared = await elected(world, clock)
        await passes(cared, clock, 600)
        left = await ledgers(world)
        assert left & set(rows) == {*rows[:4], rows[11]} and not cared._stream_keeper.last_error
        with pytest.raises(CorruptionError, match="deleted but for 1 of its ledgers or commits"):
            await StreamCatalog(user).delete("s")
        assert await ledgers(world) & set(rows) == set(rows[:4])

    run(test)
