"""A signal handler, or a finalizer, that comes at any call of a thread and waits for the client.

As ``connection.close()`` in a handler of SIGTERM. Whatever the thread below it does just then, the
loop has to go on: nobody may hold a lock that it needs while he calls something.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import FrameType
from typing import Any, TypeAlias, cast

import pytest

from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.client.writer import LedgerWriter

Wait: TypeAlias = Callable[[BlockingWriter], object]


class Writer:
    """Confirms what it took when it is told to."""

    ledger_id = 1
    last_add_pushed = -1
    length = 0
    bytes_in_flight_max = 1000
    has_room = True

    def __init__(self) -> None:
        self.completions: list[Any] = []
        self.may_go_on = asyncio.Event()

    def submit(self, _payloads: Sequence[bytes], completions: Sequence[Any]) -> None:
        self.completions += completions
        self.confirm()

    def confirm(self) -> None:
        while self.may_go_on.is_set() and self.completions:
            self.completions.pop(0).set_result(0)

    async def flush(self) -> None:
        await self.may_go_on.wait()

    async def items(self) -> AsyncIterator[int]:
        await self.may_go_on.wait()
        yield 1

    def go_on(self) -> None:
        self.may_go_on.set()
        self.confirm()


def _iterate(blocking: BlockingWriter) -> list[int]:
    return list(BlockingPortal.get().iterate(cast(Writer, blocking._writer).items()))


def _handled_at(number: int, wait: Wait) -> bool:
    """Wait with a handler that comes at the call of this number, where Python would run one: at the
    beginning of a function. What is waited for becomes ready just then. False: no such call."""
    portal = BlockingPortal.get()
    writer = Writer()
    blocking = BlockingWriter(portal, cast(LedgerWriter, writer))
    tracer = sys.gettrace()
    calls = 0
    is_handled = False

    def handle() -> None:
        portal.loop.call_soon_threadsafe(writer.go_on)
        for _ in range(4):  # so many turns until whoever waits is told
            gone_on = threading.Event()
            portal.loop.call_soon_threadsafe(gone_on.set)
            assert gone_on.wait(10), "the loop waits for the thread that waits for it"

    def trace(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls, is_handled
        calls += event == "call"
        if calls == number + 1 and not is_handled:
            is_handled = True
            sys.settrace(tracer)
            handle()

    late = threading.Timer(0.05, lambda: portal.loop.call_soon_threadsafe(writer.go_on))
    late.start()
    sys.settrace(trace)
    try:
        wait(blocking)
    finally:
        sys.settrace(tracer)
        late.cancel()
    return is_handled


@pytest.mark.parametrize(
    "wait",
    [
        lambda writer: writer.append(b"x"),
        lambda writer: writer.append_many([b"x", b"y"]),
        lambda writer: writer.append_async(b"x").exception(),
        lambda writer: writer.flush(),
        _iterate,
    ],
    ids=["append", "append_many", "exception", "flush", "iterate"],
)
def test_loop_goes_on_while_a_handler_waits_for_it_at_any_call(wait: Wait) -> None:
    number = 0
    while _handled_at(number, wait):
        number += 1
    assert number > 3


def test_loop_delivers_while_a_handler_waits_in_the_middle_of_its_being_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = BlockingPortal.get().loop
    writer = Writer()
    writer.may_go_on.set()
    blocking = BlockingWriter(BlockingPortal.get(), cast(LedgerWriter, writer))
    send = loop.call_soon_threadsafe
    seen: list[object] = []

    def interrupted(callback: Callable[..., object], *args: object) -> object:
        monkeypatch.undo()
        seen.append(blocking.append(b"of the handler, before the loop is woken"))
        handle = send(callback, *args)
        BlockingPortal.get().call(asyncio.sleep(0))
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    assert blocking.append_async(b"interrupted").result(10) == 0 and seen == [0]
    assert blocking.append_async(b"next").result(10) == 0


async def _numbers(closed: threading.Event) -> AsyncIterator[int]:
    try:
        while True:
            yield 1
    finally:
        closed.set()


def test_collector_that_finds_an_iterator_does_not_wait_for_ever() -> None:
    """It runs at any allocation, also where a thread holds what the loop waits for."""
    portal = BlockingPortal.get()
    closed, waits, release = threading.Event(), threading.Event(), threading.Event()

    def abandon() -> None:
        items = portal.iterate(_numbers(closed))
        assert next(items) == 1
        box: list[object] = [items]
        box.append(box)  # a cycle, as of an error that is kept with its traceback

    def stand() -> None:
        waits.set()
        release.wait(30)

    gc.disable()
    try:
        abandon()
        portal.loop.call_soon_threadsafe(stand)
        assert waits.wait(10)
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        collecting.join(10)
        stands = collecting.is_alive()
    finally:
        gc.enable()
        release.set()
    assert not stands
    assert closed.wait(10)


def test_collector_on_the_thread_of_the_client_closes_an_iterator() -> None:
    portal = BlockingPortal.get()
    closed = threading.Event()

    def abandon() -> None:
        items = portal.iterate(_numbers(closed))
        assert next(items) == 1
        box: list[object] = [items]
        box.append(box)

    gc.disable()
    try:
        abandon()
        portal.loop.call_soon_threadsafe(gc.collect)
        assert closed.wait(10)
    finally:
        gc.enable()
