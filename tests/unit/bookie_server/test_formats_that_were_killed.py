"""A format that was killed is gone on with, and takes the name of no other bookie by that."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import shutil
from pathlib import Path

import msgspec
import pytest

from bookie_server import registration
from bookie_server.config import BookieConfig
from bookie_server.identity import Identity
from bookie_server.registration import check_identity, format_new, is_formatted, local_cookie
from bookie_server.storage.cookie import COOKIE_NAME, Cookie
from bookie_server.storage.fs.fault_fs import FaultFileSystem, Operation
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.errors import ConfigurationError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import (
    accept_newer_starts,
    cookie_path,
    decode_cookie,
    encode_cookie,
)
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from spark_ledger.types import BookieId
from tests.unit.bookie_server.test_registration import config_in

B1 = BookieId("b1")


class KilledError(BaseException):
    """SIGKILL: nothing that the program would do at its end is done."""


async def start(config: BookieConfig, store: MetadataStore) -> None:
    """What ``--format`` does, up to the claim of a start, before which nothing is served."""
    if not is_formatted(config):
        await format_new(config, store)
    directories = [config.journal_directory, *config.ledger_directories]
    cookie = local_cookie(config)
    await Identity(cookie, directories, store, PosixFileSystem()).claim()


class Life:
    """Kills a format before one of its steps, on disk or in the metadata."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tree: MemoryTree, step: int) -> None:
        self.left = step
        self.store = tree.open_session(interpose=self._on_call)
        files = FaultFileSystem(PosixFileSystem(), self._on_file)
        monkeypatch.setattr(registration, "PosixFileSystem", lambda: files)

    def _on_call(self, _name: str, _path: str) -> Fault:
        self._step()
        return Fault()

    def _on_file(self, _operation: Operation) -> None:
        self._step()

    def _step(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise KilledError


@pytest.mark.parametrize("bookie_id", ["b1", ""])
def test_format_that_was_killed_before_any_step_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bookie_id: str
) -> None:
    async def killed(step: int) -> bool:
        config, tree = config_in(tmp_path / f"{step}", bookie_id), MemoryTree()
        with monkeypatch.context() as patched:
            life = Life(patched, tree, step)
            with contextlib.suppress(KilledError):
                await format_new(config, life.store)
        store = tree.open_session()
        await start(config, store)
        cookie = local_cookie(config)
        known, _ = await check_identity(cookie, store)
        assert known.start is not None and not known.is_forming
        assert cookie.bookie_id == (bookie_id or cookie.bookie_id)
        for directory in config.ledger_directories:
            assert not (directory / f"{COOKIE_NAME}.tmp").exists()
        return life.left <= 0

    for step in itertools.count(1):
        if not asyncio.run(killed(step)):
            assert step > 30, "three directories take five each, and the metadata some more"
            return


def test_name_of_a_bookie_that_may_have_served_is_not_given_to_empty_directories(
    tmp_path: Path,
) -> None:
    """Its disks are not mounted, and it would deny all that it holds (rule S10)."""

    async def main(was_started: bool) -> None:
        config, tree = config_in(tmp_path / str(was_started)), MemoryTree()
        store = tree.open_session()
        await (start if was_started else format_new)(config, store)
        for directory in (config.journal_directory, *config.ledger_directories):
            shutil.rmtree(directory)
        with pytest.raises(ConfigurationError, match="'b1' is taken"):
            await format_new(config, store)
        assert not is_formatted(config)

    asyncio.run(main(True))
    asyncio.run(main(False))  # by the cookie alone it may as well be one of 0.1.0


def test_start_ends_a_format_that_was_killed_behind_its_directories(tmp_path: Path) -> None:
    """From then on the name is not given again, also while a full disk keeps its start unnoted."""

    async def main() -> None:
        config, tree = config_in(tmp_path), MemoryTree()
        store = tree.open_session()
        store.interpose = lambda name, _path: Fault(
            Outcome.UNAVAILABLE if name == "put" else Outcome.NORMAL
        )
        cookie = await format_new(config, store)
        store.interpose = None
        assert decode_cookie(B1, (await store.get(cookie_path(B1))).value).is_forming
        with pytest.raises(ConfigurationError, match="is not empty"):
            await format_new(config, store)
        await check_identity(cookie, store)
        assert not decode_cookie(B1, (await store.get(cookie_path(B1))).value).is_forming

    asyncio.run(main())


def test_format_that_was_killed_is_gone_on_with_behind_a_restored_zookeeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ledger cluster restored` had marked the name as one that may know more than the cluster."""

    async def main() -> None:
        config, tree = config_in(tmp_path), MemoryTree()
        store = tree.open_session()
        with monkeypatch.context() as patched, contextlib.suppress(KilledError):
            await format_new(config, Life(patched, tree, 15).store)
        assert await accept_newer_starts(store) == [B1]
        with monkeypatch.context() as patched, contextlib.suppress(KilledError):
            await format_new(config, Life(patched, tree, 15).store)
        known = decode_cookie(B1, (await store.get(cookie_path(B1))).value)
        assert known.is_forming and known.accepts_newer, "until the format has ended"
        await start(config, store)
        known, _ = await check_identity(local_cookie(config), store)
        assert known.start is not None and not known.is_forming and not known.accepts_newer

    asyncio.run(main())


@pytest.mark.parametrize("change", ["journal_directory", "ledger_directories", "cluster_id"])
def test_format_that_another_machine_has_begun_is_not_gone_on_with(
    tmp_path: Path, change: str
) -> None:
    async def main() -> None:
        config, tree = config_in(tmp_path), MemoryTree()
        store = tree.open_session()
        store.interpose = lambda name, _path: Fault(
            Outcome.UNAVAILABLE if name == "put" else Outcome.NORMAL
        )
        await format_new(config, store)
        store.interpose = None
        node = await store.get(cookie_path(B1))
        other: object = ("/else", "/where") if change == "ledger_directories" else "/elsewhere"
        data = encode_cookie(
            msgspec.structs.replace(decode_cookie(B1, node.value), **{change: other})
        )
        await store.put(cookie_path(B1), data, node.version)
        for directory in (config.journal_directory, *config.ledger_directories):
            shutil.rmtree(directory)
        with pytest.raises(ConfigurationError, match="'b1' is taken"):
            await format_new(config, store)
        assert (await store.get(cookie_path(B1))).value == data

    asyncio.run(main())


def test_format_that_fails_leaves_the_name_to_who_has_taken_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines are given one name and the same paths: the one that fails is not heard."""
    tree = MemoryTree()

    async def take_over() -> None:
        other = tree.open_session()
        node = await other.get(cookie_path(B1))
        await other.put(cookie_path(B1), node.value, node.version)

    def fail(*_: object, **__: object) -> Cookie:
        asyncio.run(take_over())
        raise OSError(errno.EIO, "Input/output error")

    async def main() -> None:
        store = tree.open_session()
        with pytest.raises(ConfigurationError, match="Input/output"):
            await format_new(config_in(tmp_path), store)
        assert await BookieRegistry(store).list_cookies() == [B1]

    monkeypatch.setattr(registration, "format_directories", fail)
    asyncio.run(main())
