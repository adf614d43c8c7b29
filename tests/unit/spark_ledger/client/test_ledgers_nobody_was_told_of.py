"""Ledgers whose creator was not told of them: a reply was lost, or the caller left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    LedgerError,
    LedgerTakenOverError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from spark_ledger.limits.client import LEFT_OPEN_DELAY_S
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.metadata.unsettled import OPEN_PATH, pages
from spark_ledger.types import LedgerId, LedgerMetadata, LedgerState
from tests.unit.spark_ledger.client.world import World, run, run_virtually

LOST, NEVER_SENT, AWAY = Outcome.LOST_REPLY, Outcome.LOST_REQUEST, Outcome.UNAVAILABLE


def transactions(*faults: Fault, reads: Outcome = Outcome.NORMAL) -> Callable[[str, str], Fault]:
    """What happens to the first transactions; the others are done."""
    left = list(faults)

    def interpose(name: str, _path: str) -> Fault:
        if name == "get":
            return Fault(reads)
        return left.pop(0) if name == "transaction" and left else Fault()

    return interpose


async def ready(world: World) -> LedgerClient:
    """A client that has announced itself and has ids: only the ledger itself is to be made."""
    client = await world.client()
    await (await client.create_ledger()).close()
    return client


def memory(client: LedgerClient) -> MemoryMetadataStore:
    """The client's store."""
    assert isinstance(client.store, MemoryMetadataStore)
    return client.store


async def left_open(client: LedgerClient) -> list[LedgerId]:
    """The ledgers that are not closed, by their metadata or by the index."""
    found = [
        ledger_id
        for ledger_id in await client.list_ledgers()
        if not (await client.ledger_metadata(ledger_id)).is_closed
    ]
    listed = [ledger_id async for page in pages(client.store, OPEN_PATH) for ledger_id in page.ids]
    return sorted({*found, *listed})


@pytest.mark.parametrize("password", [b"", b"secret"])
@pytest.mark.parametrize(
    "then",
    [[AWAY], [NEVER_SENT] * (METADATA_ATTEMPTS - 1), [NEVER_SENT, AWAY], []],
    ids=["away", "never answers", "away at last", "cannot be read"],
)
def test_ledger_whose_creator_heard_no_reply_is_closed_later(
    then: list[Outcome], password: bytes
) -> None:
    """ZooKeeper breaks after the ledger was made, and does not answer the next attempts."""

    async def test(world: World) -> None:
        client = await ready(world)
        memory(client).interpose = transactions(Fault(LOST), *map(Fault, then), reads=AWAY)
        with pytest.raises(OutcomeUnknownError, match="may or may not have been created"):
            await client.create_ledger(password=password)
        memory(client).interpose = None
        assert len(await left_open(client)) == 1
        async with asyncio.timeout(10 * LEFT_OPEN_DELAY_S):
            while await left_open(client):
                await asyncio.sleep(LEFT_OPEN_DELAY_S / 10)
        (_, ledger_id) = await client.list_ledgers()
        metadata = await client.ledger_metadata(ledger_id)
        assert metadata.last_entry_id == -1 and metadata.length == 0

    (run if password else run_virtually)(test)


def test_ledger_whose_caller_leaves_is_closed_later() -> None:
    """What was sent happens, whoever waits for the answer."""

    async def test(world: World) -> None:
        client = await ready(world)
        transaction = client.store.transaction
        underway: list[asyncio.Future[None]] = []

        async def sent(operations: Sequence[Operation]) -> None:
            underway.append(asyncio.ensure_future(transaction(operations)))
            await asyncio.shield(underway[-1])

        client.store.transaction = sent  # type: ignore[method-assign]
        for turns in range(12):
            creating = asyncio.ensure_future(client.create_ledger())
            for _ in range(turns):
                await asyncio.sleep(0)
            creating.cancel()
            (made,) = await asyncio.gather(creating, return_exceptions=True)
            if not isinstance(made, BaseException):
                await made.close()
        await asyncio.gather(*underway)
        assert await left_open(client)
        await asyncio.sleep(12 * LEFT_OPEN_DELAY_S)
        assert await left_open(client) == []

    run_virtually(test)


def test_ledger_of_another_client_that_has_the_id_is_not_closed() -> None:
    """As after a restored ZooKeeper, which gives ids again."""

    async def test(world: World) -> None:
        client, other = await ready(world), await ready(world)
        memory(client).interpose = transactions(Fault(NEVER_SENT), Fault(AWAY))
        take, taken = client.context.ledgers.new_ledger_id, list[LedgerId]()

        async def take_noted() -> LedgerId:
            taken.append(await take())
            return taken[-1]

        client.context.ledgers.new_ledger_id = take_noted  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknownError):
            await client.create_ledger()

        async def same_id() -> LedgerId:
            return taken[-1]

        other.context.ledgers.new_ledger_id = same_id  # type: ignore[method-assign]
        writer = await other.create_ledger()
        await asyncio.sleep(5 * LEFT_OPEN_DELAY_S)
        assert client._left_open.ledger_ids == []
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
        assert await writer.append(b"goes on") == 0
        await writer.close()

    run_virtually(test)


@pytest.mark.parametrize("first", [AWAY, NEVER_SENT])
def test_ledger_that_was_not_made_leaves_nothing_to_be_closed(first: Outcome) -> None:
    async def test(world: World) -> None:
        client = await ready(world)
        memory(client).interpose = transactions(Fault(first), Fault(AWAY))
        error = MetadataUnavailableError if first is AWAY else OutcomeUnknownError
        with pytest.raises(error):
            await client.create_ledger()
        assert len(client._left_open.ledger_ids) == (0 if first is AWAY else 1)
        await asyncio.sleep(2 * LEFT_OPEN_DELAY_S)
        assert client._left_open.ledger_ids == []
        assert len(await client.list_ledgers()) == 1

    run_virtually(test)


@pytest.mark.parametrize("first", [LOST, NEVER_SENT])
def test_delete_that_was_sent_before_zookeeper_went_away_may_have_happened(first: Outcome) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.close()
        outcomes = [first, AWAY, AWAY]

        def interpose(name: str, _path: str) -> Fault:
            return Fault(outcomes.pop(0)) if name == "delete" else Fault()

        memory(client).interpose = interpose
        with pytest.raises(OutcomeUnknownError, match="may or may not have been deleted"):
            await client.delete_ledger(writer.ledger_id)
        with pytest.raises(MetadataUnavailableError):
            await client.delete_ledger(writer.ledger_id)
        memory(client).interpose = None
        assert len(await client.list_ledgers()) == (0 if first is LOST else 1)

    run_virtually(test)


@pytest.mark.parametrize("closes", [True, False])
def test_ledger_that_was_recovered_before_its_creator_was_told_is_taken_over(closes: bool) -> None:
    async def test(world: World) -> None:
        client, other = await ready(world), await world.client()
        memory(client).interpose = transactions(Fault(LOST), Fault(delay_s=5.0))
        creating = asyncio.ensure_future(client.create_ledger())
        await asyncio.sleep(1.0)
        (_, ledger_id) = await other.list_ledgers()
        if closes:
            await other.open_ledger(ledger_id, recover=True)
        else:
            await mark(other, await other.ledger_metadata(ledger_id))
        with pytest.raises(LedgerTakenOverError, match="another client recovered it"):
            await creating
        assert isinstance(creating.exception(), LedgerError)

    run_virtually(test)


async def mark(client: LedgerClient, metadata: LedgerMetadata) -> None:
    """A recovery begins, and does not end."""
    marked = metadata.with_changes(state=LedgerState.IN_RECOVERY)
    await client.context.ledgers.compare_and_set(marked, 0)
