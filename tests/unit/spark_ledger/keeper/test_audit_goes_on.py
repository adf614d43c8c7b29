"""An audit ends whatever fails now and then, and no keeper that takes over begins it again (K9)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from spark_ledger.keeper import audit_names
from spark_ledger.keeper.audit_names import NamesRead, NamesReader, SavedNames, WholeStream
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import (
    AUDIT_PATH,
    NAMES_PATH,
    AuditNames,
    Unlisted,
    named_page_path,
    read_audit,
    read_audit_names,
)
from spark_ledger.limits.keeper import AUDIT_ATTEMPTS
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.retention import names
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.keeper.test_audit import (
    AUDIT_S,
    audited,
    elected,
    ids,
    left,
    raw_ledgers,
    stream_of_three,
)
from tests.unit.spark_ledger.keeper.test_streams import ledgers, live_ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes, read, rows, task

COMMITS = 12


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step reads one commit, or looks at two ledgers, and each step is written down."""
    monkeypatch.setattr(names, "COMMITS_PER_BUCKET", 1)
    monkeypatch.setattr("spark_ledger.keeper.audit_pages.AUDIT_LEDGERS_PER_STEP", 2)
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_SAVED_STEPS", 1)


async def stream_of_many(world: World) -> Stream:
    stream = await stream_of_three(world)
    for number in range(4, COMMITS + 1):
        await stream.commit_segments(await task(world, number))
    return stream


async def outlived(cared: Keeper, clock: Clock, seconds: float) -> None:
    """Passes, as a keeper makes them: an error ends a pass, and the next one goes on."""
    for _ in range(round(seconds / 10)):
        with contextlib.suppress(LedgerError):
            await passes(cared, clock, 10)
        cared._passes += 1


def fail_each(cared: Keeper, nth: int, outcome: Outcome) -> Callable[[], int]:
    """Have each nth operation of the keeper fail; how many did."""
    store, count = cared._store, 0
    assert isinstance(store, MemoryMetadataStore)

    def interpose(_name: str, _path: str) -> Fault:
        nonlocal count
        count += 1
        return Fault(Outcome.NORMAL if count % nth else outcome)

    store.interpose = interpose
    return lambda: count // nth


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_audit_ends_though_the_metadata_store_fails_now_and_then(
    outcome: Outcome, small_parts: None
) -> None:
    async def test(world: World) -> None:
        stream = await stream_of_many(world)
        lost = await left(world, 98, 99)
        clock = Clock()
        cared = await elected(world, clock)
        failed = fail_each(cared, 41, outcome)
        await outlived(cared, clock, 12 * AUDIT_S)
        assert failed() > 30
        assert (await read_audit(MemoryMetadataStore(world.tree))) is not None
        assert not set(ids(lost)) & await ledgers(world)
        assert await ledgers(world) == await live_ledgers(stream) | await raw_ledgers(world)
        assert await read(stream) == list(range(1, COMMITS + 1))

    run(test)


def test_each_ledger_is_looked_at_by_one_audit_though_reading_it_fails_once(
    small_parts: None,
) -> None:
    async def test(world: World) -> None:
        await stream_of_three(world)
        lost = [segment for n in range(5) for segment in await left(world, 90 + n)]
        clock = Clock()
        cared = await elected(world, clock)
        store, due = cared._store, {ledger_path(LedgerId(each)) for each in ids(lost)}
        assert isinstance(store, MemoryMetadataStore)

        def interpose(name: str, path: str) -> Fault:
            if name != "get" or path not in due:
                return Fault(Outcome.NORMAL)
            due.discard(path)
            return Fault(Outcome.UNAVAILABLE)

        store.interpose = interpose
        while not (found := await read_audit(store)) or not found.value.ended_ms:
            await outlived(cared, clock, 10)
        assert not due
        assert found.value.last.ledgers == len(lost)

    run(test)


def test_audit_reads_no_commit_again_because_of_an_error(
    small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    ledgers_of = CommitLog.ledgers

    async def counted(log: CommitLog, numbers: Sequence[int]) -> Any:
        looks.extend(numbers)
        if len(looks) % 4 == 0:
            raise MetadataUnavailableError("ZooKeeper is away for a moment")
        return await ledgers_of(log, numbers)

    async def test(world: World) -> None:
        await stream_of_many(world)
        clock = Clock()
        cared = await elected(world, clock)
        monkeypatch.setattr(CommitLog, "ledgers", counted)
        while not looks or not (await audited(cared)).ended_ms:
            await outlived(cared, clock, 10)
        again = len(looks) // 4
        assert again >= 3
        assert len(looks) == COMMITS + again

    run(test)


def test_stream_whose_bookies_are_away_for_a_while_is_read_after_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledgers_of, attempts = CommitLog.ledgers, 0

    async def away(log: CommitLog, numbers: Sequence[int]) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts < 8:
            raise BookieUnavailableError("no bookie answers")
        return await ledgers_of(log, numbers)

    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        lost = await left(world, 4)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, AUDIT_S)
        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "ledgers", away)
            await passes(cared, clock, 2 * AUDIT_S)
        assert attempts >= 8
        assert (await audited(cared)).unread == ()
        assert not set(ids(lost)) & await ledgers(world)
        assert await read(stream) == [1, 2, 3]

    run(test)


def test_stream_whose_bookies_stay_away_ends_no_audit_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledgers_of = CommitLog.ledgers

    async def away(log: CommitLog, numbers: Sequence[int]) -> Any:
        if log.manifests.stream_id == hidden:
            raise BookieUnavailableError("no bookie answers")
        return await ledgers_of(log, numbers)

    hidden = ""

    async def test(world: World) -> None:
        nonlocal hidden
        await stream_of_three(world)
        other = await new_stream(await world.client(), "a-hidden-one")
        hidden = other.config.stream_id
        await other.append(rows(9))
        lost = await left(world, 4)
        clock = Clock()
        cared = await elected(world, clock)
        with monkeypatch.context() as patched:
            patched.setattr(CommitLog, "ledgers", away)
            await passes(cared, clock, 2 * (AUDIT_S + 10 * AUDIT_ATTEMPTS))
        assert (await audited(cared)).unread == ("a-hidden-one",)
        assert not set(ids(lost)) & await ledgers(world)
        assert await read(other) == [9]

    run(test)


async def _until_read(cared: Keeper, clock: Clock, commits: int) -> None:
    """Passes until it is written down that an audit has read so many commits."""
    for _ in range(100):
        await passes(cared, clock, 10)
        saved = await read_audit_names(cared._store)
        if saved is not None and any(each.behind >= commits for each in saved.value.streams):
            return
    raise AssertionError("nothing was written down")


async def _next_keeper(first: Keeper, world: World, clock: Clock) -> Keeper:
    await first._save()
    await first._client.close()
    return await elected(world, clock, audit_s=0.0)


def _count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    looks: list[int] = []
    ledgers_of = CommitLog.ledgers

    async def counted(log: CommitLog, numbers: Sequence[int]) -> Any:
        looks.extend(numbers)
        return await ledgers_of(log, numbers)

    monkeypatch.setattr(CommitLog, "ledgers", counted)
    return looks


def test_keeper_that_takes_over_reads_only_what_the_one_before_did_not(
    small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_STEPS_PER_PASS", 1)

    async def test(world: World) -> None:
        stream = await stream_of_many(world)
        await left(world, 98)
        clock = Clock()
        first = await elected(world, clock)
        await _until_read(first, clock, 7)
        second = await _next_keeper(first, world, clock)
        looks = _count_reads(monkeypatch)
        await passes(second, clock, 3 * AUDIT_S)
        state = await audited(second)
        assert state.begun_s is None and state.last.ledgers == 1
        assert looks == list(range(7, COMMITS))
        assert await read(stream) == list(range(1, COMMITS + 1))
        assert await second._store.children(NAMES_PATH) == [], "it is over"

    run(test)


@pytest.mark.parametrize(
    "harm", ["missing page", "damaged page", "page of another audit", "damaged place"]
)
def test_keeper_that_takes_over_believes_no_place_without_its_names(
    harm: str, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_STEPS_PER_PASS", 1)

    async def test(world: World) -> None:
        await stream_of_many(world)
        clock = Clock()
        first = await elected(world, clock)
        await _until_read(first, clock, 7)
        second = await _next_keeper(first, world, clock)
        store = MemoryMetadataStore(world.tree)
        path = named_page_path(0)
        if harm == "missing page":
            await store.delete(path)
        elif harm.endswith(("page", "audit")):
            page, what = await store.get(path), b'"ids":"' if "damaged" in harm else b'"begun_s":'
            change = what + (b"AAAA" if "damaged" in harm else b"1")
            await store.put(path, page.value.replace(what, change), page.version)
        else:
            await store.put(NAMES_PATH, b"{}", (await store.get(NAMES_PATH)).version)
        looks = _count_reads(monkeypatch)
        await passes(second, clock, 3 * AUDIT_S)
        assert (await audited(second)).last.ledgers == 0, "all of them are named"
        assert looks == list(range(COMMITS))

    run(test)


def test_place_is_taken_back_before_pages_of_names_are_written_anew(
    small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper that begins again writes pages with fewer names. If it dies then, and the place of
    the one before still stood, the next one would miss names, and delete their ledgers."""
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_STEPS_PER_PASS", 1)

    async def test(world: World) -> None:
        stream = await stream_of_many(world)
        clock = Clock()
        first = await elected(world, clock)
        await _until_read(first, clock, COMMITS - 1)
        second = await _next_keeper(first, world, clock)
        store = MemoryMetadataStore(world.tree)
        page = await store.get(named_page_path(0))
        await store.delete(named_page_path(0))
        save = second._audit._saved._save_page

        async def dies_behind_the_page(*words: Any) -> None:
            await save(*words)
            raise OutcomeUnknownError("and the keeper dies")

        monkeypatch.setattr(second._audit._saved, "_save_page", dies_behind_the_page)
        await outlived(second, clock, 20)
        assert (await store.get(named_page_path(0))).value != page.value, "it holds less now"
        saved = await read_audit_names(store)
        assert saved is not None and saved.value == AuditNames()
        third = await _next_keeper(second, world, clock)
        await passes(third, clock, 3 * AUDIT_S)
        assert (await audited(third)).last.ledgers == 0, "all of them are named"
        assert await read(stream) == list(range(1, COMMITS + 1))

    run(test)


def test_commits_made_while_no_keeper_audited_are_read_before_a_deletion(
    small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_STEPS_PER_PASS", 1)

    async def test(world: World) -> None:
        stream = await stream_of_three(world)
        lost = await left(world, 4)
        clock = Clock()
        first = await elected(world, clock)
        await passes(first, clock, 70)
        while not (await audited(first)).ended_ms:
            await passes(first, clock, 10)
        assert (await audited(first)).last.ledgers == 1, "it is noted"
        await _until_whole(first, clock)
        await stream.commit_segments(lost)  # named after all, behind what was read
        second = await _next_keeper(first, world, clock)
        await passes(second, clock, 4 * AUDIT_S)
        assert await read(stream) == [1, 2, 3, 4]

    run(test)


async def _until_whole(cared: Keeper, clock: Clock) -> None:
    for _ in range(100):
        await passes(cared, clock, 10)
        saved = await read_audit_names(cared._store)
        if saved is not None and any(each.is_whole for each in saved.value.streams):
            return
    raise AssertionError("no stream was read to its end")


def test_audit_of_a_keeper_that_lost_its_election_is_not_done_twice(
    small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_STEPS_PER_PASS", 1)

    async def test(world: World) -> None:
        await stream_of_many(world)
        await left(world, 98)
        clock = Clock()
        first = await elected(world, clock)
        await _until_read(first, clock, 7)
        await first._save()
        await first._election.resign()
        second = await elected(world, clock, audit_s=0.0)
        await passes(second, clock, 4 * AUDIT_S)
        ended = await audited(second)
        assert ended.begun_s is None
        await second._save()
        await second._election.resign()
        assert await first.elect()
        steps = 0
        step = NamesReader.step

        async def counted(reader: NamesReader) -> Any:
            nonlocal steps
            steps += 1
            return await step(reader)

        monkeypatch.setattr(NamesReader, "step", counted)
        clock.now += 1
        await first.run_pass()
        assert steps == 0, "that audit is over"
        assert await audited(first) == ended

    run(test)


def test_names_of_another_audit_are_not_taken_for_this_one(small_parts: None) -> None:
    async def test(world: World) -> None:
        await stream_of_many(world)
        store = MemoryMetadataStore(world.tree)
        await store.create(NAMES_PATH, encode_node(AuditNames(begun_s=3.0, pages=(5,))))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 2 * AUDIT_S)
        assert (await audited(cared)).last.ledgers == 0
        assert (await audited(cared)).ended_ms

    run(test)


@pytest.mark.parametrize("is_first", [True, False])
def test_page_of_names_that_was_not_written_down_is_written_by_the_next_save(
    is_first: bool,
) -> None:
    """Else the node behind it says that all is there, and live ledgers pass for unnamed."""

    async def test(world: World) -> None:
        cared = await elected(world, Clock())
        saved, read = SavedNames(cared._client, lambda: cared._election.check), NamesRead(1.0)
        store = cared._store
        assert isinstance(store, MemoryMetadataStore)
        if not is_first:
            read.named.add([LedgerId(1)])
            await saved.save(read)
        read.named.add([LedgerId(2), LedgerId(7)])

        def interpose(name: str, _path: str) -> Fault:
            return Fault(Outcome.UNAVAILABLE if name == "transaction" else Outcome.NORMAL)

        store.interpose = interpose
        with pytest.raises(MetadataUnavailableError):
            await saved.save(read)
        store.interpose = None
        await saved.save(read)
        found = await saved.load(1.0)
        assert all(LedgerId(number) in found.named for number in (2, 7))

    run(test)


@pytest.mark.parametrize("pages", [0, 1])
def test_audit_that_another_keeper_went_on_with_counts_what_that_one_has_found(
    pages: int, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing twice: pages that the other one has done are done."""
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_STEPS_PER_PASS", 1)

    async def test(world: World) -> None:
        await stream_of_many(world)
        await left(world, 98)
        clock = Clock()
        first = await elected(world, clock)
        await _until_read(first, clock, 7)
        now = await audited(first)
        sums = Unlisted(ledgers=40, deleted=30)
        found = msgspec.structs.replace(now, so_far=sums, next_page=pages)
        before = await first._store.get(AUDIT_PATH)
        await first._store.put(AUDIT_PATH, encode_node(found), before.version)
        await first._save()
        assert await first.elect(), "again"
        while (ended := await audited(first)).begun_s is not None:
            await passes(first, clock, 10)
        assert (ended.last.ledgers, ended.last.deleted) == (40 + (not pages), 30)
        assert (ended.deleted, first._audit.deleted) == (30, 0)

    run_virtually(test)


def test_streams_of_which_most_was_read_are_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node holds so many. What a stream of few commits names is soon read again."""
    monkeypatch.setattr(audit_names, "AUDIT_SAVED_STREAMS", 2)

    async def test(world: World) -> None:
        cared = await elected(world, Clock())
        saved, read = SavedNames(cared._client, lambda: cared._election.check), NamesRead(1.0)
        read.named.add([LedgerId(1)])
        read.whole |= {"a": WholeStream("of a", 5), "b": WholeStream("of b", 70)}
        read.parts |= {"c": ("of c", 60), "d": ("of d", 6)}
        await saved.save(read)
        found = await saved.load(1.0)
        assert found.whole == {"b": WholeStream("of b", 70)}
        assert found.parts == {"c": ("of c", 60)}

    run_virtually(test)
