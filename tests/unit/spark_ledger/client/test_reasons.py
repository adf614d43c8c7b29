"""What bookies say of themselves is in the error that a caller gets: operators look there first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.bookie_api import Done
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    EnsembleLostError,
    LedgerError,
    RecoveryError,
)
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.unit.spark_ledger.client.world import World, run_virtually


def stores_nothing(world: World) -> None:
    def refuse(name: BookieId) -> Callable[..., None]:
        def add(_run: object, *, done: Done, **_rest: Any) -> None:
            done(BookieStatus.IO_ERROR, f"the disk of {name} hangs")

        return add

    for name, bookie in world.bookies.items():
        bookie.add = refuse(name)  # type: ignore[method-assign]


def tells_no_end(client: LedgerClient) -> None:
    async def ask(bookie_id: BookieId, *_args: Any, **_options: Any) -> LastConfirmed:
        return LastConfirmed(BookieStatus.IO_ERROR, message=f"the disk of {bookie_id} hangs")

    client.context.transport.read_last_confirmed = ask  # type: ignore[method-assign]


def serves_nothing(client: LedgerClient) -> None:
    async def read(
        bookie_id: BookieId, _ledger_id: Any, first: EntryId, *_args: Any, **_options: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        yield ReadChunk(BookieStatus.IO_ERROR, None, first, f"the disk of {bookie_id} hangs")

    client.context.transport.read = read  # type: ignore[method-assign, assignment]


async def append(world: World, client: LedgerClient, writer: LedgerWriter) -> None:
    stores_nothing(world)
    await writer.append(b"1")


async def open_for_reading(world: World, client: LedgerClient, writer: LedgerWriter) -> None:
    tells_no_end(client)
    await client.open_ledger(writer.ledger_id)


async def read(world: World, client: LedgerClient, writer: LedgerWriter) -> None:
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    serves_nothing(client)
    _ = [entry async for entry in reader.read(0, 0)]


async def recover(world: World, client: LedgerClient, writer: LedgerWriter) -> None:
    tells_no_end(client)
    await client.open_ledger(writer.ledger_id, recover=True)


async def recover_and_write_back(world: World, client: LedgerClient, writer: LedgerWriter) -> None:
    stores_nothing(world)
    await client.open_ledger(writer.ledger_id, recover=True)


@pytest.mark.parametrize(
    ("work", "kind", "named"),
    [
        (append, EnsembleLostError, 2),
        (open_for_reading, BookieUnavailableError, 1),
        (read, DigestMismatchError, 3),
        (recover, RecoveryError, 1),
        (recover_and_write_back, RecoveryError, 2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_error_has_what_the_bookies_said(
    work: Callable[[World, LedgerClient, LedgerWriter], Awaitable[None]],
    kind: type[LedgerError],
    named: int,
) -> None:
    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=1000.0)
        writer = await client.create_ledger()
        await writer.append(b"0")
        with pytest.raises(kind) as raised:
            await work(world, client, writer)
        said = [name for name in world.bookies if f"the disk of {name} hangs" in str(raised.value)]
        assert len(said) == named, raised.value

    run_virtually(test)
