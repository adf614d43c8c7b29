"""The audit finds what no index lists and nothing names, and deletes nothing else (rule K9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from spark_ledger.errors import (
    DataLossError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.keeper.audit_pages import PageLook, UnnamedPages
from spark_ledger.keeper.decisions import Verdict
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import (
    AUDIT_PATH,
    AuditState,
    Unlisted,
    ask_for_audit,
    read_audit,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.codec import encode_ledger
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.metadata.unsettled import OPEN_PATH, UNNAMED_PATH, id_path
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.model import Segment
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_killed_keepers import kill_at, until_dead
from tests.unit.spark_ledger.keeper.test_streams import ledgers, live_ledgers
from tests.unit.spark_ledger.keeper.world import (
    Clock,
    keeper,
    new_stream,
    passes,
    read,
    task,
)
from tests.unit.spark_ledger.stream.world import small_manifests

CONFIG: dict[str, Any] = {
    "owner_grace_s": 0.0,
    "unnamed_grace_s": 50.0,
    "dropped_grace_s": 0.0,
    "audit_s": 60.0,
}
AUDIT_S = 120
"""Passes for so long begin an audit and end it."""


async def elected(world: World, clock: Clock, **config: Any) -> Keeper:
    cared = await keeper(world, clock, **{**CONFIG, **config})
    assert await cared.elect()
    return cared


async def audited(cared: Keeper) -> AuditState:
    found = await read_audit(cared._store)
    assert found is not None
    return found.value


async def of_a_former_version(store: MetadataStore, ledger_ids: Sequence[int]) -> None:
    """Have ledgers name no owner, and stand in no index."""
    for each in ledger_ids:
        ledger_id = LedgerId(each)
        before = await LedgerStore(store).read(ledger_id)
        data = encode_ledger(before.value.with_changes(owner=""))
        await store.put(ledger_path(ledger_id), data, before.version)
        for root in (OPEN_PATH, UNNAMED_PATH):
            with contextlib.suppress(NotFoundError):
                await store.delete(id_path(root, ledger_id))


def ids(segments: Sequence[Segment]) -> list[int]:
    return [segment.ledger_id for segment in segments]


async def left(world: World, *numbers: int, closes: bool = True) -> list[Segment]:
    """Rows that a task of a former version wrote, and that no commit names."""
    segments = await task(world, *numbers, closes=closes)
    await of_a_former_version(MemoryMetadataStore(world.tree), ids(segments))
    return segments


async def stream_of_three(world: World) -> Stream:
    """Rows 1 to 3, of which a former version wrote the second; and a raw ledger of that version."""
    client = await world.client()
    stream = await new_stream(client)
    await stream.commit_segments(await task(world, 1))
    former = await left(world, 2)
    await stream.commit_segments(former)
    await stream.commit_segments(await task(world, 3))
    raw = await client.create_ledger()
    await raw.append(b"0")
    await raw.close()
    await of_a_former_version(MemoryMetadataStore(world.tree), [raw.ledger_id])
    return stream


async def raw_ledgers(world: World) -> set[int]:
    store = LedgerStore(MemoryMetadataStore(world.tree))
    found = [(await store.read(each)).value for each in await store.list()]
    return {int(each.ledger_id) for each in found if not each.custom_metadata}


@pytest.mark.parametrize("manifests", [False, True])
def test_ledger_of_a_former_version_is_deleted_by_the_second_audit(
    manifests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manifests:
        small_manifests(monkeypatch)

    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        for number in range(4, 12 if manifests else 5):
            await stream.commit_segments(await task(world, number))
        lost = await left(world, 99)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, AUDIT_S)
        assert (await audited(cared)).last.ledgers == 1
        assert set(ids(lost)) <= await ledgers(world)
        expected = await read(stream)
        await passes(cared, clock, AUDIT_S)
        assert (await audited(cared)).deleted == 1
        kept = await raw_ledgers(world)
        assert len(kept) == 1, "a raw ledger is its application's"
        assert await ledgers(world) == await live_ledgers(stream) | kept
        other = await StreamCatalog(await world.client()).open("s")
        assert await read(other) == expected
        assert not other.config.dropping
        with pytest.raises(NoSuchLedgerError):
            await stream.commit_segments(lost)
        await passes(cared, clock, AUDIT_S)
        assert await cared._store.children(AUDIT_PATH) == [], "nothing is noted any more"

    run(test)


async def big_commit_that_fails(world: World, stream: Stream) -> list[Segment]:
    """A commit that has named its first ledgers, and finds another one deleted."""
    segments = [(await task(world, 50 + number))[0] for number in range(3)]
    gone = await task(world, 60)
    await (await world.client()).delete_ledger(gone[0].ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await stream.commit_segments([*segments, *gone])
    return segments


def test_ledgers_of_a_big_commit_that_failed_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "LEDGERS_NAMED_BY_COMMIT_MAX", 1)

    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        segments = await big_commit_that_fails(world, stream)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, AUDIT_S)
        named = segments[0]  # another commit names one of them after all
        await stream.commit_segments([named])
        await passes(cared, clock, AUDIT_S)
        assert await ledgers(world) == await live_ledgers(stream) | await raw_ledgers(world)
        assert await read(stream) == [1, 2, 3, 50]
        assert (await audited(cared)).deleted == 2

    run(test)


@pytest.mark.parametrize("steps", range(0, 60, 4))
def test_commit_beside_an_audit_has_its_rows_or_an_error(steps: int) -> None:
    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        lost = await left(world, 4)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, AUDIT_S + 60)
        working = asyncio.create_task(passes(cared, clock, 10))
        for _ in range(steps):
            await asyncio.sleep(0)
        try:
            await stream.commit_segments(lost)
            expected = [1, 2, 3, 4]
        except NoSuchLedgerError:
            expected = [1, 2, 3]
        await working
        await passes(cared, clock, AUDIT_S)
        assert await read(stream) == expected
        assert await ledgers(world) == await live_ledgers(stream) | await raw_ledgers(world)

    run(test)


def test_commit_between_the_audit_and_the_deletion_keeps_its_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        lost = await left(world, 4)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, AUDIT_S)
        delete_of = UnnamedPages._delete_of

        async def committed_first(pages: UnnamedPages, *words: Any) -> int:
            await stream.commit_segments(lost)
            return await delete_of(pages, *words)

        monkeypatch.setattr(UnnamedPages, "_delete_of", committed_first)
        await passes(cared, clock, AUDIT_S)
        assert await read(stream) == [1, 2, 3, 4]
        assert await ledgers(world) == await live_ledgers(stream) | await raw_ledgers(world)

    run(test)


@pytest.mark.parametrize("root", ["streams", OPEN_PATH, UNNAMED_PATH, "ledgers"])
def test_store_that_lists_a_half_has_nothing_deleted_that_is_needed(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        await task(world, 7)
        clock = Clock()
        cared = await elected(world, clock, unnamed_grace_s=1e6)
        before = await ledgers(world)
        children = cared._store.children

        async def half(path: str) -> list[str]:
            names = await children(path)
            return names[len(names) // 2 + 1 :] if path.startswith(root) else names

        monkeypatch.setattr(cared._store, "children", half)
        cared._audit._grace_s = 0.0
        await passes(cared, clock, 4 * AUDIT_S)
        assert (await audited(cared)).ended_ms
        assert await ledgers(world) == before
        assert await read(stream) == [1, 2, 3]

    run(test)


def test_ledgers_of_a_stream_that_cannot_be_read_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        await left(world, 4)
        before = await ledgers(world)
        clock = Clock()
        cared = await elected(world, clock)

        async def lost(_log: CommitLog, _numbers: Sequence[int]) -> Any:
            raise DataLossError("a page of its manifests is lost")

        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "ledgers", lost)
            await passes(cared, clock, 3 * AUDIT_S)
            assert (await audited(cared)).unread == ("s",)
            assert (await audited(cared)).last.ledgers == 0
        assert await ledgers(world) == before
        await passes(cared, clock, 2 * AUDIT_S)
        assert await ledgers(world) == await live_ledgers(stream) | await raw_ledgers(world)
        assert (await audited(cared)).unread == ()

    run(test)


def test_what_a_deleted_stream_left_goes_with_the_first_audit() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client)
        await left(world, 1)
        await left(world, 2, closes=False)
        await StreamCatalog(client).delete("s")
        await new_stream(client)  # another one of the name
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, AUDIT_S)
        assert await ledgers(world) == set()

    run(test)


def test_open_ledger_of_a_former_version_is_recovered_and_then_deleted() -> None:
    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        (lost,) = ids(await left(world, 4, closes=False))
        clock = Clock()
        cared = await elected(world, clock)
        client = await world.client()
        while not (await client.ledger_metadata(lost)).is_closed:
            await passes(cared, clock, 10)
        await passes(cared, clock, AUDIT_S)
        assert await ledgers(world) == await live_ledgers(stream) | await raw_ledgers(world)

    run(test)


def test_open_ledger_of_a_former_version_holds_up_no_dropped_rows() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await stream.commit_segments(await left(world, 1, closes=False))
        await stream.commit_segments(await task(world, 2))
        await stream.retention.truncate((1,))
        clock = Clock()
        cared = await elected(world, clock, audit_s=0.0)
        await passes(cared, clock, 2 * AUDIT_S)
        assert await ledgers(world) == await live_ledgers(stream)
        assert await read(stream) == [2]

    run(test)


def test_audit_that_is_asked_for_begins_soon_and_a_dry_run_does_nothing() -> None:
    async def test(world: World) -> None:
        await stream_of_three(world)
        (lost,) = ids(await left(world, 4))
        clock = Clock()
        cared = await elected(world, clock, audit_s=0.0)
        await passes(cared, clock, AUDIT_S)
        assert await read_audit(cared._store) is None
        await ask_for_audit(cared._store)
        await ask_for_audit(cared._store)
        await passes(cared, clock, AUDIT_S)
        state = await audited(cared)
        assert not state.is_asked and state.last.ledgers == 1
        await cared._save()
        clock.now += 500
        await passes(cared, clock, 10)
        await cared._save()
        looking = await keeper(world, clock, dry_run=True, unnamed_grace_s=50.0)
        (finding,) = [each async for page in looking.audit() for each in page]
        assert finding.ledger.value.ledger_id == lost
        assert finding.verdict is Verdict.DELETE
        assert await audited(cared) == state
        assert lost in await ledgers(world)
        await ask_for_audit(cared._store)
        await passes(cared, clock, AUDIT_S)
        assert lost not in await ledgers(world)

    run(test)


def test_audit_of_a_keeper_that_died_is_ended_by_the_next_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_STEPS_PER_PASS", 1)

    async def test(world: World) -> None:
        await stream_of_three(world)
        await left(world, 4)
        clock = Clock()
        first = await elected(world, clock)
        await passes(first, clock, 60)
        for _ in range(10):
            await passes(first, clock, 10)
            found = await read_audit(first._store)
            if found is not None and found.value.next_page == 1:
                break
        assert (await audited(first)).so_far.ledgers == 1
        await first._client.close()
        second = await elected(world, clock, audit_s=0.0)
        looked: list[int] = []
        begin = UnnamedPages._begin

        async def counted(pages: UnnamedPages, number: int) -> PageLook:
            looked.append(number)
            return await begin(pages, number)

        monkeypatch.setattr(UnnamedPages, "_begin", counted)
        await passes(second, clock, AUDIT_S)
        state = await audited(second)
        assert state.begun_s is None and state.last.ledgers == 1
        assert looked == [], "that page was done"

    run(test)


def test_list_of_a_killed_keeper_is_taken_back() -> None:
    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        (lost,) = ids(await left(world, 4))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, AUDIT_S)
        store = cared._store
        assert isinstance(store, MemoryMetadataStore)
        store.interpose = lambda *_: (
            Fault(Outcome.UNAVAILABLE) if _lists(world) and not _has(world, lost) else Fault()
        )
        for _ in range(AUDIT_S // 10):
            with contextlib.suppress(MetadataUnavailableError):
                await passes(cared, clock, 10)
        store.interpose = None
        assert (await stream.refresh()).dropping == (lost,)
        await passes(cared, clock, 60)
        assert (await stream.refresh()).dropping == ()

    run(test)


def _has(world: World, ledger_id: int) -> bool:
    with contextlib.suppress(NotFoundError):
        return bool(world.tree.get(ledger_path(LedgerId(ledger_id))))
    return False


def _lists(world: World) -> bool:
    return b'"dropping":[' in world.tree.get("streams/s/config").value


@pytest.mark.proof
@pytest.mark.parametrize("applied", [False, True])
def test_audit_that_is_killed_anywhere_is_ended_by_the_next_keeper(
    applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "LEDGERS_NAMED_BY_COMMIT_MAX", 1)
    survived = False
    for operation in range(1 + applied, 1500, 5):

        async def test(world: World, operation: int = operation) -> None:
            nonlocal survived
            stream = await stream_of_three(world)
            await big_commit_that_fails(world, stream)
            await left(world, 8, closes=False)
            clock = Clock()
            first = await elected(world, clock)
            kill_at(first, operation, applied=applied)
            survived = await _works(first, clock)
            await until_dead(first)
            second = await elected(world, clock)
            assert await _works(second, clock)
            assert await ledgers(world) == await live_ledgers(stream) | await raw_ledgers(world)
            assert await read(stream) == [1, 2, 3]
            assert not (await stream.refresh()).dropping

        run(test)
        if survived:
            return
    raise AssertionError("an audit takes fewer operations")


async def _works(cared: Keeper, clock: Clock) -> bool:
    """Four audits, as far as the keeper lives; whether it does."""
    try:
        for _ in range(4 * AUDIT_S // 10):
            await passes(cared, clock, 10)
            await cared._save()
    except BaseException as error:
        if type(error).__name__ != "_Killed" and not isinstance(error, Exception):
            raise
        return False
    return True


def test_audit_that_is_asked_for_beside_one_begins_behind_it() -> None:
    """The one that is under way loses nothing by that."""

    async def test() -> None:
        store = MemoryMetadataStore()
        begun = AuditState(
            begun_s=3.0,
            next_page=2,
            so_far=Unlisted(ledgers=5),
            ended_s=1.0,
            last=Unlisted(ledgers=4),
            deleted=9,
        )
        await store.create(AUDIT_PATH, encode_node(begun))
        await ask_for_audit(store)
        found = await read_audit(store)
        assert found is not None and found.value.is_asked
        assert msgspec.structs.replace(found.value, is_asked=False) == begun

    asyncio.run(test())
