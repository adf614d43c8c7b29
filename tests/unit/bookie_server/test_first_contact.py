"""The first request of a ledger waits until its key was compared with the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_server import ledger_keys
from bookie_server.core.transitions import KnownLedger
from bookie_server.first_contact import Answer as KeyAnswer
from bookie_server.first_contact import CopyAnswer, LookUps
from bookie_server.ledger_keys import MetadataKeys
from spark_ledger.bookie_api import Refusal
from spark_ledger.limits.bookie import ADDS_GO_ON_AT_ONCE, FIRST_CONTACT_TIMEOUT_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
    Versioned,
)
from spark_ledger.wire.frame import access_key_hash
from tests.unit.bookie_server.storage.support import Answer, Machine, expected, formatted
from tests.unit.virtual_time import run_in_virtual_time

OK, UNAUTHORIZED = BookieStatus.OK, BookieStatus.UNAUTHORIZED
BUSY = BookieStatus.TOO_MANY_REQUESTS
KEY = b"the key of the ledger"
L = LedgerId(7)


class SlowKeys:
    """Keeps look-ups until ``answer``."""

    def __init__(self) -> None:
        self.asked: list[tuple[LedgerId, KeyAnswer]] = []

    def look_up(self, ledger_id: LedgerId, answer: KeyAnswer) -> None:
        self.asked.append((ledger_id, answer))

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        raise AssertionError("nobody copies")

    def answer(self, found: KnownLedger | Refusal | None = None) -> None:
        """Answer the oldest look-up; None: with the ledger's key."""
        self.asked.pop(0)[1](KnownLedger(access_key_hash(KEY)) if found is None else found)


@pytest.fixture
def keys() -> SlowKeys:
    return SlowKeys()


@pytest.fixture
def machine(keys: SlowKeys) -> Machine:
    return Machine(formatted(), keys=keys)


def write_lac(machine: Machine, ledger_id: int, *, key: bytes) -> list[Answer]:
    answers: list[Answer] = []
    machine.bookie.write_last_confirmed(
        LedgerId(ledger_id),
        EntryId(2**62),
        access_key=key,
        done=lambda status, message: answers.append((status, message)),
    )
    return answers


REQUESTS: dict[str, Callable[[Machine, bytes], list[Answer]]] = {
    "add": lambda machine, key: machine.start_add(7, [0], key=key),
    "recovery add": lambda machine, key: machine.start_add(7, [0], key=key, recovery=True),
    "fence": lambda machine, key: machine.start_fence(7, key=key),
    "lac": lambda machine, key: write_lac(machine, 7, key=key),
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize("key", [b"", b"a stranger's"])
def test_stranger_claims_no_ledger_that_the_bookie_has_not_heard_of(
    machine: Machine, keys: SlowKeys, request_of: Callable[..., list[Answer]], key: bytes
) -> None:
    answers = request_of(machine, key)
    keys.answer()
    machine.settle()
    ((status, message),) = answers
    assert status is UNAUTHORIZED and "ledger 7" in message
    end = machine.bookie.end_of_ledger(L, access_key=b"")
    assert end.status is BookieStatus.NO_SUCH_LEDGER, "nothing was kept"
    answers = machine.start_add(7, [0], key=KEY)
    keys.answer()
    machine.settle()
    assert answers == [(OK, "")]


def test_requests_wait_in_order_for_one_look(machine: Machine, keys: SlowKeys) -> None:
    first, second = machine.start_add(7, [0], key=KEY), machine.start_add(7, [1], key=KEY)
    fence = machine.start_fence(7, key=KEY)
    late = machine.start_add(7, [2], key=KEY)
    machine.settle()
    assert not (first or second or fence or late) and len(keys.asked) == 1
    assert machine.held(7) == {} and machine.bookie.stats().append_bytes_in_flight == 120
    keys.answer()
    machine.settle()
    assert first == second == fence == [(OK, "")]
    assert late[0][0] is BookieStatus.FENCED, "it came behind the fence"
    assert machine.held(7) == expected(7, [0, 1])
    assert machine.bookie.append_bytes_in_flight == 0
    assert machine.start_add(8, [0], key=KEY) == [] and len(keys.asked) == 1, "one for each ledger"


def test_ledger_with_a_record_is_not_looked_up(machine: Machine, keys: SlowKeys) -> None:
    machine.start_add(7, [0], key=KEY)
    keys.answer()
    machine.settle()
    assert machine.add(7, [1], key=KEY) is OK
    assert machine.fence(7, key=KEY) is OK and not keys.asked


@pytest.mark.parametrize("status", [BUSY, UNAUTHORIZED, BookieStatus.IO_ERROR])
def test_look_up_that_fails_decides_nothing(
    machine: Machine, keys: SlowKeys, status: BookieStatus
) -> None:
    answers = [*REQUESTS.values()]
    waiting = [request_of(machine, KEY) for request_of in answers]
    keys.answer(Refusal(status, "why"))
    machine.settle()
    assert waiting == [[(status, "why")]] * 4
    assert machine.bookie.append_bytes_in_flight == 0
    again = machine.start_add(7, [0], key=KEY)
    keys.answer()
    machine.settle()
    assert again == [(OK, "")] and not machine.is_fenced(7)


def test_adds_that_waited_for_a_key_wait_for_room_as_well(keys: SlowKeys) -> None:
    machine = Machine(formatted(), keys=keys)
    answers = [
        machine.start_add(7, range(n * 10, n * 10 + 10), key=KEY, size=1000) for n in range(20)
    ]
    keys.answer()
    order = [number for number, answer in enumerate(answers) if answer]
    for _ in range(10):
        machine.settle()
        machine.flush()
    assert answers == [[(OK, "")]] * 20 and order == sorted(order)
    assert machine.held(7) == expected(7, range(200), size=1000)


def test_requests_that_waited_for_a_key_go_on_some_at_a_time_and_in_order(keys: SlowKeys) -> None:
    """Ten thousand in one turn would keep the service from everybody else."""
    machine = Machine(formatted(), keys=keys)
    many = 2 * ADDS_GO_ON_AT_ONCE + 1
    answers = [machine.start_add(7, [number], key=KEY) for number in range(many)]
    keys.answer()
    assert len(machine.held(7)) == ADDS_GO_ON_AT_ONCE and len(machine.posted) == 1
    fence = machine.start_fence(7, key=KEY)
    late = machine.start_add(7, [many], key=KEY)
    machine.posted.popleft()()
    assert len(machine.held(7)) == 2 * ADDS_GO_ON_AT_ONCE and not machine.is_fenced(7)
    machine.settle()
    assert answers == [[(OK, "")]] * many and fence == [(OK, "")]
    assert late[0][0] is BookieStatus.FENCED and not keys.asked, "they came behind the others"
    assert machine.held(7) == expected(7, range(many))
    assert machine.start_add(7, [many], key=KEY, recovery=True) == []
    machine.settle()
    assert machine.held(7) == expected(7, range(many + 1)) and not keys.asked


def test_close_refuses_those_that_have_not_gone_on_yet(machine: Machine, keys: SlowKeys) -> None:
    answers = [machine.start_add(7, [number], key=KEY) for number in range(ADDS_GO_ON_AT_ONCE + 2)]
    keys.answer()
    machine.close()
    statuses = [status for answer in answers for status, _message in answer]
    assert statuses == [OK] * ADDS_GO_ON_AT_ONCE + [BookieStatus.IO_ERROR] * 2


def test_close_refuses_what_waits_for_a_key(machine: Machine, keys: SlowKeys) -> None:
    answers = machine.start_add(7, [0], key=KEY)
    machine.close()
    assert answers[0][0] is BookieStatus.IO_ERROR
    keys.answer()
    machine.settle()
    assert len(answers) == 1


def test_request_after_the_close_is_refused_and_looks_nothing_up(keys: SlowKeys) -> None:
    """Nobody would answer it any more, and the drain of the service would wait for it."""
    contacts = LookUps(keys.look_up, lambda _call: None)
    contacts.close()
    answers: list[KnownLedger | Refusal] = []
    contacts.wait(L, answers.append)
    (answer,) = answers
    assert isinstance(answer, Refusal) and answer.status is BookieStatus.IO_ERROR
    assert keys.asked == []


# -- looking up in the metadata ------------------------------------------------------------------


class Lagging(MemoryMetadataStore):
    """A follower that has not heard of any ledger."""

    asked = 0

    async def get(self, path: str) -> Versioned[bytes]:
        self.asked += 1
        return await super().get("nothing/" + path)


async def look_up(store: MetadataStore, count: int = 1) -> list[KnownLedger | Refusal]:
    """What is answered when the same ledger is looked up several times at once."""
    found: list[KnownLedger | Refusal] = []
    keys = MetadataKeys(store)
    for _ in range(count):
        keys.look_up(L, found.append)
    async with asyncio.timeout(10):
        while len(found) < count:
            await asyncio.sleep(0.001)
    return found


def test_closed_ledger_is_found_to_be_closed_behind_a_server_that_lags() -> None:
    """Who is told that it is open would take adds that nobody reads (rule P25)."""

    class Old(MemoryMetadataStore):
        """A follower that has not heard of the close."""

        old: Versioned[bytes] | None = None

        async def get(self, path: str) -> Versioned[bytes]:
            return self.old or await super().get(path)

    async def main() -> None:
        await created(tree := MemoryTree())
        store, ledgers = Old(tree), LedgerStore(MemoryMetadataStore(tree))
        store.old = await store.get(ledger_path(L))
        ledger = await ledgers.read(L)
        closing = replace(ledger.value, state=LedgerState.CLOSED)
        await ledgers.compare_and_set(closing, ledger.version)
        assert await look_up(store) == [KnownLedger(b"k" * 32, is_closed=True)]

    asyncio.run(main())


async def created(tree: MemoryTree, key_hash: bytes = b"k" * 32, ledger_id: LedgerId = L) -> None:
    fragment = Fragment(EntryId(0), (BookieId("b"),))
    await LedgerStore(MemoryMetadataStore(tree)).create(
        LedgerMetadata(ledger_id, Quorums(1, 1, 1), (fragment,), access_key_hash=key_hash)
    )


@pytest.mark.parametrize("key_hash", [b"k" * 32, b""])
@pytest.mark.parametrize("kind", [MemoryMetadataStore, Lagging])
def test_key_is_found_also_behind_a_server_that_lags(
    kind: type[MemoryMetadataStore], key_hash: bytes
) -> None:
    async def main() -> None:
        await created(tree := MemoryTree(), key_hash)
        assert await look_up(kind(tree)) == [KnownLedger(key_hash)]

    asyncio.run(main())


def test_ledger_that_is_not_in_the_metadata_is_refused() -> None:
    async def main() -> None:
        (refusal,) = await look_up(MemoryMetadataStore(MemoryTree()))
        assert isinstance(refusal, Refusal) and "ledger 7" in refusal.message
        assert refusal.status is UNAUTHORIZED and not refusal.status.is_denial

    asyncio.run(main())


def test_metadata_that_are_damaged_are_an_io_error() -> None:
    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        await store.create(ledger_path(L), b"damaged")
        ((status, _message),) = await look_up(store)
        assert status is BookieStatus.IO_ERROR

    asyncio.run(main())


@pytest.mark.parametrize("fault", [Fault(Outcome.UNAVAILABLE), Fault(delay_s=3600.0)])
def test_metadata_that_cannot_be_read_make_the_bookie_busy(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_TIMEOUT_S", 0.05)

    async def main() -> None:
        await created(tree := MemoryTree())
        store = MemoryMetadataStore(tree, interpose=lambda _name, _path: fault)
        ((status, _message),) = await look_up(store)
        assert status is BUSY

    asyncio.run(main())


def test_look_ups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_MAX", 2)
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_WAITING_MAX", 3)
    running, most = 0, 0

    class Counting(MemoryMetadataStore):
        async def get_latest(self, path: str) -> Versioned[bytes]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(3):
                await asyncio.sleep(0)
            running -= 1
            return await super().get_latest(path)

    async def main() -> None:
        await created(tree := MemoryTree())
        found = await look_up(Counting(tree), 8)
        assert [one.status for one in found if isinstance(one, Refusal)] == [BUSY] * 3
        assert found.count(KnownLedger(b"k" * 32)) == 5 and most == 2

    asyncio.run(main())


def test_look_ups_that_wait_for_their_turn_are_given_up_in_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZooKeeper hangs: whoever waits behind others is told that the bookie is busy as soon."""
    monkeypatch.setattr(ledger_keys, "FIRST_CONTACT_LOOKUPS_MAX", 2)

    async def main() -> None:
        store = MemoryMetadataStore(interpose=lambda _name, _path: Fault(delay_s=3600.0))
        found = await look_up(store, 9)
        assert {one.status for one in found if isinstance(one, Refusal)} == {BUSY}
        lasted_s = asyncio.get_running_loop().time()
        assert len(found) == 9 and lasted_s == pytest.approx(FIRST_CONTACT_TIMEOUT_S, abs=0.1)

    run_in_virtual_time(main())
