"""Dropped commits whose ledgers a writer has open: given back once it has closed them."""

from __future__ import annotations

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.ledgers import PURPOSE_MANIFEST, TAG_PURPOSE
from spark_ledger.stream.retention.reclaim import LiveNames, Reclaimer
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
