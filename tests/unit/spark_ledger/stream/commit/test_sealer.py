"""Sealing: commits move into manifests, whatever breaks off, and everybody finds all of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from spark_ledger.errors import (
    CorruptionError,
    LedgerError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import sealer
from spark_ledger.stream.model import Commit
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Quorums
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
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
    found = [await stream.commit_segments([loose(2)] * (n % 3)) for n in range(count)]
    await stream._committer.sealer.close()
    return found


async def made(ledgers: FakeLedgers, count: int) -> list[Commit]:
    """A stream ``s`` with commits, of none, one or two segments."""
    return await committed(await StreamCatalog(ledgers).create("s", SCHEMA), count)


async def check(ledgers: FakeLedgers, expected: Sequence[Commit]) -> None:
    """A new reader finds every commit, in each way, and each is in one place."""
    _, streams = another(ledgers)
    stream = await streams.open("s")
    assert await stream.commits(0, len(expected)) == list(expected)
    assert commit_nodes(ledgers) == list(range(root_of(ledgers).sealed, len(expected)))
    reader = await streams.open("s")
    for commit in expected:
        assert await reader.commit(commit.number) == commit
        if commit.segments:
            assert await reader.commit_at(commit.first_segment) == commit
    named = {page.pointer.ledger_id for page in await pages_of(stream)}
    former = await former_of(stream)
    assert set(ledgers.ledgers) == named | former and not named & former, "nothing is left over"
    assert await free_merged(ledgers) == len(former)
    assert set(ledgers.ledgers) == named


@pytest.mark.parametrize("kept", [0, 1, 7])
@pytest.mark.parametrize(("leaf", "fan_out"), [(1, 2), (2, 2), (5, 3)])
def test_commits_are_sealed_as_they_are_made_and_all_are_found(
    monkeypatch: pytest.MonkeyPatch, leaf: int, fan_out: int, kept: int
) -> None:
    small_manifests(monkeypatch, leaf=leaf, fan_out=fan_out, kept=kept)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 0)
        stream = await StreamCatalog(ledgers).open("s")
        for count in (1, leaf, 6, 20, 31):
            commits += await committed(stream, count)
            await check(ledgers, commits)
        root = root_of(ledgers)
        made_by = len(commits) // leaf * leaf  # the commit after which somebody looked
        assert root.sealed == max(0, made_by - kept) // leaf * leaf
        assert all(len(pages) < fan_out for pages in root.levels)

    run(scenario())


def test_sizes_of_the_product_seal_a_hundred_after_a_hundred_and_fifty() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 149)
        assert root_of(ledgers).sealed == 0
        stream = await StreamCatalog(ledgers).open("s")
        commits += await committed(stream, 1)
        assert commit_nodes(ledgers) == list(range(100, 150))
        assert await stream.sealed_commits() == 100
        commits += await committed(stream, 1000)
        assert len(commit_nodes(ledgers)) == 50
        await check(ledgers, commits)
        assert ledgers.store.tree.children("streams/s/commits") == ["0000001"], "the empty one went"

    run(scenario())


def test_commits_are_found_by_segment_and_by_time_in_few_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=8, fan_out=4, kept=3)

    async def scenario() -> None:
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        now_ms = 1000
        stream._committer.clock_ms = lambda: now_ms
        commits = []
        for _ in range(700):
            now_ms += rng.choice([0, 0, 1, 50])
            if rng.random() < 0.01:
                now_ms = max(1000, now_ms - 120_000) if rng.random() < 0.5 else now_ms + 120_000
            commits.append(await stream.commit_segments([loose(2)] * rng.choice([0, 1, 1, 5])))
        levels = len(root_of(ledgers).levels)
        assert levels == 4
        for _ in range(60):
            other, streams = another(ledgers, Faults([]))
            reader = await streams.open("s")
            time_ms = rng.choice(commits).time_ms + rng.choice([-1, 0, 1])
            last = max((c.number for c in commits if c.time_ms < time_ms), default=-1)
            expected = commits[last + 1] if last + 1 < len(commits) else None
            found = await reader.first_commit_since(time_ms)
            resets = (await reader.head()).time_resets
            assert found == expected or resets, f"seed {seed}"
            segment = rng.randrange(commits[-1].end_segment)
            other.reads.clear()
            found = await (await streams.open("s")).commit_at(segment)
            assert found.first_segment <= segment < found.end_segment, f"seed {seed}"
            assert len(other.reads) <= levels, f"seed {seed}"

    run(scenario())


def test_leaves_that_stand_together_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=5)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 36)
        root = root_of(ledgers)
        assert [len(pages) for pages in root.levels] == [2, 3]
        other, streams = another(ledgers, Faults([]))
        stream = await streams.open("s")
        assert await stream.commits(3, 36) == commits[3:]
        index_pages = {page.pointer.ledger_id for page in root.pages() if page.level}
        for ledger_id in index_pages:
            lengths = [last - first + 1 for read, first, last in other.reads if read == ledger_id]
            assert sorted(lengths) in ([1, 4], [1, 5]), "the index, and behind it its leaves"
        lone = {pointer.ledger_id for pointer in root.levels[0]}
        assert len(other.reads) == 2 * len(index_pages) + len(lone)
        other.reads.clear()
        assert await stream.commits(0, 36) == commits
        assert len(other.reads) == 1, "the others are kept"

    run(scenario())


def test_reader_with_an_old_root_goes_on_after_its_pages_have_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 6)
        assert [len(pages) for pages in root_of(ledgers).levels] == [2]
        readers = [await another(ledgers)[1].open("s") for _ in range(4)]
        for reader in readers:
            assert await reader.commit(0) == commits[0]
        commits += await committed(await StreamCatalog(ledgers).open("s"), 42)
        assert await free_merged(ledgers), "leaves have moved"
        assert await readers[0].commit(3) == commits[3]
        assert await readers[1].commits(0, 48) == commits
        assert await readers[2].commit_at(commits[46].first_segment) == commits[46]
        assert [c.number for c in await readers[3].commits(5, 9)] == [5, 6, 7, 8]

    run(scenario())


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_sealing_that_breaks_off_at_any_step_leaves_every_commit_to_the_next(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    small_manifests(monkeypatch)

    async def scenario(step: int, lasts: int) -> bool:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 7)
        calls = 0

        def interpose(name: str, path: str) -> Fault:
            nonlocal calls
            calls += 1
            hit = step <= calls < step + lasts
            return Fault(outcome if hit and (is_sealing or lasts < 9) else Outcome.NORMAL)

        is_sealing = True
        _, streams = another(ledgers)
        broken = await streams.open("s")
        broken._nodes.store.interpose = interpose  # type: ignore[attr-defined]
        broken._committer.sealer._wanted = 7
        await broken._committer.sealer._seal_quietly()
        broken._nodes.store.interpose = None  # type: ignore[attr-defined]
        was_hit = calls >= step
        await _found(ledgers, commits)
        commits += await committed(await StreamCatalog(ledgers).open("s"), 5)
        await _found(ledgers, commits)
        return was_hit

    async def _found(ledgers: FakeLedgers, commits: list[Commit]) -> None:
        stream = await another(ledgers)[1].open("s")
        assert await stream.commits(0, len(commits)) == commits
        assert commit_nodes(ledgers) == list(range(root_of(ledgers).sealed, len(commits)))
        for ledger in ledgers.ledgers.values():
            assert ledger.metadata.custom_metadata["purpose"] == "manifest"
            assert ledger.metadata.custom_metadata["stream_id"] == stream.config.stream_id

    for lasts in (1, 2, 1000):
        steps = 1
        while run(scenario(steps, lasts)):
            steps += 1
        assert steps > 3


@pytest.mark.parametrize(
    "outcomes",
    [
        [Outcome.LOST_REPLY],
        [Outcome.LOST_REQUEST],
        [Outcome.LOST_REQUEST, Outcome.LOST_REPLY],
        [Outcome.LOST_REQUEST] * 2,
    ],
)
def test_lost_reply_of_a_sealing_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome]
) -> None:
    small_manifests(monkeypatch, kept=1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 5)
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        stream = await another(ledgers, Faults(outcomes))[1].open("s")
        await stream._committer.sealer.seal(5)
        assert root_of(ledgers).sealed == 4
        assert len(root_of(ledgers).levels) == 2, "it went on"
        await check(ledgers, commits)

    run(scenario())


def test_sealing_that_arrives_late_keeps_its_pages_though_its_repetition_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is refused then is the second sending: the first is what changed the root (rule T12)."""
    small_manifests(monkeypatch, kept=1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 5)
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        stream = await another(ledgers)[1].open("s")
        store = stream._nodes.store
        send, late = store.transaction, list[Sequence[Operation]]()

        async def arrives_late(operations: Sequence[Operation]) -> None:
            if any(each.path == "streams/s/manifests" for each in operations):
                if not late:
                    late.append(operations)
                    raise OutcomeUnknownError("no reply")
                if len(late) == 1:
                    late.append(operations)
                    await send(late[0])
            await send(operations)

        monkeypatch.setattr(store, "transaction", arrives_late)
        await stream._committer.sealer.seal(5)
        assert late and root_of(ledgers).sealed == 4
        assert len(root_of(ledgers).levels) == 2, "it went on"
        await check(ledgers, commits)

    run(scenario())


def test_of_two_that_seal_at_once_one_does_and_the_other_cleans_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, kept=1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 23)
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        streams = [await another(ledgers)[1].open("s") for _ in range(5)]
        await asyncio.gather(*(s._committer.sealer.seal(23) for s in streams))
        await streams[0]._committer.sealer.seal(23)
        assert root_of(ledgers).sealed == 22
        await check(ledgers, commits)

    run(scenario())


def test_lost_reply_of_a_sealing_that_was_merged_since_keeps_what_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process puts a page above ours before we look whether ours was applied."""
    small_manifests(monkeypatch, leaf=1, fan_out=2, kept=1000)

    async def scenario(count: int) -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, count)
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        monkeypatch.setattr(sealer, "LEAVES_PER_SEAL_MAX", 1)
        rival = await another(ledgers)[1].open("s")
        for at in range(1, 12):
            monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", count - 1 - at // 2)
            faults = Faults([Outcome.LOST_REPLY])
            stream = await another(ledgers, faults)[1].open("s")
            sealing = stream._committer.sealer
            read = stream._log.manifests.read_root

            async def later(latest: bool = False, read=read, faults=faults):  # type: ignore[no-untyped-def]
                if faults.count("transaction"):
                    monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
                    await rival._committer.sealer.seal(count)
                return await read(latest=latest)

            stream._log.manifests.read_root = later  # type: ignore[method-assign]
            await sealing.seal(count)
            await check(ledgers, commits)

    run(scenario(9))


def test_sealing_that_fails_does_not_fail_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        ledgers.fail_append_at = 1
        commits = await committed(stream, 4)
        assert root_of(ledgers).sealed == 0
        assert len(ledgers.writers) == 1 and ledgers.ledgers == {}, "it cleaned up"
        commits += await committed(stream, 2)
        assert root_of(ledgers).sealed == 4, "it caught up"
        await check(ledgers, commits)

    run(scenario())


def test_damaged_commit_is_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch, kept=1000)

    async def scenario(old: bytes, new: bytes, number: int = 3) -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for _ in range(7):
            await stream.commit_segments([loose(2)] * 2)
        await stream._committer.sealer.close()  # it has nothing to do yet
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        path = stream._nodes.commit_path(number)
        node = await ledgers.store.get(path)
        assert old in node.value
        await ledgers.store.put(path, node.value.replace(old, new), node.version)
        other = await another(ledgers)[1].open("s")
        with pytest.raises(
            CorruptionError, match=rf"{number:010}|commit [{number}{number + 1}] begins"
        ):
            await other._committer.sealer.seal(7)
        assert number in commit_nodes(ledgers), "its node is there for whoever repairs it"
        assert await other.commit(6) == await stream.commit(6)
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1000)

    run(scenario(b'"first_segment":0', b'"first_segment":3', 0))
    run(scenario(b'"first_segment":6', b'"first_segment":9'))
    run(scenario(b'"first_segment":6', b'"first_segment":1'))
    run(scenario(b'"rows_before":12', b'"rows_before":7'))
    run(scenario(b'"time_ms"', b'"time"'))


def test_deleted_stream_is_not_sealed_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch, kept=1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await made(ledgers, 9)
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        other, streams = another(ledgers)
        stream = await streams.open("s")
        await StreamCatalog(ledgers)._mark_deleted(stream._nodes)
        with pytest.raises(NoSuchStreamError):
            await stream._committer.sealer.seal(9)
        assert len(commit_nodes(ledgers)) == 9
        assert ledgers.ledgers == {} and len(other.deleted) == 1
        await StreamCatalog(ledgers).delete("s")
        await StreamCatalog(ledgers).create("s", SCHEMA)
        with pytest.raises(LedgerError):
            await stream._committer.sealer.seal(9)
        assert ledgers.ledgers == {}

    run(scenario())


def test_manifests_have_three_copies_where_there_are_three_bookies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, kept=0)

    async def scenario(bookies: int) -> list[Quorums]:
        ledgers = FakeLedgers()
        create = ledgers.create_ledger

        async def limited(*, ensemble_size: int = 3, **rest):  # type: ignore[no-untyped-def]
            if ensemble_size > bookies:
                raise NotEnoughBookiesError("no")
            return await create(ensemble_size=ensemble_size, **rest)

        ledgers.create_ledger = limited  # type: ignore[method-assign]
        stream = await StreamCatalog(ledgers).create(
            "s", SCHEMA, ensemble_size=1, write_quorum=1, ack_quorum=1
        )
        await committed(stream, 2)
        return [ledger.metadata.quorums for ledger in ledgers.ledgers.values()]

    assert run(scenario(3)) == [Quorums(3, 3, 2)]
    assert run(scenario(2)) == [Quorums(1, 1, 1)]


@pytest.mark.parametrize("strangers", [0, 9])
def test_transaction_of_a_sink_is_found_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch, strangers: int
) -> None:
    """Also where too many sinks wrote for the pages to name them."""
    small_manifests(monkeypatch, leaf=10, fan_out=3, kept=5)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        made: dict[int, Commit] = {}
        for n in range(0, 150, 2):
            for _ in range(strangers if n % 20 == 0 else 0):
                await stream.commit_segments([loose()])
            pair = {"sink_id": "qp"[n // 2 % 2], "transaction_id": n}
            commit = await stream.commit_segments([loose(2)], **pair)  # type: ignore[arg-type]
            if pair["sink_id"] == "q":
                made[n] = commit
        assert len(root_of(ledgers).levels) > 1
        for wanted in range(-1, 150):
            other, streams = another(ledgers)
            reader = await streams.open("s")
            found = await reader.position_of("q", wanted)
            following = [n for n in made if n >= wanted]
            expected = made[following[0]].first_segment if following else None
            assert (None if found is None else found.segment) == expected, wanted
            if not strangers:
                assert len(other.reads) <= 4, "a page for each level, and the leaf"
        assert await stream.position_of("nobody", 0) is None
        last = await stream.commit_segments([loose()], overwrite=True)
        assert await stream.position_of("q", 0) == (last.first_segment, 0, 0), "its rows are gone"
        assert await stream.position_of("q", 150) is None

    run(scenario())


def test_close_waits_for_its_sealing_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealer, "SEAL_CLOSE_S", 0.01)

    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        hangs = stream._committer.sealer._work = asyncio.create_task(asyncio.sleep(3600))
        async with asyncio.timeout(5):
            await stream.close()
        assert not hangs.done()
        hangs.cancel()

    run(scenario())
