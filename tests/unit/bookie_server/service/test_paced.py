"""Answers that many ask for: how old they are, and how often they are made."""

from __future__ import annotations

import asyncio
import time
from itertools import count

import pytest

from bookie_server.service import paced
from bookie_server.service.paced import Paced


def test_answer_is_made_after_it_was_asked_for() -> None:
    async def main() -> None:
        numbers = count()
        answers = Paced(lambda: next(numbers))
        assert [await answers.get() for _turn in range(3)] == [0, 1, 2]

    asyncio.run(main())


def test_all_who_ask_meanwhile_share_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "BOOKIE_ADMIN_PAUSE_S_MAX", 0.1)
    numbers = count()

    def make() -> int:
        time.sleep(0.05)
        return next(numbers)

    async def main() -> None:
        answers = Paced(make)
        first = asyncio.ensure_future(answers.get())
        await asyncio.sleep(0.02)
        others = [asyncio.ensure_future(answers.get()) for _client in range(30)]
        await asyncio.sleep(0)  # all of them wait for it now
        others[3].cancel()  # it leaves, and the others have their answer all the same
        began = time.monotonic()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert time.monotonic() - began > 0.1, "and between two there is a pause"
        assert found[0] == 0 and set(found) - {found[4]} == {0, 1}

    asyncio.run(main())


def test_answer_that_took_a_minute_does_not_keep_the_next_one_for_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk stood still meanwhile, and now is when an operator wants the figures."""
    monkeypatch.setattr(paced, "BOOKIE_ADMIN_PAUSE_S_MAX", 0.01)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock, passed = loop.time, [0.0]
        monkeypatch.setattr(loop, "time", lambda: clock() + passed[0])

        def make() -> float:
            passed[0] += 60
            return passed[0]

        answers = Paced(make)
        assert await answers.get() == 60
        async with asyncio.timeout(110):  # fifty seconds behind the one that takes a minute
            assert await answers.get() == 120

    asyncio.run(main())


def test_failure_is_told_to_those_who_asked_and_to_nobody_else() -> None:
    results: list[Exception | int] = [OSError("the disk"), 1]

    def make() -> int:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def main() -> None:
        answers = Paced(make)
        with pytest.raises(OSError, match="the disk"):
            await answers.get()
        assert await answers.get() == 1

    asyncio.run(main())
