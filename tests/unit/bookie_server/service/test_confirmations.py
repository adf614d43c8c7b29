"""Confirmations of many ledgers in one request: each ledger gets its own, and its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

import pytest

from bookie_server.service.confirmations import confirm_all, confirm_error
from spark_ledger.bookie_api import BookieApi, Refusal
from spark_ledger.limits.entries import CONFIRMATIONS_PER_MESSAGE
from spark_ledger.types import BookieStatus
from spark_ledger.wire import bookie_pb2 as pb

Asked = tuple[int, int, bytes]


class Writers:
    """A bookie that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: list[Callable[[BookieStatus, str], None]] = []
        self.batches = 0
        self.is_batch = False

    def batch(self) -> AbstractContextManager[None]:
        @contextmanager
        def begun() -> Iterator[None]:
            self.batches, self.is_batch = self.batches + 1, True
            yield
            self.is_batch = False

        return begun()

    def write_last_confirmed(
        self,
        ledger_id: int,
        last_add_confirmed: int,
        *,
        access_key: bytes,
        done: Callable[[BookieStatus, str], None],
    ) -> None:
        assert self.is_batch, "all become durable together"
        self.asked.append((ledger_id, last_add_confirmed, access_key))
        self.answers.append(done)


def request(*each: Asked) -> pb.WriteLastConfirmedRequest:
    (ledger_id, confirmed, key), *others = each
    made = pb.WriteLastConfirmedRequest(
        ledger_id=ledger_id, last_add_confirmed=confirmed, access_key=key
    )
    for other_id, other_confirmed, other_key in others:
        made.more.add(ledger_id=other_id, last_add_confirmed=other_confirmed, access_key=other_key)
    return made


ASKED: list[Asked] = [(7, 70, b"a"), (3, 30, b"b"), (9, 90, b"")]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_each_ledger_is_told_its_own_and_answered_in_its_place(order: tuple[int, ...]) -> None:
    async def main() -> None:
        bookie = Writers()
        task = asyncio.ensure_future(confirm_all(cast("BookieApi", bookie), request(*ASKED)))
        await asyncio.sleep(0)
        assert bookie.asked == ASKED and bookie.batches == 1
        answers = [
            Refusal(BookieStatus.OK, ""),
            Refusal(BookieStatus.FENCED, "ledger 3"),
            Refusal(BookieStatus.UNAUTHORIZED, "ledger 9"),
        ]
        for number in order:
            assert not task.done()
            bookie.answers[number](*answers[number])
            await asyncio.sleep(0)
        assert await task == answers

    asyncio.run(main())


def test_caller_that_left_harms_nobody() -> None:
    async def main() -> None:
        bookie = Writers()
        task = asyncio.ensure_future(confirm_all(cast("BookieApi", bookie), request(*ASKED)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        for done in bookie.answers:
            done(BookieStatus.OK, "")

    asyncio.run(main())


def test_request_of_too_many_or_of_no_ledger_is_refused_as_a_whole() -> None:
    most = [(number, 0, b"") for number in range(CONFIRMATIONS_PER_MESSAGE)]
    assert confirm_error(request(*most)) == ""
    one_more = confirm_error(request(*most, (1, 0, b"")))
    assert f"{len(most) + 1} ledgers: at most {len(most)} " in one_more
    assert confirm_error(request((0, 0, b""))) == ""
    for bad in ([(-4, 0, b"")], [(1, 0, b""), (2, 0, b""), (-4, 0, b"")]):
        assert confirm_error(request(*bad)) == "negative ledger id -4"
