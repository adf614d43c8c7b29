"""A keeper whose deletions get no reply: no ledger is left to which nothing leads."""

from __future__ import annotations

import pytest

from spark_ledger.errors import ConflictError, OutcomeUnknownError
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.retention.live_names import LiveNames
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Deletions,
    Faults,
    another,
    loose,
    pages_of,
    root_of,
    run,
    small_manifests,
)


@pytest.mark.parametrize("outcome", [Outcome.LOST_REQUEST, Outcome.LOST_REPLY])
def test_reclaim_whose_deletion_is_in_doubt_leaves_no_ledger_that_nothing_names(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """Manifests, and the lists of segments that are too long for a node (rule T18)."""
    small_manifests(monkeypatch, leaf=2, fan_out=2)
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario(at: int) -> bool:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for _ in range(11):
            await stream.commit_segments([loose(2)] * 3)
            await stream._committer.sealer.close()
        await stream.retention.truncate("latest")
        faults = Faults([Outcome.NORMAL] * at + [outcome])
        other, streams = another(ledgers, faults)
        broken = await streams.open("s")
        reclaimer = broken.retention.reclaimer(Deletions(other), LiveNames())
        try:
            while not (await reclaimer.step(11)).is_done:
                pass
        except (ConflictError, OutcomeUnknownError):
            pass  # the sweep ends
        keeper = (await another(ledgers)[1].open("s")).retention
        reclaimer = keeper.reclaimer(Deletions(ledgers), LiveNames())
        while not (await reclaimer.step(11)).is_done:
            pass
        root = root_of(ledgers)
        pages = {p.pointer.ledger_id for p in await pages_of(stream) if not root.is_dropped(p)}
        lists = {
            stored.pointer.ledger_id
            for number, stored in stream._log._cache.items()
            if number >= root.dropped and stored.pointer is not None
        }
        assert root.dropped == 11
        assert set(ledgers.ledgers) == pages | lists, at
        return not faults.outcomes

    at = 0
    while run(scenario(at)):
        at += 1
    assert at > 10
