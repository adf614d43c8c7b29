"""Commits that overwrite rows which a hold keeps: refused as truncations are (rule T16)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from spark_ledger.errors import ConflictError, DataLossError, OutcomeUnknownError
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.model import Retention
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.retention.test_truncation import Between, stream_of
from tests.unit.spark_ledger.stream.world import (
    Faults,
    another,
    lagging_heads,
    loose,
    numbers,
    run,
    table,
)

REFUSED = r"stream 's': nothing was overwritten, because hold 'slow' keeps the rows .*\(1, 0, 0\)"
PAIR: dict[str, Any] = {"sink_id": "q", "transaction_id": 7}


@pytest.mark.parametrize("options", [{}, {"retention": Retention(rows=9)}])
def test_overwrite_is_refused_by_a_hold_and_changes_nothing(options: dict[str, Any]) -> None:
    async def scenario() -> None:
        _, stream = await stream_of(4, **options)
        await stream.retention.hold("slow", (1,), for_s=60)
        before = await stream.head()
        for _ in range(2):
            with pytest.raises(ConflictError, match=REFUSED):
                await stream.append(table(9), overwrite=True, **PAIR)
        assert await stream._watch.read() == before
        assert await stream.last_transaction("q") is None
        assert await numbers(stream.read(Dlsn(1))) == [1, 2, 3]
        await stream.append(table(4))
        await stream.retention.release("slow")
        assert (await stream.append(table(9), overwrite=True, **PAIR)).applied
        assert await numbers(stream.read()) == [9]

    run(scenario())


def test_overwrite_is_refused_by_a_hold_that_is_over_as_a_truncation_is() -> None:
    async def scenario() -> None:
        _, stream = await stream_of(4)
        hold = await stream.retention.hold("slow", (1,), for_s=60, size_bytes_max=1)
        assert hold.is_void(await stream.head(), hold.expires_ms)
        with pytest.raises(ConflictError, match=REFUSED):
            await stream.append(table(9), overwrite=True)
        assert await stream.retention.release_void(hold.expires_ms) == [hold]
        await stream.append(table(9), overwrite=True)

    run(scenario())


def test_overwrite_beside_holds_that_keep_none_of_its_rows_is_made() -> None:
    """One holds what comes next, another one rows that were dropped in spite of it."""

    async def scenario() -> None:
        _, stream = await stream_of(4)
        await stream.retention.hold("next", "latest", for_s=60)
        await stream.append(table(8), overwrite=True)
        assert await numbers(stream.read()) == [8]
        with pytest.raises(ConflictError, match="hold 'next' keeps"):
            await stream.append(table(9), overwrite=True)
        await stream.retention.truncate("latest", ignore_holds=True)
        await stream.append(table(9), overwrite=True)
        assert await numbers(stream.read()) == [9]

    run(scenario())


@pytest.mark.parametrize("options", [{}, {"retention": Retention(rows=9)}])
@pytest.mark.parametrize("hold_is_within", [False, True])
@pytest.mark.parametrize("outcome", [Outcome.NORMAL, Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_hold_beside_an_overwrite_is_kept_or_refused(
    hold_is_within: bool, options: dict[str, Any], outcome: Outcome
) -> None:
    """One of them happens between any two steps of the other, also of the first hold. Who does the
    other is told how it ended, or that nobody knows."""

    async def scenario(step: int) -> bool:
        ledgers, _ = await stream_of(4, **options)
        stream = await another(ledgers, Faults([outcome]))[1].open("s")
        rival = await another(ledgers)[1].open("s")
        told: list[bool] = []

        async def hold(by: Stream) -> None:
            with suppress(DataLossError):
                await by.retention.hold("slow", (1,), for_s=60)

        async def overwrite(by: Stream) -> None:
            try:
                await by.append(table(9), overwrite=True, **PAIR)
                told.append(True)
            except ConflictError:
                told.append(False)
            except OutcomeUnknownError:
                assert outcome is not Outcome.NORMAL

        outer, inner = (overwrite, hold) if hold_is_within else (hold, overwrite)
        store = Between(stream._nodes.store, step, lambda: inner(rival))
        stream._nodes.store = store
        await outer(stream)
        if store.calls_left > 0:
            return True
        head, holds = await rival._watch.read(), await rival.retention.holds()
        assert head.earliest_commit in (0, 4)
        assert [each.name for each in holds] == ["slow"] * (head.earliest_commit == 0), step
        assert told in ([], [head.earliest_commit == 4]), step
        return False

    steps = 1
    while not run(scenario(steps)):
        steps += 1
    assert steps > 3, "something happened between"


def test_overwrite_that_was_made_is_not_refused_by_a_hold_that_came_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reply is lost, and the server that answers then knows the hold and not the overwrite. The
    hold is being made, and will be refused."""

    async def scenario() -> None:
        ledgers, first = await stream_of(4, retention=Retention(rows=9))
        stream = await another(ledgers, Faults([Outcome.LOST_REPLY]))[1].open("s")
        hold = await first.retention.hold("slow", (1,), for_s=60)
        await first.retention.release("slow")
        send, over = stream._nodes.store.transaction, OneConnection(first._nodes.store)

        async def held_behind(operations: Any) -> None:
            try:
                await send(operations)
            finally:
                await first.retention._put_holds([hold], await first.retention._holds(), over)

        monkeypatch.setattr(stream._nodes.store, "transaction", held_behind)
        lagging_heads(monkeypatch, 2)
        with pytest.raises(OutcomeUnknownError, match="may or may not have taken effect"):
            await stream.commit_segments([loose(1)], overwrite=True)
        assert (await first._watch.read()).earliest_commit == 4

    run(scenario())
