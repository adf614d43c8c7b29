"""The ZooKeeper store when requests and replies get lost: what it says happened did happen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import Check, Create, Delete, Put
from spark_ledger.metadata.cluster import CLUSTER_PATH
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from tests.unit.spark_ledger.metadata.fake_zookeeper import (
    LONG_S,
    SHORT_S,
    FakeServer,
    How,
    Run,
    Trouble,
    run,
)

__all__ = ["run"]

LOST_REQUEST, LOST_REPLY = How.LOST_REQUEST, How.LOST_REPLY
# -- one write, one lost message -------------------------------------------------------------------

Error = type[Exception] | None
MADE_BY_ANOTHER = b"another"


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_REPLY])
@pytest.mark.parametrize(
    ("meanwhile", "after_request", "after_reply"),
    [
        ("nothing", None, None),
        ("created by another", ConflictError, None),
        ("set by another", None, OutcomeUnknownError),
        ("deleted by another", None, None),
    ],
)
def test_create_with_lost_message(
    run: Run, how: How, meanwhile: str, after_request: Error, after_reply: Error
) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        def act() -> None:
            there = "/root/n" in server.nodes
            if meanwhile == "created by another" and not there:
                server.create("/root/n", MADE_BY_ANOTHER)
            if meanwhile == "set by another" and there:
                server.set("/root/n", MADE_BY_ANOTHER)
            if meanwhile == "deleted by another" and there:
                server.delete("/root/n")

        server.troubles = [Trouble("create", how, act)]
        expected = after_request if how is LOST_REQUEST else after_reply
        if expected is None:
            await store.create("n", b"mine")
            assert server.nodes["/root/n"].data == b"mine"
        else:
            with pytest.raises(expected):
                await store.create("n", b"mine")
            assert server.nodes["/root/n"].data == MADE_BY_ANOTHER

    run(scenario)


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_REPLY])
def test_ephemeral_create_with_lost_message_belongs_to_this_session(run: Run, how: How) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        server.troubles = [Trouble("create", how)]
        await store.create("e", b"mine", ephemeral=True)
        assert server.nodes["/root/e"].owner == server.sessions
        assert server.count("create") == 2 + (how is LOST_REQUEST), "the root was the first"

    run(scenario)


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_REPLY])
def test_ephemeral_create_over_an_expired_session_is_made_in_the_new_one(
    run: Run, how: How
) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        server.troubles = [Trouble("create", how, client.expire)]
        await store.create("e", b"mine", ephemeral=True)
        assert server.nodes["/root/e"].owner == server.sessions == client._session

    run(scenario)


def test_ephemeral_node_of_another_session_is_a_conflict_also_with_equal_data(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        def create() -> None:
            server.create("/root/e", b"mine", owner=1)

        server.troubles = [Trouble("create", LOST_REQUEST, create)]
        with pytest.raises(ConflictError):
            await store.create("e", b"mine", ephemeral=True)

    run(scenario)


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_REPLY])
@pytest.mark.parametrize(
    ("data", "versions", "after_request", "after_reply"),
    [
        (b"before", 0, OutcomeUnknownError, None),
        (MADE_BY_ANOTHER, 1, ConflictError, OutcomeUnknownError),
        (MADE_BY_ANOTHER, 2, OutcomeUnknownError, OutcomeUnknownError),
    ],
)
def test_put_with_lost_message(
    run: Run, how: How, data: bytes, versions: int, after_request: Error, after_reply: Error
) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        def act() -> None:
            for _ in range(versions):
                server.set("/root/n", data)

        await store.create("n", b"before")
        server.troubles = [Trouble("set", how, act)]
        expected = after_request if how is LOST_REQUEST else after_reply
        if expected is None:
            assert await store.put("n", b"mine", 0) == 1
            node = await store.get("n")
            assert (node.value, node.version) == (b"mine", 1)
        else:
            with pytest.raises(expected):
                await store.put("n", b"mine", 0)
            assert server.nodes["/root/n"].data == data

    run(scenario)


def test_put_to_a_node_deleted_meanwhile_says_so(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        def delete() -> None:
            server.delete("/root/n")

        await store.create("n", b"before")
        server.troubles = [Trouble("set", LOST_REQUEST, delete)]
        with pytest.raises(NotFoundError):
            await store.put("n", b"mine", 0)

    run(scenario)


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_REPLY])
@pytest.mark.parametrize("version", [-1, 0])
def test_delete_with_lost_message(run: Run, how: How, version: int) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"")
        server.troubles = [Trouble("delete", how)]
        await store.delete("n", version)
        assert "/root/n" not in server.nodes

    run(scenario)


def test_delete_of_a_version_changed_meanwhile_is_a_conflict(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        def change() -> None:
            server.set("/root/n", MADE_BY_ANOTHER)

        await store.create("n", b"")
        server.troubles = [Trouble("delete", LOST_REQUEST, change)]
        with pytest.raises(ConflictError):
            await store.delete("n", 0)
        assert server.nodes["/root/n"].data == MADE_BY_ANOTHER
        assert server.count("delete") == 1, "not sent again: the look has told"

    run(scenario)


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_REPLY])
def test_transaction_with_lost_message_is_unknown_and_not_sent_again(run: Run, how: How) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"")
        server.troubles = [Trouble("transaction", how)]
        with pytest.raises(OutcomeUnknownError):
            await store.transaction([Check("n", 0), Create("m", b"")])
        assert ("/root/m" in server.nodes) is (how is LOST_REPLY)
        assert server.count("transaction") == 1

    run(scenario)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_transaction_refused_in_any_part_says_why(run: Run, failing: int) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        for name in "abc":
            await store.create(name, b"")
        parts = [Put("a", b"1", 0), Put("b", b"1", 0), Put("c", b"1", 0)]
        parts[failing] = Put("abc"[failing], b"1", 7)
        with pytest.raises(ConflictError, match=f"'{'abc'[failing]}'"):
            await store.transaction([*parts, Delete("a")])
        assert [server.nodes[f"/root/{name}"].data for name in "abc"] == [b""] * 3

    run(scenario)


# -- more than one lost message --------------------------------------------------------------------


def test_write_is_looked_at_after_each_loss(run: Run) -> None:
    """Lost twice before the server had it, then its reply: it is made once and reported so."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"")
        server.troubles = [
            Trouble("delete", LOST_REQUEST),
            Trouble("sync", LOST_REPLY),
            Trouble("get", LOST_REQUEST),
            Trouble("delete", LOST_REQUEST),
            Trouble("delete", LOST_REPLY),
            Trouble("get", LOST_REPLY),
        ]
        await store.delete("n")
        assert not server.troubles
        assert "/root/n" not in server.nodes

    run(scenario)


def test_look_asks_the_server_to_catch_up_first(run: Run) -> None:
    """Another server may answer after the reconnect, and lag."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: store.create("n", b"0"),
            "set": lambda: store.put("n", b"1", 0),
            "delete": lambda: store.delete("n"),
        }
        for name, operation in operations.items():
            server.requests.clear()
            server.troubles = [Trouble(name, LOST_REPLY)]
            await operation()
            assert [called for called, _ in server.requests] == [name, "sync", "get"]

    run(scenario)


@pytest.mark.parametrize("name", ["create", "set", "delete"])
@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_REPLY])
def test_write_whose_server_stays_away_is_unknown(run: Run, name: str, how: How) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("there", b"")
        server.troubles = [Trouble(name, how, comes_back=False)]
        with pytest.raises(OutcomeUnknownError, match="may or may not have happened"):
            if name == "create":
                await store.create("n", b"")
            elif name == "set":
                await store.put("there", b"1", 0)
            else:
                await store.delete("there")
        server.clients[0].connect()
        await store.children("there")

    run(scenario, SHORT_S)


@pytest.mark.parametrize("name", ["create", "set", "delete"])
@pytest.mark.parametrize("why", ["nobody answers", "another store answers"])
def test_write_whose_look_fails_is_unknown(run: Run, name: str, why: str) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        def exchange() -> None:
            server.delete(f"/root/{CLUSTER_PATH}")
            server.clients[0].expire()

        await store.create(CLUSTER_PATH, b"this one")
        await store.get(CLUSTER_PATH)
        await store.create("there", b"")
        server.troubles = [
            Trouble(name, LOST_REPLY),
            Trouble("sync", LOST_REPLY, comes_back=False),
        ]
        if why == "another store answers":
            server.troubles = [Trouble(name, LOST_REPLY, meanwhile=exchange)]
        with pytest.raises(OutcomeUnknownError, match="may or may not have happened"):
            if name == "create":
                await store.create("n", b"")
            elif name == "set":
                await store.put("there", b"1", 0)
            else:
                await store.delete("there")
        server.clients[0].connect()

    run(scenario, SHORT_S)


def test_read_goes_on_over_broken_connections(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"x")
        server.troubles = [Trouble("get", LOST_REQUEST), Trouble("get", LOST_REPLY)]
        assert (await store.get("n")).value == b"x"
        server.troubles = [Trouble("children", LOST_REPLY)]
        assert await store.children("n") == []
        server.troubles = [Trouble("get", LOST_REPLY, comes_back=False)]
        with pytest.raises(MetadataUnavailableError, match="nothing was changed"):
            await store.get("n")
        server.clients[0].connect()

    run(scenario, SHORT_S)


def test_write_whose_requests_are_lost_again_and_again_ends_at_its_deadline(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        server.troubles = [Trouble("create", LOST_REQUEST) for _ in range(2_000)]
        with pytest.raises((MetadataUnavailableError, OutcomeUnknownError)):
            await store.create("n", b"")
        assert server.troubles and "/root/n" not in server.nodes
        server.troubles = []

    run(scenario, SHORT_S)


def test_write_without_a_connection_changes_nothing_and_says_so(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"")
        server.clients[0].break_connection()
        with pytest.raises(MetadataUnavailableError, match="nothing was changed"):
            await store.put("n", b"1", 0)
        server.clients[0].connect()
        assert (await store.get("n")).version == 0
        assert await store.put("n", b"1", 0) == 1

    run(scenario, SHORT_S)


def test_write_that_was_found_undone_and_has_no_connection_changes_nothing(run: Run) -> None:
    """The look has seen that it did not happen, and it was not sent again."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        server.troubles = [Trouble("create", LOST_REQUEST), Trouble("get", How.NO_ANSWER)]
        creating = asyncio.create_task(store.create("n", b""))
        while not server.late:
            await asyncio.sleep(0.001)
        server.late.pop()()
        client.break_connection()
        with pytest.raises(MetadataUnavailableError, match="nothing was changed"):
            await creating
        client.connect()
        assert "/root/n" not in server.nodes

    run(scenario, SHORT_S)


def test_write_of_a_version_does_not_wait_for_another_connection(run: Run) -> None:
    """The store may be restored between the two, within one session: an ensemble that elects a
    leader counts on above all numbers that its clients have seen, and gives versions again."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"")
        await store.put("n", b"seen", 0)
        for write in (store.put("n", b"mine", 1), store.transaction([Put("n", b"mine", 1)])):
            server.clients[0].break_connection()
            writing = asyncio.ensure_future(write)
            await asyncio.sleep(0)
            server.set("/root/n", b"of another")
            server.nodes["/root/n"].version = 1  # given again
            server.clients[0].connect()
            with pytest.raises(OutcomeUnknownError, match="the connection to ZooKeeper broke"):
                await writing
            assert server.nodes["/root/n"].data == b"of another"

    run(scenario)


def test_parents_made_by_another_at_the_same_time_are_fine(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await asyncio.gather(*(store.create(f"a/b/n{n}", b"", ephemeral=n == 1) for n in range(3)))
        assert server.nodes["/root/a/b/n1"].owner and not server.nodes["/root/a/b"].owner
        with pytest.raises(ConfigurationError, match="ephemeral"):
            await store.create("a/b/n1/c", b"")

    run(scenario)


# -- callers that leave ----------------------------------------------------------------------------


@pytest.mark.parametrize("leaves_by", ["cancellation", "timeout"])
def test_late_answer_to_a_caller_that_left_harms_nobody(run: Run, leaves_by: str) -> None:
    errors: list[object] = []

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
        await store.create("n", b"x")
        server.troubles = [Trouble("get", How.NO_ANSWER), Trouble("get", How.NO_ANSWER)]
        leaving = asyncio.create_task(store.get("n"))
        waiting = asyncio.create_task(store.get("n"))
        while len(server.late) < 2:
            await asyncio.sleep(0)
        if leaves_by == "cancellation":
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(leaving, 0.01)
        assert len(store._session._pending) == 1, "nothing is kept of it"
        for reply in server.late:
            reply()
        assert (await waiting).value == b"x"
        assert (await store.get("n")).value == b"x"
        assert not store._session._pending

    run(scenario)
    assert errors == []


def test_answer_that_never_comes_ends_at_the_deadline(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"x")
        server.troubles = [Trouble("get", How.NO_ANSWER)]
        with pytest.raises(MetadataUnavailableError):
            await store.get("n")
        server.troubles = [Trouble("set", How.NO_ANSWER)]
        with pytest.raises(OutcomeUnknownError):
            await store.put("n", b"y", 0)
        before = len(server.requests)
        assert not await store._session.wait_connected(0.0), "its deadline has passed"
        assert len(server.requests) == before

    run(scenario, SHORT_S)


def test_close_ends_every_wait_at_once(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
        await store.create("n", b"x")
        server.troubles = [Trouble(name, How.NO_ANSWER) for name in ("get", "get", "set")]
        reading = asyncio.create_task(store.get("n"))
        leaving = asyncio.create_task(store.get("n"))
        writing = asyncio.create_task(store.put("n", b"y", 0))
        while len(server.late) < 3:
            await asyncio.sleep(0)
        leaving.cancel()
        server.clients[0].break_connection()
        offline = asyncio.create_task(store.get("n"))
        for _ in range(3):
            await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await store.close()
        with pytest.raises(LedgerClosedError):
            await reading
        with pytest.raises(OutcomeUnknownError):
            await writing
        with pytest.raises(LedgerClosedError):
            await offline
        assert asyncio.get_running_loop().time() - began < LONG_S / 2
        for reply in server.late:
            reply()
        await asyncio.sleep(0)
        assert errors == []
        with pytest.raises(LedgerClosedError):
            await store.get("n")

    run(scenario)


def test_close_right_behind_a_caller_that_left_ends_the_others(run: Run) -> None:
    """The request of the one that left is over, and nobody has taken it off the list yet."""

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        await store.create("n", b"x")
        server.troubles = [Trouble("get", How.NO_ANSWER) for _ in range(3)]
        reading = [asyncio.create_task(store.get("n")) for _ in range(3)]
        while len(server.late) < 3:
            await asyncio.sleep(0)
        for answer in list(store._session._pending)[:2]:
            answer.cancel()
        await store.close()
        results = await asyncio.gather(*reading, return_exceptions=True)
        assert sum(isinstance(result, LedgerClosedError) for result in results) == 1
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 2

    run(scenario)


def test_children_are_sorted_however_the_server_keeps_them(run: Run) -> None:
    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        for name in ("b", "c", "a"):
            await store.create(f"n/{name}", b"")
        assert await store.children("n") == ["a", "b", "c"]

    run(scenario)
