"""A start that meets a failed disk ends with the exit code of one, whatever step met it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any, cast

import pytest

from bookie_server.config import BookieConfig
from bookie_server.exit_codes import EXIT_FATAL, EXIT_REFUSED
from bookie_server.opening import open_bookie
from bookie_server.process import _exit_code
from bookie_server.registration import is_formatted
from bookie_server.server import BookieServer
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories, lock_directories
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieId
from tests.unit.bookie_server.storage.support import JOURNAL, LEDGERS, Machine, formatted
from tests.unit.bookie_server.test_identity import World


def failing(inner: Any, number: int, kinds: tuple[str, ...] = (), on: Path | None = None) -> Any:
    """A file system whose operations fail: of these kinds, or all, in a directory or in all."""

    def plan(operation: Operation) -> Fault | None:
        fails = not kinds or operation.kind in kinds
        return Fault(number) if fails and (not on or operation.path.is_relative_to(on)) else None

    return FaultFileSystem(inner, plan)


def code_of(step: Callable[[], object]) -> int:
    """The exit code of a run in which a step of the start raises."""

    class Run:
        async def run(self) -> int:
            with pytest.raises(ConfigurationError) as raised:
                await asyncio.to_thread(step)
            raise raised.value

    return asyncio.run(_exit_code(cast(BookieServer, Run())))


def opening(number: int, on: Path, *kinds: str) -> Callable[[], object]:
    files = formatted()
    Machine(files).close()
    return lambda: Machine(failing(files, number, kinds, on))


def locking(number: int) -> Callable[[], object]:
    class Files(PosixFileSystem):
        def lock(self, path: Path) -> Any:
            raise OSError(number, os.strerror(number), str(path))

    return lambda: lock_directories(Files(), [JOURNAL])


def identifying(number: int, *kinds: str) -> Callable[[], object]:
    async def start() -> None:
        world = await World().prepare()
        await world.start()
        await world.start(failing(world.files, number, kinds))

    return lambda: asyncio.run(start())


def looking(number: int) -> Callable[[], object]:
    class Name(PosixPath):
        def stat(self, **_options: Any) -> Any:
            raise OSError(number, os.strerror(number), str(self))

    class Config:
        journal_directory = Name("/j")

    return lambda: is_formatted(cast(BookieConfig, Config()))


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EIO, EXIT_FATAL), (errno.EACCES, EXIT_REFUSED)]
)
@pytest.mark.parametrize(
    "step",
    [
        lambda number: opening(number, JOURNAL),  # its cookie comes first
        lambda number: opening(number, LEDGERS[1]),
        lambda number: opening(number, JOURNAL, "list"),
        lambda number: opening(number, LEDGERS[0], "sync_directory"),
        locking,
        looking,
        lambda number: identifying(number),
        lambda number: identifying(number, "rename"),
    ],
)
def test_start_on_a_disk_that_fails_is_tried_again_and_one_that_is_set_up_wrongly_is_not(
    step: Callable[[int], Callable[[], object]], number: int, code: int
) -> None:
    """A disk that fails whole is met by the first read. Until now only a later one counted."""
    assert code_of(step(number)) == code


def test_index_that_is_set_up_wrongly_is_no_failed_disk(tmp_path: Path) -> None:
    """A map that is larger than what the process may have. Nobody shall change a good disk."""
    files, journal, ledgers = PosixFileSystem(), tmp_path / "j", tmp_path / "l"
    format_directories(files, journal, (ledgers,), cluster_id="c", bookie_id=BookieId("b"))
    config = StorageConfig(
        bookie_id=BookieId("b"),
        journal_directory=journal,
        ledger_directories=(ledgers,),
        journal_file_bytes=MIB,
        journal_batch_bytes_max=256 * KIB,
        index_map_bytes=1 << 56,
    )

    def start() -> None:
        open_bookie(config, post=lambda _call: None, on_fatal=print, threads=False)

    assert code_of(start) == EXIT_REFUSED
