"""A sealing whose transaction gets no reply and is given up: what is left, what arrives late."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_ledger.errors import ConflictError, NotFoundError, OutcomeUnknownError
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.commit import sealer
from tests.unit.spark_ledger.stream.commit.test_sealer import check, made
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import another, root_of, run, small_manifests


def test_sealing_that_is_given_up_without_a_reply_leaves_no_ledger_and_arrives_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its ledger went with the unnamed node that its transaction would take (rule T12)."""
    small_manifests(monkeypatch, kept=1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await made(ledgers, 5)
        monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
        stream = await another(ledgers)[1].open("s")
        store = stream._nodes.store
        send, late = store.transaction, list[Sequence[Operation]]()

        async def unanswered(operations: Sequence[Operation]) -> None:
            if any(each.path == "streams/s/manifests" for each in operations):
                late.append(operations)
                raise OutcomeUnknownError("no reply")
            await send(operations)

        monkeypatch.setattr(store, "transaction", unanswered)
        await stream._committer.sealer.seal(5)
        assert len(late) == 3 and not ledgers.ledgers
        with pytest.raises((ConflictError, NotFoundError)):
            await send(late[0])
        assert root_of(ledgers).sealed == 0
        await check(ledgers, commits)

    run(scenario())
