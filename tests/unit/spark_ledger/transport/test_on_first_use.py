"""``OnFirstUse``: gRPC is loaded when a bookie is asked, and forks are refused before that."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from spark_ledger.errors import ConfigurationError, LedgerClosedError
from spark_ledger.transport.base import Transport
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.transport.on_first_use import OnFirstUse
from spark_ledger.types import BookieId

ASKS_NO_BOOKIE = """
import asyncio, sys
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.metadata.memory import MemoryMetadataStore
async def main():
    client = await LedgerClient.over(MemoryMetadataStore(), None)
    print(await client.list_ledgers(), "grpc" in sys.modules)
    try:
        await client.context.transport.describe("b1", timeout_s=1.0)
    except BookieUnavailableError:
        print("asked", "grpc" in sys.modules)
    await client.close()
asyncio.run(main())
"""


def test_process_that_asks_no_bookie_does_not_load_grpc() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKS_NO_BOOKIE], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[] False", "asked True"]


class Made:
    """How often a transport was made."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Transport:
        self.count += 1
        return MemoryTransport({})


def test_one_is_made_for_all_uses_and_closed_with_it() -> None:
    made = Made()
    transport = OnFirstUse(made)
    assert made.count == 0
    first, second = transport.describe, transport.describe
    assert made.count == 1
    assert first == second, "of one transport"
    asyncio.run(transport.close())
    with pytest.raises(LedgerClosedError):
        asyncio.run(transport.describe(BookieId("b1"), timeout_s=1.0))
    assert made.count == 1


@pytest.mark.parametrize(
    "name",
    [
        "open_appender",
        "read",
        "read_last_confirmed",
        "write_last_confirmed",
        "list_entries",
        "list_ledgers",
        "describe",
    ],
)
def test_each_call_is_that_of_the_transport_which_was_made(name: str) -> None:
    made = MemoryTransport({})
    assert getattr(OnFirstUse(lambda: made), name) == getattr(made, name)


def test_none_is_made_behind_the_end() -> None:
    made = Made()
    transport = OnFirstUse(made)
    asyncio.run(transport.close())
    with pytest.raises(LedgerClosedError, match="open a new client"):
        asyncio.run(transport.describe(BookieId("b1"), timeout_s=1.0))
    assert made.count == 0


@pytest.mark.parametrize("further", [-1, 1])
def test_forked_child_is_refused_before_it_asks_a_bookie(
    further: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is above that of its parent, until the numbers begin anew."""
    made = Made()
    transport = OnFirstUse(made)
    child = os.getpid() + further
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.raises(LedgerClosedError, match="do not survive a fork"):
        asyncio.run(transport.describe(BookieId("b1"), timeout_s=1.0))
    with pytest.raises(ConfigurationError, match="spawn"):
        OnFirstUse(made)
    assert made.count == 0
