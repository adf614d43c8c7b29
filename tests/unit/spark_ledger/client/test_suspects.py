"""Bookies that failed: one question to each for a whole client, and all of them side by side."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from spark_ledger.client import suspects as suspects_module
from spark_ledger.client.suspects import Suspects
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits.client import (
    BOOKIE_FLAPS_MAX,
    BOOKIE_LIED_S,
    BOOKIE_PROBE_HOLDS_S,
    BOOKIE_PROBE_TIMEOUT_S,
    BOOKIE_PROBES_MAX,
)
from spark_ledger.transport.base import BookieDescription
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.virtual_time import run_in_virtual_time


class Probed(MemoryTransport):
    """Bookies that answer a probe at once, or never."""

    def __init__(self, *answering: str) -> None:
        super().__init__({})
        self.answering = set(answering)
        self.answer_after_s = 0.0
        self.asked: list[str] = []
        self.open = 0
        self.open_at_most = 0

    async def describe(self, bookie_id: BookieId, *, timeout_s: float) -> BookieDescription:
        self.asked.append(bookie_id)
        self.open += 1
        self.open_at_most = max(self.open, self.open_at_most)
        try:
            if bookie_id not in self.answering:
                await asyncio.sleep(timeout_s)
                raise BookieUnavailableError(f"bookie {bookie_id} is silent")
            await asyncio.sleep(self.answer_after_s)
        finally:
            self.open -= 1
        return BookieDescription(bookie_id, "", "", "writable", 0, 0, 0, 0, 0.0)


def bookies(count: int) -> list[BookieId]:
    return [BookieId(f"b{i:02d}") for i in range(count)]


async def first_of(suspects: Suspects, asked: list[BookieId]) -> BookieId | None:
    async with aclosing(suspects.answering(asked)) as answering:
        async for bookie_id in answering:
            return bookie_id
    return None


def test_one_that_answers_is_found_behind_many_that_do_not() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        *silent, last = bookies(10)
        transport = Probed(last)
        suspects = Suspects(transport)
        for bookie_id in (*silent, last):
            suspects.add(bookie_id)
        began = loop.time()
        assert await first_of(suspects, [*silent, last]) == last
        assert loop.time() - began < BOOKIE_PROBE_TIMEOUT_S / 2, "the silent ones were waited for"
        assert suspects.now() == set(silent)
        await suspects.close()

    run_in_virtual_time(main())


def test_probes_are_bounded() -> None:
    async def main() -> None:
        transport = Probed()
        suspects = Suspects(transport)
        asked = bookies(BOOKIE_PROBES_MAX + 4)
        waiting = asyncio.create_task(first_of(suspects, asked))
        while transport.open < BOOKIE_PROBES_MAX:
            await asyncio.sleep(0)
        assert await waiting is None
        assert transport.open_at_most == BOOKIE_PROBES_MAX
        assert sorted(transport.asked) == asked
        await suspects.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("answering", [True, False])
def test_many_writers_ask_once(answering: bool) -> None:
    async def main() -> None:
        transport = Probed(*["b"] * answering)
        suspects = Suspects(transport)
        suspects.add(BookieId("b"))
        found = await asyncio.gather(*(suspects.answers(BookieId("b")) for _ in range(100)))
        assert set(found) == {answering}
        assert await suspects.answers(BookieId("b")) is answering
        assert len(transport.asked) == 1, "what it brought holds for a moment"
        await asyncio.sleep(BOOKIE_PROBE_HOLDS_S)
        await suspects.answers(BookieId("b"))
        assert len(transport.asked) == 2

    run_in_virtual_time(main())


def test_bookie_that_fails_after_it_answered_is_asked_again() -> None:
    async def main() -> None:
        transport = Probed("b")
        suspects = Suspects(transport)
        assert await suspects.answers(BookieId("b"))
        suspects.add(BookieId("b"))
        transport.answering.clear()
        assert not await suspects.answers(BookieId("b"))
        assert suspects.now() == {"b"}

    run_in_virtual_time(main())


def test_silence_holds_for_a_moment_however_many_writers_fail_meanwhile() -> None:
    """Thousands lose a bookie in the same second, one after the other: it is asked once, not for
    each of them."""

    async def main() -> None:
        transport = Probed()
        suspects = Suspects(transport)
        (name,) = bookies(1)
        for _ in range(5):
            suspects.add(name)
            assert not await suspects.answers(name)
        assert transport.asked == [name]

    run_in_virtual_time(main())


def test_caller_that_leaves_does_not_end_the_question_for_others() -> None:
    async def main() -> None:
        transport = Probed("b")
        transport.answer_after_s = 0.05
        suspects = Suspects(transport)
        leaves = asyncio.create_task(suspects.answers(BookieId("b")))
        stays = asyncio.create_task(suspects.answers(BookieId("b")))
        await asyncio.sleep(0.01)
        leaves.cancel()
        assert await stays
        assert leaves.cancelled()
        assert len(transport.asked) == 1

    run_in_virtual_time(main())


def test_close_answers_whoever_waits() -> None:
    async def main() -> None:
        suspects = Suspects(Probed())
        waits = asyncio.create_task(suspects.answers(BookieId("b")))
        await asyncio.sleep(0.01)
        await suspects.close()
        assert not await asyncio.wait_for(waits, 5)

    run_in_virtual_time(main())


def test_writers_that_lose_the_same_bookie_share_its_probes() -> None:
    async def test(world: World) -> None:
        client = await world.client(add_timeout_s=0.3)
        writers = [await client.create_ledger() for _ in range(30)]
        asked: list[str] = []
        describe = client._context.transport.describe

        async def counted(bookie_id: BookieId, *, timeout_s: float) -> BookieDescription:
            asked.append(bookie_id)
            return await describe(bookie_id, timeout_s=timeout_s)

        client._context.transport.describe = counted  # type: ignore[method-assign]
        world.kill("b2")
        await asyncio.gather(*(writer.append(b"1") for writer in writers))
        async with asyncio.timeout(10):
            while not all(writer.failed_indexes for writer in writers):
                await asyncio.gather(*(writer.append(b"2") for writer in writers))
        assert asked, "nobody looked for the bookie"
        assert len(asked) < len(writers) / 2
        for writer in writers:
            await writer.close()

    run_virtually(test)


async def flap(suspects: Suspects, bookie_id: BookieId, times: int, every_s: float) -> None:
    """Failures that many writers see at once; the bookie answers after each."""
    for _ in range(times):
        for _ in range(100):
            suspects.add(bookie_id)
        await asyncio.sleep(BOOKIE_PROBE_HOLDS_S)
        assert await suspects.answers(bookie_id)
        suspects.add(bookie_id)  # a writer that hears of it late
        await asyncio.sleep(every_s)


@pytest.fixture
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FLAPS_WITHIN", 20.0), ("QUARANTINE", 20.0), ("SUSPECT", 1.0)):
        monkeypatch.setattr(suspects_module, f"BOOKIE_{name}_S", seconds)


@pytest.mark.usefixtures("_short_times")
def test_bookie_that_fails_and_returns_again_and_again_is_in_quarantine_for_a_while() -> None:
    async def main() -> None:
        suspects = Suspects(Probed("b00"))
        (name,) = bookies(1)
        await flap(suspects, name, BOOKIE_FLAPS_MAX - 1, 2.0)
        assert suspects.now() == set(), "others did not fail less"
        await flap(suspects, name, 1, 2.0)
        assert await suspects.answers(name), "it is well now"
        assert suspects.now() == {name}, "and was so often not"
        await asyncio.sleep(2.0)
        await flap(suspects, name, 1, 2.0)  # of a ledger that has it still
        await asyncio.sleep(16.0)
        assert suspects.now() == set()
        await suspects.close()

    run_in_virtual_time(main())


@pytest.mark.usefixtures("_short_times")
def test_bookie_that_fails_seldom_is_not_in_quarantine() -> None:
    async def main() -> None:
        suspects = Suspects(Probed("b00"))
        (name,) = bookies(1)
        await flap(suspects, name, BOOKIE_FLAPS_MAX, 7.0)
        assert suspects.now() == set()
        await suspects.close()

    run_in_virtual_time(main())


@pytest.mark.usefixtures("_short_times")
def test_bookie_that_fails_all_the_time_is_in_quarantine_too() -> None:
    """What is one outage for many writers ends: else one without a pause would count once."""

    async def main() -> None:
        suspects = Suspects(Probed("b00"))
        (name,) = bookies(1)
        for _ in range(2 * BOOKIE_FLAPS_MAX):
            suspects.add(name)
            await asyncio.sleep(0.75)
        assert await suspects.answers(name)
        assert suspects.now() == {name}
        await suspects.close()

    run_in_virtual_time(main())


def test_bookie_that_lied_is_suspected_whatever_it_answers_and_not_for_ever() -> None:
    async def main() -> None:
        suspects = Suspects(Probed("b00"))
        (name,) = bookies(1)
        suspects.add_liar(name)
        assert await suspects.answers(name)
        assert suspects.now() == {name}
        await asyncio.sleep(BOOKIE_LIED_S)
        assert suspects.now() == set()
        await suspects.close()

    run_in_virtual_time(main())


def test_nobody_is_told_an_answer_before_there_is_one() -> None:
    async def main() -> None:
        suspects = Suspects(Probed())
        (name,) = bookies(1)
        asking = asyncio.create_task(suspects.answers(name))
        await asyncio.sleep(BOOKIE_PROBE_HOLDS_S / 2)
        assert not await suspects.answers(name), "another one joins the question"
        assert not await asking
        await suspects.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("how", ["with the first", "cancelled"])
def test_who_leaves_before_all_have_answered_leaves_no_task(how: str) -> None:
    """Each would wait as long as a silent bookie is waited for, for everybody who ever asked."""

    async def main() -> None:
        suspects = Suspects(Probed("b00"))
        before = asyncio.all_tasks()
        asking = asyncio.ensure_future(first_of(suspects, bookies(3)))
        await asyncio.sleep(0)
        if how == "cancelled":
            asking.cancel()
        await asyncio.wait([asking])
        running = asyncio.all_tasks() - before - set(suspects._probes.values())
        assert running == set(), "the questions go on, for others"
        await suspects.close()

    run_in_virtual_time(main())
