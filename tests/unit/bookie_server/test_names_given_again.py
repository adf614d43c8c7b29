"""A name is formatted again while the bookie that has left runs still: only one of the two serves.

What the empty one denies under the name, the other one may have acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from bookie_server import registration
from bookie_server.config import BookieConfig, parse
from bookie_server.identity import Identity
from bookie_server.registration import format_new, local_cookie
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.errors import ConfigurationError, NotFoundError
from spark_ledger.metadata import bookies
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import (
    BookieCookie,
    accept_newer_starts,
    cookie_path,
    encode_cookie,
    has_left,
    leaving_path,
    left_path,
)
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.repair.decommission import _leave
from spark_ledger.types import BookieId, BookieInfo

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)

B = BookieId("b1")


class Old:
    """The process of a bookie that serves, and is taken out; nothing of it but who it is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = MemoryTree()
        self.store = self.tree.open_session()
        self.operator = self.tree.open_session()

    def config_in(self, name: str) -> BookieConfig:
        text = (
            'metadata = "zk://h/x"\nbookie_id = "b1"\nsession_timeout_s = 0.1\n[storage]\n'
            'journal_directory = "journal"\nledger_directories = ["l0"]\n'
        )
        return parse(text, self.root / name / "bookie.toml")

    async def start(self) -> None:
        config = self.config_in("old")
        await format_new(config, self.store)
        directories = [config.journal_directory, *config.ledger_directories]
        files = PosixFileSystem()
        self.identity = Identity(local_cookie(config), directories, self.store, files)
        await self.identity.check()
        await self.identity.claim()
        self.registry = BookieRegistry(
            self.store, at_contact=self.check_left, once_made=self.check_left
        )

    async def check_left(self) -> None:
        if why := await self.identity.why_left():
            raise ConfigurationError(why)

    async def register(self) -> None:
        await self.registry.register(BookieInfo(B, "old:1"))

    async def registered(self) -> BookieInfo | None:
        return await BookieRegistry(self.operator).get(B)

    async def leave(self) -> None:
        """As a decommission that finds it registered still, or else ends."""
        await self.operator.create(leaving_path(B), b"")
        await _leave(self.operator, B)
        if await self.registered() is None:
            await self.operator.delete(leaving_path(B))


@pytest.fixture(autouse=True)
def _ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookies, "REGISTRATION_MARGIN_S", 0.1)


def with_old(test: Callable[[Old], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def main() -> None:
            old = Old(tmp_path)
            await old.start()
            await test(old)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def is_there(store: MemoryMetadataStore, path: str) -> bool:
    try:
        await store.get(path)
    except NotFoundError:
        return False
    return True


@with_old
async def test_name_is_not_formatted_while_the_bookie_that_has_left_is_registered(old: Old) -> None:
    told: list[str] = []
    await old.register()
    old.identity.watch(told.append)
    await old.leave()
    new = old.config_in("new")
    with pytest.raises(ConfigurationError, match=r"registered at old:1: .*decommissioned, stop it"):
        await format_new(new, old.operator)
    await asyncio.sleep(0.01)
    assert not told, "it serves on, also one that a restored store forgot"
    await old.identity.close()
    assert not new.journal_directory.exists()
    assert await is_there(old.operator, leaving_path(B)), "it is read-only until it is stopped"
    assert await has_left(old.operator, B)
    await old.registry.deregister()
    await format_new(new, old.operator)


def test_format_waits_for_the_session_of_a_bookie_that_has_left_and_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookies, "REGISTRATION_MARGIN_S", 30.0)  # of a machine that stands still

    @with_old
    async def test(old: Old) -> None:
        await old.register()
        await old.leave()
        work = asyncio.create_task(format_new(old.config_in("new"), old.operator))
        await asyncio.sleep(0.05)
        assert not work.done() and not await is_there(old.operator, cookie_path(B))
        await old.registry.deregister()
        assert (await work).bookie_id == B

    test(tmp_path)


def test_name_of_another_bookie_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[BookieId] = []

    async def wait(_: BookieRegistry, bookie_id: BookieId) -> None:
        waited.append(bookie_id)

    @with_old
    async def test(old: Old) -> None:
        await old.register()
        monkeypatch.setattr(BookieRegistry, "wait_until_vacant", wait)
        taken = r"taken in this cluster.* bookies decommission"
        with pytest.raises(ConfigurationError, match=taken):
            await format_new(old.config_in("new"), old.operator)
        await old.registry.deregister()
        assert not waited

    test(tmp_path)


def test_bookie_that_registers_as_its_name_is_formatted_keeps_it_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked before it was taken out, and was slow since."""
    take = registration._take_name

    @with_old
    async def test(old: Old) -> None:
        async def late(cookie: BookieCookie, store: MemoryMetadataStore) -> tuple[bool, int]:
            await BookieRegistry(old.store).register(BookieInfo(B, "old:1"))
            return await take(cookie, store)

        await old.leave()
        monkeypatch.setattr(registration, "_take_name", late)
        with pytest.raises(ConfigurationError, match="registered at old:1"):
            await format_new(old.config_in("new"), old.operator)
        assert await has_left(old.operator, B)
        assert not await is_there(old.operator, cookie_path(B)), "it can be formatted later"

    test(tmp_path)


@with_old
async def test_bookie_that_was_cut_off_while_its_name_was_formatted_is_not_registered(
    old: Old,
) -> None:
    await old.leave()
    await format_new(old.config_in("new"), old.operator)
    assert not await is_there(old.operator, left_path(B)), "the new one has not left"
    with pytest.raises(ConfigurationError, match="the cluster knows another bookie as 'b1'"):
        await old.register()
    assert await old.registered() is None


@with_old
async def test_bookie_that_runs_ends_when_its_name_is_formatted(old: Old) -> None:
    told: list[str] = []
    old.identity.watch(told.append)
    await old.leave()
    await asyncio.sleep(0.01)
    assert not told, "a cookie that is missing may be of a store that was restored"
    await format_new(old.config_in("new"), old.operator)
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.001)
    assert "the cluster knows another bookie as 'b1'" in told[0]
    await old.identity.close()


@with_old
async def test_directories_do_not_start_under_the_cookie_of_the_next_bookie(old: Old) -> None:
    """The paths are the same, and the cluster accepts newer starts."""
    await old.leave()
    paths = old.config_in("old")
    names = (str(paths.journal_directory), *map(str, paths.ledger_directories))
    cluster_id = old.identity._cookie.cluster_id
    made = BookieCookie(cluster_id, B, names[0], names[1:], "another")
    await old.operator.create(cookie_path(B), encode_cookie(made))
    assert await accept_newer_starts(old.operator) == [B]
    with pytest.raises(ConfigurationError, match="is of another bookie than"):
        await old.identity.check()


@with_old
async def test_format_that_fails_leaves_the_bookie_that_has_left_out_of_the_cluster(
    old: Old,
) -> None:
    await old.leave()
    new = old.config_in("new")
    new.journal_directory.mkdir(parents=True)
    (new.journal_directory / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigurationError, match=r"thesis\.txt"):
        await format_new(new, old.operator)
    with pytest.raises(ConfigurationError, match="was taken out of its cluster"):
        await old.register()


@with_old
async def test_cookie_that_cannot_be_read_keeps_nobody_from_registering(old: Old) -> None:
    """Who the other one would be, it does not say."""
    node = await old.operator.get(cookie_path(B))
    await old.operator.put(cookie_path(B), b"{", node.version)
    await old.register()
    assert await old.registered() is not None
    await old.registry.deregister()
