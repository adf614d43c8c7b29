"""A bookie whose service waits for a lock that nobody gives back: it stays registered, as its
session is kept alive by another thread, until it ends itself.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bookie_server.exit_codes import EXIT_FATAL
from tests.integration.test_bookie_process import Process, registered

pytestmark = pytest.mark.processes

TOLD_S, STILL_S = 1.5, 6.0
"""The session of this bookie ends after 2 s."""

STANDS_STILL_ONCE_A_FILE_IS_THERE = f"""
import os, sys, threading
import spark_ledger.limits.bookie as limits
limits.LOOP_STILL_TOLD_S, limits.LOOP_STILL_S = {TOLD_S}, {STILL_S}
from bookie_server import __main__, stall_watch

def waits_for_nobody(_watch):
    if os.path.exists("{{file}}"):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

stall_watch.StallWatch.look = waits_for_nobody
sys.exit(__main__.main())
"""


def test_bookie_whose_service_waits_for_a_lock_for_ever_ends(
    tmp_path: Path, metadata_uri: str
) -> None:
    bookie, sign = Process(tmp_path, metadata_uri), tmp_path / "sign"
    argv = [sys.executable, "-c", STANDS_STILL_ONCE_A_FILE_IS_THERE.format(file=sign)]
    argv += ["--config", str(bookie.config), "--format", "--ready-file", str(bookie.ready_file)]
    with bookie.log.open("ab") as output, subprocess.Popen(argv, stderr=output) as process:
        bookie.process = process
        try:
            bookie_id = bookie.await_ready()["bookie_id"]
            sign.touch()
            stands_still_at = time.monotonic()
            time.sleep(STILL_S / 2)
            assert registered(metadata_uri) == [bookie_id], "nothing else would end it"
            code = process.wait(timeout=60)
            stood_s = time.monotonic() - stands_still_at
        finally:
            process.kill()
    log = bookie.log.read_text()
    assert code == EXIT_FATAL, log
    assert stood_s >= STILL_S - 1
    assert "waits_for_nobody" in log, "what the thread does is shown"
    assert f"has stood still for {int(STILL_S)}." in log
