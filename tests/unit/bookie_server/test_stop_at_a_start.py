"""A start that waits for a disk that hangs ends when it is asked to, as a signal asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bookie_server import identity, registration, server
from bookie_server.bookie import Bookie
from bookie_server.storage import start_record
from tests.unit.bookie_server.test_server import B, Cluster, until
from tests.unit.bookie_server.test_server import cluster as cluster


class Hangs:
    """A call that does not come back until the test ends, and fails then."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self.callers: list[threading.Thread] = []

    def __call__(self, *_of: object, **_named: object) -> Any:
        self.callers.append(threading.current_thread())
        self.ends.wait(10)
        raise OSError(5, "Input/output error")


@pytest.fixture
def hangs() -> Iterator[Hangs]:
    hangs = Hangs()
    yield hangs
    hangs.ends.set()
    for caller in hangs.callers:
        caller.join(10)


async def start_and_stop(cluster: Cluster, hangs: Hangs) -> None:
    bookie = cluster.server()
    running = asyncio.create_task(bookie.run())
    await until(lambda: bool(hangs.callers))
    assert hangs.callers == [each for each in hangs.callers if each.daemon], "it holds up no end"
    bookie._stop.set()
    async with asyncio.timeout(5):
        with pytest.raises(server.Stopped):
            await running
    assert not hangs.ends.is_set() and hangs.callers[0].is_alive(), "the disk hangs still"


@pytest.mark.parametrize(
    ("module", "step"),
    [
        pytest.param(server, "is_formatted", id="cookie is looked for"),
        pytest.param(server, "local_cookie", id="cookie is read"),
        pytest.param(server, "open_bookie", id="storage is opened"),
        pytest.param(registration, "unfinished_id", id="format looks what is there"),
        pytest.param(registration, "format_directories", id="directories are made"),
        pytest.param(identity, "write_start", id="start is noted"),
        pytest.param(
            Bookie,
            "next_ledger_id",
            id="highest ledger is looked for",
            marks=pytest.mark.leaves_open(
                "watch", reason="of a registration that was broken off: they end with the session"
            ),
        ),
    ],
)
def test_signal_ends_a_start_whose_disk_hangs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, hangs: Hangs, module: Any, step: str
) -> None:
    if step == "local_cookie":  # it is there already
        monkeypatch.setattr(server, "is_formatted", lambda _config: True)
    monkeypatch.setattr(module, step, hangs)
    asyncio.run(start_and_stop(cluster, hangs))


@pytest.mark.parametrize("reads", [1, 2], ids=["at the check", "at the claim"])
def test_signal_ends_a_start_that_reads_its_record(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, hangs: Hangs, reads: int
) -> None:
    """Both reads hang in a thread, and not the loop: nobody else could end it then."""
    directories: list[object] = []

    def read_start(files: Any, directory: Any) -> Any:
        directories.append(directory)
        return (
            hangs()
            if len(directories) > 2 * (reads - 1)
            else start_record.read_start(files, directory)
        )

    monkeypatch.setattr(identity, "read_start", read_start)
    asyncio.run(start_and_stop(cluster, hangs))
    assert cluster.tree.children("bookies/writable") != [B]
