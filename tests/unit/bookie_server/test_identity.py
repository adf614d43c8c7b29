"""Starts are noted so that a crash in between is recognised, and so is every copy."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bookie_server.identity import Identity
from bookie_server.storage.cookie import COOKIE_NAME, format_directories
from bookie_server.storage.fs.fault_fs import Fault as DiskFault
from bookie_server.storage.fs.fault_fs import FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.start_record import RECORD_NAME, read_start
from spark_ledger.errors import (
    BookieReplacedError,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
)
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.cluster import ensure_cluster
from spark_ledger.metadata.cookies import (
    BookieCookie,
    accept_newer_starts,
    cookie_path,
    decode_cookie,
    encode_cookie,
)
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from spark_ledger.types import BookieId, DirectoryPlace

B = BookieId("b")
DIRECTORIES = (Path("/j"), Path("/l0"), Path("/l1"))


class PowerCut(BaseException):
    """The process is gone."""


class World:
    """A formatted bookie that has never started, and its cluster."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.files = MemoryFileSystem()

    async def prepare(self) -> World:
        store = self.tree.open_session()
        cluster_id = await ensure_cluster(store)
        self.cookie = format_directories(
            self.files, DIRECTORIES[0], DIRECTORIES[1:], cluster_id=cluster_id, bookie_id=B
        )
        names = tuple(map(str, DIRECTORIES))
        cookie = BookieCookie(cluster_id, B, names[0], names[1:], "made")
        await store.create(cookie_path(B), encode_cookie(cookie))
        return self

    def identity(
        self,
        files: FileSystem | None = None,
        *,
        interpose: Callable[[str, str], Fault] | None = None,
        is_moved: bool = False,
    ) -> Identity:
        store = self.tree.open_session(interpose=interpose)
        used = self.files if files is None else files
        return Identity(self.cookie, DIRECTORIES, store, used, is_moved=is_moved)

    async def start(self, files: FileSystem | None = None) -> Identity:
        identity = self.identity(files)
        await identity.check()
        await identity.claim()
        return identity

    def known(self) -> BookieCookie:
        return decode_cookie(B, self.tree.get(cookie_path(B)).value)


def in_world(test: Callable[[World], object]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            await test(await World().prepare())  # type: ignore[misc]

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@in_world
async def test_each_start_and_stop_has_the_next_number(world: World) -> None:
    first = await world.start()
    await first.release()
    second = await world.start()
    assert second.start is not None and second.start.counter == 3
    assert world.known().start == second.start and world.known().is_confirmed
    places = [read_start(world.files, path).place for path in DIRECTORIES]
    assert list(world.known().places) == places


@in_world
async def test_older_copy_is_refused_in_every_place(world: World) -> None:
    """Copied while it ran, or before: refused beside the original, and in place of it."""
    copies = [world.files.copy(), world.files.crash_clone(None)]
    identity = await world.start()
    copies += [world.files.copy(), world.files.crash_clone(None)]
    await identity.release()
    for copy in copies:
        with pytest.raises(ConfigurationError, match="older copy"):
            await world.start(copy)
    assert (await world.start()).start is not None, "and the original goes on"


@in_world
async def test_copy_of_the_last_start_is_refused_by_its_inodes(world: World) -> None:
    """The original was killed: the copy knows the last start, but it is not the directory."""
    await world.start()
    with pytest.raises(ConfigurationError, match="copied, or restored from a backup"):
        await world.start(world.files.copy())
    await world.start()


@in_world
async def test_one_directory_of_an_older_copy_is_refused(world: World) -> None:
    await world.start()
    before = world.files.crash_clone(None)
    await world.start()
    world.files._directories["/l1"] = before._directories["/l1"]
    with pytest.raises(ConfigurationError, match="/l1 of bookie b is an older copy"):
        await world.start()


@in_world
async def test_new_content_in_an_old_directory_is_refused(world: World) -> None:
    await world.start()
    copied = world.files.copy()._directories["/l0"]
    copied.number = world.files._directories["/l0"].number
    world.files._directories["/l0"] = copied
    with pytest.raises(ConfigurationError, match="/l0 is not the one"):
        await world.start()


@in_world
async def test_directories_newer_than_the_cluster_name_the_command(world: World) -> None:
    await world.start()
    backup = world.known()
    await world.start()
    node = world.tree.get(cookie_path(B))
    await world.tree.open_session().put(cookie_path(B), encode_cookie(backup), node.version)
    with pytest.raises(ConfigurationError, match="`ledger cluster restored`"):
        await world.start()
    store = world.tree.open_session()
    assert await accept_newer_starts(store) == [B]
    assert await accept_newer_starts(store) == [B]
    with pytest.raises(ConfigurationError, match="copied, or restored"):
        await world.start(world.files.copy())
    await world.start()
    assert not world.known().accepts_newer, "once"
    await world.start()


@in_world
async def test_two_claims_at_once_leave_one(world: World) -> None:
    clone = world.files.crash_clone(None)  # as of a virtual machine: the same inodes
    claims = [world.identity().claim(), world.identity(clone).claim()]
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["BookieReplacedError", "bool"]


@in_world
async def test_later_start_is_told_to_the_one_that_runs(world: World) -> None:
    told: list[str] = []
    running = await world.start()
    running.watch(told.append)
    await asyncio.sleep(0.01)
    assert not told
    clone = world.identity(world.files.crash_clone(None))
    await clone.claim()
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.001)
    assert "another process has started as bookie 'b' (start 2, this is start 1)" in told[0]
    await running.close()


@in_world
async def test_older_cookie_is_an_error_line_and_no_end(world: World) -> None:
    told: list[str] = []
    await world.start()
    backup = encode_cookie(world.known())
    running = await world.start()
    running.watch(told.append)
    store = world.tree.open_session()
    await store.put(cookie_path(B), backup, world.tree.get(cookie_path(B)).version)
    await asyncio.sleep(0.01)
    await store.delete(cookie_path(B))
    await asyncio.sleep(0.01)
    await running.release()  # nothing to note it in
    assert not told


@in_world
async def test_unreachable_store_does_not_end_the_watch(world: World) -> None:
    told: list[str] = []
    down = [3]

    def interpose(name: str, _path: str) -> Fault:
        down[0] -= name == "get" and down[0] > 0
        return Fault(Outcome.UNAVAILABLE if down[0] > 0 else Outcome.NORMAL)

    await world.start()
    clone = world.files.crash_clone(None)
    running = world.identity(interpose=interpose)
    running.start = world.known().start
    running.watch(told.append)
    await world.identity(clone).claim()
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.01)
    assert down == [0], "the store was asked while it was down"
    await running.close()


@in_world
async def test_cookie_that_cannot_be_read_does_not_end_the_watch(world: World) -> None:
    told: list[str] = []
    running = await world.start()
    running.watch(told.append)
    store = world.tree.open_session()
    good, version = world.tree.get(cookie_path(B)).value, world.tree.get(cookie_path(B)).version
    await store.put(cookie_path(B), b"{", version)
    await asyncio.sleep(0.01)
    with pytest.raises(ConfigurationError, match="cookie of bookie b cannot be read"):
        await world.identity().check()
    await store.put(cookie_path(B), good, version + 1)
    await asyncio.sleep(0.01)
    assert not told
    await world.identity(world.files.crash_clone(None)).claim()
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.001)
    await running.close()


async def start_until(world: World, number: int, seed: int | None) -> bool:
    """A start whose machine stops at its nth disk operation; True if it was over before."""
    done = [0]

    def plan(operation: Operation) -> DiskFault | None:
        if operation.kind in {"create", "pwritev", "fdatasync", "rename", "sync_directory"}:
            done[0] += 1
            if done[0] == number:
                raise PowerCut
        return None

    is_over = False
    try:
        await world.identity(FaultFileSystem(world.files, plan)).claim()
        is_over = True
    except PowerCut:
        pass
    world.files = world.files.crash_clone(seed)
    return is_over


@pytest.mark.parametrize("second", [None, 4, 6, 9, 14, 21, 30])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_crash_at_any_disk_operation_leaves_what_starts_again(
    seed: int | None, second: int | None
) -> None:
    """Also if the start after it crashes as well."""

    async def crash_at(number: int) -> bool:
        world = await World().prepare()
        await world.start()
        old = world.files.copy()
        is_over = await start_until(world, number, seed)
        if second is not None:
            await start_until(world, second, seed)
        again = await world.start()
        assert world.known().is_confirmed and world.known().start == again.start
        with pytest.raises(ConfigurationError):
            await world.start(old)
        return is_over

    async def main() -> None:
        number = 1
        while not await crash_at(number):
            number += 1
        assert number > 2 * len(DIRECTORIES) * 4

    asyncio.run(main())


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.NORMAL])
@pytest.mark.parametrize("at", range(1, 9))
def test_lost_answer_of_the_store_leaves_what_starts_again(outcome: Outcome, at: int) -> None:
    async def main() -> None:
        world = await World().prepare()
        await world.start()
        asked = [0]

        def interpose(_name: str, _path: str) -> Fault:
            asked[0] += 1
            return Fault(outcome if asked[0] == at else Outcome.NORMAL)

        try:
            await world.identity(interpose=interpose).claim()
        except LedgerError as error:
            assert outcome is Outcome.UNAVAILABLE or asked[0] <= 2, error
        world.files = world.files.crash_clone(None)
        again = await world.start()
        assert world.known().start == again.start and world.known().is_confirmed

    asyncio.run(main())


class PutsThatDie:
    """A process that dies when it writes its cookie: the write is on its way, and arrives later."""

    def __init__(self, world: World) -> None:
        self.tree = world.tree
        self.late: Put | None = None

    async def put(self, path: str, data: bytes, version: int) -> int:
        self.late = Put(path, data, version)
        raise PowerCut

    def arrive(self) -> None:
        late, self.late = self.late, None
        if late is not None:
            with suppress(ConflictError):
                self.tree.apply([late])


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("pause", range(1, 9))
def test_write_of_a_dead_start_that_comes_late_leaves_what_starts_again(
    pause: int, before: bool
) -> None:
    """It comes while the next start notes itself, or waits for the store."""

    async def main() -> None:
        world = await World().prepare()
        if before:
            await world.start()
        dead = world.identity()
        puts = PutsThatDie(world)
        dead._store.put = puts.put  # type: ignore[method-assign]
        with pytest.raises(PowerCut):
            await dead.claim()
        steps = [0]

        def step() -> None:
            steps[0] += 1
            if steps[0] == pause:
                puts.arrive()

        async def on_disk(work: Callable[[], None]) -> None:
            step()
            work()

        def interpose(_name: str, _path: str) -> Fault:
            step()
            return Fault()

        store = world.tree.open_session(interpose=interpose)
        second = Identity(world.cookie, DIRECTORIES, store, world.files, on_disk=on_disk)
        await second.claim()
        assert puts.late is None and world.known().start == second.start
        third = await world.start()
        assert world.known().start == third.start and world.known().is_confirmed

    asyncio.run(main())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("after", range(8))
def test_full_disk_does_not_forbid_a_start(after: int, error: int) -> None:
    async def main() -> None:
        world = await World().prepare()
        await world.start()
        writes = [0]

        def plan(operation: Operation) -> DiskFault | None:
            if operation.kind == "create" and operation.path.name.endswith(".tmp"):
                writes[0] += 1
                return DiskFault(error) if writes[0] > after else None
            return None

        identity = await world.start(FaultFileSystem(world.files, plan))
        assert identity.start == world.known().start and identity.is_claimed
        told: list[str] = []
        identity.watch(told.append)
        await asyncio.sleep(0.01)
        await identity.close()
        assert not told
        again = await world.start()
        assert world.known().is_confirmed and world.known().start == again.start

    asyncio.run(main())


@in_world
async def test_broken_disk_is_a_sentence(world: World) -> None:
    def failing(kind: str) -> FileSystem:
        return FaultFileSystem(
            world.files, lambda operation: DiskFault(errno.EIO) if operation.kind == kind else None
        )

    with pytest.raises(ConfigurationError, match="the start cannot be noted"):
        await world.start(failing("create"))
    await world.start()
    with pytest.raises(ConfigurationError, match="the start record cannot be read"):
        await world.start(failing("pread"))


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"{", CorruptionError, r"/l0/start\.json is damaged"),
        (b"", CorruptionError, "damaged"),
        (b'{"format_version":2,"place":["\xff"]}', CorruptionError, "damaged"),
        (
            b'{"format_version":3,"place":["/l0",1,1,1,1],"current":null,"pending":null}',
            ConfigurationError,
            "format version 3, this program reads 2",
        ),
        (
            b'{"format_version":1,"place":["/l0",1,1,1,1],"current":null,"pending":null}',
            ConfigurationError,
            "format version 1, this program reads 2",
        ),
    ],
)
def test_damaged_record_is_named(content: bytes, error: type[LedgerError], message: str) -> None:
    async def main() -> None:
        world = await World().prepare()
        file = world.files.create(DIRECTORIES[1] / RECORD_NAME)
        file.pwritev([content], 0)
        with pytest.raises(error, match=message):
            await world.start()

    asyncio.run(main())


@in_world
async def test_missing_record_is_refused(world: World) -> None:
    await world.start()
    world.files.remove(DIRECTORIES[2] / RECORD_NAME)
    with pytest.raises(ConfigurationError, match="/l1 knows no start of bookie b"):
        await world.start()


@in_world
async def test_moved_directories_start_once_that_is_said(world: World) -> None:
    await world.start()
    moved = world.files.copy()
    with pytest.raises(ConfigurationError, match="ledger bookie relocate"):
        await world.start(moved)
    await world.identity(moved, is_moved=True).claim()
    with pytest.raises(ConfigurationError, match="older copy"):
        await world.start()
    await world.start(moved)


@in_world
async def test_claim_that_met_another_is_not_released(world: World) -> None:
    late = world.identity(world.files.crash_clone(None))
    await world.start()
    with pytest.raises((ConfigurationError, BookieReplacedError)):
        await late.claim()
    assert not late.is_claimed


def test_inode_and_birth_tell_a_copy(tmp_path: Path) -> None:
    from bookie_server.storage.fs.file_identity import file_identity

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / COOKIE_NAME).write_text("x")
    before = file_identity(tmp_path / "a"), file_identity(tmp_path / "a" / COOKIE_NAME)
    (tmp_path / "a" / COOKIE_NAME).write_text("y")
    assert before == (file_identity(tmp_path / "a"), file_identity(tmp_path / "a" / COOKIE_NAME))
    seen = {before[1]}
    for _ in range(20):  # the file system gives the inode again, the birth differs
        (tmp_path / "a" / COOKIE_NAME).unlink()
        (tmp_path / "a" / COOKIE_NAME).write_text("x")
        seen.add(file_identity(tmp_path / "a" / COOKIE_NAME))
    assert len(seen) > 1 and before[0].inode == (tmp_path / "a").stat().st_ino
    assert DirectoryPlace("/a", *before[0], *before[1])
    with pytest.raises(FileNotFoundError):
        file_identity(tmp_path / "nothing")
