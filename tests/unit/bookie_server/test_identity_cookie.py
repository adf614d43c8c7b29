"""The cluster's cookie of a bookie that runs, where replies are late or writes do not succeed."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from bookie_server.identity import Identity
from spark_ledger.errors import ConfigurationError, ConflictError, OutcomeUnknownError
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.cookies import (
    BookieCookie,
    accept_newer_starts,
    cookie_path,
    encode_cookie,
)
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.types import BookieStart, Versioned
from tests.unit.bookie_server.test_identity import DIRECTORIES, B, World, in_world, start_until
from tests.unit.spark_ledger.metadata.late_replies import LateReplies, once


@in_world
async def test_later_start_while_the_cookie_is_read_is_told(world: World) -> None:
    """The reply of the read is older than the news of the start, and arrives after it."""
    told: list[str] = []
    running = await world.start()
    store = LateReplies(world.tree)
    watching = Identity(world.cookie, DIRECTORIES, store, world.files)
    watching.start = running.start
    later = BookieStart(9, "another")
    data = encode_cookie(msgspec.structs.replace(world.known(), start=later))
    put = Put(cookie_path(B), data, world.tree.get(cookie_path(B)).version)
    store.on_way = once("get", cookie_path(B), lambda: world.tree.apply([put]))
    watching.watch(told.append)
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.001)
    assert "start 9, this is start 1" in told[0]
    await watching.close()


@pytest.mark.parametrize("trouble", ["request lost", "others write"])
def test_note_that_cannot_be_written_is_no_success(trouble: str) -> None:
    """`ledger cluster restored` must not say that a bookie may start which may not."""

    async def main() -> None:
        world = await World().prepare()
        await world.start()

        def interpose(name: str, path: str) -> Fault:
            if name != "put" or path != cookie_path(B):
                return Fault()
            if trouble == "request lost":
                return Fault(Outcome.LOST_REQUEST)
            known = world.tree.get(path)
            world.tree.apply([Put(path, known.value, known.version)])
            return Fault()

        with pytest.raises(OutcomeUnknownError if trouble == "request lost" else ConflictError):
            await accept_newer_starts(world.tree.open_session(interpose=interpose))
        assert not world.known().accepts_newer

    asyncio.run(main())


@in_world
async def test_bookie_that_notes_its_own_stop_does_not_take_it_for_another_start(
    world: World,
) -> None:
    """The news of the cookie comes before the reply of the write."""
    identity = await world.start()
    told: list[str] = []
    identity.watch(told.append)
    put = identity._store.put

    async def slow_put(path: str, data: bytes, version: int) -> int:
        written = await put(path, data, version)
        for _turn in range(10):
            await asyncio.sleep(0)
        return written

    identity._store.put = slow_put  # type: ignore[method-assign]
    await identity.release()
    assert told == []


@pytest.mark.parametrize("backup_of_start", [1, 2])
def test_bookie_serving_through_a_restore_is_the_only_one_that_may_start(
    backup_of_start: int,
) -> None:
    """It need not start again for that: a copy of its disk could come first."""

    @in_world
    async def run(world: World) -> None:
        backups = []
        for _start in range(2):
            running = await world.start()
            backups.append(encode_cookie(world.known()))
        told: list[str] = []
        running.watch(told.append)
        clone = world.files.crash_clone(None)
        store, path = world.tree.open_session(), cookie_path(B)
        await store.put(path, backups[backup_of_start - 1], world.tree.get(path).version)
        assert await accept_newer_starts(store) == [B]
        async with asyncio.timeout(10):
            while world.known().accepts_newer:
                await asyncio.sleep(0.001)
        assert world.known().start == running.start
        assert world.known().is_confirmed
        await running.release()
        assert not told
        with pytest.raises(ConfigurationError, match="is an older copy"):
            await world.start(clone)
        await world.start()

    run()


@in_world
async def test_start_that_could_not_be_noted_is_not_noted_again(world: World) -> None:
    """The disk was full: the directories do not know more than the cluster that was restored."""
    await world.start()
    running = world.identity()
    running.start = world.known().start
    told: list[str] = []
    running.watch(told.append)
    assert await accept_newer_starts(world.tree.open_session()) == [B]
    await asyncio.sleep(0.01)
    assert world.known().accepts_newer
    await running.close()


@in_world
async def test_restore_is_accepted_by_the_command_until_the_cluster_is_older_once_more(
    world: World,
) -> None:
    first = await world.start()
    older = encode_cookie(world.known())
    running = await world.start()
    assert first.start != running.start
    store, path = world.tree.open_session(), cookie_path(B)
    running.watch(lambda reason: None)

    async def restore_and_accept() -> None:
        await store.put(path, older, world.tree.get(path).version)
        await asyncio.sleep(0.01)
        assert not running.is_restore_accepted
        assert await accept_newer_starts(store) == [B]
        await asyncio.sleep(0.05)
        assert world.known().start == running.start

    await restore_and_accept()
    assert not running.is_restore_accepted, "the store has told of none, and may tell of another"

    told = told_of(running)
    for seen in ([1], [], [2]):  # the second one does not show, but for the cookie
        told += seen
        await restore_and_accept()
        assert running.is_restore_accepted
        running._store.reconnect()
        await asyncio.sleep(0.01)
        assert running.is_restore_accepted, "the same metadata on another connection"
    await running.close()


@in_world
async def test_restore_to_behind_an_accepted_one_has_to_be_accepted_too(world: World) -> None:
    """The cookie is the same in that backup."""
    running = await world.start()
    running.watch(lambda reason: None)
    told = told_of(running)
    for restores in (1, 2):
        told.append(restores)
        running._store.reconnect()  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        assert not running.is_restore_accepted
        assert await accept_newer_starts(world.tree.open_session()) == [B]
        await asyncio.sleep(0.05)
        assert running.is_restore_accepted
    await running.close()


@in_world
async def test_restore_that_is_found_out_while_one_before_is_accepted_is_not(world: World) -> None:
    running = await world.start()
    told = told_of(running)
    told.append(1)
    note = running._note_again

    async def late(version: int) -> bool:
        is_noted = await note(version)
        told.append(2)
        return is_noted

    running._note_again = late  # type: ignore[method-assign]
    running.watch(lambda reason: None)
    assert await accept_newer_starts(world.tree.open_session()) == [B]
    await asyncio.sleep(0.05)
    assert told == [1, 2] and not running.is_restore_accepted
    await running.close()


@in_world
async def test_restore_that_is_found_out_and_accepted_during_a_look_is_accepted(
    world: World,
) -> None:
    """A look may wait for a connection for as long as ZooKeeper is away."""
    running = await world.start()
    told, look = told_of(running), running._look

    async def slow() -> Versioned[BookieCookie] | None:
        if not told:
            told.append(1)
            await accept_newer_starts(world.tree.open_session())
        return await look()

    running._look = slow  # type: ignore[method-assign]
    running.watch(lambda reason: None)
    await asyncio.sleep(0.05)
    assert running.is_restore_accepted and not world.known().accepts_newer
    await running.close()


@in_world
async def test_restore_is_not_accepted_by_a_bookie_that_could_not_note_its_start(
    world: World,
) -> None:
    """The cookie accepts others on and on, also in a backup that is made of it."""
    await world.start()
    running = world.identity()
    running.start = world.known().start
    told_of(running).append(1)
    running.watch(lambda reason: None)
    assert await accept_newer_starts(world.tree.open_session()) == [B]
    await asyncio.sleep(0.01)
    assert world.known().accepts_newer and not running.is_restore_accepted
    await running.close()


def told_of(running: Identity) -> list[int]:
    """From now on the store of this one tells of so many restores as are in the list."""
    told: list[int] = []

    class Restored(MemoryMetadataStore):
        @property
        def restored(self) -> str:
            return "went back"

        @property
        def restores(self) -> int:
            return len(told)

    running._store.__class__ = Restored
    return told


@in_world
async def test_note_that_was_lost_is_written_again(world: World) -> None:
    """Until then the cluster would let a copy of the directories start."""
    running = await world.start()
    lost: list[str] = []

    def interpose(name: str, path: str) -> Fault:
        if (name, path) != ("put", cookie_path(B)) or lost:
            return Fault()
        lost.append(path)
        return Fault(Outcome.LOST_REQUEST)

    running._store.interpose = interpose  # type: ignore[attr-defined]
    running.watch(lambda reason: None)
    assert await accept_newer_starts(world.tree.open_session()) == [B]
    async with asyncio.timeout(10):
        while world.known().accepts_newer:
            await asyncio.sleep(0.001)
    assert lost and world.known().start == running.start
    await running.close()
    assert running._store._watches == []  # type: ignore[attr-defined]


@in_world
async def test_cluster_that_is_older_is_told_once_each_time_that_it_becomes_so(
    world: World,
) -> None:
    """The line names the command that an operator has to run after a restore."""
    first = await world.start()
    assert first.start is not None
    older = encode_cookie(world.known())
    running = await world.start()
    newer = encode_cookie(world.known())
    store, path = world.tree.open_session(), cookie_path(B)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("bookie_server.identity")
    logger.addHandler(handler)
    told: list[str] = []
    running.watch(told.append)

    async def stands(content: bytes) -> None:
        await store.put(path, content, world.tree.get(path).version)
        await asyncio.sleep(0.01)

    try:
        for again in (1, 2):
            await stands(older)
            await stands(older + b" ")
            assert sum("`ledger cluster restored`" in line for line in lines) == again
            await stands(newer)
    finally:
        logger.removeHandler(handler)
        await running.close()
    assert not told


@in_world
async def test_cookie_of_a_backup_from_the_middle_of_the_format_is_no_beginning(
    world: World,
) -> None:
    """Else a format in empty directories of the same paths would take the name over."""
    running = await world.start()
    told: list[str] = []
    running.watch(told.append)
    store, path = world.tree.open_session(), cookie_path(B)
    backup = msgspec.structs.replace(world.known(), start=None, places=(), is_forming=True)
    await store.put(path, encode_cookie(backup), world.tree.get(path).version)
    async with asyncio.timeout(10):
        while world.known().is_forming:
            await asyncio.sleep(0.001)
    assert world.known().start is None, "an operator says that the backup counts"
    other = msgspec.structs.replace(backup, incarnation="of another")
    await store.put(path, encode_cookie(other), world.tree.get(path).version)
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.001)
    assert world.known() == other
    await running.close()


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_bookie_that_was_formatted_anew_takes_no_place_in_a_backup(starts: int) -> None:
    """The one before it had left, and comes back with the backup: entries that it had acknowledged
    are not in the directories of this one."""

    @in_world
    async def run(world: World) -> None:
        await (await world.start()).release()
        before = world.known()
        store, path = world.tree.open_session(), cookie_path(B)
        await store.delete(path)
        anew = await World().prepare()
        world.cookie = msgspec.structs.replace(anew.cookie, cluster_id=world.cookie.cluster_id)
        world.files = anew.files
        made = msgspec.structs.replace(before, start=None, places=(), incarnation="anew")
        await store.create(path, encode_cookie(made))
        for _ in range(starts):
            running = await world.start()
        told: list[str] = []
        running.watch(told.append)
        await store.put(path, encode_cookie(before), world.tree.get(path).version)
        assert await accept_newer_starts(store) == [B]
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0.001)
        assert "the cluster knows another bookie as 'b'" in told[0]
        await running.close()
        assert world.known().start == before.start, "it has not taken its place"
        with pytest.raises(ConfigurationError, match="is of another bookie than"):
            await world.start()
        await store.delete(path)  # the other one is decommissioned, and this one relocated
        cookie = msgspec.structs.replace(made, accepts_newer=True)
        await store.create(path, encode_cookie(cookie))
        await world.start()

    run()


async def restore(world: World, backup: bytes) -> None:
    """The cookie goes back to a backup, and ``ledger cluster restored`` is run."""
    store, path = world.tree.open_session(), cookie_path(B)
    await store.put(path, backup, world.tree.get(path).version)
    assert await accept_newer_starts(store) == [B]


@pytest.mark.parametrize("directory", [str(each) for each in DIRECTORIES])
def test_one_directory_that_is_older_than_the_others_is_refused_behind_a_restore(
    directory: str,
) -> None:
    """The storage that held the backup was rolled back as well. It would deny what the bookie has
    acknowledged in that directory since; moved ones are no better."""

    @in_world
    async def run(world: World) -> None:
        await world.start()
        backup = encode_cookie(world.known())
        running = await world.start()
        before = world.files.crash_clone(None)
        await running.release()
        good = world.files.crash_clone(None)
        world.files._directories[directory] = before._directories[directory]
        await restore(world, backup)
        for is_moved in (False, True):
            with pytest.raises(ConfigurationError, match=f"{directory} of bookie b is an older"):
                await world.identity(is_moved=is_moved).check()
            with pytest.raises(ConfigurationError, match=f"{directory} of bookie b is an older"):
                await world.identity(is_moved=is_moved).claim()
        world.files = good
        await world.start()

    run()


@pytest.mark.parametrize("second", [None, *range(1, 28, 2)])
def test_start_that_was_interrupted_before_a_restore_leaves_what_starts_again(
    second: int | None,
) -> None:
    """Also if the start behind the restore crashes as well, and no cookie knows the one before."""

    async def crash_at(number: int) -> bool:
        world = await World().prepare()
        await world.start()
        backup = encode_cookie(world.known())
        await world.start()
        is_over = await start_until(world, number, None)
        await restore(world, backup)
        if second is not None:
            await start_until(world, second, None)
        again = await world.start()
        assert world.known().start == again.start and world.known().is_confirmed
        return is_over

    async def main() -> None:
        number = 1
        while not await crash_at(number):
            number += 1
        assert number > 2 * len(DIRECTORIES) * 4

    asyncio.run(main())
