"""The blocking portal at the end of its process: who may still use it, and who is told instead.

Exit handlers run last registered, first called. The portal registers its own when it is made, so
one that was registered before runs behind it, and one of later runs while the loop still does.
"""

from __future__ import annotations

import asyncio
import atexit
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest

from spark_ledger.client import portal as portal_module
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.errors import LedgerClosedError
from tests.style.sources import ROOT

_BEFORE: Final = """
import asyncio, atexit, threading, time
from spark_ledger.client import portal as module
from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.client.portal import BlockingPortal

class Writer:
    ledger_id, last_add_pushed, length, bytes_in_flight_max, has_room = 1, -1, 0, 100, True

async def numbers():
    number = 0
    while True:
        yield number
        number += 1

def tell(work):
    try:
        print(work(), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)

def behind():
    portal, items, writer = made
    {behind}

atexit.register(behind)
portal = BlockingPortal.get()
made = portal, portal.iterate(numbers()), BlockingWriter(portal, Writer())
tell(lambda: next(made[1]))
"""


def _ended(behind: str, then: str = "") -> list[str]:
    """The lines of a process whose exit handler of before the portal was made does ``behind``."""
    done = subprocess.run(
        [sys.executable, "-c", _BEFORE.replace("{behind}", behind) + then],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert not done.stderr, done
    first, *lines = done.stdout.splitlines()
    assert first == "0"
    return lines


_ASKED: Final = (
    "portal.call(asyncio.sleep(0))",
    "next(items)",
    "next(portal.iterate(numbers()))",
    "writer.append(b'late')",
    "writer.append_async(b'late')",
    "writer.flush()",
    "writer.close()",
)


@pytest.mark.parametrize("is_stuck", [False, True])
def test_whoever_asks_behind_the_end_of_the_loop_is_told(is_stuck: bool) -> None:
    """Also where a callback of a user's keeps the loop's thread: nothing runs there any more."""
    stuck = """
module.PORTAL_STOP_TIMEOUT_S = 0.05
portal.loop.call_soon_threadsafe(threading.Event().wait)
"""
    lines = _ended("; ".join(f"tell(lambda: {each})" for each in _ASKED), stuck * is_stuck)
    assert len(lines) == len(_ASKED)
    assert all(line.startswith("LedgerClosedError this process is ending") for line in lines)


def test_handler_that_was_registered_later_may_use_the_connection() -> None:
    """As one that closes the connection."""
    lines = _ended(
        "print('behind')",
        "atexit.register(lambda: tell(lambda: portal.call(asyncio.sleep(0, 'works'))))\n"
        "atexit.register(lambda: tell(lambda: next(made[1])))",
    )
    assert lines == ["1", "works", "behind"]


def test_handler_of_the_exit_may_do_what_needs_a_thread() -> None:
    """As the end of a session with ZooKeeper, and the keys of a ledger with a password."""
    lines = _ended(
        "print('behind')",
        "from spark_ledger.client.ledger_client import _derive_keys\n"
        "from spark_ledger.tasks import in_thread\n"
        "keys = portal.call(_derive_keys(b'secret', 1, b''))\n"
        "late = lambda: keys == portal.call(_derive_keys(b'secret', 1, b''))\n"
        "atexit.register(lambda: tell(late))\n"
        "atexit.register(lambda: tell(lambda: portal.call(in_thread(max, 1, 2))))",
    )
    assert lines == ["2", "True", "behind"]


def test_loop_that_is_busy_is_waited_for() -> None:
    """What it does must not run beside the end of the interpreter."""
    lines = _ended(
        "print(portal._thread.is_alive())",
        "portal.loop.call_soon_threadsafe(lambda: (time.sleep(0.3), print('done', flush=True)))",
    )
    assert lines == ["done", "False"]


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """One that may be stopped here, as at the end of a process."""
    made = BlockingPortal()
    yield made
    atexit.unregister(made._stop)
    made._stop()
    made.loop.close()


def test_stop_returns_once_the_loop_has_ended(portal: BlockingPortal) -> None:
    done = threading.Event()
    portal.loop.call_soon_threadsafe(time.sleep, 0.1)
    portal.loop.call_soon_threadsafe(done.set)
    portal._stop()
    assert done.is_set() and not portal._thread.is_alive()


def test_stop_beside_a_stuck_callback_gives_up_and_refuses_calls(
    portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal_module, "PORTAL_STOP_TIMEOUT_S", 0.02)
    release = threading.Event()
    portal.loop.call_soon_threadsafe(release.wait, 10)
    stopping = threading.Thread(target=portal._stop)
    stopping.start()
    stopping.join(2)
    gave_up = not stopping.is_alive()
    try:
        with pytest.raises(LedgerClosedError):
            portal.check_usable()
        with pytest.raises(LedgerClosedError):
            portal.call(asyncio.sleep(0))
    finally:
        release.set()
        portal._thread.join(10)
    assert gave_up


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_behind_a_loop_that_a_callback_has_ended_are_refused(portal: BlockingPortal) -> None:
    """As one of a future that says ``sys.exit()``: nobody waits for a thread that is gone."""
    portal.loop.call_soon_threadsafe(sys.exit)
    portal._thread.join(10)
    assert not portal.is_running
    with pytest.raises(LedgerClosedError):
        portal.call(asyncio.sleep(0))
