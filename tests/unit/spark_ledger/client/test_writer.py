"""A writer's shell: what its entries carry, whom it tells what, and how it comes to an end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    EnsembleLostError,
    FencedError,
    LedgerError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from spark_ledger.limits import KIB
from spark_ledger.limits.client import MACHINE_TICK_S
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.types import LedgerState
from tests.unit.spark_ledger.client.world import World, run, run_virtually


def lose(client: LedgerClient, operation: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The next operations of this kind on ledgers end so; what is left of the list."""
    store, left = client.store, list(outcomes)
    assert isinstance(store, MemoryMetadataStore)

    def interpose(name: str, path: str) -> Fault:
        is_meant = left and name == operation and path.startswith("ledgers/")
        return Fault(left.pop(0)) if is_meant else Fault()

    store.interpose = interpose
    return left


def test_frame_carries_the_last_add_confirmed_of_when_it_was_sent() -> None:
    """Readers of an open ledger, and recovery, begin with this number."""

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=10.0)
        writer = await client.create_ledger()
        for n in range(4):
            await writer.append(b"%d" % n)
        await asyncio.gather(*(writer.append_nowait(b"together") for _ in range(3)))
        seen = await (await world.client()).open_ledger(writer.ledger_id)
        assert 3 <= seen.last_add_confirmed < 6, "the last ones told of those before the burst"
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        told = [entry.last_add_confirmed async for entry in reader.read(0, 6)]
        assert told[:5] == [-1, 0, 1, 2, 3]
        assert all(3 <= lac < entry_id for entry_id, lac in enumerate(told) if entry_id >= 5)
        lengths = [entry.length async for entry in reader.read(0, 6)]
        assert lengths == [1, 2, 3, 4, 12, 20, 28]

    run_virtually(test)


def test_frame_never_names_unconfirmed_entries_as_confirmed() -> None:
    """Else a reader would be shown what may yet be lost."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        futures = []
        for n in range(3):
            futures.append(writer.append_nowait(b"%d" % n))
            await asyncio.sleep(0.01)
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        await asyncio.gather(*futures)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.last_add_confirmed async for entry in reader.read(0, 2)] == [-1, -1, -1]

    run_virtually(test)


def test_an_idle_writer_tells_readers_its_last_entry_with_its_key() -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger(password=b"secret")
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id, password=b"secret")
        async with asyncio.timeout(5):
            while reader.last_add_confirmed < 0:
                await asyncio.sleep(0.01)
                await reader.refresh()

    # In real time: a password is turned into keys in a thread.
    run(test)


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_a_lost_answer_of_the_metadata_store_is_looked_up(outcome: Outcome) -> None:
    """To the change of an ensemble, and to closing: neither is taken for a failure."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        world.kill(writer.metadata.last_fragment.bookies[0])
        left = lose(client, "put", [outcome])
        await writer.append(b"1")
        async with asyncio.timeout(5):
            while len(writer.metadata.fragments) < 2:
                await writer.append(b"more")
        assert not left
        left = lose(client, "transaction", [outcome])
        await writer.close()
        assert not left
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.is_closed
        assert reader.last_add_confirmed == writer.last_add_confirmed

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_a_recovery_looks_lost_answers_up(outcome: Outcome) -> None:
    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        store = other.store
        assert isinstance(store, MemoryMetadataStore)
        script = {"put": [outcome], "transaction": [outcome]}

        def interpose(name: str, path: str) -> Fault:
            outcomes = script.get(name, []) if path.startswith("ledgers/") else []
            return Fault(outcomes.pop(0)) if outcomes else Fault()

        store.interpose = interpose
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert script == {"put": [], "transaction": []}, "marking and closing"
        assert reader.metadata.state is LedgerState.CLOSED
        assert reader.last_add_confirmed == 0

    run_virtually(test)


def test_lost_reply_is_looked_up_when_the_store_is_back() -> None:
    async def test(world: World) -> None:
        client = await world.client(metadata_timeout_s=5.0)
        writer = await client.create_ledger()
        await writer.append(b"0")
        store = client.store
        assert isinstance(store, MemoryMetadataStore)
        script = {"transaction": [Outcome.LOST_REPLY], "get": [Outcome.UNAVAILABLE]}

        def interpose(name: str, path: str) -> Fault:
            outcomes = script.get(name, []) if path.startswith("ledgers/") else []
            return Fault(outcomes.pop(0)) if outcomes else Fault()

        store.interpose = interpose
        await writer.close()
        assert script == {"transaction": [], "get": []}

    run_virtually(test)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Outcome.LOST_REPLY, OutcomeUnknownError),  # the ledger is closed, and nobody can see it
        (Outcome.LOST_REQUEST, OutcomeUnknownError),
        (Outcome.UNAVAILABLE, MetadataUnavailableError),
    ],
)
def test_close_with_store_away_for_good_says_whether_it_may_have_happened(
    reply: Outcome, error: type[LedgerError]
) -> None:
    async def test(world: World) -> None:
        client = await world.client(metadata_timeout_s=0.1)
        writer = await client.create_ledger()
        await writer.append(b"0")
        store = client.store
        assert isinstance(store, MemoryMetadataStore)
        store.interpose = lambda name, _path: Fault(
            reply if name == "transaction" else Outcome.UNAVAILABLE
        )
        async with asyncio.timeout(10):
            with pytest.raises(error) as raised:
                await writer.close()
        assert raised.value.outcome_unknown is (error is OutcomeUnknownError)

    run_virtually(test)


def test_closing_waits_for_what_was_appended_without_waiting() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        futures = [writer.append_nowait(b"%d" % n) for n in range(5)]
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0.35)  # longer than the slowest replica is given
        assert not closing.done()
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        await closing
        assert await asyncio.gather(*futures) == [0, 1, 2, 3, 4]
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.payload async for entry in reader.read(0, 4)] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
        ]

    run_virtually(test)


@pytest.mark.parametrize("before", [0, 2])
def test_closing_gives_the_slowest_replica_a_moment(before: int) -> None:
    """Its entries are confirmed without it, but should be on all of their bookies."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        slow = world.bookies[writer.metadata.last_fragment.bookies[2]]
        for _ in range(before):
            await writer.append(b"all have this")
        await asyncio.sleep(0.02)
        slow.hold = True
        await writer.append(b"0")
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0.02)
        assert not closing.done()
        slow.hold = False
        slow.release()
        await closing
        assert list(slow.ledgers[writer.ledger_id].entries) == [*range(before + 1)]

    run_virtually(test)


def test_takeover_fails_adds_in_flight_and_queued() -> None:
    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        ledgers = other._context.ledgers
        stored = await ledgers.read(writer.ledger_id)
        marked = stored.value.with_changes(state=LedgerState.IN_RECOVERY)
        await ledgers.compare_and_set(marked, stored.version)
        for bookie in world.bookies.values():
            bookie.ledgers[writer.ledger_id].fenced = True
        futures = [writer.append_nowait(b"in flight") for _ in range(3)]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [FencedError] * 3
        with pytest.raises(FencedError):
            writer.append_nowait(b"late")
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 0

    run_virtually(test)


def test_room_comes_back_as_entries_are_confirmed() -> None:
    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        futures = [writer.append_nowait(bytes(40 * KIB)) for _ in range(2)]
        assert not writer.has_room
        waiting = asyncio.create_task(writer.append(bytes(40 * KIB)))
        await asyncio.sleep(0.02)
        assert writer.last_add_pushed == 1, "the third waits for room"
        for bookie in world.bookies.values():
            bookie.hold = False
            bookie.release()
        async with asyncio.timeout(5):
            assert await waiting == 2
            assert await asyncio.gather(*futures) == [0, 1]
            for n in range(3, 20):
                assert await writer.append(bytes(40 * KIB)) == n

    run_virtually(test)


def test_room_that_the_slowest_bookie_makes_is_given_at_once() -> None:
    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()
        slow = world.bookies[writer.metadata.last_fragment.bookies[0]]
        slow.hold = True
        await writer.append_many([bytes(32 * KIB)] * 2)
        assert not writer.has_room, "the slowest bookie counts, whatever is confirmed"
        waiting = asyncio.create_task(writer.wait_for_room())
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        slow.hold = False
        slow.release()
        await waiting
        assert loop.time() - began < MACHINE_TICK_S

    run_virtually(test)


def test_close_does_not_wait_for_a_tick_to_see_that_all_hold_all() -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=10.0)
        writer = await client.create_ledger()
        await writer.append(b"entry")
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await writer.close()
        assert loop.time() - began < MACHINE_TICK_S

    run_virtually(test)


def test_producer_waiting_for_room_is_told_of_the_end() -> None:
    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        futures = [writer.append_nowait(bytes(40 * KIB)) for _ in range(2)]
        flushing = asyncio.create_task(writer.flush())
        waiting = asyncio.create_task(writer.append(b"waits for room"))
        await asyncio.sleep(0.02)
        for name in list(world.bookies):
            world.kill(name)
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*futures, flushing, waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EnsembleLostError] * 4

    run_virtually(test)


def test_a_dead_bookie_is_not_taken_for_its_own_replacement() -> None:
    """There is no other: the ledger goes on without it, and its metadata stay as they are."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        world.kill(writer.metadata.last_fragment.bookies[0])
        for _ in range(20):
            await writer.append(b"more")
        assert writer.failed_indexes == {0}
        assert len(writer.metadata.fragments) == 1
        await writer.close()

    run_virtually(test)


def test_closed_ledger_counts_as_load_of_no_bookie() -> None:
    """New ledgers go where few of this client's are; what was counted wrong would be avoided."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        first = writer.metadata.last_fragment.bookies[0]
        world.kill(first)
        await writer.append(b"replaced")
        assert client._context.load[first] == 0
        (replacement,) = {*writer.metadata.last_fragment.bookies} - {
            *writer.metadata.fragments[0].bookies
        }
        assert client._context.load[replacement] == 1
        await (await world.client()).open_ledger(writer.ledger_id, recover=True)
        world.kill(replacement)  # the change that it asks for is refused: the ledger is closed
        with pytest.raises(FencedError):
            await writer.append(b"too late")
        await writer.close()
        assert set(client._context.load.values()) == {0}

    run_virtually(test, bookies=5)
