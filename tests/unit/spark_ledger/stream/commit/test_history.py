"""A stream whose ZooKeeper was restored, and whose new commits have passed what was seen of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    MetadataRestoredError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.metadata.memory import Fault
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Backup,
    Faults,
    another,
    commit_nodes,
    loose,
    numbers,
    root_of,
    run,
    small_manifests,
    table,
)

RESTORED = "stream 's': commit 2 is not the one that this process has seen: ZooKeeper was restored"


async def append(ledgers: FakeLedgers, *rows: int) -> None:
    """Rows of somebody else, one commit each."""
    stream = await another(ledgers)[1].open("s")
    for row in rows:
        await stream.append(table(row))


async def opened(ledgers: FakeLedgers, calls: Faults | None = None) -> tuple[FakeLedgers, Stream]:
    client, streams = another(ledgers, calls)
    return client, await streams.open("s")


async def passed(ledgers: FakeLedgers) -> tuple[FakeLedgers, Stream]:
    """A handle that has read three commits, the last two of which a restore has lost; three others
    were made in their place."""
    await StreamCatalog(ledgers).create("s", SCHEMA)
    await append(ledgers, 0)
    backup = Backup(ledgers)
    await append(ledgers, 1, 2)
    client, stream = await opened(ledgers)
    assert await numbers(stream.read()) == [0, 1, 2]
    backup.restore(client)
    await append(ledgers, 101, 102, 103)
    return client, stream


async def tail(stream: Stream) -> list[int]:
    return await numbers(stream.tail((3,), idle_timeout=1))


LOOKS: list[Callable[[Stream], Awaitable[object]]] = [
    lambda s: s.head(),
    lambda s: s.wait_for_commit(after_segment=3, timeout_s=1),
    lambda s: numbers(s.read((3,))),
    tail,
    lambda s: s.commit(3),
    lambda s: s.commits(0, 4),
    lambda s: s.append(table(7)),
    lambda s: s.append(table(7), sink_id="sink", transaction_id=0),
]


@pytest.mark.parametrize("look", LOOKS)
def test_handle_fails_once_other_commits_have_passed_those_that_it_has_seen(
    look: Callable[[Stream], Awaitable[object]],
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        _, stream = await passed(ledgers)
        for _ in range(2):  # it is not told once only
            with pytest.raises(MetadataRestoredError, match=RESTORED):
                await look(stream)
        assert not stream._log.memory_bytes
        with pytest.raises(MetadataRestoredError, match=RESTORED):
            await stream.commit(1)  # which it had in its memory
        _, fresh = await opened(ledgers)
        assert await numbers(fresh.read()) == [0, 101, 102, 103]

    run(scenario())


def test_tail_that_waits_fails_behind_the_restore() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        backup = Backup(ledgers)
        await stream.append(table(0))
        client, reader = await opened(ledgers)
        rows = reader.tail("earliest", idle_timeout=30)
        assert (await anext(rows)).num_rows == 1
        waiting = asyncio.ensure_future(anext(rows))
        await asyncio.sleep(0.01)
        backup.restore()
        await append(ledgers, 100, 101)
        client.store.reconnect()
        with pytest.raises(MetadataRestoredError, match="commit 0 is not the one"):
            await waiting

    run(scenario())


def test_commits_of_one_time_and_size_are_told_apart_by_their_ledgers() -> None:
    """Writers whose clock is behind give their commits the time of the commit before."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        stream._committer.clock_ms = lambda: 10_000
        await stream.append(table(0))
        backup = Backup(ledgers)
        await stream.append(table(1))
        client, reader = await opened(ledgers)
        assert (await reader.head()).next_commit == 2  # before the commit itself is read
        assert await numbers(reader.read((1,))) == [1]
        backup.restore(client)
        _, other = await opened(ledgers)
        other._committer.clock_ms = lambda: 10_000
        await other.append(table(1))
        with pytest.raises(MetadataRestoredError):
            await reader.head()

    run(scenario())


@pytest.mark.parametrize("reads", [True, False], ids=["commits read", "head only"])
@pytest.mark.parametrize("list_bytes", [200_000, 10], ids=["short list", "list elsewhere"])
@pytest.mark.parametrize("segments", [0, 1, 3])
def test_other_commits_are_found_whatever_was_seen_of_the_last_one(
    segments: int, list_bytes: int, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", list_bytes)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        backup = Backup(ledgers)
        parts = [loose(2, 3, ledger_id=50 + n) for n in range(segments)]
        await stream.commit_segments(parts)
        client, reader = await opened(ledgers)
        assert (await reader.head()).next_segment == segments
        if reads:
            assert len((await reader.commit(0)).segments) == segments
        client.store.reconnect()
        assert (await reader.head()).next_commit == 1
        await asyncio.sleep(0.002)  # a millisecond of the clock
        backup.restore(client)
        _, other = await opened(ledgers)
        await other.commit_segments(parts)
        with pytest.raises(MetadataRestoredError):
            await reader.head()

    run(scenario())


def test_handle_that_has_seen_no_head_reads_the_commits_that_are_there_now() -> None:
    """As tasks do, which are told the numbers of commits."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.append(table(0))
        backup = Backup(ledgers)
        await stream.append(table(1))
        calls = Faults([])
        client, reader = await opened(ledgers, calls)

        async def rows() -> list[object]:
            calls.calls.clear()
            chunks = reader.read_commit_chunks(range(2), Dlsn(0), Dlsn(2))
            return [
                n
                async for chunk in chunks
                for each in chunk
                for n in each.batch.column("n").to_pylist()
            ]

        assert await rows() == [0, 1]
        assert await rows() == [0, 1] and not calls.calls
        backup.restore(client)
        await append(ledgers, 101)
        assert await rows() == [0, 101]

    run(scenario())


def test_writer_alone_fails_behind_the_restore() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        backup = Backup(ledgers)
        await stream.append(table(0))
        backup.restore(ledgers)
        await append(ledgers, 100, 101)
        with pytest.raises(MetadataRestoredError, match="commit 0 is not the one"):
            await stream.append(table(1))

    run(scenario())


# -- what is no reason to fail ---------------------------------------------------------------------


def test_new_connection_costs_one_read_and_any_other_look_none() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        await append(ledgers, 0, 1, 2)
        calls = Faults([])
        client, stream = await opened(ledgers, calls)
        assert await numbers(stream.read()) == [0, 1, 2]
        for expected in (1, 2, 1):  # head, and the commit behind a new connection
            calls.calls.clear()
            await stream.head()
            assert calls.count("get") == expected
            if expected == 1:
                client.store.reconnect()
        client.store.reconnect()
        calls.calls.clear()
        await asyncio.gather(*(stream.head() for _ in range(9)))
        assert calls.count("get") == 9 + 1

    run(scenario())


def test_backup_that_has_all_that_was_seen_does_no_harm() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        await append(ledgers, 0, 1)
        client, stream = await opened(ledgers)
        assert await numbers(stream.read()) == [0, 1]
        backup = Backup(ledgers)
        await append(ledgers, 2, 3)
        backup.restore(client)
        assert await numbers(stream.read()) == [0, 1]
        await append(ledgers, 102)
        assert await numbers(stream.read()) == [0, 1, 102]

    run(scenario())


@pytest.mark.parametrize("more", [0, 1, 33])
def test_commits_that_were_sealed_or_truncated_since_do_no_harm(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        writer = await StreamCatalog(ledgers).create("s", SCHEMA)
        for row in range(5):
            await writer.append(table(row))
        readers = [await opened(ledgers) for _ in range(4)]  # each looks again once
        for _, stream in readers:
            assert await numbers(stream.read()) == list(range(5))

        async def behind_a_new_connection() -> list[int]:
            client, stream = readers.pop()
            client.store.reconnect()
            return await numbers(stream.read())

        for row in range(5, 5 + more):
            await writer.append(table(row))
        await writer._committer.sealer.close()
        assert (4 in commit_nodes(ledgers)) == (more < 2)
        assert await behind_a_new_connection() == list(range(5 + more))
        await writer.retention.truncate("latest")
        assert await behind_a_new_connection() == []
        for ledger in ledgers.ledgers.values():
            ledger.closed = True
        reclaimer = writer.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        while not (await reclaimer.step(5 + more)).is_done:
            pass
        assert root_of(ledgers).dropped == 5 + more
        assert await behind_a_new_connection() == []
        await (await another(ledgers)[1].open("s")).append(table(77))
        assert await behind_a_new_connection() == [77]

    run(scenario())


def test_stream_that_was_made_again_is_another_stream() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        await append(ledgers, 0, 1)
        client, stream = await opened(ledgers)
        assert await numbers(stream.read()) == [0, 1]
        catalog = another(ledgers)[1]
        await catalog.delete("s")
        client.store.reconnect()
        with pytest.raises(NoSuchStreamError):
            await stream.head()
        await catalog.create("s", SCHEMA)
        await append(ledgers, 100, 101, 102)
        client.store.reconnect()
        for look in LOOKS[:5]:
            with pytest.raises(NoSuchStreamError):
                await look(stream)

    run(scenario())


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("rows", [[], [100]], ids=["empty", "one"])
@pytest.mark.parametrize("is_former", [False, True])
def test_stream_that_was_made_again_and_has_fewer_commits_is_another_stream(
    is_former: bool, rows: list[int], look: Callable[[Stream], Awaitable[object]]
) -> None:
    """Also one of the former format, which has no root of manifests to tell."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        await append(ledgers, 0, 1, 2, 3)
        client, stream = await opened(ledgers)
        assert await numbers(stream.read()) == [0, 1, 2, 3]
        catalog = another(ledgers)[1]
        await catalog.delete("s")
        await catalog.create("s", SCHEMA)
        await append(ledgers, *rows)
        if is_former:
            await ledgers.store.delete(stream._nodes.manifests_path)
        client.store.reconnect()
        with pytest.raises(NoSuchStreamError):
            await look(stream)

    run(scenario())


def test_server_that_does_not_know_the_commit_yet_is_asked_for_the_latest() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        await append(ledgers, 0, 1)
        client, stream = await opened(ledgers)
        assert await numbers(stream.read()) == [0, 1]
        inner, commit = client.store.get, stream._nodes.commit_path(1)
        asked: list[str] = []

        async def lags(path: str) -> Versioned[bytes]:
            if path == commit:
                asked.append(path)
                raise NotFoundError(path)
            return await inner(path)

        client.store.get = lags  # type: ignore[method-assign]
        client.store.reconnect()
        assert (await stream.head()).next_commit == 2
        assert len(asked) == 1

    run(scenario())


def test_head_of_before_a_break_is_not_believed_behind_it() -> None:
    """The head is read, then the connection breaks, and the store is restored."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        await append(ledgers, 0)
        backup = Backup(ledgers)
        breaks = False

        def interpose(name: str, path: str) -> Fault:
            nonlocal breaks
            if breaks and "commits" in path:
                breaks = False
                backup.restore(client)
            return Fault()

        client, streams = another(ledgers, interpose)
        stream = await streams.open("s")
        assert (await stream.head()).next_commit == 1
        await append(ledgers, 1)
        client.store.reconnect()
        breaks = True
        assert (await stream.head()).next_commit == 1
        await append(ledgers, 101)
        assert await numbers(stream.read()) == [0, 101]

    run(scenario())


async def sealed(ledgers: FakeLedgers) -> tuple[FakeLedgers, Stream, Backup]:
    """A handle that has seen five commits; a backup that has one of them less."""
    await ledgers.store.create("keeper", b"")
    await StreamCatalog(ledgers).create("s", SCHEMA)
    await append(ledgers, 0, 1, 2, 3)
    backup = Backup(ledgers)
    await append(ledgers, 4)
    client, stream = await opened(ledgers)
    assert (await stream.head()).next_commit == 5
    return client, stream, backup


async def append_and_seal(ledgers: FakeLedgers, count: int) -> None:
    writer = await another(ledgers)[1].open("s")
    for row in range(count):
        await writer.append(table(100 + row))
    await writer._committer.sealer.close()
    assert 4 not in commit_nodes(ledgers)


def silent(client: FakeLedgers, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """The bookies answer this process no more; calls are counted."""
    calls = Faults([])

    async def open_unconfirmed(ledger_id: int) -> NoReturn:
        calls("open", str(ledger_id))
        raise BookieUnavailableError("b1: no answer")

    monkeypatch.setattr(client, "open_unconfirmed", open_unconfirmed)
    return calls


def test_head_is_read_while_the_bookies_are_away_that_have_the_last_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        client, stream, _ = await sealed(ledgers)
        await append_and_seal(ledgers, 33)
        client.store.reconnect()
        with monkeypatch.context() as away:
            calls = silent(client, away)
            for asked in (1, 2):  # each looks again
                assert (await stream.head()).next_commit == 38
                assert calls.count("open") == asked
        for _ in range(2):
            assert await numbers(stream.read((30,))) == list(range(125, 133))
        calls = silent(client, monkeypatch)
        assert (await stream.head()).next_commit == 38 and not calls.count("open")

    run(scenario())


def test_other_commits_are_found_once_the_bookies_are_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        client, stream, backup = await sealed(ledgers)
        await asyncio.sleep(0.002)  # a millisecond of the clock
        backup.restore(client)
        await append_and_seal(ledgers, 33)
        with monkeypatch.context() as away:
            silent(client, away)
            assert (await stream.head()).next_commit == 37
        for look in (stream.head, stream.head):
            with pytest.raises(MetadataRestoredError, match="commit 4 is not the one"):
                await look()

    run(scenario())
