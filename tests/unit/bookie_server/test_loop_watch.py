"""A service loop that stands still is told and ended; one that turns, or a process that stood still
as a whole, is not.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading

import pytest

from bookie_server.exit_codes import EXIT_FATAL
from bookie_server.loop_watch import LoopWatch

BEAT_S, TOLD_S, STILL_S = 1.0, 5.0, 30.0


class Watched:
    """A loop whose turns and clock the test gives."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ended_at: list[float] = []
        self.watch = LoopWatch(
            beat_s=BEAT_S,
            told_s=TOLD_S,
            still_s=STILL_S,
            clock=lambda: self.now,
            end=lambda: self.ended_at.append(self.now),
        )
        self.watch.look()

    def look_for(self, seconds: float, *, turns: bool = False, every_s: float = BEAT_S) -> None:
        for _ in range(round(seconds / every_s)):
            self.now += every_s
            self.watch._turns += turns
            self.watch.look()


def test_loop_that_stands_still_is_told_once_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.look_for(TOLD_S - 1)
    assert not caplog.records
    watched.look_for(STILL_S - TOLD_S)
    (told,) = [each.message for each in caplog.records]
    assert told.startswith("the loop of the service has stood still for 5.0 s; what each thread")
    assert "thread MainThread:" in told
    assert "test_loop_that_stands_still_is_told_once_and_ended" in told
    assert not watched.ended_at
    watched.look_for(1)
    assert watched.ended_at == [100.0 + STILL_S]
    assert "stood still for 30.0 s: the process ends" in caplog.records[-1].message


def test_loop_that_goes_on_is_told_and_not_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watched = Watched()
    for _ in range(4):
        watched.look_for(STILL_S - 1)
        watched.look_for(1, turns=True)
    assert not watched.ended_at
    assert [each.message for each in caplog.records][1] == "the loop goes on after 29.0 s"
    assert len(caplog.records) == 2 * 4


def test_loop_that_turns_is_never_told(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.look_for(1000, turns=True)
    assert not caplog.records
    assert not watched.ended_at


@pytest.mark.parametrize("every_s", [3.0, 40.0])
def test_process_that_stood_still_as_a_whole_is_not_ended(
    every_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    watched.look_for(400, every_s=every_s)
    assert not caplog.records
    assert not watched.ended_at


def test_watch_ends_with_what_it_watches() -> None:
    ended: list[None] = []

    async def serve() -> None:
        watch = LoopWatch(beat_s=0.01, told_s=0.02, still_s=0.05, end=lambda: ended.append(None))
        with watch.running():
            await asyncio.sleep(0.3)  # it turns
        assert not ended

    asyncio.run(serve())
    assert not ended


def test_loop_that_holds_the_log_is_ended_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    thread = threading.Thread(target=watched.look_for, args=(STILL_S,), daemon=True)
    caplog.handler.acquire()
    try:
        thread.start()
        thread.join(30)
        assert watched.ended_at
    finally:
        caplog.handler.release()


PROCESS = """
import asyncio, logging, threading
from bookie_server.loop_watch import LoopWatch
logging.basicConfig()

def waits_for_nobody():
    {how}

async def serve():
    with LoopWatch(beat_s=0.1, told_s=0.3, still_s=1.0).running():
        await asyncio.sleep(0.2)
        waits_for_nobody()

asyncio.run(serve())
"""


def test_process_whose_loop_waits_for_a_lock_ends_and_shows_where() -> None:
    how = "lock = threading.Lock(); lock.acquire(); lock.acquire()"
    argv = [sys.executable, "-c", PROCESS.format(how=how)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == EXIT_FATAL
    assert "waits_for_nobody" in ended.stderr
    assert "has stood still for" in ended.stderr


def test_process_whose_output_nobody_reads_ends() -> None:
    """Its loop waits for the reader, behind the lock of the log."""
    argv = [sys.executable, "-c", PROCESS.format(how="logging.warning('x' * (1 << 20))")]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=60) == EXIT_FATAL
        finally:
            process.kill()
