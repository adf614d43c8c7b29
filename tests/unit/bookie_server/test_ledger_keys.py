"""Look-ups of keys: what ends badly is answered too, and what has ended makes room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie_server import ledger_keys
from bookie_server.core.copies import CopyGrant
from bookie_server.core.transitions import KnownLedger
from bookie_server.ledger_keys import MetadataKeys
from spark_ledger.bookie_api import Refusal
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import BookieStatus, LedgerId, LedgerState, Versioned
from tests.unit.bookie_server.collection.test_orders_of_a_backup import backup_of
from tests.unit.bookie_server.test_first_contact import L, created

ANSWERS = KnownLedger | CopyGrant | Refusal
KINDS = ["look_up", "look_up_copy"]


async def ask(keys: MetadataKeys, kind: str, ledger_id: LedgerId = L) -> ANSWERS:
    found: asyncio.Future[ANSWERS] = asyncio.get_running_loop().create_future()
    look_up: Callable[[LedgerId, Callable[[ANSWERS], None]], None] = getattr(keys, kind)
    look_up(ledger_id, found.set_result)
    return await asyncio.wait_for(found, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_request_is_answered_although_its_look_up_ends_by_a_bug(kind: str) -> None:
    class Broken(MemoryMetadataStore):
        async def get_latest(self, path: str) -> Versioned[bytes]:
            raise RuntimeError(path)

    async def main() -> None:
        seen: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: seen.append(what))
        keys = MetadataKeys(Broken())
        answer = await ask(keys, kind)
        assert isinstance(answer, Refusal)
        assert answer.status is BookieStatus.TOO_MANY_REQUESTS, "nothing is known of the ledger"
        assert keys.found == 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_request_is_answered_although_its_look_up_is_cancelled(kind: str) -> None:
    """The loop cancels what is left when a bookie stops."""

    class Hung(MemoryMetadataStore):
        async def get_latest(self, path: str) -> Versioned[bytes]:
            await asyncio.Event().wait()
            return await super().get_latest(path)

    async def main() -> None:
        keys = MetadataKeys(Hung())
        asking = asyncio.ensure_future(ask(keys, kind))
        await asyncio.sleep(0.01)
        (task,) = keys._tasks
        task.cancel()
        assert isinstance(await asking, Refusal)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_look_ups_that_have_ended_make_room_for_others(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_MAX", 1)
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_WAITING_MAX", 2)

    async def main() -> None:
        await created(tree := MemoryTree())
        keys = MetadataKeys(MemoryMetadataStore(tree))
        for _ in range(5):
            assert not isinstance(await ask(keys, kind), Refusal)
            assert isinstance(await ask(keys, kind, LedgerId(8)), Refusal)
        assert keys.found == 5, "a ledger that does not exist is not one that was taken"
        await asyncio.sleep(0)
        assert not keys._tasks, "they would be kept for ever, and counted in what is refused"

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_ledger_that_went_back_in_a_restore_is_looked_up_without_a_new_start(kind: str) -> None:
    """This bookie has seen it closed, and repair copies it here."""

    async def main() -> None:
        await created(tree := MemoryTree())
        restore, keys = backup_of(tree), MetadataKeys(store := tree.open_session())
        ledgers = LedgerStore(tree.open_session())
        found = await ledgers.read(L)
        closed = found.value.with_changes(state=LedgerState.CLOSED)
        await ledgers.compare_and_set(closed, found.version)
        assert not isinstance(await ask(keys, kind), Refusal)
        restore()
        store.reconnect()
        assert not isinstance(await ask(keys, kind), Refusal)
        assert keys.found == 2

    asyncio.run(main())
