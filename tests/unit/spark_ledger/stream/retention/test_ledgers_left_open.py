"""Dropped commits whose ledgers a writer has open: given back once it has closed them."""

from __future__ import annotations

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.ledgers import PURPOSE_MANIFEST, TAG_PURPOSE
from spark_ledger.stream.retention import reclaim
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.names import ReadNames
from spark_ledger.stream.retention.reclaim import Reclaimer
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.world import SCHEMA, root_of, run, small_manifests, table

COMMITS = 7


async def give_back(reclaimer: Reclaimer) -> None:
    while not (await reclaimer.step(COMMITS)).is_done:
        pass


@pytest.mark.parametrize(
    "list_bytes_max", [100, 100_000], ids=["lists-elsewhere", "lists-in-nodes"]
)
@pytest.mark.parametrize("open_at", range(COMMITS))
def test_commit_whose_ledger_is_open_is_found_again(
    monkeypatch: pytest.MonkeyPatch, open_at: int, list_bytes_max: int
) -> None:
    """What leads to its ledgers stays until they are gone (rule T18)."""
    small_manifests(monkeypatch, leaf=2, fan_out=2)
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", list_bytes_max)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        left = []
        for number in range(COMMITS):
            segments = []
            for _ in range(3):
                writer = stream.writer()
                await writer.write(table(number))
                segments += await writer.finish()
                if number in (open_at, open_at + 2):
                    left.append((number, writer))
                else:
                    await writer.close()
            await stream.commit_segments(segments)
            await stream._committer.sealer.close()
        await stream.retention.truncate("latest")
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        await give_back(reclaimer)
        for number, writer in left:
            assert root_of(ledgers).dropped == number, "the first of those that are left"
            assert writer.ledger_id in ledgers.ledgers
            await writer.close()
            await give_back(reclaimer)
        assert root_of(ledgers).dropped == COMMITS
        purposes = {each.metadata.custom_metadata[TAG_PURPOSE] for each in ledgers.ledgers.values()}
        assert purposes <= {PURPOSE_MANIFEST}, "no ledger is left to which nothing leads"

    run(scenario())


def test_ledger_that_stays_open_keeps_the_space_of_no_later_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bookies may be lost for good. What was found open behind it is looked at again."""
    monkeypatch.setattr(reclaim, "DROPPED_PER_STEP", 3)
    small_manifests(monkeypatch, leaf=2, fan_out=2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        names, left = LiveNames(), []
        looked_at: list[int] = []

        async def commit(*numbers: int, is_open: bool = False) -> None:
            for number in numbers:
                writer = stream.writer()
                await writer.write(table(number))
                segments = await writer.finish()
                if is_open:
                    left.append(writer)
                else:
                    await writer.close()
                await stream.commit_segments(segments)
            await stream._committer.sealer.close()

        async def visit() -> None:
            """One of a keeper: it knows what it knew, and drops all that there is."""
            await stream.retention.truncate("latest")
            reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), names)
            looked_at.clear()
            named_now = reclaimer._named

            async def named(first: int, end: int) -> ReadNames:
                looked_at.extend(range(first, end))
                return await named_now(first, end)

            reclaimer._named = named  # type: ignore[method-assign]
            while not (await reclaimer.step((await stream.head()).next_commit)).is_done:
                pass

        def of_rows() -> set[int]:
            all_of_them = ledgers.ledgers.values()
            tags = {each.ledger_id: each.metadata.custom_metadata for each in all_of_them}
            return {each for each, tag in tags.items() if tag[TAG_PURPOSE] != PURPOSE_MANIFEST}

        await commit(0)
        await commit(1, is_open=True)
        await commit(2, 3, 4, 5, 6, 7)
        await commit(8, is_open=True)
        await commit(9, 10, 11, 12)
        await visit()
        assert (looked_at, root_of(ledgers).dropped) == ([*range(13)], 1)
        assert of_rows() == {writer.ledger_id for writer in left}
        await commit(13, 14)
        await visit()
        assert looked_at == [1, 2, 3, 8, 9, 10, 13, 14], "what is open, and what is new"
        assert of_rows() == {writer.ledger_id for writer in left}
        await left.pop().close()
        await visit()
        assert (looked_at, of_rows()) == ([1, 2, 3, 8, 9, 10], {left[0].ledger_id})
        await visit()
        assert looked_at == [1, 2, 3], "all behind it is gone"
        await left.pop().close()
        await visit()
        assert (of_rows(), root_of(ledgers).dropped) == (set(), 15)

    run(scenario())
