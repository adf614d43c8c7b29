"""Connections that are to end do end, whenever they were named, and are counted by the reason."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

import pytest

from bookie_server.service.guard import hanging_up
from bookie_server.service.guard.hanging_up import HangUp, Why
from bookie_server.service.guard.sockets import Sockets


class Ended:
    """Stands for the sockets: each attempt waits until it is let go, and fails if it is told to."""

    def __init__(self) -> None:
        self.attempts: list[list[str]] = []
        self.gone: set[str] = set()
        self.errors: list[Exception] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def hang_up(self, peers: Iterable[str]) -> list[str]:
        named = list(peers)
        self.attempts.append(named)
        assert self.may_go_on.wait(30)
        if self.errors:
            raise self.errors.pop()
        return [peer for peer in named if peer not in self.gone]


def run(act: Callable[[HangUp, Ended, Counter[str]], object]) -> None:
    async def main() -> None:
        sockets, counts = Ended(), Counter[str]()
        await act(HangUp(cast("Sockets", sockets), counts), sockets, counts)  # type: ignore[misc]

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def test_connections_end_together_for_the_first_reason_of_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def act(hang_up: HangUp, sockets: Ended, counts: Counter[str]) -> None:
        sockets.gone.add("left")
        hang_up("a", Why.UNREAD)
        hang_up("b", Why.IDLE)
        hang_up("a", Why.LONG)
        hang_up("left", Why.SILENT)
        await until(lambda: hang_up._task is None)
        assert sockets.attempts == [["a", "b", "left"]]
        assert counts == {"unread": 1, "idle": 1}, "who had gone was not ended by us"
        hang_up("a", Why.LONG)
        await until(lambda: hang_up._task is None)
        assert counts == {"unread": 1, "idle": 1, "long": 1}, "and later ones, one by one"

    run(act)
    assert "hung up on a: it did not read its answer" in caplog.text


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "no descriptor"), RuntimeError("no thread")]
)
def test_connection_that_cannot_be_ended_now_is_ended_later(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Its stream was told to end, so nobody finds it again. Between two attempts is a pause."""
    monkeypatch.setattr(hanging_up, "_AGAIN_S", 0.05)

    async def act(hang_up: HangUp, sockets: Ended, counts: Counter[str]) -> None:
        sockets.errors = [error] * 3
        began = asyncio.get_running_loop().time()
        hang_up("a", Why.UNREAD)
        await until(lambda: hang_up._task is None)
        assert sockets.attempts == [["a"]] * 4 and counts == {"unread": 1}
        assert asyncio.get_running_loop().time() - began >= 3 * 0.05

    run(act)


@pytest.mark.parametrize(
    "error", [None, OSError(errno.EMFILE, "no descriptor"), RuntimeError("no thread")]
)
def test_connection_that_is_named_while_others_are_ended_follows_also_if_that_fails(
    error: Exception | None,
) -> None:
    async def act(hang_up: HangUp, sockets: Ended, counts: Counter[str]) -> None:
        sockets.may_go_on.clear()
        sockets.errors = [] if error is None else [error]
        hang_up("a", Why.UNREAD)
        await until(lambda: len(sockets.attempts) == 1)
        hang_up("b", Why.IDLE)
        hang_up("c", Why.IDLE)
        sockets.may_go_on.set()
        await until(lambda: hang_up._task is None)
        assert sockets.attempts[0] == ["a"] and len(sockets.attempts) == 2
        assert sorted(sockets.attempts[1]) == (["a", "b", "c"] if error else ["b", "c"])
        assert counts == {"unread": 1, "idle": 2}, "nobody has to be named again for that"

    run(act)
