"""Racks steer writers, ensemble changes and repair: a rack that burns down takes nothing along."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConfigurationError, NotEnoughBookiesError
from spark_ledger.limits.metadata import DIRECTORY_REFRESH_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.cluster import CLUSTER_PATH, read_cluster, set_placement
from spark_ledger.metadata.codec import ClusterNode
from spark_ledger.metadata.json_nodes import decode_node, encode_node
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.protocol.events import ChooseBookies
from spark_ledger.types import BookieId, LedgerMetadata, PlacementPolicy, Quorums
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.client.world import world as world_of
from tests.unit.spark_ledger.repair.world import crew, give_cookies, lacking, lose
from tests.unit.virtual_time import run_in_virtual_time

FIVE_OVER_THREE: dict[str, Any] = {"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2}


async def with_policy(world: World, **fields: int | bool) -> LedgerClient:
    """A client that connects after the operator has set the policy."""
    await (await world.client()).close()  # makes the cluster
    store: MetadataStore = MemoryMetadataStore(world.tree)
    await set_placement(store, PlacementPolicy(**fields))  # type: ignore[arg-type]
    await store.close()
    return await world.client()


def racks_of_write_sets(world: World, ledger: LedgerMetadata) -> list[int]:
    """In how many racks the copies of an entry are, for each fragment and write set."""
    e, wq = ledger.quorums.ensemble_size, ledger.quorums.write_quorum
    return [
        len({world.rack(fragment.bookies[(entry + i) % e]) for i in range(wq)})
        for fragment in ledger.fragments
        for entry in range(e)
    ]


def test_new_ledgers_are_spread_over_racks() -> None:
    async def test(world: World) -> None:
        client = await with_policy(world, min_racks=2)
        two: dict[str, Any] = {"ensemble_size": 2, "write_quorum": 2}
        for options in ({}, FIVE_OVER_THREE, two):
            for _ in range(5):
                writer = await client.create_ledger(**options)
                assert min(racks_of_write_sets(world, writer.metadata)) >= 2
        assert client.counters.misplaced == 0

    run_virtually(test, bookies=9, racks=3)


def test_rack_that_is_lost_takes_no_acknowledged_entry_and_stops_no_writer() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await with_policy(world, min_racks=2)
        kinds: tuple[dict[str, Any], ...] = 2 * ({}, FIVE_OVER_THREE)
        writers = [await client.create_ledger(**each) for each in kinds]
        for number in range(20):
            for writer in writers:
                await writer.append(b"%d" % number)
        for name in ("b0", "b3", "b6"):
            await lose(world, name)
        for number in range(20, 40):
            for writer in writers:
                await writer.append(b"%d" % number)
        cared = await crew(world)
        for writer in writers:
            await writer.close()
            reader = await (await world.client()).open_ledger(writer.ledger_id)
            found = [entry.payload async for entry in reader.read(0, 39)]
            assert found == [b"%d" % number for number in range(40)]
        await cared.passes(300)
        for writer in writers:
            ledger = await client.ledger_metadata(writer.ledger_id)
            assert await lacking(world, client, writer.ledger_id) == []
            # Two of five that are lost may leave no choice that adheres; one of three does.
            if ledger.quorums.ensemble_size == 3:
                assert min(racks_of_write_sets(world, ledger)) == 2, "repair and changes keep it"

    run_virtually(test, bookies=9, racks=3)


def test_replacement_of_a_failed_bookie_is_in_the_rack_that_is_missing() -> None:
    async def test(world: World) -> None:
        client = await with_policy(world, min_racks=3)
        for _ in range(4):
            writer = await client.create_ledger()
            await writer.append(b"a")
            failed = writer.metadata.last_fragment.bookies[1]
            world.kill(failed)
            for number in range(3):
                await writer.append(b"%d" % number)
            assert len(writer.metadata.fragments) == 2
            assert racks_of_write_sets(world, writer.metadata) == [3] * 6
            world.revive(failed)

    run_virtually(test, bookies=9, racks=3)


def test_replacements_of_two_bookies_are_in_the_racks_of_both() -> None:
    """The first that is chosen is where the second may not be."""

    async def test(world: World) -> None:
        client = await with_policy(world, min_racks=3)
        ensemble = tuple(BookieId(f"b{n}") for n in range(3))
        wanted = ChooseBookies((0, 1), frozenset(ensemble), {}, {}, ensemble, Quorums(3, 3, 2))
        for _ in range(20):
            chosen = (await client.context.replacements(wanted)).replacements
            racks = {world.rack(name) for name in (chosen[0], chosen[1], ensemble[2])}
            assert len(racks) == 3 and client.counters.misplaced == 0

    run_virtually(test, bookies=9, racks=3)


def test_strict_policy_refuses_a_ledger_and_says_what_to_do() -> None:
    async def test(world: World) -> None:
        client = await with_policy(world, min_racks=3, strict=True)
        with pytest.raises(NotEnoughBookiesError, match=r"in 2 rack.*not in 3.*placement"):
            await client.create_ledger()
        assert client.counters.misplaced == 0, "nothing was placed"
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2)
        assert racks_of_write_sets(world, writer.metadata) == [2, 2], "two copies need two racks"

    run_virtually(test, bookies=6, racks=2)


def test_bookies_that_failed_and_answer_again_come_before_a_ledger_in_the_wrong_racks() -> None:
    async def test(world: World) -> None:
        client = await with_policy(world, min_racks=2)
        for name in ("b1", "b3", "b5"):
            client.context.suspect(BookieId(name))
        writer = await client.create_ledger()
        assert racks_of_write_sets(world, writer.metadata) == [2, 2, 2]
        assert client.counters.misplaced == 0

    run_virtually(test, bookies=6, racks=2)


def test_other_policy_takes_the_best_there_is_and_counts_that() -> None:
    async def test(world: World) -> None:
        client = await with_policy(world, min_racks=3)
        writer = await client.create_ledger()
        assert racks_of_write_sets(world, writer.metadata) == [2, 2, 2]
        assert client.counters.misplaced == 1

    run_virtually(test, bookies=6, racks=2)


def test_strict_writer_goes_on_without_a_replacement_in_the_wrong_rack() -> None:
    async def test(world: World) -> None:
        client = await with_policy(world, min_racks_for_durability=2, strict=True)
        writer = await client.create_ledger()
        await writer.append(b"a")
        for name in ("b0", "b3"):
            await lose(world, name)
        await asyncio.sleep(2.0)  # until the client has heard of it
        for _ in range(5):
            await writer.append(b"b")
        assert len(writer.metadata.fragments) == 1, "two copies in one rack could acknowledge"
        await writer.close()

    run_virtually(test, bookies=6, racks=3)


def test_policy_that_becomes_strict_refuses_no_replacement_that_makes_nothing_worse() -> None:
    async def test(world: World) -> None:
        client = await with_policy(world, min_racks=3)
        writer = await client.create_ledger()
        await writer.append(b"a")
        store = MemoryMetadataStore(world.tree)
        await set_placement(store, PlacementPolicy(min_racks=3, strict=True))
        await store.close()
        await asyncio.sleep(2 * DIRECTORY_REFRESH_S)
        await lose(world, writer.metadata.last_fragment.bookies[0])
        for _ in range(3):
            await writer.append(b"b")
        assert [len(set(each.bookies)) for each in writer.metadata.fragments] == [3, 3]
        await writer.close()

    async def tested() -> None:
        async with world_of(6, 2) as made:
            await test(made)

    run_in_virtual_time(tested())  # `run_virtually` has a bound of 20 s


def test_clients_that_are_connected_hear_of_a_policy_at_their_next_look() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        store = MemoryMetadataStore(world.tree)
        await set_placement(store, PlacementPolicy(min_racks=3, strict=True))
        await client.create_ledger()
        await asyncio.sleep(2 * DIRECTORY_REFRESH_S)
        with pytest.raises(NotEnoughBookiesError):
            await client.create_ledger()
        await store.put(CLUSTER_PATH, b"not json", (await store.get(CLUSTER_PATH)).version)
        await asyncio.sleep(2 * DIRECTORY_REFRESH_S)
        with pytest.raises(NotEnoughBookiesError):
            await client.create_ledger()
        await store.close()

    async def tested() -> None:
        async with world_of(4, 2) as made:
            await test(made)

    run_in_virtual_time(tested())  # `run_virtually` has a bound of 20 s


def test_cluster_with_a_policy_is_not_for_programs_that_know_none() -> None:
    node = ClusterNode(cluster_id="c")
    assert b"placement" not in encode_node(node)
    policy = PlacementPolicy(min_racks=2, min_regions=2, strict=True)
    written = encode_node(node.with_policy(policy))
    found = decode_node(ClusterNode, CLUSTER_PATH, written)
    assert (found.policy, found.format_version, found.cluster_id) == (policy, 2, "c")
    assert decode_node(ClusterNode, CLUSTER_PATH, encode_node(node)).policy == PlacementPolicy()
    with pytest.raises(ConfigurationError, match="format version 3"):
        decode_node(ClusterNode, CLUSTER_PATH, written.replace(b'version":2', b'version":3'))


def test_policy_survives_beside_the_name_of_the_cluster() -> None:
    async def test(world: World) -> None:
        await with_policy(world, min_racks=2)
        store = MemoryMetadataStore(world.tree)
        name = await read_cluster(store)
        await set_placement(store, PlacementPolicy(min_regions=2))
        assert await read_cluster(store) == name
        client = await world.client()
        assert asdict(client.context.directory.policy)["min_regions"] == 2
        assert client.context.directory.rack(BookieId("gone")) == "/default-rack"
        await store.close()

    run_virtually(test)
