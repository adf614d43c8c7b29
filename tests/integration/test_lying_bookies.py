"""Writers and recoveries beside one bookie that lies: never wrong data, never a hang, and with AQ
honest bookies no failure at all (rules P3, P11, P14, P15 and P20)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.types import BookieStatus, LedgerId
from tests.integration.fake_bookie import (
    ADD_LIES,
    CONFIRM_LIES,
    LAC_LIES,
    LIST_LIES,
    READ_LIES,
    STATUS_LIES,
    FakeCluster,
    run,
)

ENTRIES = [b"entry %d" % number for number in range(20)]


async def payloads(client: LedgerClient, ledger_id: LedgerId, *, recover: bool) -> list[bytes]:
    reader = await client.open_ledger(ledger_id, recover=recover)
    return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]


@pytest.mark.parametrize("lie", [*STATUS_LIES, *ADD_LIES, *CONFIRM_LIES])
@pytest.mark.parametrize("spares", [1, 0])
def test_writer_beside_one_liar_confirms_everything(lie: str, spares: int) -> None:
    async def test(cluster: FakeCluster) -> None:
        client = await cluster.client()
        writer = await client.create_ledger()
        for payload in ENTRIES[:5]:
            await writer.append(payload)
        cluster[writer.metadata.fragments[0].bookies[1]].lie = lie
        for payload in ENTRIES[5:]:
            await writer.append(payload)
        if lie in CONFIRM_LIES:
            await asyncio.sleep(0.2)  # a writer that is idle tells what is confirmed
        await writer.close()
        assert await payloads(client, writer.ledger_id, recover=False) == ENTRIES

    run(test, bookies=3 + spares)


@pytest.mark.parametrize("lie", [*STATUS_LIES, *ADD_LIES, *READ_LIES, *LAC_LIES])
def test_recovery_beside_one_liar_finds_everything(lie: str) -> None:
    async def test(cluster: FakeCluster) -> None:
        client = await cluster.client()
        writer = await client.create_ledger()
        for payload in ENTRIES:
            await writer.append(payload)
        cluster[writer.metadata.fragments[0].bookies[0]].lie = lie
        other = await cluster.client()
        assert await payloads(other, writer.ledger_id, recover=True) == ENTRIES

    run(test)


@pytest.mark.parametrize("lie", READ_LIES)
@pytest.mark.parametrize("also", LAC_LIES)
def test_reader_beside_one_that_lies_about_entries_and_their_end_sees_it_or_is_told(
    lie: str, also: str
) -> None:
    """With AQ = 1 each bookie may be the only one that knows of an entry: each has to prove what it
    says, and one that cannot has not answered (rule P5)."""

    async def test(cluster: FakeCluster) -> None:
        client = await cluster.client()
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=1)
        for payload in ENTRIES:
            await writer.append(payload)
        await asyncio.sleep(0.2)  # that it was idle is told to all
        other = await cluster.client()
        reader = await other.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed >= len(ENTRIES) - 2
        cluster[writer.metadata.fragments[0].bookies[0]].tell(lie, also)
        asked: list[Callable[[], Awaitable[object]]] = [
            reader.refresh,
            lambda: other.open_ledger(writer.ledger_id),
        ]
        for ask in asked:
            try:
                await ask()
            except BookieUnavailableError:
                assert also == "confirms-too-much", "nobody says what cannot be proved"
        assert reader.last_add_confirmed < len(ENTRIES), "a lie is believed"
        tail = reader.tail(0, idle_timeout=1.0)
        got = [entry.payload async for entry in tail]
        assert got == ENTRIES[: len(got)] and len(got) >= len(ENTRIES) - 1

    run(test, bookies=3)


@pytest.mark.parametrize("lie", LIST_LIES)
def test_bookie_that_lists_too_much_counts_as_one_that_cannot_say_what_it_holds(lie: str) -> None:
    async def test(cluster: FakeCluster) -> None:
        client = await cluster.client()
        writer = await client.create_ledger()
        await writer.append(ENTRIES[0])
        liar, honest, _ = writer.metadata.fragments[0].bookies
        cluster[liar].lie = lie
        listed = await client.context.transport.list_entries(liar, writer.ledger_id, timeout_s=30.0)
        assert listed == (BookieStatus.IO_ERROR, [], None)
        listed = await client.context.transport.list_entries(honest, writer.ledger_id, timeout_s=30)
        assert listed == (BookieStatus.OK, [(0, 0)], None)

    run(test)


def test_bookies_that_are_all_busy_for_a_moment_are_asked_again() -> None:
    """Nothing was decided: no bookie has failed, and nobody is told of an error (rule P11)."""

    async def test(cluster: FakeCluster) -> None:
        client = await cluster.client()
        writer = await client.create_ledger()
        for number, payload in enumerate(ENTRIES):
            if number % 5 == 0:
                for bookie in cluster.bookies:
                    bookie.honest.busy = 3
            await writer.append(payload)
        assert not writer.failed_indexes and len(writer.metadata.fragments) == 1

    run(test, bookies=3)


def test_all_bookies_stall_for_several_add_timeouts_and_nothing_is_sent_twice() -> None:
    async def test(cluster: FakeCluster) -> None:
        client = await cluster.client(add_timeout_s=0.3)
        writer = await client.create_ledger()
        await writer.append(ENTRIES[0])
        for bookie in cluster.bookies:
            bookie.honest.hold = True
        appended = writer.append_nowait(ENTRIES[1])
        await asyncio.sleep(2.0)  # that nothing happens meanwhile is what is tested
        assert not appended.done() and not writer.failed_indexes
        for bookie in cluster.bookies:
            bookie.honest.hold = False
            bookie.honest.release()
        assert await appended == 1
        assert len(writer.metadata.fragments) == 1
        assert [len(bookie.honest.adds) for bookie in cluster.bookies] == [2, 2, 2]

    run(test, bookies=3)


def test_recovery_asks_busy_bookies_again() -> None:
    async def test(cluster: FakeCluster) -> None:
        client = await cluster.client(explicit_lac_delay_s=60.0)
        writer = await client.create_ledger()
        await asyncio.gather(*map(writer.append_nowait, ENTRIES))  # none of them carries a LAC
        for bookie in cluster.bookies:
            bookie.honest.busy = bookie.honest.busy_reads = 2
        other = await cluster.client()
        assert await payloads(other, writer.ledger_id, recover=True) == ENTRIES

    run(test, bookies=3)
