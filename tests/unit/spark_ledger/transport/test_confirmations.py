"""What idle writers tell one bookie shares calls, and each of them hears of its own ledger."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from spark_ledger.errors import LedgerClosedError
from spark_ledger.limits.client import CONFIRMATION_CALLS_MAX
from spark_ledger.limits.entries import CONFIRMATIONS_PER_MESSAGE
from spark_ledger.transport.confirmations import Confirmations
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.spark_ledger.transport.test_answer_timeout import in_virtual_time

OK, FENCED = BookieStatus.OK, BookieStatus.FENCED
MOST = CONFIRMATIONS_PER_MESSAGE


class Bookie:
    """Refuses odd ledgers; answers once it is told to, if ``holds``."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.timeouts: list[float] = []
        self.holds = False
        self.is_old = False
        self.says_more = 0
        self.failure: BookieStatus | Exception | None = None
        self._go_on = asyncio.Event()
        self.confirmations = Confirmations(self._ask)

    async def _ask(
        self, request: pb.WriteLastConfirmedRequest, timeout_s: float
    ) -> pb.WriteLastConfirmedResponse | BookieStatus:
        ledgers = [request.ledger_id, *(each.ledger_id for each in request.more)]
        assert [request.last_add_confirmed, *(m.last_add_confirmed for m in request.more)] == [
            10 * ledger_id for ledger_id in ledgers
        ]
        keys = [request.access_key, *(each.access_key for each in request.more)]
        assert keys == [b"key of %d" % ledger_id for ledger_id in ledgers]
        self.asked.append(ledgers)
        self.timeouts.append(timeout_s)
        if self.holds:
            await self._go_on.wait()
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            return self.failure
        first, *more = [pb.FENCED if ledger_id % 2 else pb.OK for ledger_id in ledgers]
        more += [pb.OK] * self.says_more
        return pb.WriteLastConfirmedResponse(status=first, more=[] if self.is_old else more)

    def go_on(self) -> None:
        self.holds = False
        self._go_on.set()

    def tell(self, ledger_id: int, timeout_s: float = 1.0) -> asyncio.Future[BookieStatus]:
        return self.confirmations.tell(
            LedgerId(ledger_id),
            EntryId(10 * ledger_id),
            access_key=b"key of %d" % ledger_id,
            timeout_s=timeout_s,
        )


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_virtual_time
async def test_bookie_that_speaks_of_ledgers_it_was_not_told_of_is_not_believed() -> None:
    bookie = Bookie()
    bookie.says_more = 1
    told = [bookie.tell(1), bookie.tell(2)]
    assert await asyncio.gather(*told) == [BookieStatus.IO_ERROR] * 2
    bookie.says_more = 0
    assert await bookie.tell(2) is OK


@in_virtual_time
async def test_tellings_of_one_turn_share_a_call() -> None:
    bookie = Bookie()
    told = [bookie.tell(1, 3.0), bookie.tell(2, 5.0), bookie.tell(4)]
    assert await asyncio.gather(*told) == [FENCED, OK, OK]
    assert (bookie.asked, bookie.timeouts) == ([[1, 2, 4]], [5.0])


@in_virtual_time
async def test_more_than_a_message_holds_take_several_calls_in_order() -> None:
    bookie = Bookie()
    for number in range(3):
        assert await bookie.tell(2 * number) is OK
    bookie.asked.clear()
    told = [bookie.tell(2 * number) for number in range(2 * MOST + 1)]
    assert set(await asyncio.gather(*told)) == {OK}
    assert [len(ledgers) for ledgers in bookie.asked] == [MOST, MOST, 1]
    assert list(chain(*bookie.asked)) == [2 * number for number in range(2 * MOST + 1)]


@in_virtual_time
async def test_calls_of_one_turn_do_not_wait_for_each_other() -> None:
    bookie = Bookie()
    bookie.holds = True
    told = [bookie.tell(2 * number) for number in range((CONFIRMATION_CALLS_MAX + 1) * MOST)]
    await settle()
    assert [len(ledgers) for ledgers in bookie.asked] == [MOST] * CONFIRMATION_CALLS_MAX
    bookie.go_on()
    assert set(await asyncio.gather(*told)) == {OK}
    assert len(bookie.asked) == CONFIRMATION_CALLS_MAX + 1


@in_virtual_time
async def test_tellings_beside_a_slow_bookie_wait_and_share_the_next_call() -> None:
    bookie = Bookie()
    bookie.holds = True
    told = []
    for number in range(CONFIRMATION_CALLS_MAX + 20):
        told.append(bookie.tell(number))
        await settle()
    assert bookie.asked == [[number] for number in range(CONFIRMATION_CALLS_MAX)]
    bookie.go_on()
    answers = await asyncio.gather(*told)
    assert answers == [FENCED if number % 2 else OK for number in range(len(told))]
    assert len(bookie.asked) == CONFIRMATION_CALLS_MAX + 1


@in_virtual_time
async def test_older_bookie_that_sees_the_first_only_is_told_all() -> None:
    """Singly, until one that answers in full has come in its place."""
    bookie = Bookie()
    bookie.is_old = True
    told = [bookie.tell(number) for number in range(9)]
    assert await asyncio.gather(*told) == [FENCED if n % 2 else OK for n in range(9)]
    assert [ledgers[0] for ledgers in bookie.asked] == list(range(9)), "in order"
    bookie.is_old = False
    bookie.asked.clear()
    told = [bookie.tell(number) for number in range(2 * MOST)]
    assert await asyncio.gather(*told) == [FENCED if n % 2 else OK for n in range(2 * MOST)]
    assert list(chain(*bookie.asked)) == list(range(2 * MOST))
    assert len(bookie.asked) < 40, "calls are not single for ever"


@in_virtual_time
async def test_failure_of_a_call_is_that_of_each_telling() -> None:
    bookie = Bookie()
    bookie.failure = BookieStatus.UNAVAILABLE
    assert {*await asyncio.gather(bookie.tell(1), bookie.tell(2))} == {BookieStatus.UNAVAILABLE}
    bookie.failure = LedgerClosedError("the transport is closed")
    first, second = bookie.tell(1), bookie.tell(2)
    for told in (first, second):
        with pytest.raises(LedgerClosedError):
            await told
    bookie.failure = None
    assert await bookie.tell(2) is OK


@in_virtual_time
async def test_caller_that_leaves_does_not_keep_others_from_their_error() -> None:
    bookie = Bookie()
    bookie.holds = True
    bookie.failure = LedgerClosedError("the transport is closed")
    leaves, stays = bookie.tell(2), bookie.tell(4)
    await settle()
    leaves.cancel()
    bookie.go_on()
    with pytest.raises(LedgerClosedError):
        await stays


@in_virtual_time
async def test_caller_that_leaves_does_not_keep_others_from_their_answer() -> None:
    bookie = Bookie()
    bookie.holds = True
    leaves, stays = bookie.tell(2), bookie.tell(4)
    await settle()
    leaves.cancel()
    bookie.go_on()
    assert await stays is OK
    await bookie.confirmations.close()
    assert leaves.cancelled()


@in_virtual_time
async def test_close_waits_for_the_calls() -> None:
    bookie = Bookie()
    bookie.holds = True
    told = bookie.tell(2)
    await settle()
    closing = asyncio.ensure_future(bookie.confirmations.close())
    await settle()
    assert not closing.done()
    bookie.go_on()
    await closing
    assert told.done()


@in_virtual_time
async def test_close_waits_also_for_the_calls_that_follow() -> None:
    bookie = Bookie()
    bookie.holds = True
    told = []
    for number in range(CONFIRMATION_CALLS_MAX + 2):
        told.append(bookie.tell(2 * number))
        await settle()
    closing = asyncio.ensure_future(bookie.confirmations.close())
    await settle()
    first, bookie._go_on = bookie._go_on, asyncio.Event()
    first.set()
    await settle()
    assert not told[-1].done() and not closing.done()
    bookie.go_on()
    await closing
    assert all(each.done() for each in told)


@in_virtual_time
async def test_call_that_is_cancelled_cancels_its_tellings_and_no_others() -> None:
    """As at the end of the application's loop: who tells does not wait for ever."""
    bookie = Bookie()
    bookie.holds = True
    told = [bookie.tell(1), bookie.tell(2)]
    await settle()
    (call,) = bookie.confirmations._calls
    later = bookie.tell(3)
    call.cancel()
    await asyncio.wait(told, timeout=1.0)
    assert all(each.cancelled() for each in told)
    bookie.go_on()
    assert await later is FENCED


@in_virtual_time
async def test_tellings_that_nobody_waits_for_any_more_are_not_sent() -> None:
    """As of writers that closed their ledgers beside a bookie that hangs."""
    bookie = Bookie()
    bookie.holds = True
    for number in range(CONFIRMATION_CALLS_MAX):
        bookie.tell(2 * number)
        await settle()
    bookie.asked.clear()
    left = [bookie.tell(2 * number) for number in range(20 * MOST)]
    stays = [bookie.tell(2 * number) for number in range(3)]
    for telling in left:
        telling.cancel()
    bookie.go_on()
    assert await asyncio.gather(*stays) == [OK] * 3
    assert bookie.asked == [[0, 2, 4]]
