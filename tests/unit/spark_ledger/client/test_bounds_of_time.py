"""Bounds of time begin once: answers that trickle in, and pauses between, do not move them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.client.context import ClientContext
from spark_ledger.client.frames import FrameStore
from spark_ledger.client.last_confirmed import (
    PollMemory,
    read_last_confirmed,
    unless_busy,
    wait_for_newer,
)
from spark_ledger.limits.client import LAC_DISPUTE_S, TAIL_PAUSE_S, TAIL_PAUSE_S_MAX
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)
from spark_ledger.wire.frame import Crc32cDigest
from tests.unit.virtual_time import run_in_virtual_time

READ_TIMEOUT_S = 10.0
SILENT = 1e6
DIGEST = Crc32cDigest()


def asked(answers: dict[str, tuple[float, int]]) -> Any:
    """A client whose bookies name a last add confirmed after so many seconds; -2: it is busy."""

    async def ask(bookie_id: str, *_args: Any, **options: Any) -> LastConfirmed:
        after_s, last = answers[bookie_id]
        waited_s = min(after_s, options.get("wait_s", 0.0) + options["timeout_s"])
        await asyncio.sleep(waited_s)
        if waited_s < after_s:
            return LastConfirmed(BookieStatus.TIMEOUT)
        if last == -2:
            return LastConfirmed(BookieStatus.TOO_MANY_REQUESTS)
        return LastConfirmed(BookieStatus.OK, EntryId(last))

    async def read(*args: Any, **_options: Any) -> AsyncGenerator[ReadChunk, None]:
        yield ReadChunk(BookieStatus.NO_SUCH_ENTRY, None, args[2], "nobody has it")

    return SimpleNamespace(
        transport=SimpleNamespace(read_last_confirmed=ask, read=read),
        config=SimpleNamespace(read_timeout_s=READ_TIMEOUT_S),
        random=random.Random(1),
    )


def asked_of_fenced(way_s: float, fenced: tuple[str, ...] = ("b0", "b1", "b2")) -> Any:
    """A client whose bookies have nothing new: those that are fenced say so at once, and the others
    when they have waited; answers are so long on their way."""
    context = asked({})

    async def ask(bookie_id: str, *_args: Any, **options: Any) -> LastConfirmed:
        is_fenced = bookie_id in fenced
        await asyncio.sleep(way_s + (0.0 if is_fenced else options["wait_s"]))
        return LastConfirmed(BookieStatus.OK, EntryId(4), EntryId(4), fenced=is_fenced)

    context.transport.read_last_confirmed = ask
    return context


def ledger(quorums: tuple[int, int, int]) -> LedgerMetadata:
    bookies = tuple(BookieId(f"b{i}") for i in range(quorums[0]))
    return LedgerMetadata(LedgerId(1), Quorums(*quorums), (Fragment(EntryId(0), bookies),))


BUSY = ledger((3, 3, 2))


@pytest.mark.parametrize("late_s", [0.1, 0.9])
def test_disputed_end_is_waited_for_once_whoever_answers_meanwhile(late_s: float) -> None:
    """Four of six cover the ledger. The fifth comes later, and the sixth never."""
    answers = {"b0": (late_s, 2), "b1": (0.0, 7), "b2": (0.0, 2), "b4": (0.0, 2), "b5": (0.0, 2)}
    context: ClientContext = asked({**answers, "b3": (SILENT, 0)})

    async def main() -> None:
        loop = asyncio.get_running_loop()
        found = await read_last_confirmed(context, ledger((6, 3, 2)), b"", DIGEST)
        assert found == 2, "one voice is not enough, whoever is silent, and no entry proves it"
        assert loop.time() == pytest.approx(LAC_DISPUTE_S, abs=0.01)

    run_in_virtual_time(main())


@pytest.mark.parametrize("second_s", [0.5, 1.5, 5.0])
def test_open_waits_for_as_many_as_it_needs_however_slow(second_s: float) -> None:
    """Before these have answered there is no dispute that could end."""
    context: ClientContext = asked({"b0": (0.0, 7), "b1": (second_s, 2), "b2": (SILENT, 0)})

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await read_last_confirmed(context, BUSY, b"", DIGEST) == 2
        assert loop.time() == pytest.approx(second_s + LAC_DISPUTE_S, abs=0.01)

    run_in_virtual_time(main())


@pytest.mark.parametrize("failed", [BookieStatus.UNAVAILABLE, BookieStatus.TIMEOUT])
def test_bookie_that_fails_makes_no_long_poll_shorter(failed: BookieStatus) -> None:
    """Who tails beside one that is down would ask the others again and again."""
    context: Any = asked({})

    async def ask(bookie_id: str, *_args: Any, **options: Any) -> LastConfirmed:
        if bookie_id == "b1":
            return LastConfirmed(failed)
        await asyncio.sleep(options["wait_s"])
        return LastConfirmed(BookieStatus.OK, EntryId(4), EntryId(5))

    context.transport.read_last_confirmed = ask

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await wait_for_newer(context, BUSY, b"", DIGEST, EntryId(4), 30.0) == 4
        assert loop.time() == pytest.approx(30.0, abs=0.01)

    run_in_virtual_time(main())


@pytest.mark.parametrize(("last", "is_fenced", "after_s"), [(5, True, 0.0), (4, False, 30.0)])
def test_fenced_bookies_are_asked_more_and_more_seldom(
    last: int, is_fenced: bool, after_s: float
) -> None:
    """They answer a long poll at once. Of a recovery that was left in the middle each of them was
    asked 19 times a second by each process with a tail, for as long as nobody closed the ledger."""
    context, memory = asked({}), PollMemory()
    answer = LastConfirmed(BookieStatus.OK, EntryId(4), EntryId(4), fenced=True)

    async def ask(*_args: Any, **options: Any) -> LastConfirmed:
        await asyncio.sleep(0.0 if answer.fenced else options["wait_s"])
        return answer

    context.transport.read_last_confirmed = ask

    async def poll(wait_s: float = 30.0) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await wait_for_newer(context, BUSY, b"", DIGEST, EntryId(4), wait_s, memory)
        return loop.time() - began

    async def main() -> None:
        nonlocal answer
        pauses = [TAIL_PAUSE_S * 2**i for i in range(6)] + [TAIL_PAUSE_S_MAX] * 2
        assert [await poll() for _pause in pauses] == pytest.approx(pauses)
        assert await poll(0.5) == pytest.approx(0.5), "no longer than there is time"
        fenced = answer
        answer = fenced._replace(last_add_confirmed=EntryId(last), fenced=is_fenced)
        assert await poll() == pytest.approx(after_s), "news are told at once"
        answer = fenced
        assert await poll() == pytest.approx(TAIL_PAUSE_S), "it begins anew"

    run_in_virtual_time(main())


@pytest.mark.parametrize(("way_s", "asked"), [(0.06, 35), (0.3, 35), (3.0, 20)])
def test_fenced_bookies_that_are_far_away_are_asked_seldom_too(way_s: float, asked: int) -> None:
    """An answer that takes 60 ms is none that was held: each of them was asked 16 times a second
    by a process in another region, and by one that was busy."""
    context, memory, rounds = asked_of_fenced(way_s), PollMemory(), 0

    async def main() -> None:
        nonlocal rounds
        while asyncio.get_running_loop().time() < 60.0:
            await wait_for_newer(context, BUSY, b"", DIGEST, EntryId(4), 30.0, memory)
            rounds += 1

    run_in_virtual_time(main())
    assert rounds <= asked


def test_bookie_that_alone_calls_itself_fenced_makes_no_tail_wait() -> None:
    """The others hold their answers: a round has had its pause, and the next one begins at once."""
    context, memory = asked_of_fenced(0.0, fenced=("b0",)), PollMemory()

    async def main() -> None:
        for _round in range(4):
            await wait_for_newer(context, BUSY, b"", DIGEST, EntryId(4), 30.0, memory)
        assert asyncio.get_running_loop().time() == pytest.approx(4 * 30.0, abs=0.01)

    run_in_virtual_time(main())


def test_bookies_that_are_down_are_asked_again_soon() -> None:
    """A restart of all of them makes a tail no later than it has to be."""
    context, memory = asked({}), PollMemory()

    async def ask(*_args: Any, **_options: Any) -> LastConfirmed:
        return LastConfirmed(BookieStatus.UNAVAILABLE)

    context.transport.read_last_confirmed = ask

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _round in range(10):
            await wait_for_newer(context, BUSY, b"", DIGEST, EntryId(4), 30.0, memory)
        assert loop.time() == pytest.approx(10 * TAIL_PAUSE_S)

    run_in_virtual_time(main())


@pytest.mark.parametrize("late_s", [0.1, 0.9])
def test_disputed_news_are_proved_after_one_wait_whoever_answers_meanwhile(late_s: float) -> None:
    """Two of four say more, which is not enough with two copies, and the others say nothing: the
    tail of a ledger is not as late as the slowest bookie's long poll."""
    metadata = ledger((4, 4, 2))
    context: Any = asked({})

    async def ask(bookie_id: str, *_args: Any, **options: Any) -> LastConfirmed:
        after_s = {"b0": 0.0, "b1": late_s}.get(bookie_id, SILENT)
        await asyncio.sleep(min(after_s, options["wait_s"] + options["timeout_s"]))
        if after_s == SILENT:
            return LastConfirmed(BookieStatus.TIMEOUT)
        return LastConfirmed(BookieStatus.OK, EntryId(7), EntryId(8))

    async def read(*args: Any, **_options: Any) -> AsyncGenerator[ReadChunk, None]:
        frames = FrameStore(metadata, DIGEST, first_entry=args[2])
        frames.seal([b"x"], EntryId(7))
        (run,) = frames.runs(0, args[2], args[2])
        yield ReadChunk(BookieStatus.OK, run, args[2])

    context.transport = SimpleNamespace(read_last_confirmed=ask, read=read)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        found = await wait_for_newer(context, metadata, b"", DIGEST, EntryId(4), 30.0)
        assert found == 7, "entry 8 carries it"
        assert loop.time() == pytest.approx(LAC_DISPUTE_S, abs=0.01)

    run_in_virtual_time(main())


@pytest.mark.parametrize("wait_s", [1.0, 5.0])
@pytest.mark.parametrize("busy", [1, 3, 1000])
def test_long_poll_of_busy_bookies_ends_within_its_time(wait_s: float, busy: int) -> None:
    """Each is busy at first, and then has nothing new for as long as it may wait."""
    left = Counter({f"b{i}": busy for i in range(3)})

    async def ask(bookie_id: str, *_args: Any, **options: Any) -> LastConfirmed:
        if left[bookie_id]:
            left[bookie_id] -= 1
            await asyncio.sleep(0.1)
            return LastConfirmed(BookieStatus.TOO_MANY_REQUESTS)
        await asyncio.sleep(options.get("wait_s", 0.0))
        return LastConfirmed(BookieStatus.OK, EntryId(4))

    context: Any = asked({})
    context.transport.read_last_confirmed = ask

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await wait_for_newer(context, BUSY, b"", DIGEST, EntryId(4), wait_s) == 4
        assert loop.time() <= wait_s + 0.3, "one answer more than the time, and what is known now"

    run_in_virtual_time(main())


@pytest.mark.parametrize("busy_wait_s", [0.0, 1.0, 10.0])
def test_busy_bookie_is_asked_again_within_the_time_and_its_answer_is_told(
    busy_wait_s: float,
) -> None:
    context: ClientContext = asked({"b0": (0.01, -2)})

    async def main() -> None:
        loop, times = asyncio.get_running_loop(), list[float]()

        async def ask() -> LastConfirmed:
            times.append(loop.time())
            return await context.transport.read_last_confirmed(
                BookieId("b0"), LedgerId(1), timeout_s=1.0
            )

        reply = await unless_busy(context, ask, busy_wait_s)
        assert reply.status is BookieStatus.TOO_MANY_REQUESTS
        assert loop.time() <= busy_wait_s + 0.02
        pauses = [after - before for before, after in pairwise(times)]
        assert len(pauses) <= 5 + 2 * busy_wait_s, "later and later"

    run_in_virtual_time(main())
