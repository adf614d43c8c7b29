"""Pauses before a busy bookie is asked again: they double, up to a bound, and so it is met soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_ledger.client.last_confirmed import PROOF_TRIES, unless_busy, wait_for_newer
from spark_ledger.limits.client import (
    BUSY_PAUSE_S,
    BUSY_PAUSE_S_MAX,
    LAC_DISPUTE_S,
    SPECULATIVE_READ_DELAY_S,
)
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.unit.spark_ledger.client.test_bounds_of_time import DIGEST, SILENT, asked, ledger
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.virtual_time import run_in_virtual_time

BUSY = BookieStatus.TOO_MANY_REQUESTS
DOUBLED = [BUSY_PAUSE_S * 2**n for n in range(5)]
SILENT_ONES = ("b3", "b4", "b5")
PAUSES = [*DOUBLED, *[BUSY_PAUSE_S_MAX] * 4]


def evenly(_low: float, _high: float) -> float:
    return 1.0


def test_busy_bookie_is_asked_for_its_end_at_least_every_two_seconds() -> None:
    async def main() -> None:
        loop, times = asyncio.get_running_loop(), list[float]()
        context = SimpleNamespace(random=SimpleNamespace(uniform=evenly))

        async def ask() -> LastConfirmed:
            times.append(loop.time())
            return LastConfirmed(BUSY if len(times) <= len(PAUSES) else BookieStatus.OK)

        reply = await unless_busy(cast("Any", context), ask, 60.0)
        assert reply.status is BookieStatus.OK
        assert [b - a for a, b in pairwise(times)] == pytest.approx(PAUSES)

    run_in_virtual_time(main())


def test_busy_bookie_is_asked_by_a_recovery_at_least_every_two_seconds() -> None:
    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=100.0)).create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1
        )
        assert await writer.append(b"0") == 0
        other = await world.client(read_timeout_s=60.0)
        other.context.random.uniform = evenly  # type: ignore[method-assign, assignment]
        honest, loop = other.context.transport.read, asyncio.get_running_loop()
        times = list[float]()

        async def read(bookie_id: BookieId, *args: Any, **options: Any) -> Any:
            if options.get("fence"):
                times.append(loop.time())
                if len(times) <= len(PAUSES):
                    yield ReadChunk(BUSY, None, args[1], "busy")
                    return
            async for chunk in honest(bookie_id, *args, **options):
                yield chunk

        other.context.transport.read = read  # type: ignore[method-assign]
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 0
        pauses = [b - a for a, b in pairwise(times)][: len(PAUSES)]
        assert pauses == pytest.approx(PAUSES)

    run_virtually(test, bookies=1)


def test_read_beside_a_bookie_that_hangs_waits_for_busy_ones_for_as_long_as_they_are_busy() -> None:
    """The first reader meets them while it waits for the one that hangs, the second before."""

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.1)).create_ledger(
            ensemble_size=3, write_quorum=3, ack_quorum=2
        )
        assert await writer.append(b"0") == 0
        await writer.close()
        other = await world.client()
        honest, loop = other.context.transport.read, asyncio.get_running_loop()
        hanging, free_at = list[BookieId](), 0.0

        async def read(bookie_id: BookieId, *args: Any, **options: Any) -> Any:
            hanging[:] = hanging or [bookie_id]
            if bookie_id in hanging:
                await asyncio.sleep(options["timeout_s"])
                yield ReadChunk(BookieStatus.TIMEOUT, None, args[1], "silent")
            elif loop.time() < free_at:
                yield ReadChunk(BUSY, None, args[1], "busy")
            else:
                async for chunk in honest(bookie_id, *args, **options):
                    yield chunk

        other.context.transport.read = read  # type: ignore[method-assign]
        for busy_s in (1.2, 0.3):
            free_at = (began := loop.time()) + busy_s
            reader = await other.open_ledger(writer.ledger_id)
            assert [e.payload async for e in reader.read(0, 0)] == [b"0"]
            assert loop.time() - began < 3 * SPECULATIVE_READ_DELAY_S + 0.1

    run_virtually(test)


@pytest.mark.parametrize("late_s", [0.1, 0.9])
def test_disputed_news_are_waited_for_once_whoever_answers_meanwhile(late_s: float) -> None:
    """One bookie tells of more and one is broken. Another, that knows of nothing new, comes later,
    and all others are silent for as long as the poll takes."""
    context = asked({"b1": (0.0, 7), "b2": (late_s, 4), **dict.fromkeys(SILENT_ONES, (SILENT, 0))})
    ask = context.transport.read_last_confirmed

    async def ask_or_fail(bookie_id: BookieId, *args: Any, **options: Any) -> LastConfirmed:
        if bookie_id == "b0":
            return LastConfirmed(BookieStatus.IO_ERROR)
        answer: LastConfirmed = await ask(bookie_id, *args, **options)
        return answer._replace(last_entry=answer.last_add_confirmed)

    context.transport.read_last_confirmed = ask_or_fail

    async def main() -> None:
        loop = asyncio.get_running_loop()
        found = await wait_for_newer(context, ledger((6, 3, 2)), b"", DIGEST, EntryId(4), 30.0)
        assert found == 4, "no entry proves what one says alone"
        assert loop.time() == pytest.approx(LAC_DISPUTE_S, abs=0.01)

    run_in_virtual_time(main())


def test_entry_that_has_to_prove_an_end_is_waited_for_as_long_as_a_dispute() -> None:
    """And not as long as an entry that a consumer wants: an open would take half a minute."""
    context = asked({"b1": (0.0, 7), **dict.fromkeys(("b2", *SILENT_ONES), (SILENT, 0))})
    ask, waits = context.transport.read_last_confirmed, list[float]()

    async def ask_or_fail(bookie_id: BookieId, *args: Any, **options: Any) -> LastConfirmed:
        if bookie_id == "b0":
            return LastConfirmed(BookieStatus.IO_ERROR)
        answer: LastConfirmed = await ask(bookie_id, *args, **options)
        return answer._replace(last_entry=answer.last_add_confirmed)

    async def read(*args: Any, **options: Any) -> AsyncGenerator[ReadChunk, None]:
        waits.append(options["timeout_s"])
        await asyncio.sleep(options["timeout_s"])
        yield ReadChunk(BookieStatus.TIMEOUT, None, args[2], "silent")

    context.transport.read_last_confirmed, context.transport.read = ask_or_fail, read

    async def main() -> None:
        found = await wait_for_newer(context, ledger((6, 3, 2)), b"", DIGEST, EntryId(4), 30.0)
        assert found == 4
        assert waits == [LAC_DISPUTE_S] * PROOF_TRIES

    run_in_virtual_time(main())
