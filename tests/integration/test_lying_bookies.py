"""Writers and recoveries beside one bookie that lies: never wrong data, never a hang, and with AQ
honest bookies no failure at all (rules P3, P11, P14, P15 and P20)."""

from __future__ import annotations

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.types import LedgerId
from tests.integration.fake_bookie import (
    ADD_LIES,
    LAC_LIES,
    READ_LIES,
    STATUS_LIES,
    FakeCluster,
    run,
)

ENTRIES = [b"entry %d" % number for number in range(20)]


async def payloads(client: LedgerClient, ledger_id: LedgerId, *, recover: bool) -> list[bytes]:
    reader = await client.open_ledger(ledger_id, recover=recover)
    return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]


@pytest.mark.parametrize("lie", [*STATUS_LIES, *ADD_LIES])
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
