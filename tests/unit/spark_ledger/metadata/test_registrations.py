"""Registrations of two sessions under one bookie id: nobody takes the place of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from spark_ledger.errors import BookieReplacedError
from spark_ledger.limits.metadata import REGISTRATION_MARGIN_S, REGISTRATION_POLL_S
from spark_ledger.metadata import bookies
from spark_ledger.metadata.base import Create, Watch
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.codec import encode_bookie
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.types import BookieId, BookieInfo, BookieState
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)

B = BookieId("b")
STATES = [state.value for state in BookieState]


def bookie(address: str = "127.0.0.1:1", state: str = "writable") -> BookieInfo:
    return BookieInfo(B, address, BookieState(state))


async def leave_node(session: MemoryMetadataStore, state: str = "writable") -> None:
    """What a process leaves behind that is dead, or only seems to be."""
    data = encode_bookie(bookie("127.0.0.1:9", state))
    await session.create(f"bookies/{state}/b", data, ephemeral=True)


async def soon(work: Coroutine[None, None, None]) -> None:
    async with asyncio.timeout(10):
        await work


async def until_replaced(told: list[str]) -> None:
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("state", STATES)
def test_register_over_node_of_another_session_leaves_it_alone(state: str) -> None:
    async def main() -> None:
        tree = MemoryTree()
        await leave_node(tree.open_session(), state)
        registry = BookieRegistry(tree.open_session())
        with pytest.raises(BookieReplacedError, match="another process is registered as bookie"):
            await registry.register(bookie("127.0.0.1:2"))
        assert await registry.list() == [bookie("127.0.0.1:9", state)]
        await registry.deregister()
        assert await registry.list() == [bookie("127.0.0.1:9", state)]

    asyncio.run(main())


@pytest.mark.parametrize("goes_again", [False, True])
def test_node_of_another_session_that_comes_as_the_own_is_made_is_left_alone(
    goes_again: bool,
) -> None:
    """Two bookies of one name have looked, and both have found the place free."""

    async def main() -> None:
        tree = MemoryTree()
        other = tree.open_session()
        data = encode_bookie(bookie("127.0.0.1:9"))

        def interpose(name: str, path: str) -> Fault:
            if name == "create" and store.interpose is interpose:
                tree.apply([Create(path, data)], owner=other._session)
                store.interpose = leave
            return Fault()

        def leave(name: str, _path: str) -> Fault:
            if goes_again and name == "get":
                other.expire()
            return Fault()

        store = tree.open_session(interpose=interpose)
        registry = BookieRegistry(store)
        await tree.open_session().create("bookies/writable", b"")
        if goes_again:
            await registry.register(bookie("127.0.0.1:2"))
            assert await registry.list() == [bookie("127.0.0.1:2")]
        else:
            with pytest.raises(BookieReplacedError, match="another process is registered"):
                await registry.register(bookie("127.0.0.1:2"))
            assert await registry.list() == [bookie("127.0.0.1:9")]
        assert registry.registered is goes_again
        await registry.deregister()
        assert len(await registry.list()) == (not goes_again)

    asyncio.run(main())


@pytest.mark.parametrize("state", STATES)
def test_wait_ends_when_the_other_session_ends(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        tree = MemoryTree()
        dead = tree.open_session()
        await leave_node(dead, state)
        registry = BookieRegistry(tree.open_session())
        waiting = asyncio.create_task(registry.wait_until_vacant(B))
        await asyncio.sleep(0.02)
        assert not waiting.done() and "waiting until it ends (20 s more at most)" in caplog.text
        dead.expire()
        await soon(asyncio.wait_for(waiting, None))
        await registry.register(bookie("127.0.0.1:2"))
        assert await registry.list() == [bookie("127.0.0.1:2")]

    asyncio.run(main())


def test_wait_for_a_session_that_lives_on_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bookies, "REGISTRATION_MARGIN_S", 0.05)

    async def main() -> None:
        tree = MemoryTree()
        await leave_node(tree.open_session())
        registry = BookieRegistry(tree.open_session(), session_timeout_s=0.05)
        with pytest.raises(BookieReplacedError, match=r"not gone within 0\.1 s .*stop the other"):
            await soon(registry.wait_until_vacant(B))
        assert tree.children("bookies/writable") == ["b"]

    asyncio.run(main())


def test_wait_beside_a_node_that_changes_looks_again_no_more_often_than_that() -> None:
    async def main() -> None:
        tree, looks = MemoryTree(), 0

        def count(_name: str, _path: str) -> Fault:
            nonlocal looks
            looks += 1
            assert looks < 1_000, "it looks again and again without a pause"
            return Fault(Outcome.NORMAL)

        other = tree.open_session()
        await leave_node(other)
        waiting = asyncio.create_task(
            BookieRegistry(tree.open_session(interpose=count)).wait_until_vacant(B)
        )
        await asyncio.sleep(0.5)
        at_first, looks = looks, 0
        for version in range(3):
            await other.put("bookies/writable/b", encode_bookie(bookie()), version)
            await asyncio.sleep(0.5)
        assert at_first and looks == 3 * at_first
        other.expire()
        await waiting

    run_in_virtual_time(main())


@pytest.mark.parametrize("goes", [True, False])
def test_wait_looks_again_without_a_notice_and_ends_at_its_time(goes: bool) -> None:
    async def main() -> None:
        tree, loop = MemoryTree(), asyncio.get_running_loop()
        other, store = tree.open_session(), tree.open_session()
        await leave_node(other)
        registry = BookieRegistry(store, session_timeout_s=4.5)

        def unheard(path: str, callback: Callable[[], None]) -> Watch:
            return other.watch(path, lambda: None)

        store.watch = unheard  # type: ignore[method-assign]
        if goes:
            loop.call_later(3 * REGISTRATION_POLL_S - 0.5, other.expire)
            await registry.wait_until_vacant(B)
            assert loop.time() == pytest.approx(3 * REGISTRATION_POLL_S)
        else:
            with pytest.raises(BookieReplacedError):
                await registry.wait_until_vacant(B)
            assert loop.time() == pytest.approx(4.5 + REGISTRATION_MARGIN_S)

    run_in_virtual_time(main())


@pytest.mark.parametrize("ends", [True, False])
def test_wait_over_a_reconnect_begins_its_time_anew(ends: bool) -> None:
    """A ZooKeeper that was restarted counts the timeouts of all sessions from its start."""

    async def main() -> None:
        tree, loop = MemoryTree(), asyncio.get_running_loop()
        dead, store = tree.open_session(), tree.open_session()
        await leave_node(dead)
        registry = BookieRegistry(store, session_timeout_s=6.0)
        loop.call_later(15.0, store.reconnect)
        if ends:
            loop.call_later(15.0 + 6.0, dead.expire)
            await registry.wait_until_vacant(B)
            assert loop.time() == pytest.approx(21.0)
        else:
            with pytest.raises(BookieReplacedError):
                await registry.wait_until_vacant(B)
            assert loop.time() == pytest.approx(15.0 + 6.0 + REGISTRATION_MARGIN_S)

    run_in_virtual_time(main())


def test_wait_with_a_free_place_does_not_wait() -> None:
    async def main() -> None:
        await soon(BookieRegistry(MemoryTree().open_session()).wait_until_vacant(B))

    asyncio.run(main())


@pytest.mark.parametrize("lost", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_node_of_a_lost_reply_is_own(lost: Outcome) -> None:
    """Created with older words, then asked for again: it is found, kept and brought up to date."""

    async def main() -> None:
        tree, outcomes = MemoryTree(), [lost, lost]

        def interpose(name: str, _path: str) -> Fault:
            return Fault(outcomes.pop() if name == "create" and outcomes else Outcome.NORMAL)

        registry = BookieRegistry(tree.open_session(interpose=interpose))
        await registry.register(bookie("127.0.0.1:1"))
        assert await registry.list() == [bookie("127.0.0.1:1")]
        await registry.register(bookie("127.0.0.1:2"))
        assert await registry.list() == [bookie("127.0.0.1:2")]

    asyncio.run(main())


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("has_lost_one", [False, True])
def test_replaced_registration_is_told_and_left_alone(state: str, *, has_lost_one: bool) -> None:
    """Somebody deletes the node, and another process registers before this one can. That is no
    session of this process before it, though one was lost: it was registered again since."""

    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        store = tree.open_session()
        registry = BookieRegistry(store, on_replaced=told.append)
        await registry.register(bookie())
        if has_lost_one:
            store.expire()
            while not (registry.registered and registry._session > 0):
                await asyncio.sleep(0.005)
        tree.end_session(store._session)
        await leave_node(tree.open_session(), state)
        await until_replaced(told)
        assert "another process is registered as bookie 'b'" in told[0]
        await registry.deregister()
        assert tree.children(f"bookies/{state}") == ["b"]

    asyncio.run(main())


def test_another_process_that_comes_as_the_node_is_made_again_is_told_at_once() -> None:
    """A session was lost shortly before, and this bookie was registered again since."""

    async def main() -> None:
        tree, told, looks = MemoryTree(), list[str](), 0

        def interpose(name: str, path: str) -> Fault:
            nonlocal looks
            looks += name == "is_own"
            if looks == 4:  # both states and the own node were looked at: the place is free
                tree.apply([Create("bookies/writable/b", encode_bookie(bookie()))], owner=-1)
            return Fault()

        store = tree.open_session()
        registry = BookieRegistry(store, on_replaced=told.append)
        await registry.register(bookie())
        store.expire()
        await asyncio.sleep(1)
        assert registry.registered and registry._session == 1
        store.interpose = interpose
        await tree.open_session().delete("bookies/writable/b")
        await asyncio.sleep(1)
        assert len(told) == 1

    run_in_virtual_time(main())


@pytest.mark.parametrize("state", STATES)
def test_another_process_that_is_registered_in_the_other_state_is_told(state: str) -> None:
    """Both have looked before either was registered, and each has made a node of its own."""

    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        registry = BookieRegistry(tree.open_session(), on_replaced=told.append)
        await registry.register(bookie(state=state))
        (other,) = set(STATES) - {state}
        await leave_node(tree.open_session(), other)
        await asyncio.sleep(1)
        assert len(told) == 1 and f"bookies/{other}/b" in told[0]
        with pytest.raises(BookieReplacedError):
            await BookieRegistry(tree.open_session()).register(bookie())
        await registry.deregister()
        assert (tree.children(f"bookies/{state}"), tree.children(f"bookies/{other}")) == ([], ["b"])

    run_in_virtual_time(main())


def test_bookie_that_was_withdrawn_and_registered_again_is_kept_as_before() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session()
        registry = BookieRegistry(store)
        for _ in range(2):
            await registry.register(bookie())
            store.expire()
            await asyncio.sleep(5)
            await tree.open_session().delete("bookies/writable/b")
            await asyncio.sleep(5)
            assert registry.registered and await registry.list() == [bookie()]
            await registry.deregister()
            assert not registry.registered and await registry.list() == []

    run_in_virtual_time(main())


@pytest.mark.parametrize("whom", ["one", "all"])
@pytest.mark.parametrize("state", STATES)
def test_watch_of_bookies_tells_of_those_in_each_state_until_it_is_cancelled(
    state: str, whom: str
) -> None:
    async def main() -> None:
        tree, told = MemoryTree(), list[None]()
        registry = BookieRegistry(tree.open_session())
        watch = (
            registry.watch(lambda: told.append(None))
            if whom == "all"
            else registry.watch_one(B, lambda: told.append(None))
        )
        other = BookieRegistry(tree.open_session())
        await other.register(bookie(state=state))
        await asyncio.sleep(1)
        assert told, "it came"
        told.clear()
        await other.deregister()
        await asyncio.sleep(1)
        assert told, "it went"
        watch.cancel()
        told.clear()
        for again in STATES:
            await other.register(bookie(state=again))
            await asyncio.sleep(1)
        await other.deregister()
        assert not told and tree._watches == {}

    run_in_virtual_time(main())


def test_deleted_registration_is_made_again() -> None:
    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        registry = BookieRegistry(tree.open_session(), on_replaced=told.append)
        await registry.register(bookie())
        await tree.open_session().delete("bookies/writable/b")
        async with asyncio.timeout(10):
            while not tree.children("bookies/writable"):
                await asyncio.sleep(0.005)
        assert await registry.list() == [bookie()] and not told

    asyncio.run(main())


def test_own_node_of_a_lost_session_is_waited_for_each_time() -> None:
    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        store = tree.open_session()
        registry = BookieRegistry(store, on_replaced=told.append)
        await registry.register(bookie())
        for _ in range(3):
            before, store._session = store._session, tree.new_session_id()
            registry._on_session_lost()  # a server has not noticed yet that the old session is over
            await asyncio.sleep(15)
            assert not told and not registry.registered
            tree.end_session(before)
            await asyncio.sleep(5)
            assert registry.registered and not told
            assert await store.is_own("bookies/writable/b")
            await asyncio.sleep(30)
        await registry.deregister()

    run_in_virtual_time(main())


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("after", ["a reconnect", "another loss"])
def test_own_node_of_a_lost_session_is_waited_for_anew(after: str, *, ends: bool) -> None:
    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        store = tree.open_session()
        registry = BookieRegistry(store, on_replaced=told.append, session_timeout_s=6.0)
        await registry.register(bookie())
        before, store._session = store._session, tree.new_session_id()
        registry._on_session_lost()
        await asyncio.sleep(15)
        if after == "a reconnect":
            store.reconnect()  # to servers that were restarted, and have loaded the old session
        else:
            registry._on_session_lost()
        await asyncio.sleep(5.5)
        assert not told and not registry.registered
        if ends:
            tree.end_session(before)
        await asyncio.sleep(0.5 + REGISTRATION_MARGIN_S + 1)
        assert registry.registered is ends and bool(told) is not ends
        await registry.deregister()

    run_in_virtual_time(main())


def test_another_process_in_place_of_a_lost_session_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bookies, "REGISTER_RETRY_DELAY_S", 0.005)
    monkeypatch.setattr(bookies, "REGISTRATION_MARGIN_S", 0.05)

    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        store = tree.open_session()
        registry = BookieRegistry(store, on_replaced=told.append, session_timeout_s=0.05)
        await registry.register(bookie())
        tree.end_session(store._session)
        await leave_node(tree.open_session())
        store.expire()
        await until_replaced(told)
        assert tree.children("bookies/writable") == ["b"]

    asyncio.run(main())


def test_another_process_that_came_while_the_session_was_lost_is_told_in_time() -> None:
    """Its node may be that of our last session, which ends by itself within the timeout."""

    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        store = tree.open_session()
        registry = BookieRegistry(store, on_replaced=told.append, session_timeout_s=20)
        await registry.register(bookie())
        store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        store.expire()
        await asyncio.sleep(1)
        other = tree.open_session()
        await leave_node(other)
        store.interpose = None
        await asyncio.sleep(15)
        assert not told and not registry.registered
        await asyncio.sleep(25)
        assert len(told) == 1 and "another process is registered as bookie 'b'" in told[0]
        other.expire()
        await asyncio.sleep(60)
        assert tree.children("bookies/writable") == [], "it ends, and comes back no more"

    run_in_virtual_time(main())
