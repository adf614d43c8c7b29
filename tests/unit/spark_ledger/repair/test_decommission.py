"""A bookie that an operator takes out: its copies go first, then its name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.config import ClientConfig
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    MetadataRestoredError,
    NotFoundError,
)
from spark_ledger.metadata.base import MetadataStore, Operation
from spark_ledger.metadata.bookies import COOKIES_PATH, BookieRegistry
from spark_ledger.metadata.cookies import (
    BookieCookie,
    cookie_path,
    encode_cookie,
    has_left,
    leaving_path,
    left_path,
)
from spark_ledger.metadata.json_nodes import Node, encode_node, read_node, write_node
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.repair.auditor import Auditor
from spark_ledger.repair.decommission import Named, decommission, drain, stay
from spark_ledger.repair.lost import Losses
from spark_ledger.repair.nodes import STATE_PATH, AuditState, leaving
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.worker import Worker, WorkerConfig
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import (
    contents,
    crew,
    give_cookies,
    lacking,
    lose,
    marked,
)

CONFIG = WorkerConfig(bytes_per_s=1e12, open_grace_s=5.0, despite_losses=True)
LEFT = BookieId("b0")


@pytest.mark.parametrize("runs", [True, False])
def test_decommissioned_bookie_is_named_by_nothing_and_has_no_cookie(runs: bool) -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        closed = [await filled(client) for _ in range(4)]
        for writer in closed:
            await writer.close()
        idle = await filled(client)
        if not runs:
            await lose(world, LEFT)
        told: list[Named] = []
        left = await decommission(await world.client(), LEFT, CONFIG, told=told.append)
        assert left.runs is runs and told[-2:] == [Named(0, 0)] * 2
        for writer in (*closed, idle):
            assert LEFT not in all_names(await client.ledger_metadata(writer.ledger_id))
            assert await lacking(world, client, writer.ledger_id) == []
            assert len(await contents(client, writer.ledger_id)) >= 19
        registry = BookieRegistry(client.store)
        assert LEFT not in await registry.list_cookies() and await has_left(client.store, LEFT)
        with pytest.raises(ConfigurationError, match="b0 has left the cluster"):
            await stay(client, LEFT)
        assert await leaving(client.store) == ({LEFT} if runs else set()), "until it is stopped"
        with pytest.raises(NotFoundError, match="no bookie b9"):
            await decommission(client, BookieId("b9"), CONFIG, told=told.append)

    run_virtually(test, bookies=5)


def test_decommission_that_is_begun_again_behind_its_end_ends_as_well() -> None:
    """The bookie ran still the first time; by now it is stopped, and nothing knows it any more."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        cookie = BookieCookie("c", LEFT, "/j", ("/l",), "first")
        node = await client.store.get(cookie_path(LEFT))
        await client.store.put(cookie_path(LEFT), encode_cookie(cookie), node.version)
        assert (await decommission(client, LEFT, CONFIG, told=lambda _: None)).runs
        await lose(world, LEFT)
        assert await leaving(client.store) == {LEFT}
        assert not (await decommission(client, LEFT, CONFIG, told=lambda _: None)).runs
        assert await leaving(client.store) == frozenset()
        assert await has_left(client.store, LEFT, "first")
        assert not await has_left(client.store, LEFT, "next"), "of its name, behind a restore"

    run_virtually(test, bookies=4)


def test_decommission_that_was_cut_off_before_the_cookie_went_can_be_cancelled() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        for path in (leaving_path(LEFT), left_path(LEFT)):
            await client.store.create(path, b"")
        assert not await has_left(client.store, LEFT), "it is a bookie of the cluster"
        assert await stay(client, LEFT)
        await client.store.delete(cookie_path(LEFT))
        assert not await has_left(client.store, LEFT), "as of one that a restored store forgot"

    run_virtually(test, bookies=3)


def test_decommission_that_is_cancelled_behind_its_last_look_takes_nothing_away() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        told = list[int]()
        say = told.append
        work = asyncio.create_task(
            decommission(client, LEFT, CONFIG, told=lambda left: say(left.ledgers))
        )
        await asyncio.sleep(3.0)
        assert told == [0, 0] and not work.done(), "it waits for clients that have not heard of it"
        assert await stay(await world.client(), LEFT)
        with pytest.raises(ConflictError, match=r"b0 does not leave: .*--cancel` or"):
            await work
        assert LEFT in await BookieRegistry(client.store).list_cookies()
        assert await leaving(client.store) == frozenset()
        assert await node_at(client, left_path(LEFT)) is None

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("work", [decommission, drain])
def test_command_ends_when_another_one_lets_the_bookie_stay(work: Any) -> None:
    """Its writers come back, so there would be more to do for ever."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        await (await filled(client)).close()  # on all bookies: nobody can take it over
        told: list[object] = []
        running = asyncio.create_task(work(await world.client(), LEFT, CONFIG, told=told.append))
        await asyncio.sleep(5.0)
        assert told and await stay(client, LEFT)
        seen = len(told)
        with pytest.raises(ConflictError, match=r"b0 does not leave: .*--undo` has let it stay"):
            async with asyncio.timeout(60.0):
                await running
        assert len(told) <= seen + 1
        assert LEFT in await BookieRegistry(client.store).list_cookies()

    run_virtually(test, bookies=3)


def test_drain_beside_a_decommission_that_was_faster_ends() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        await (await filled(client)).close()
        running = asyncio.create_task(drain(client, LEFT, CONFIG, told=lambda _: None))
        await asyncio.sleep(1.0)
        other = await world.client()
        await other.store.delete(cookie_path(LEFT))
        await other.store.create("repair/left", b"")
        await other.store.create(left_path(LEFT), b"")
        await other.store.delete(leaving_path(LEFT))
        async with asyncio.timeout(60.0):
            await running

    run_virtually(test, bookies=3)


@pytest.mark.parametrize("has_cookie", [True, False])
def test_bookie_is_not_let_stay_when_it_leaves_in_that_moment(has_cookie: bool) -> None:
    async def test(world: World) -> None:
        if has_cookie:
            await give_cookies(world)
        client, operator = await world.client(), await world.client()
        await client.store.create(leaving_path(LEFT), b"")
        real = operator.store.transaction

        async def late(operations: Sequence[Operation]) -> None:
            operator.store.transaction = real  # type: ignore[method-assign]
            assert (await decommission(client, LEFT, CONFIG, told=lambda _: None)).runs
            await real(operations)

        operator.store.transaction = late  # type: ignore[method-assign]
        with pytest.raises(ConfigurationError, match="b0 has left the cluster"):
            await stay(operator, LEFT)
        assert await has_left(client.store, LEFT)
        assert await leaving(client.store) == {LEFT}, "until it is stopped"

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_replies_that_are_lost_change_nothing_of_who_leaves_and_stays(outcome: Outcome) -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        lost = list[str]()

        def interpose(name: str, path: str) -> Fault:
            if name == "transaction" and path.startswith(("repair/", COOKIES_PATH)) and not lost:
                lost.append(path)
                return Fault(outcome)
            return Fault()

        client = await LedgerClient.over(
            MemoryMetadataStore(world.tree, interpose=interpose),
            MemoryTransport(world.bookies),
            ClientConfig(),
        )
        world._clients.append(client)
        await client.store.create(leaving_path(LEFT), b"")
        assert await stay(client, LEFT) and lost
        lost.clear()
        cookie = BookieCookie("c", LEFT, "/j", ("/l",), "first")
        node = await client.store.get(cookie_path(LEFT))
        await client.store.put(cookie_path(LEFT), encode_cookie(cookie), node.version)
        await decommission(client, LEFT, CONFIG, told=lambda _: None)
        assert lost and await has_left(client.store, LEFT)
        assert await node_at(client, left_path(LEFT)) == b"first"

    run_virtually(test, bookies=4)


def test_bookie_without_a_cookie_that_leaves_is_told_though_another_one_of_its_name_had_left() -> (
    None
):
    """ZooKeeper was restored to between the end of the one and the format of the other."""

    async def test(world: World) -> None:
        client = await world.client()
        await client.store.create(left_path(LEFT), b"of before")
        assert not await has_left(client.store, LEFT, "of now")
        assert (await decommission(client, LEFT, CONFIG, told=lambda _: None)).runs
        assert await has_left(client.store, LEFT, "of now")

    run_virtually(test, bookies=4)


def test_cookie_of_a_bookie_that_has_the_name_since_is_left() -> None:
    """Two operators: one takes the bookie out and makes another of its name, while the command of
    the other one waits."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        work = asyncio.create_task(decommission(client, LEFT, CONFIG, told=lambda _: None))
        await asyncio.sleep(3.0)
        store, registry = client.store, BookieRegistry(client.store)
        await store.delete(cookie_path(LEFT))
        await registry.create_cookie(LEFT, b'{"new":1}')
        await store.delete(leaving_path(LEFT))
        with pytest.raises(ConflictError, match="or it was formatted again"):
            await work
        assert await node_at(client, cookie_path(LEFT)) == b'{"new":1}'

    run_virtually(test, bookies=4)


async def node_at(client: LedgerClient, path: str) -> bytes | None:
    """What a node says; None if it is not there."""
    try:
        return (await client.store.get(path)).value
    except NotFoundError:
        return None


async def seen(client: LedgerClient) -> AuditState:
    """What the auditor saw last."""
    state = await read_node(client.store, AuditState, STATE_PATH)
    assert state is not None
    return state.value


def test_bookie_is_empty_once_two_looks_in_a_row_find_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that has not heard of it may name it between them."""
    named, told = iter([0, 3, 0, 1, 0, 0]), list[int]()

    async def audit(*_: object) -> int:
        return next(named)

    monkeypatch.setattr(Auditor, "audit", audit)

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        await drain(client, LEFT, CONFIG, told=lambda left: told.append(left.ledgers))
        assert told == [0, 3, 0, 1, 0, 0]

    run_virtually(test, bookies=4)


def test_drain_of_a_store_that_was_restored_ends_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No worker copies anything then, and it would wait for ever."""

    async def restored(*_: object) -> NoReturn:
        raise MetadataRestoredError("ZooKeeper went back")

    monkeypatch.setattr(Worker, "run_pass", restored)

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        await (await filled(client)).close()
        with pytest.raises(MetadataRestoredError, match="went back"):
            await drain(client, LEFT, CONFIG, told=lambda _: None)

    run_virtually(test, bookies=3)


def test_decommission_that_nobody_can_take_over_waits_and_can_be_cancelled() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        told: list[int] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(15.0):
                say = told.append
                client_of_it = await world.client()
                await decommission(client_of_it, LEFT, CONFIG, told=lambda left: say(left.ledgers))
        assert set(told) == {1}
        assert LEFT in all_names(await client.ledger_metadata(writer.ledger_id))
        assert LEFT in await BookieRegistry(client.store).list_cookies()
        assert await stay(client, LEFT) and not await stay(client, LEFT)
        await client.store.create(leaving_path(LEFT), b"")

    run_virtually(test, bookies=3)


def test_drained_bookie_is_named_by_nothing_and_stays_in_the_cluster() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        closed = [await filled(client) for _ in range(4)]
        for writer in closed:
            await writer.close()
        named = [w for w in closed if LEFT in all_names(await client.ledger_metadata(w.ledger_id))]
        told: list[Named] = []
        await drain(await world.client(), LEFT, CONFIG, told=told.append)
        assert told[0] == Named(len(named), 30 * len(named)) and told[-2:] == [Named(0, 0)] * 2
        assert named
        for writer in closed:
            assert LEFT not in all_names(await client.ledger_metadata(writer.ledger_id))
            assert await lacking(world, client, writer.ledger_id) == []
        assert LEFT in await BookieRegistry(client.store).list_cookies()
        assert await leaving(client.store) == {LEFT}, "until the operator undoes it"
        assert await stay(client, LEFT)

    run_virtually(test, bookies=5)


def test_drain_that_is_cut_off_says_what_is_left_and_goes_on() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        while LEFT not in all_names(writer.metadata):  # three of four bookies, at random
            await client.delete_ledger(writer.ledger_id)
            writer = await filled(client)
        await writer.close()
        told: list[Named] = []
        slow = WorkerConfig(bytes_per_s=20.0, open_grace_s=5.0, despite_losses=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(12.0):
                await drain(await world.client(), LEFT, slow, told=told.append)
        assert len(told) >= 2 and min(told) == Named(1, 30), "it is said while copies are made"
        await drain(await world.client(), LEFT, CONFIG, told=told.append)
        assert LEFT not in all_names(await client.ledger_metadata(writer.ledger_id))

    run_virtually(test, bookies=4)


def test_bookie_that_is_registered_and_has_no_cookie_is_drained() -> None:
    """It is there, so an operator may take it out."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        await drain(await world.client(), LEFT, CONFIG, told=lambda _: None)
        assert LEFT not in all_names(await client.ledger_metadata(writer.ledger_id))
        assert await stay(client, LEFT)

    run_virtually(test, bookies=4)


@pytest.mark.leaves_open("bookies that count as used", reason="the order in which they are chosen")
@pytest.mark.parametrize("auditor_looks", [False, True])
def test_bookies_without_cookies_that_went_at_once_are_taken_out_and_hold_up_repair_no_more(
    auditor_looks: bool,
) -> None:
    """ZooKeeper was restored to before their format, and they ran on: nothing but the auditor's
    node knows them, and no audit takes them out of it while too many are gone (rule R9)."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared = await world.client(), await crew(world)
        gone = [BookieId(f"b{n}") for n in range(4)]
        for name in gone:
            await client.store.delete(cookie_path(name))
        client.context.use(gone[1:], +3)
        client.context.use([BookieId(f"b{n}") for n in range(4, 7)], +1)
        first = await filled(client)  # on b0 and two that stay
        client.context.use(gone[:1], +3)
        client.context.use(gone[1:2], -3)
        second = await filled(client)  # on b1 and two that stay
        for writer, name in ((first, gone[0]), (second, gone[1])):
            await writer.close()
            assert set(all_names(writer.metadata)).intersection(gone) == {name}
        await cared.passes(20)
        for name in gone:
            await lose(world, name)
        await cared.passes(200)
        assert (await seen(client)).stopped.startswith("4 of 7 ") and await marked(world) == {}

        def told(_: Named) -> None:
            if auditor_looks:
                looks.append(asyncio.ensure_future(cared.auditor.run_pass()))

        looks: list[asyncio.Task[Losses]] = []
        assert not (await decommission(await world.client(), gone[0], CONFIG, told=told)).runs
        await asyncio.gather(*looks)
        assert await leaving(client.store) == frozenset()
        await cared.passes(20)
        assert (await seen(client)).stopped == ""
        for writer in (first, second):
            assert not all_names(await client.ledger_metadata(writer.ledger_id)) & set(gone)
            assert await lacking(world, client, writer.ledger_id) == []
        with pytest.raises(NotFoundError, match="no bookie b0"):
            await decommission(client, gone[0], CONFIG, told=told)

    run_virtually(test, bookies=7)


def test_bookie_without_a_cookie_leaves_though_its_node_is_written_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The auditor writes what it sees every ten seconds, and knew the name when it began."""
    real, late = write_node, list[str]()

    async def write(store: MetadataStore, path: str, node: Node, before: Any) -> None:
        if path == STATE_PATH and not late:
            late.append(path)
            await real(store, path, AuditState(without_cookie=("b0", "b1")), before)
        await real(store, path, node, before)

    monkeypatch.setattr("spark_ledger.repair.nodes.write_node", write)

    async def test(world: World) -> None:
        client = await world.client()
        await lose(world, LEFT)
        state = AuditState(without_cookie=("b0",), stopped="too many")
        await client.store.create(STATE_PATH, encode_node(state))
        await decommission(client, LEFT, CONFIG, told=lambda _: None)
        assert late and await seen(client) == AuditState(without_cookie=("b1",))

    run_virtually(test, bookies=4)
