"""A keeper whose metadata server lags: it packs, names and gives back by what there is now."""

from __future__ import annotations

import pytest

from spark_ledger.stream import model as stream_model
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.names import LedgerCounts, count_ledgers, names_of
from spark_ledger.stream.retention.reclaim import Reclaimed
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import (
    freed,
    optimize,
    packs_of,
    planned,
    read,
    values,
    write,
    written,
)
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.retention.test_giving_back import closed_commits
from tests.unit.spark_ledger.stream.test_lagging_server import behind
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    former_of,
    loose,
    numbers,
    root_of,
    run,
    small_manifests,
    table,
)


def test_commits_since_are_packed_and_those_truncated_since_are_not() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 4)
        keeper = await behind(ledgers, "head")
        await write(stream, range(4, 6))
        await stream.retention.truncate((2, 0, 0))
        await freed(stream, ledgers, 1)
        (packed,) = await optimize(keeper)
        assert (packed.first, packed.commits, packed.rows) == (1, 5, 10)

    run(scenario())


def test_commits_that_another_has_packed_since_are_not_copied_again() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 2)
        await optimize(stream)
        keeper = await behind(ledgers, "packs")
        await write(stream, range(2, 4))
        await optimize(stream)
        known = set(ledgers.ledgers)
        assert await optimize(keeper) == []
        assert set(ledgers.ledgers).union(ledgers.deleted) == known
        assert await keeper.retention.packs() == packs_of(ledgers)

    run(scenario())


def test_handle_says_which_packs_there_are_now() -> None:
    """Also where it has looked before; only its readers go by what they know."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 2)
        reader = await another(ledgers)[1].open("s")
        assert not (await reader.retention.packs()).packs
        await optimize(stream)
        reader = await another(ledgers)[1].open("s")
        assert values(await read(reader, await planned(reader))) == list(range(4))
        await write(stream, range(2, 4))
        await optimize(stream)
        assert await reader.retention.packs() == packs_of(ledgers)
        assert len(packs_of(ledgers).packs) == 2
        assert reader._reader.packs.known == packs_of(ledgers), "its readers know them as well"

    run(scenario())


def test_packs_are_of_the_size_that_the_limits_ask_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper has a handle of the stream from before the limits were set."""
    monkeypatch.setattr(stream_model, "LEDGER_BYTES_LEAST", 0)
    size = 16 * 1024

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA, entry_bytes=size)
        await write(stream, range(40))
        keeper = await another(ledgers)[1].open("s")
        await stream.retention.set_limits(Retention(size_bytes=32 * size))
        packs = await keeper.optimizer.run_all(entries_min=1, dry_run=True)
        assert len(packs) > 1

    run(scenario())


@pytest.mark.parametrize("known", [0, 2, 5])
def test_pages_that_were_made_since_are_named(known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an audit would delete them, and the commits in them with them (rule K9)."""
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for n in range(12):
            if n == known:
                keeper = await behind(ledgers, "manifests", "head")
            await stream.commit_segments([loose(ledger_id=n)])
            await stream._committer.sealer.close()
        head, wanted = await stream.head(), set(map(LedgerId, range(12)))
        pages = {page.pointer.ledger_id async for page in stream._log.manifests.walk()}
        found: set[LedgerId] = set()
        async for part in names_of(keeper._nodes, keeper._log, head):
            found |= part.ledgers
        former = await former_of(stream)
        assert found == wanted | pages | former and len(pages) > 3
        counts = await count_ledgers(keeper._nodes, keeper._log, head, 0)
        waiting = len(former)
        assert counts == LedgerCounts(12 + len(pages), 0, reclaimable=waiting, replaced=waiting)

    run(scenario())


@pytest.mark.parametrize("last", [0, 1])
def test_pages_are_named_as_of_the_end_of_an_audit_that_has_read_the_commits(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit that it misses leads it to the newest root."""
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for _ in range(5):
            await stream.commit_segments([loose()])
            await stream._committer.sealer.close()
        keeper, head = await behind(ledgers, "manifests"), await stream.head()
        before = root_of(ledgers)
        if not last:
            for _ in range(6):
                await stream.commit_segments([loose()])
                await stream._committer.sealer.close()
        found: set[LedgerId] = set()
        async for part in names_of(keeper._nodes, keeper._log, head, head.next_commit - last):
            found |= part.ledgers
            if root_of(ledgers) == before:
                for _ in range(6):
                    await stream.commit_segments([loose()])
                    await stream._committer.sealer.close()
        assert found >= root_of(ledgers).ledgers() and root_of(ledgers) != before

    run(scenario())


def test_ledger_that_a_commit_since_names_is_not_deleted_for_an_audit() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 2)
        writer = stream.writer()
        await writer.write(table(2))
        segments = await writer.finish()
        await writer.close()
        keeper = await behind(ledgers, "head")
        await stream.commit_segments(segments)
        reclaimer = keeper.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert await reclaimer.delete_unlisted([segments[0].ledger_id], 2) == 0
        assert await numbers(stream.read()) == [0, 1, 2]

    run(scenario())


def test_commits_that_were_dropped_since_are_given_back_and_the_newest_root_goes_on() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 6)
        await stream.retention.truncate((1,))
        keeper = await behind(ledgers, "head", "manifests")
        await stream.retention.truncate((3,))
        other = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert await other.step(2) == Reclaimed(2, 2, is_done=True)
        reclaimer = keeper.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert await reclaimer.step(3) == Reclaimed(1, 1, is_done=True)
        assert root_of(ledgers).dropped == 3 and len(ledgers.ledgers) == 3

    run(scenario())
