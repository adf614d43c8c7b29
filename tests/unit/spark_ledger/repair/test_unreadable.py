"""A ledger whose node is damaged, or of a later format, keeps no other ledger from its copies."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from spark_ledger.cli.safety import exit_status
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.ledgers import is_unreadable, ledger_path
from spark_ledger.metadata.unsettled import id_path
from spark_ledger.repair.checker import Checker, CheckerConfig
from spark_ledger.repair.closed import ClosedCheck
from spark_ledger.repair.decommission import decommission
from spark_ledger.repair.nodes import (
    CHECK_PATH,
    CLOSED_PATH,
    COUNTS_PATH,
    DONE_PATH,
    FAILED_PATH,
    STATE_PATH,
    mark,
    mark_root,
)
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.rebalance import Rebalance, RebalanceConfig
from spark_ledger.repair.status import look
from spark_ledger.types import BookieId, LedgerId
from tests.unit.spark_ledger.cli.test_safety import found
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.keeper.test_audit import AUDIT_S, elected, ids, left, stream_of_three
from tests.unit.spark_ledger.keeper.world import Clock, keeper, passes
from tests.unit.spark_ledger.repair.test_checker import Checking, closed, wipe
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import WORK, crew, give_cookies, lacking, lose, marked

DAMAGED = b"?"


async def damage(client: LedgerClient, ledger_id: LedgerId) -> None:
    path = ledger_path(ledger_id)
    await client.store.put(path, DAMAGED, (await client.store.get_latest(path)).version)


def test_copies_of_the_others_are_made_again() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writers = [await filled(client) for _ in range(3)]
        for writer in writers:
            await writer.close()
        name = writers[2].metadata.last_fragment.bookies[0]
        await damage(client, writers[0].ledger_id)
        await lose(world, name)
        cared = await crew(world)
        await cared.passes(130)
        for writer in writers[1:]:
            assert name not in all_names(await client.ledger_metadata(writer.ledger_id))
        assert isinstance(cared.auditor.unreadable, CorruptionError)
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


@pytest.mark.parametrize(
    "path",
    [
        STATE_PATH,
        COUNTS_PATH,
        DONE_PATH,
        CHECK_PATH,
        CLOSED_PATH,
        id_path(mark_root(2), LedgerId(1)),
        id_path(FAILED_PATH, LedgerId(1)),
    ],
)
def test_damaged_node_of_repair_keeps_no_ledger_from_its_copies(path: str) -> None:
    """What it said is looked for again, and it is written anew."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writers = [await filled(client) for _ in range(2)]
        for writer in writers:
            await writer.close()
        assert writers[0].ledger_id == 1
        cared, checker = await crew(world), Checker(client, CheckerConfig(members_per_s=1e6))
        closed_ledgers = ClosedCheck(client, checker, CheckerConfig())
        await cared.auditor.run_pass()
        with contextlib.suppress(NotFoundError):
            await client.store.delete(path)
        await client.store.create(path, DAMAGED)
        name = writers[0].metadata.last_fragment.bookies[0]
        await lose(world, name)
        wipe(world, writers[1].metadata.last_fragment.bookies[1], writers[1], 3)
        for _ in range(13):
            with contextlib.suppress(LedgerError):  # the worker's, until the auditor was there
                await cared.passes(10)
        await checker.run_pass()
        await closed_ledgers.run_pass()
        await cared.worker.run_pass()
        for writer in writers:
            assert name not in all_names(await client.ledger_metadata(writer.ledger_id))
            assert await lacking(world, client, writer.ledger_id) == []
        assert await marked(world) == {}
        assert not (await look(client.store)).failed

    run_virtually(test, bookies=5)


def test_bookie_that_it_may_name_is_not_taken_out() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        hidden, other = await filled(client), await filled(client)
        await hidden.close()
        await other.close()
        left = other.metadata.last_fragment.bookies[0]
        await damage(client, hidden.ledger_id)
        with pytest.raises(CorruptionError, match="may still"):
            async with asyncio.timeout(60.0):
                await decommission(await world.client(), left, WORK, told=lambda _: None)
        assert left not in all_names(await client.ledger_metadata(other.ledger_id))
        assert left in await BookieRegistry(client.store).list_cookies()

    run_virtually(test, bookies=5)


def test_ledger_whose_node_was_mended_counts_as_read_at_the_next_look() -> None:
    """Else a bookie that leaves would stay for ever: a ledger may still name it."""

    async def test(world: World) -> None:
        client = await world.client()
        hidden = await filled(client)
        path = ledger_path(hidden.ledger_id)
        before = (await client.store.get_latest(path)).value
        await damage(client, hidden.ledger_id)
        auditor = (await crew(world)).auditor
        await auditor.audit(frozenset())
        assert auditor.unreadable is not None
        await client.store.put(path, before, (await client.store.get_latest(path)).version)
        await auditor.audit(frozenset())
        assert auditor.unreadable is None

    run_virtually(test, bookies=3)


def test_holes_of_the_others_are_found() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        hidden, holed = await closed(client), await closed(client)
        wipe(world, holed.metadata.last_fragment.bookies[0], holed, 0)
        await damage(client, hidden.ledger_id)
        checking = Checking(await world.client())
        assert await checking.check()
        assert set(await marked(world)) == {holed.ledger_id}
        just_closed = ClosedCheck(client, checking.checker, CheckerConfig())
        assert await just_closed.run_pass() == 1
        assert await just_closed.run_pass() == 0, "it is asked about once"

    run_virtually(test, bookies=5)


def test_copies_of_the_others_are_moved() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await world._registries[BookieId("b3")].deregister()
        await client.context.directory.refresh(all_again=True)
        writers = [await filled(client) for _ in range(6)]
        for writer in writers:
            await writer.close()
        await damage(client, writers[0].ledger_id)
        await world.register("b3")
        done = await Rebalance(client, RebalanceConfig()).run()
        assert done.moves > 0

    run_virtually(test, bookies=4)


def test_status_shows_the_others() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        hidden, other = await filled(client), await filled(client)
        await other.close()
        await damage(client, hidden.ledger_id)
        for writer in (hidden, other):
            name = writer.metadata.last_fragment.bookies[0]
            await mark(client.store, writer.ledger_id, frozenset([name]), 2)
        status = await look(client.store)
        assert status.marked == {2: 2} and status.bytes_left > 0

    run_virtually(test, bookies=3)


def test_status_of_the_cluster_counts_it_as_unknown() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        hidden, other = await filled(client), await filled(client)
        await other.close()
        assert exit_status(await found(world)) == 0
        await damage(client, hidden.ledger_id)
        standing = await found(world)
        assert standing.ledgers == standing.unknown == 1 and "damaged" in standing.unknown_why
        assert exit_status(standing) == 3, "nobody can say how safe it is"

    run_virtually(test, bookies=3)


def test_audit_of_names_goes_on_to_its_end() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await stream_of_three(world)
        (hidden,) = ids(await left(world, 98))
        (lost,) = ids(await left(world, 99))
        await damage(client, LedgerId(hidden))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 2 * AUDIT_S)
        with pytest.raises(NoSuchLedgerError):
            await client.ledger_metadata(lost)
        assert await client.store.get_latest(ledger_path(LedgerId(hidden))), "it stays"

    run(test)


def test_restored_metadata_are_not_of_one_ledger_only() -> None:
    assert is_unreadable(CorruptionError("damaged"))
    assert is_unreadable(ConfigurationError("of a later format"))
    assert not is_unreadable(MetadataRestoredError("older than what was seen"))
    assert not is_unreadable(MetadataUnavailableError("no answer"))


def test_keeper_recovers_the_others() -> None:
    async def test(world: World) -> None:
        client, dying = await world.client(), await world.client()
        hidden, other = await filled(dying), await filled(dying)
        await damage(client, hidden.ledger_id)
        await dying.close()
        clock = Clock()
        keeping = await keeper(world, clock)
        assert await keeping.elect()
        await passes(keeping, clock, 60)
        assert (await client.ledger_metadata(other.ledger_id)).is_closed
        assert keeping.found.failing == 1

    run_virtually(test, bookies=3)
