"""Two drivers with the same pair: one of them applied it, and each is told which."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Segment
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run

OURS = loose(2, ledger_id=1)
PAIR: dict[str, Any] = {"sink_id": "q", "transaction_id": 7}


@pytest.mark.parametrize(
    ("run_id", "segments"),
    [
        ("ours", [loose(2, ledger_id=2)]),
        ("ours", []),
        ("ours", [OURS, loose(1, ledger_id=1, first_entry=1)]),
        ("theirs", [loose(2, ledger_id=2)]),
        ("theirs", [OURS]),
    ],
)
def test_the_commit_of_another_driver_with_our_pair_is_not_ours(
    run_id: str, segments: list[Segment]
) -> None:
    """Ours was lost on its way, and theirs has the number that ours would have had."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        rival = await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REQUEST])
        other, streams = another(ledgers, faults)
        stream = await streams.open("s")
        inner = other.store.transaction

        async def too_late(operations: object) -> None:
            if not faults.count("transaction"):
                await rival.commit_segments(segments, run_id=run_id, **PAIR)
            await inner(operations)  # type: ignore[arg-type]

        other.store.transaction = too_late  # type: ignore[method-assign]
        commit = await stream.commit_segments([OURS], run_id="ours", **PAIR)
        assert not commit.applied, "theirs was"
        assert (commit.number, commit.run_id) == (0, run_id)
        assert [segment.ledger_id for segment in commit.segments] == [
            segment.ledger_id for segment in segments
        ]
        head = await rival.head()
        assert (head.next_commit, head.rows) == (1, sum(segment.rows for segment in segments))

    run(scenario())


def test_a_later_transaction_of_the_sink_in_the_place_of_a_lost_one_is_not_it() -> None:
    """Of the same driver's next run, with the same rows: still another transaction."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        rival = await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REQUEST])
        other, streams = another(ledgers, faults)
        stream = await streams.open("s")
        inner = other.store.transaction

        async def too_late(operations: object) -> None:
            if not faults.count("transaction"):
                await rival.commit_segments([OURS], sink_id="q", transaction_id=6)
            await inner(operations)  # type: ignore[arg-type]

        other.store.transaction = too_late  # type: ignore[method-assign]
        commit = await stream.commit_segments([OURS], **PAIR)
        assert commit.applied
        assert (commit.number, commit.transaction_id) == (1, 7)
        assert (await rival.head()).rows == 4

    run(scenario())
