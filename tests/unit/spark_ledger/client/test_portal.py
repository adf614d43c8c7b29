"""The blocking portal: interrupted, forked, stopped at exit, and asked from many threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from spark_ledger.client import portal as portal_module
from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.errors import ConfigurationError, LedgerClosedError
from tests.style.sources import ROOT
from tests.unit.spark_ledger.client.world import World


@pytest.mark.parametrize("attempt", range(3))
def test_control_c_while_an_item_is_awaited_closes_the_iterator(attempt: int) -> None:
    asked, given_up, closed = threading.Event(), threading.Event(), threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            yield attempt
            asked.set()
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                given_up.set()
                await asyncio.sleep(0.02)  # giving up takes a few turns, as that of a long poll
                raise
        finally:
            closed.set()

    main = threading.main_thread().ident
    assert main is not None
    handled = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def press() -> None:
        """Until it is seen: a signal between two steps of CPython's lock wakes nobody, as the one
        of a user who then presses again."""
        assert asked.wait(60)
        while not handled.wait(0.05):
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    presser = threading.Thread(target=press)
    try:
        items = BlockingPortal.get().iterate(endless())
        assert next(items) == attempt
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            next(items)
        presser.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert closed.is_set() and given_up.is_set(), "an item may never come: it is not waited for"


@pytest.mark.filterwarnings("error")
def test_control_c_at_any_line_of_an_iteration_leaves_no_coroutine_behind() -> None:
    """A signal is handled between any two instructions; a trace function raises at each line."""
    interrupted_at: set[int] = set()
    tracer = sys.gettrace()

    def interrupt(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != portal_module.__file__:
            return None
        if event == "line" and frame.f_lineno not in interrupted_at:
            interrupted_at.add(frame.f_lineno)
            sys.settrace(tracer)
            raise KeyboardInterrupt
        return interrupt

    async def endless() -> AsyncIterator[int]:
        while True:
            yield len(interrupted_at)

    gc.collect()
    gc.freeze()  # what other tests left is not looked through at each line
    while True:
        before = len(interrupted_at)
        items = BlockingPortal.get().iterate(endless())
        assert next(items) == before
        sys.settrace(interrupt)
        try:
            next(items)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        del items
        gc.collect()
        if len(interrupted_at) == before:
            break
    gc.unfreeze()
    assert len(interrupted_at) > 5


def test_iteration_that_is_left_has_closed_its_iterator() -> None:
    """Not when Python gets round to it: a read that is left holds nothing at a bookie."""
    closed = threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.set()

    iterator = endless()
    items = BlockingPortal.get().iterate(iterator)
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]
    assert closed.is_set()


def test_iteration_whose_work_is_cancelled_ends() -> None:
    """As by the close of a connection in another thread: nobody waits for what does not come."""

    async def cancelled() -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError

    items = BlockingPortal.get().iterate(cancelled())
    assert next(items) == 1
    outcome: list[BaseException] = []

    def ask() -> None:
        try:
            next(items)
        except BaseException as error:  # noqa: BLE001 - looked at below
            outcome.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(10)
    assert [type(error) for error in outcome] == [concurrent.futures.CancelledError]


def test_iteration_on_the_thread_of_the_client_is_refused() -> None:
    """As in the callback of a future: it would wait for itself."""

    async def numbers() -> AsyncIterator[int]:
        yield 1

    portal = BlockingPortal.get()

    async def ask() -> None:
        next(portal.iterate(numbers()))

    with pytest.raises(ConfigurationError, match="must not wait"):
        asyncio.run_coroutine_threadsafe(ask(), portal.loop).result(10)


def test_exit_handler_that_runs_after_the_portal_has_stopped_is_told() -> None:
    """Registered before the first connection, it runs last; waiting for the loop would hang it."""
    code = """
import asyncio, atexit
portals = []

def wait_for_the_loop():
    try:
        portals[0].call(asyncio.sleep(0))
    except Exception as error:
        print(type(error).__name__, error)

atexit.register(wait_for_the_loop)
from spark_ledger.errors import LedgerClosedError
from spark_ledger.client.portal import BlockingPortal
portals.append(BlockingPortal.get())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("LedgerClosedError this process is ending"), done
    assert not done.stderr


def test_iterator_that_is_left_unfinished_at_exit_ends_quietly() -> None:
    code = """
from spark_ledger.errors import LedgerClosedError
from spark_ledger.client.portal import BlockingPortal

async def numbers():
    yield 1
    yield 2

items = BlockingPortal.get().iterate(numbers())
print(next(items))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_child_forked_while_a_portal_is_made_gets_its_own() -> None:
    """The parent's other thread holds the lock at the fork; in the child nobody releases it."""
    is_held, release = threading.Event(), threading.Event()

    def make() -> None:
        with BlockingPortal._making:
            is_held.set()
            release.wait(60)

    maker = threading.Thread(target=make)
    maker.start()
    assert is_held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        BlockingPortal.get().call(asyncio.sleep(0))
        os._exit(0)
    release.set()
    maker.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_handler_that_connects_in_the_middle_of_a_connect_has_the_same_portal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portal = BlockingPortal.get()
    found: list[BlockingPortal] = []

    def interrupted() -> int:
        monkeypatch.undo()
        assert not BlockingPortal._making.locked(), "the handler waits for the thread below it"
        found.append(BlockingPortal.get())
        return os.getpid()

    monkeypatch.setattr(portal_module, "os", SimpleNamespace(getpid=interrupted))
    assert BlockingPortal.get() is portal and found == [portal]


def test_last_add_pushed_between_inbox_and_writer_does_not_go_back() -> None:
    """Entries that have left the inbox and are not in the writer yet were appended all the same."""
    portal = BlockingPortal.get()

    async def open_writer() -> tuple[World, BlockingWriter]:
        world = World(3)
        await world.start()
        client = await world.client()
        return world, BlockingWriter(portal, await client.create_ledger())

    world, writer = portal.call(open_writer())
    seen: list[tuple[int, int]] = []
    submit = writer._writer.submit

    def submit_and_look(*given: object) -> None:
        seen.append((writer.last_add_pushed, writer.length))
        submit(*given)  # type: ignore[arg-type]

    writer._writer.submit = submit_and_look  # type: ignore[assignment, method-assign]
    assert writer.append_async(b"four").result(60) == 0
    assert seen == [(0, 4)]
    writer.close()
    with pytest.raises(LedgerClosedError):
        writer.append(b"refused")
    assert (writer.last_add_pushed, writer.length) == (0, 4)
    portal.call(world.close())
