"""Ledgers that take entries once (segment lists, pages of manifests, packs) are closed in any case:
if the writing fails, and if its caller leaves while nothing has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer, sealer
from spark_ledger.stream.ledgers import PURPOSE_SEGMENTS, TAG_PURPOSE, OpenLedger, written
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, loose, run, small_manifests, table


async def commit_a_long_list(stream: Stream) -> None:
    await stream.commit_segments([loose()] * 9)


async def seal(stream: Stream) -> None:
    await stream._committer.sealer.seal(6)


async def pack(stream: Stream) -> None:
    async for _ in stream.optimizer.run(entries_min=1):
        pass


async def at_once(work: Callable[..., Any], *of: Any) -> Any:
    """In place of a thread, whose end is no matter of turns."""
    for _turn in range(5):
        await asyncio.sleep(0)
    return work(*of)


@pytest.mark.parametrize("operation", [commit_a_long_list, seal, pack])
def test_ledger_whose_writing_is_left_at_any_moment_is_closed(
    operation: Callable[[Stream], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(turns: int) -> tuple[bool, bool]:
        """Whether a ledger was made, and whether the operation ended before its caller left."""
        small_manifests(monkeypatch, leaf=1, fan_out=3, kept=1000)
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for n in range(6):
            await stream.append(table(n))
        await stream.close()
        if operation is seal:
            monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 0)
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)
        before = len(ledgers.writers)
        work = asyncio.ensure_future(operation(stream))
        for _ in range(turns):
            await asyncio.sleep(0)
        has_ended = not work.cancel()
        await asyncio.wait([work])
        made = ledgers.writers[before:]
        assert all(each._ledger.closed for each in made), f"after {turns} turns"
        return bool(made), has_ended

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    for _again in range(10):  # reading ahead takes turns of its own: one pass may step over it
        outcomes: list[tuple[bool, bool]] = []
        while not outcomes or not outcomes[-1][1]:
            outcomes.append(run(scenario(len(outcomes))))
        if (True, False) in outcomes:
            break
    assert (True, False) in outcomes, "its caller left when the ledger was there"


@pytest.mark.parametrize("is_left", [False, True])
def test_ledger_whose_writer_could_not_close_it_is_closed_later(is_left: bool) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.fail_append_at = 1
        made = await ledgers.create_ledger(custom_metadata={TAG_PURPOSE: PURPOSE_SEGMENTS})

        async def work(ledger: OpenLedger) -> None:
            async with written(ledgers, ledger):
                failed = ledger.append_nowait(b"x")
                if is_left:
                    await asyncio.gather(failed, asyncio.Event().wait(), return_exceptions=True)
                await failed

        task = asyncio.ensure_future(work(made))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert made._ledger.closed
        assert ledgers.closed_later == [made.ledger_id]
        for future, _entry in made._held:
            future.cancel()

    run(scenario())
