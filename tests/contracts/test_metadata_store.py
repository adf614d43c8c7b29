"""The contract of ``MetadataStore``, run against every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    NotFoundError,
)
from spark_ledger.limits.entries import METADATA_REQUEST_BYTES_MAX
from spark_ledger.metadata.base import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    Operation,
    Put,
)
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.memory import MemoryTree
from spark_ledger.metadata.zookeeper import session
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.metadata.fake_zookeeper import FakeServer

WAIT_S = 10.0

Open = Callable[[], Awaitable[MetadataStore]]
Scenario = Callable[[Open], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(
    params=["memory", "fake zookeeper", pytest.param("zookeeper", marks=pytest.mark.processes)]
)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a scenario with a function that opens sessions of one store, and closes them.

    The fake ZooKeeper is that of the unit tests, which may rely on it no further than this goes.
    """
    uri = request.getfixturevalue("metadata_uri") if request.param == "zookeeper" else ""
    if request.param == "fake zookeeper":
        uri = "zk://h:1/root"
        monkeypatch.setattr(session, "KazooClient", FakeServer().client)
    tree = MemoryTree()

    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            opened: list[MetadataStore] = []

            async def open_session() -> MetadataStore:
                store = await open_store(uri) if uri else tree.open_session()
                opened.append(store)
                return store

            try:
                await scenario(open_session)
            finally:
                await asyncio.gather(*(store.close() for store in opened))

        asyncio.run(main())

    return run_scenario


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_listing_counts_the_children_that_came_and_went(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        missing = await store.listing("a")
        assert missing == Versioned([], -1)
        await store.create("a/x", b"")
        first = await store.listing("a")
        assert first.value == ["x"]
        await store.put("a/x", b"other", 0)
        assert await store.listing("a") == first, "its data are no change of the list"
        await store.delete("a/x")
        await store.create("a/x", b"", ephemeral=True)
        await store.create("a/y", b"")
        assert await store.listing("a") == Versioned(["x", "y"], first.version + 3)

    run(scenario)


def test_create_get_put_delete(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store, other = await open_session(), await open_session()
        await store.create("a/b/c", b"one")
        assert await other.get("a/b/c") == Versioned(b"one", 0)
        assert await store.get("a/b") == Versioned(b"", 0)
        assert await other.put("a/b/c", b"two", 0) == 1
        assert await store.put("a/b/c", b"", 1) == 2
        assert await store.get("a/b/c") == Versioned(b"", 2)
        await store.delete("a/b/c", 2)
        with pytest.raises(NotFoundError, match="a/b/c"):
            await other.get("a/b/c")

    run(scenario)


def test_create_of_what_exists_is_a_conflict(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        await store.create("a", b"one")
        with pytest.raises(ConflictError, match="'a'"):
            await store.create("a", b"one")
        assert await store.get("a") == Versioned(b"one", 0)

    run(scenario)


def test_create_without_parents_needs_the_parent(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        with pytest.raises(NotFoundError):
            await store.create("a/b", b"", make_parents=False)
        assert await store.children("a") == []

    run(scenario)


def test_put_needs_the_version(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        await store.create("a", b"one")
        with pytest.raises(ConflictError, match="'a'"):
            await store.put("a", b"two", 1)
        await store.put("a", b"two", 0)
        with pytest.raises(ConflictError):
            await store.put("a", b"two", 0)
        with pytest.raises(NotFoundError):
            await store.put("b", b"", 0)
        assert await store.get("a") == Versioned(b"two", 1)

    run(scenario)


def test_delete_needs_the_version_and_no_children(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        await store.create("a/b", b"")
        with pytest.raises(ConflictError, match="children"):
            await store.delete("a")
        with pytest.raises(ConflictError):
            await store.delete("a/b", 7)
        await store.delete("a/b", -1)
        await store.delete("a")
        with pytest.raises(NotFoundError):
            await store.delete("a")

    run(scenario)


def test_children_are_sorted_and_missing_node_has_none(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        for name in ("z", "a", "m"):
            await store.create(f"d/{name}", b"")
        assert await store.children("d") == ["a", "m", "z"]
        assert await store.children("d/a") == []
        assert await store.children("no/such/node") == []

    run(scenario)


def test_transaction_does_all(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        for path in ("head", "old", "same"):
            await store.create(path, b"0")
        await store.transaction(
            [
                Check("same", 0),
                Put("head", b"1", 0),
                Create("commits", b""),
                Create("commits/1", b"c"),
                Delete("old", 0),
            ]
        )
        assert await store.get("head") == Versioned(b"1", 1)
        assert await store.get("commits/1") == Versioned(b"c", 0)
        with pytest.raises(NotFoundError):
            await store.get("old")
        await store.transaction([])

    run(scenario)


def test_transaction_proves_that_a_node_exists_and_that_another_does_not(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        await store.create("there", b"0")
        await store.put("there", b"1", 0)
        proof: list[Operation] = [
            Check("there", ANY_VERSION),
            Create("absent", b""),
            Delete("absent"),
        ]
        await store.transaction(proof)
        await store.transaction(proof)
        assert await store.children("absent") == []
        await store.create("absent", b"it is")
        with pytest.raises(ConflictError):
            await store.transaction(proof)
        assert (await store.get("absent")).value == b"it is"
        with pytest.raises(NotFoundError):
            await store.transaction([Check("nowhere", ANY_VERSION)])

    run(scenario)


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (Check("b", 1), ConflictError),
        (Check("none", 0), NotFoundError),
        (Create("b", b""), ConflictError),
        (Create("none/x", b""), NotFoundError),
        (Put("b", b"", 3), ConflictError),
        (Put("none", b"", 0), NotFoundError),
        (Delete("none"), NotFoundError),
        (Delete("b", 3), ConflictError),
        (Delete("full"), ConflictError),
    ],
    ids=str,
)
def test_transaction_does_nothing_if_a_part_fails(
    run: Run, part: Check | Create | Put | Delete, error: type[Exception]
) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        for path in ("a", "b", "full/x", "gone"):
            await store.create(path, b"0")
        operations: list[Operation] = [
            Put("a", b"1", 0),
            Create("new", b""),
            Delete("gone"),
            part,
        ]
        with pytest.raises(error, match=part.path):
            await store.transaction([*operations, Create("last", b"")])
        assert await store.get("a") == Versioned(b"0", 0)
        assert await store.get("gone") == Versioned(b"0", 0)
        for path in ("new", "last"):
            with pytest.raises(NotFoundError):
                await store.get(path)

    run(scenario)


def test_put_of_many_clients_at_one_version_succeeds_once(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        stores = [await open_session() for _ in range(3)]
        await stores[0].create("counter", b"0")

        async def add_ten(store: MetadataStore) -> None:
            for _ in range(10):
                while True:
                    node = await store.get("counter")
                    value = b"%d" % (int(node.value) + 1)
                    try:
                        await store.put("counter", value, node.version)
                    except ConflictError:
                        continue
                    break

        await asyncio.gather(*(add_ten(store) for store in stores))
        assert await stores[0].get("counter") == Versioned(b"30", 30)

    run(scenario)


def test_ephemeral_nodes_go_with_their_session(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store, other = await open_session(), await open_session()
        await store.create("e/mine", b"x", ephemeral=True)
        await store.create("e/stays", b"x")
        await other.create("e/others", b"x", ephemeral=True)
        assert await other.children("e") == ["mine", "others", "stays"]
        with pytest.raises(ConfigurationError, match="ephemeral"):
            await other.create("e/mine/child", b"")
        await store.close()
        assert await other.children("e") == ["others", "stays"]

    run(scenario)


def test_watch_reports_data_children_creation_and_deletion(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store, other = await open_session(), await open_session()
        calls: list[int] = []
        watch = store.watch("w", lambda: calls.append(1))

        async def reported(change: Awaitable[object]) -> None:
            calls.clear()
            await change
            await eventually(lambda: bool(calls))
            await store.children("w")  # let whatever else is under way arrive
            await asyncio.sleep(0.05)

        await store.children("w")  # the watch counts from the next read on
        await reported(other.create("w", b""))
        await reported(other.create("w/child", b""))
        await reported(other.put("w", b"1", 0))
        await reported(store.put("w", b"2", 1))
        await reported(other.delete("w/child"))
        await reported(other.delete("w"))
        await reported(other.create("w", b""))
        watch.cancel()
        watch.cancel()
        calls.clear()
        await other.put("w", b"1", 0)
        await store.get("w")
        await asyncio.sleep(0.05)
        assert calls == []

    run(scenario)


def test_watch_then_read_misses_nothing(run: Run) -> None:
    """The callback reads again: however many changes it stands for, it sees the last value."""

    async def scenario(open_session: Open) -> None:
        store, other = await open_session(), await open_session()
        await other.create("n", b"0")
        changed = asyncio.Event()
        watch = store.watch("n", changed.set)
        seen = await store.get("n")

        async def change() -> None:
            for version in range(50):
                await other.put("n", b"%d" % (version + 1), version)

        task = asyncio.create_task(change())
        async with asyncio.timeout(WAIT_S):
            while seen.value != b"50":
                await changed.wait()
                changed.clear()
                seen = await store.get("n")
        await task
        watch.cancel()

    run(scenario)


def test_cancelled_watch_leaves_others_of_its_path(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        first: list[int] = []
        second: list[int] = []
        watch = store.watch("p", lambda: first.append(1))
        store.watch("p", lambda: second.append(1))
        await store.create("p", b"")
        await eventually(lambda: bool(first and second))
        watch.cancel()
        await asyncio.sleep(0.05)
        first.clear()
        second.clear()
        await store.put("p", b"1", 0)
        await eventually(lambda: bool(second))
        assert first == []

    run(scenario)


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "a/../b", "./a", "a\x00b", "a\nb"])
def test_bad_paths_are_refused(run: Run, path: str) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        for call in (
            lambda: store.get(path),
            lambda: store.children(path),
            lambda: store.create(path, b""),
            lambda: store.put(path, b"", 0),
            lambda: store.delete(path),
            lambda: store.transaction([Create(path, b"")]),
        ):
            with pytest.raises(ConfigurationError, match="metadata path"):
                await call()
        with pytest.raises(ConfigurationError, match="metadata path"):
            store.watch(path, lambda: None)

    run(scenario)


def test_sizes_at_the_limit(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        largest = b"x" * METADATA_REQUEST_BYTES_MAX
        await store.create("big", largest)
        assert (await store.get("big")).value == largest
        await store.put("big", largest, 0)
        half = b"y" * (METADATA_REQUEST_BYTES_MAX // 2)
        await store.transaction([Put("big", half, 1), Create("half", half)])
        for call in (
            lambda: store.create("more", largest + b"x"),
            lambda: store.put("big", largest + b"x", 2),
            lambda: store.transaction([Put("big", half, 2), Create("more", half + b"xx")]),
        ):
            with pytest.raises(ConfigurationError, match="at most"):
                await call()

    run(scenario)


def test_many_requests_at_once(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        await asyncio.gather(*(store.create(f"many/{n:03}", b"") for n in range(300)))
        assert await store.children("many") == [f"{n:03}" for n in range(300)]
        await asyncio.gather(*(store.delete(f"many/{n:03}") for n in range(300)))
        assert await store.children("many") == []

    run(scenario)


def test_everything_after_close_says_so(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store, other = await open_session(), await open_session()
        await store.create("n", b"")
        await store.close()
        await store.close()
        calls: list[str] = []
        watch = store.watch("n", lambda: calls.append("watch"))
        lost = store.on_session_lost(lambda: calls.append("lost"))
        for use in (
            store.get("n"),
            store.children("n"),
            store.create("a/b", b""),
            store.create("e", b"", ephemeral=True, make_parents=False),
            store.put("n", b"x", 0),
            store.delete("n"),
            store.transaction([Check("n", 0), Put("n", b"x", 0)]),
        ):
            with pytest.raises(LedgerClosedError, match="this connection is closed: connect again"):
                await use
        assert await other.get("n") == Versioned(b"", 0), "nothing was changed"
        assert await other.children("a") == []
        await other.put("n", b"1", 0)
        watch.cancel()
        lost.cancel()
        assert calls == []

    run(scenario)


@pytest.mark.leaves_open("watch Event.set", reason="it is called a last time")
def test_watch_calls_back_when_the_store_is_closed_unless_it_was_cancelled(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        store = await open_session()
        told, cancelled = asyncio.Event(), asyncio.Event()
        store.watch("a/b", told.set)
        store.watch("a/b", cancelled.set).cancel()
        await store.close()
        async with asyncio.timeout(WAIT_S):
            await told.wait()
        assert not cancelled.is_set()

    run(scenario)
