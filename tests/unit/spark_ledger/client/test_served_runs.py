"""What a bookie serves is believed only if it is what was asked for: readers and recovery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import DigestMismatchError, RecoveryError
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually

Serve = Callable[[EntryRun], EntryRun | None]
PAYLOADS = [b"0", b"1", b"2"]


def serving(client: LedgerClient, name: str, serve: Serve) -> None:
    """The runs that this client gets from one bookie are replaced; by None: not sent at all."""
    transport = client._context.transport
    honest = transport.read

    async def read(bookie_id: str, *args: Any, **kwargs: Any) -> AsyncGenerator[ReadChunk, None]:
        async for chunk in honest(bookie_id, *args, **kwargs):  # type: ignore[arg-type]
            if chunk.run is None or bookie_id != name:
                yield chunk
            elif (served := serve(chunk.run)) is not None:
                yield chunk._replace(run=served)

    transport.read = read  # type: ignore[method-assign]


def run_of(ledger_id: int, first_entry: int, frames: list[bytes]) -> EntryRun:
    return EntryRun(
        LedgerId(ledger_id), EntryId(first_entry), None, [len(f) for f in frames], b"".join(frames)
    )


def empty(found: EntryRun) -> EntryRun:
    return run_of(found.ledger_id, found.first_entry, [])


def under_another_number(found: EntryRun) -> EntryRun:
    return run_of(found.ledger_id, found.first_entry + 1, [found.frames])


def with_numbers_that_are_too_few(found: EntryRun) -> EntryRun:
    one = [found.frames, found.frames]
    return EntryRun(found.ledger_id, found.first_entry, [found.first_entry], [*map(len, one)], b"")


async def written(client: LedgerClient, payloads: list[bytes], quorum: int) -> tuple[int, str]:
    """A ledger with these entries that is open still, and its first bookie."""
    writer = await client.create_ledger(
        ensemble_size=quorum, write_quorum=quorum, ack_quorum=quorum
    )
    for payload in payloads:
        await writer.append(payload)
    return writer.ledger_id, writer.metadata.last_fragment.bookies[0]


async def read(client: LedgerClient, ledger_id: int, last: int, hint: int) -> list[bytes]:
    reader = await client.open_unconfirmed(ledger_id)
    entries = reader.read(0, last, unconfirmed=True, replica_hint=hint)
    return [entry.payload async for entry in entries]


def test_entries_of_another_ledger_are_not_those_asked_for() -> None:
    """Their digests match: CRCs have no key."""

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=10.0)
        other, _ = await written(client, [b"x", b"y"], 1)
        ledger_id, bookie = await written(client, [b"0", b"1"], 1)
        frames = world.bookies[bookie].ledgers[other].entries  # type: ignore[index]
        serving(
            client, bookie, lambda run: run_of(other, run.first_entry, [frames[run.first_entry]])
        )
        with pytest.raises(DigestMismatchError, match=f"got ledger {other}"):
            await read(client, ledger_id, 1, 0)
        with pytest.raises(RecoveryError):
            await client.open_ledger(ledger_id, recover=True)

    run_virtually(test, bookies=1)


@pytest.mark.parametrize("serve", [empty, under_another_number, with_numbers_that_are_too_few])
def test_what_was_not_asked_for_is_fetched_from_another_replica(serve: Serve) -> None:
    """A bookie that answers nonsense is passed over, as one whose copy is damaged."""

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=10.0)
        ledger_id, bookie = await written(client, PAYLOADS, 2)
        serving(client, bookie, serve)
        assert await read(client, ledger_id, 2, 0) == PAYLOADS
        assert await read(client, ledger_id, 2, 1) == PAYLOADS
        recovered = await client.open_ledger(ledger_id, recover=True)
        assert [entry.payload async for entry in recovered.read(0, 2)] == PAYLOADS

    run_virtually(test, bookies=2)


def test_nothing_is_delivered_beyond_the_entry_that_was_asked_for_last() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledger_id, bookie = await written(client, PAYLOADS, 1)
        frames = world.bookies[bookie].ledgers[LedgerId(ledger_id)].entries  # type: ignore[index]
        rest = [frames[1], frames[2]]
        serving(client, bookie, lambda r: run_of(ledger_id, 1, rest) if r.first_entry == 1 else r)
        with pytest.raises(DigestMismatchError, match="asked for"):
            await read(client, ledger_id, 1, 0)

    run_virtually(test, bookies=1)


def test_an_answer_that_just_ends_is_no_denial() -> None:
    """It brought nothing and denied nothing: a recovery does not cut the ledger there."""

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=10.0)
        ledger_id, _bookie = await written(client, PAYLOADS, 1)
        transport = client._context.transport

        async def nothing(*_args: Any, **_kwargs: Any) -> AsyncGenerator[ReadChunk, None]:
            return
            yield

        transport.read = nothing  # type: ignore[method-assign]
        with pytest.raises(RecoveryError):
            await client.open_ledger(ledger_id, recover=True)

    run_virtually(test, bookies=1)


def test_entries_before_a_damaged_one_are_delivered() -> None:
    """All of it was in one answer; the error names the entry that is damaged."""

    async def test(world: World) -> None:
        client = await world.client()
        ledger_id, bookie = await written(client, PAYLOADS, 1)
        frames = dict(world.bookies[bookie].ledgers[LedgerId(ledger_id)].entries)  # type: ignore[index]
        damaged = frames[1][:-1] + b"?"
        served = run_of(ledger_id, 0, [frames[0], damaged, frames[2]])
        serving(client, bookie, lambda r: served if r.first_entry == 0 else None)
        reader = await client.open_unconfirmed(ledger_id)
        got: list[bytes] = []
        with pytest.raises(DigestMismatchError, match=f"ledger {ledger_id} entry 1"):
            async for entry in reader.read(0, 2, unconfirmed=True):
                got.append(entry.payload)  # noqa: PERF401 - what came before the error
        assert got == [b"0"]

    run_virtually(test, bookies=1)


def test_a_reader_that_is_not_read_from_fetches_no_more() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledger_id, bookie = await written(client, [b"%d" % n for n in range(40)], 1)
        served: list[int] = []

        def counted(found: EntryRun) -> EntryRun:
            served.append(found.first_entry)
            return found

        serving(client, bookie, counted)
        reader = await client.open_unconfirmed(ledger_id)
        batches = reader.read_batches(0, 39, unconfirmed=True)
        got = list(await anext(batches))
        await asyncio.sleep(0.05)
        assert len(served) <= 8, "a few answers ahead of its consumer"
        async for batch in batches:
            got += batch
        assert [entry.entry_id for entry in got] == list(range(40))

    run_virtually(test, bookies=1)


@pytest.mark.parametrize("damaged", range(3))
def test_damaged_entry_of_an_answer_is_read_from_another_replica(damaged: int) -> None:
    """And no other is left out: reading goes on exactly where the damage is."""

    async def test(world: World) -> None:
        client = await world.client()
        ledger_id, bookie = await written(client, PAYLOADS, 2)
        frames = dict(world.bookies[bookie].ledgers[LedgerId(ledger_id)].entries)  # type: ignore[index]
        given = [frames[n][:-1] + b"?" if n == damaged else frames[n] for n in range(3)]
        served = run_of(ledger_id, 0, given)
        serving(client, bookie, lambda r: served if r.first_entry == 0 else None)
        assert await read(client, ledger_id, 2, hint=0) == PAYLOADS

    run_virtually(test, bookies=2)
