"""The process of a bookie ends although a disk holds up some of its threads for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bookie_server import process, server
from bookie_server.daemon_thread import in_daemon_thread
from bookie_server.exit_codes import (
    EXIT_FAILED,
    EXIT_FATAL,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_REPLACED,
)
from bookie_server.server import BookieServer
from spark_ledger.errors import (
    BookieReplacedError,
    ConfigurationError,
    CorruptionError,
    MetadataUnavailableError,
)
from tests.unit.bookie_server.test_server import Cluster
from tests.unit.bookie_server.test_server import cluster as cluster

PROGRAM = """
import asyncio, logging, threading
from bookie_server.daemon_thread import end_process

async def main():
    {hang}
    end_process(3, 0.1)

logging.basicConfig()
asyncio.run(main())
"""
WAITS = "threading.Event().wait"


@pytest.mark.parametrize(
    "hang",
    [
        f"asyncio.get_running_loop().run_in_executor(None, {WAITS})",
        f"threading.Thread(target={WAITS}).start()",
    ],
)
def test_process_whose_threads_hang_ends_with_its_code_and_says_why(hang: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(hang=hang)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 3
    assert "the process ends without" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("failure", "exit_code"),
    [
        (None, EXIT_FATAL),
        (server.Stopped(), EXIT_OK),
        (ConfigurationError("a setting"), EXIT_REFUSED),
        (CorruptionError("a file"), EXIT_REFUSED),
        (BookieReplacedError("another one"), EXIT_REPLACED),
        (MetadataUnavailableError("no ZooKeeper"), EXIT_FAILED),
    ],
)
def test_end_of_the_process_is_bounded_however_the_bookie_ends(
    failure: Exception | None, exit_code: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that could not start: a disk may hold up what it had begun."""
    ended: list[int] = []

    async def ends(_server: BookieServer) -> int:
        assert not ended, "the bookie stops first"
        if failure is not None:
            raise failure
        return EXIT_FATAL

    monkeypatch.setattr(BookieServer, "run", ends)
    assert process.run(cluster.config, at_end=ended.append) == exit_code
    assert ended == [exit_code]


def test_disk_work_for_which_there_is_no_thread_is_an_error_that_its_callers_catch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Garbage collection and refetch catch those of a disk, and begin anew later."""

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            with pytest.raises(OSError, match="no thread for the disk"):
                await in_daemon_thread(lambda: None)
        await in_daemon_thread(lambda: None)

    asyncio.run(main())
