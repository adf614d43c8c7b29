"""What a new ledger is made with, and how a writer keeps to the settings of its client."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits import KIB
from spark_ledger.limits.client import BOOKIE_PROBE_TIMEOUT_S
from spark_ledger.metadata.deletions import read_sign
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.owners import is_alive
from spark_ledger.transport.base import BookieDescription
from spark_ledger.types import BookieId, BookieState, DigestType, Quorums
from tests.unit.spark_ledger.client.world import World, run, run_virtually


def test_metadata_say_what_was_asked_for() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        plain = await client.create_ledger(
            ensemble_size=3, write_quorum=2, ack_quorum=1, custom_metadata={"app": "x"}
        )
        secret = await client.create_ledger(password=b"secret")
        stored = await client.ledger_metadata(plain.ledger_id)
        assert stored.quorums == Quorums(3, 2, 1)
        assert stored.custom_metadata == {"app": "x"}
        assert stored.digest_type is DigestType.CRC32C and not stored.has_password
        assert len(stored.incarnation) == 16 and stored.access_key_hash, "every ledger has a key"
        protected = await client.ledger_metadata(secret.ledger_id)
        assert protected.digest_type is DigestType.HMAC_SHA256, "a CRC can be made by anybody"
        assert protected.access_key_hash and protected.has_password
        assert protected.incarnation != stored.incarnation
        assert stored.creation_token != protected.creation_token
        now_ms = time.time() * 1000
        assert now_ms - 60_000 < stored.creation_time_ms <= protected.creation_time_ms <= now_ms

    run(test)


def test_bookie_that_another_writer_finds_well_meanwhile_is_used() -> None:
    """It refuses the first probe, and is back before a silent one is given up."""

    async def test(world: World) -> None:
        client = await world.client()
        context, probes = client.context, list[str]()
        for name in ("b1", "b2"):
            context.suspect(BookieId(name))

        async def describe(bookie_id: BookieId, *, timeout_s: float) -> BookieDescription:
            assert timeout_s == BOOKIE_PROBE_TIMEOUT_S
            probes.append(bookie_id)
            if bookie_id == "b1":
                await asyncio.sleep(timeout_s)
            if bookie_id == "b1" or probes.count("b2") == 1:
                raise BookieUnavailableError(f"bookie {bookie_id} is not there")
            return BookieDescription(bookie_id, "", "", "writable", 0, 0, 0, 0, 0.0)

        context.transport.describe = describe  # type: ignore[method-assign]
        creating = asyncio.create_task(
            client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        )
        await asyncio.sleep(BOOKIE_PROBE_TIMEOUT_S / 2)
        assert not creating.done()
        assert await context.suspects.answers(BookieId("b2"), ask_now=True)
        writer = await creating
        assert set(writer.metadata.last_fragment.bookies) == {"b0", "b2"}
        await writer.close()

    run_virtually(test)


def test_list_of_bookies_is_what_they_say_now() -> None:
    """Also of what they tell without a notice."""

    async def test(world: World) -> None:
        client = await world.client()
        (before,) = (each for each in await client.list_bookies() if each.bookie_id == "b1")
        await world._registries[before.bookie_id].register(replace(before, free_bytes=12_345))
        (now,) = (each for each in await client.list_bookies() if each.bookie_id == "b1")
        assert (before.free_bytes, now.free_bytes) == (0, 12_345)
        assert client.registered_bookies() == await client.list_bookies()

    run_virtually(test)


def test_ledgers_are_spread_over_the_bookies() -> None:
    """Those that were closed count no more, and those that were replaced count elsewhere."""

    async def test(world: World) -> None:
        client = await world.client()

        async def spread(count: int) -> set[int]:
            writers = [
                await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
                for _ in range(count)
            ]
            used = Counter(b for w in writers for b in w.metadata.last_fragment.bookies)
            for writer in writers:
                await writer.close()
            return {used[bookie] for bookie in world.bookies}

        for _ in range(3):
            assert await spread(6) == {3}
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        replaced = writer.metadata.last_fragment.bookies[0]
        world.kill(replaced)
        await writer.append(b"on another")
        await writer.close()
        world.revive(replaced)
        assert not any(client._context.load.values()), "nothing is open"

    run(test, bookies=4)


def test_a_silent_bookie_is_replaced_after_the_time_that_was_set() -> None:
    async def test(world: World) -> None:
        client = await world.client(add_timeout_s=0.1)
        writer = await client.create_ledger()
        silent = writer.metadata.last_fragment.bookies[0]
        world.bookies[silent].hold = True
        async with asyncio.timeout(3):  # the default is five seconds
            while len(writer.metadata.fragments) < 2:
                await writer.append(b"x")
                await asyncio.sleep(0.02)
        assert silent not in writer.metadata.last_fragment.bookies
        world.bookies[silent].hold = False
        world.bookies[silent].release()
        await writer.close()

    run(test, bookies=4)


def test_what_is_queued_counts_as_appended() -> None:
    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()
        futures = [writer.append_nowait(bytes(size)) for size in (1, 20, 300)]
        assert writer.last_add_pushed == 2
        assert writer.length == 321
        assert await asyncio.gather(*futures) == [0, 1, 2]
        completions = [asyncio.get_running_loop().create_future() for _ in range(2)]
        writer.submit([bytes(40 * KIB)] * 2, completions)
        assert not writer.has_room
        assert writer.last_add_pushed == 4
        assert await asyncio.gather(*completions) == [3, 4]
        assert writer.has_room
        await writer.close()

    run(test)


def test_new_ledgers_of_one_connection_name_one_owner_which_ends_with_it() -> None:
    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        first, second = await client.create_ledger(), await client.create_ledger()
        third = await other.create_ledger()
        owner = first.metadata.owner
        assert owner and second.metadata.owner == owner != third.metadata.owner
        store = MemoryMetadataStore(world.tree)
        assert await is_alive(store, owner)
        await client.close()
        assert not await is_alive(store, owner)
        assert await is_alive(store, third.metadata.owner)

    run(test)


def test_mapping_that_its_caller_goes_on_using_changes_no_ledger() -> None:
    """Neither the one that is there nor what is written of it later."""

    async def test(world: World) -> None:
        client = await world.client()
        custom = {"app": "x"}
        writer = await client.create_ledger(custom_metadata=custom)
        custom["app"] = "y"
        other = await client.create_ledger(custom_metadata=custom)
        custom.clear()
        for ledger, app in ((writer, "x"), (other, "y")):
            assert ledger.metadata.custom_metadata == {"app": app}
            await ledger.append(b"1")
            await ledger.close()
            stored = await (await world.client()).ledger_metadata(ledger.ledger_id)
            assert stored.is_closed and stored.custom_metadata == {"app": app}

    run(test)


def test_client_knows_how_many_bookies_take_entries() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await world.register("b3", BookieState.READ_ONLY)
        assert [each.bookie_id for each in await client.list_bookies()] == ["b0", "b1", "b2", "b3"]
        assert client.has_bookies_for(3)
        assert not client.has_bookies_for(4), "one of four takes none"

    run_virtually(test)


def test_bookies_are_given_a_sign_of_each_deletion() -> None:
    """Else what the ledger took comes back with their next look, a quarter of an hour later."""

    async def test(world: World) -> None:
        client = await world.client()
        await (await client.create_ledger()).close()
        ledger_ids = await client.list_ledgers()
        before = await read_sign(client.store)
        for ledger_id in ledger_ids:
            await client.delete_ledger(ledger_id)
        await client.close()
        store = MemoryMetadataStore(world.tree)
        assert await read_sign(store) == before + 1
        await store.close()

    run_virtually(test)
