"""Directories that an operator moved: noted as the bookie's, if nothing newer is lost by that."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from bookie_server import relocation
from bookie_server.config import BookieConfig, parse
from bookie_server.identity import Identity
from bookie_server.registration import format_new, local_cookie
from bookie_server.relocation import relocate
from bookie_server.storage.cookie import lock_directories
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.errors import ConfigurationError
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import cookie_path, has_left, leaving_path, left_path
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.repair.nodes import leaving
from spark_ledger.types import BookieId, BookieInfo

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)

B = BookieId("b1")


class Cluster:
    """A metadata store, and a formatted bookie that has started once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = MemoryTree()
        self.config = self.config_in("here")

    def config_in(self, name: str) -> BookieConfig:
        text = (
            'metadata = "zk://h/x"\nbookie_id = "b1"\n[storage]\n'
            'journal_directory = "journal"\nledger_directories = ["l0"]\n'
        )
        return parse(text, self.root / name / "bookie.toml")

    def store(self) -> MemoryMetadataStore:
        return self.tree.open_session()

    def identity(self, config: BookieConfig) -> Identity:
        directories = [config.journal_directory, *config.ledger_directories]
        return Identity(local_cookie(config), directories, self.store(), PosixFileSystem())

    def move(self) -> BookieConfig:
        shutil.copytree(self.root / "here", self.root / "there")
        return self.config_in("there")


def in_cluster(test: Callable[[Cluster], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def main() -> None:
            cluster = Cluster(tmp_path)
            await format_new(cluster.config, cluster.store())
            await cluster.identity(cluster.config).claim()
            await test(cluster)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@in_cluster
async def test_moved_directories_are_the_bookie_from_then_on(cluster: Cluster) -> None:
    moved = cluster.move()
    with pytest.raises(ConfigurationError, match="moved, or is a copy"):
        await cluster.identity(moved).check()
    text = await relocate(moved, cluster.store())
    assert "there/journal" in text and "(start 2)" in text
    await cluster.identity(moved).check()
    with pytest.raises(ConfigurationError, match="older copy"):
        await cluster.identity(cluster.config).check()


@in_cluster
async def test_registered_bookie_is_not_moved(cluster: Cluster) -> None:
    moved = cluster.move()
    await BookieRegistry(cluster.store()).register(BookieInfo(B, "h:1"))
    with pytest.raises(ConfigurationError, match="registered at h:1: stop it"):
        await relocate(moved, cluster.store())
    await cluster.identity(cluster.config).check()


@in_cluster
async def test_older_copy_is_not_moved(cluster: Cluster) -> None:
    moved = cluster.move()
    await cluster.identity(cluster.config).claim()
    with pytest.raises(ConfigurationError, match="older copy"):
        await relocate(moved, cluster.store())


@in_cluster
async def test_directories_in_use_are_not_moved(cluster: Cluster) -> None:
    moved = cluster.move()
    (lock,) = lock_directories(PosixFileSystem(), [moved.journal_directory])
    with pytest.raises(ConfigurationError, match="in use by another bookie process"):
        await relocate(moved, cluster.store())
    lock.release()
    await relocate(moved, cluster.store())


@in_cluster
async def test_cookie_that_the_cluster_lost_is_made_again(cluster: Cluster) -> None:
    await cluster.store().delete(cookie_path(B))
    with pytest.raises(ConfigurationError, match="restored from a backup"):
        await cluster.identity(cluster.config).check()
    await relocate(cluster.config, cluster.store())
    await cluster.identity(cluster.config).claim()


@in_cluster
async def test_bookie_that_was_taken_out_and_is_relocated_has_not_left(cluster: Cluster) -> None:
    """Its name was another's in the backup, which an operator took out first."""
    store = cluster.store()
    await store.create(left_path(B), b"")
    await store.delete(cookie_path(B))
    assert await has_left(store, B)
    await relocate(cluster.config, store)
    await store.delete(cookie_path(B))  # in a backup of before
    assert not await has_left(store, B)


@in_cluster
async def test_bookie_without_a_cookie_that_is_relocated_does_not_leave_for_the_one_before(
    cluster: Cluster,
) -> None:
    """That one was decommissioned, and ran, when the backup was taken. One with a cookie may be
    moved while it is drained."""
    store = cluster.store()
    await store.create(leaving_path(B), b"")
    await relocate(cluster.config, store)
    assert await leaving(store) == {B}
    await store.delete(cookie_path(B))
    await relocate(cluster.config, store)
    assert await leaving(store) == frozenset()


@in_cluster
async def test_another_cluster_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="belongs to cluster"):
        await relocate(cluster.config, MemoryMetadataStore())


def test_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @in_cluster
    async def on_a_full_disk(cluster: Cluster) -> None:
        moved = cluster.move()
        full = FaultFileSystem(
            PosixFileSystem(),
            lambda operation: Fault(errno.ENOSPC) if operation.kind == "create" else None,
        )
        monkeypatch.setattr(relocation, "PosixFileSystem", lambda: full)
        with pytest.raises(ConfigurationError, match="full, so the move cannot be noted"):
            await relocate(moved, cluster.store())

    on_a_full_disk(tmp_path)
