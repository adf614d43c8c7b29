"""Tells the bookie what idle writers have confirmed: of all ledgers of a request, in one batch."""

from __future__ import annotations

import asyncio
from functools import partial

from spark_ledger.bookie_api import BookieApi, Refusal
from spark_ledger.limits.entries import CONFIRMATIONS_PER_MESSAGE
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb


def confirm_error(request: pb.WriteLastConfirmedRequest) -> str:
    """Why nothing of the request is done; "" if it is well-formed."""
    if 1 + len(request.more) > CONFIRMATIONS_PER_MESSAGE:
        return f"{1 + len(request.more)} ledgers: at most {CONFIRMATIONS_PER_MESSAGE} are allowed"
    lowest = min([request.ledger_id, *(each.ledger_id for each in request.more)])
    return f"negative ledger id {lowest}" if lowest < 0 else ""


async def confirm_all(bookie: BookieApi, request: pb.WriteLastConfirmedRequest) -> list[Refusal]:
    """What becomes of each ledger of a well-formed request, in its order; OK as well."""
    asked: list[pb.WriteLastConfirmedRequest | pb.LedgerConfirmed] = [request, *request.more]
    answers: list[Refusal | None] = [None] * len(asked)
    all_known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    unknown = len(asked)

    def done(number: int, status: BookieStatus, message: str) -> None:
        nonlocal unknown
        assert answers[number] is None, "each is answered once"
        answers[number] = Refusal(status, message)
        unknown -= 1
        if not unknown and not all_known.done():  # the caller may have gone
            all_known.set_result(None)

    with bookie.batch():
        for number, each in enumerate(asked):
            bookie.write_last_confirmed(
                LedgerId(each.ledger_id),
                EntryId(each.last_add_confirmed),
                access_key=each.access_key,
                done=partial(done, number),
            )
    await all_known
    return [answer for answer in answers if answer is not None]
