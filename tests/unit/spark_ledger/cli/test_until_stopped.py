"""A keeper or worker whose loop stands still ends: it would stay elected."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from spark_ledger.cli import until_stopped

PROCESS = """
import asyncio, logging
from functools import partial
from spark_ledger.cli import until_stopped
logging.basicConfig()
until_stopped.LoopWatch = partial(until_stopped.LoopWatch, beat_s=0.1, told_s=0.3, still_s=1.0)

async def passes():
    await asyncio.sleep(0.2)
    logging.warning("x" * (1 << 20))

async def main():
    await until_stopped.run_until_stopped(passes(), asyncio.Event())

asyncio.run(main())
"""


def test_keeper_whose_log_nobody_reads_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", PROCESS], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=60) == 1
        finally:
            process.kill()


def test_loop_is_watched_while_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[bool] = []

    class Watch:
        @contextlib.contextmanager
        def running(self) -> Iterator[None]:
            watched.append(True)
            yield
            watched.append(False)

    async def work() -> None:
        assert watched == [True]

    monkeypatch.setattr(until_stopped, "LoopWatch", Watch)

    async def main() -> None:
        await until_stopped.run_until_stopped(work(), asyncio.Event())

    asyncio.run(main())
    assert watched == [True, False]
