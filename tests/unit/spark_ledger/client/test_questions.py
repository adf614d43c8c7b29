"""What a client shows with each question to a bookie: the ledger's key, and how long it waits.

A bookie may have an older ledger with the same id: it refuses whoever shows another key (rule P20).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.limits.client import LAC_DISPUTE_S
from tests.unit.spark_ledger.client.test_last_confirmed import NEVER_S, known_to_one
from tests.unit.spark_ledger.client.world import World, run_virtually

ADD_S, READ_S = 3.0, 7.0
"""The timeouts of the client that asks, each another one."""


class Asked:
    """The kinds of questions of a client, each with the keys and the times that it had."""

    def __init__(self, client: LedgerClient) -> None:
        self.seen: dict[str, set[tuple[bytes, float | None]]] = {}
        for name in ("open_appender", "read", "read_last_confirmed", "write_last_confirmed"):
            ask = getattr(client.context.transport, name)
            setattr(client.context.transport, name, self._noting(name, ask))

    def _noting(self, name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **options: Any) -> Any:
            kind = [name, *(each for each in ("fence", "recovery", "wait_s") if options.get(each))]
            shown = options.get("access_key", b""), options.get("timeout_s")
            self.seen.setdefault(" ".join(kind), set()).add(shown)
            return ask(*args, **options)

        return asked


async def write(world: World, client: LedgerClient) -> LedgerWriter:
    writer = await client.create_ledger()
    await writer.append(b"0")
    await asyncio.sleep(0.1)
    return writer


async def read(world: World, client: LedgerClient) -> LedgerWriter:
    writer = await write(world, await world.client(explicit_lac_delay_s=0.01))
    reader = await client.open_ledger(writer.ledger_id)
    assert [entry.payload async for entry in reader.read(0, 0)] == [b"0"]
    return writer


async def follow(world: World, client: LedgerClient) -> LedgerWriter:
    writer = await write(world, await world.client(explicit_lac_delay_s=0.01))
    reader = await client.open_unconfirmed(writer.ledger_id)
    assert [entry.payload async for entry in reader.tail(0, idle_timeout=0.1)] == [b"0"]
    return writer


async def prove(world: World, client: LedgerClient) -> LedgerWriter:
    writer, _ = await known_to_one(world)
    assert (await client.open_ledger(writer.ledger_id)).last_add_confirmed == 1
    return writer


async def recover(world: World, client: LedgerClient) -> LedgerWriter:
    writer = await write(world, await world.client(explicit_lac_delay_s=NEVER_S))
    assert (await client.open_ledger(writer.ledger_id, recover=True)).last_add_confirmed == 0
    return writer


async def recover_what_was_confirmed(world: World, client: LedgerClient) -> LedgerWriter:
    """Its length is asked for, as a reader asks."""
    writer = await write(world, await world.client(explicit_lac_delay_s=0.01))
    assert (await client.open_ledger(writer.ledger_id, recover=True)).metadata.length == 1
    return writer


Work = Callable[[World, LedgerClient], Awaitable[LedgerWriter]]
RECOVERY: dict[str, float | None] = {
    "read_last_confirmed fence": READ_S,
    "read fence": READ_S,
    "open_appender recovery": None,
}
QUESTIONS: dict[Work, dict[str, float | None]] = {
    write: {"open_appender": None, "write_last_confirmed": ADD_S},
    read: {"read_last_confirmed": READ_S, "read": READ_S},
    follow: {"read_last_confirmed wait_s": READ_S, "read": READ_S},
    prove: {"read_last_confirmed": READ_S, "read": LAC_DISPUTE_S},
    recover: RECOVERY,
    recover_what_was_confirmed: {**RECOVERY, "read": READ_S},
}


@pytest.mark.parametrize("work", QUESTIONS, ids=lambda work: work.__name__)
def test_every_question_shows_the_key_of_its_ledger_and_has_its_own_time(work: Work) -> None:
    async def test(world: World) -> None:
        client = await world.client(
            explicit_lac_delay_s=0.01, add_timeout_s=ADD_S, read_timeout_s=READ_S
        )
        asked = Asked(client)
        key = (await work(world, client))._access_key
        assert key
        assert asked.seen == {kind: {(key, time_s)} for kind, time_s in QUESTIONS[work].items()}

    run_virtually(test, bookies=2 if work is prove else 3)
