"""Answers what a bookie holds: ranges of a ledger's entries, or ledgers, a part at a time.

A client of a former version does not ask for a page, and gets all pages, one after the other.
"""

from __future__ import annotations

from spark_ledger.bookie_api import BookieApi, Refusal
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.bookie import BOOKIE_LEDGERS_PER_ANSWER
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import status_to_wire


def list_error(request: pb.ListEntriesRequest) -> str:
    """Why the request makes no sense, or ""."""
    if request.ledger_id < 0 or request.first_entry < 0:
        return f"negative ledger id {request.ledger_id} or entry id {request.first_entry}"
    return ""


def refused_list(request: pb.ListEntriesRequest, refusal: Refusal) -> pb.ListEntriesResponse:
    """The only part of an answer that lists nothing."""
    return pb.ListEntriesResponse(
        status=status_to_wire(refusal.status),
        message=refusal.message,
        has_ledgers=request.ledgers,
    )


def next_part(
    bookie: BookieApi, request: pb.ListEntriesRequest, first: int
) -> tuple[pb.ListEntriesResponse, int | None]:
    """One part of the answer, and where the next one begins; None: it was the last. Any thread.

    What cannot be read is never denied (rule S9).
    """
    try:
        if request.ledgers:
            held = bookie.held_ledgers(request.ledger_id - 1, BOOKIE_LEDGERS_PER_ANSWER)
            ids = [each.ledger_id for each in held]
            return pb.ListEntriesResponse(has_ledgers=True, ledger_ids=ids), None
        page = bookie.entry_page(LedgerId(request.ledger_id), EntryId(first))
    except (OSError, CorruptionError) as error:
        return refused_list(request, Refusal(BookieStatus.IO_ERROR, str(error))), None
    if page is None:
        message = f"ledger {request.ledger_id} is not known here"
        return refused_list(request, Refusal(BookieStatus.NO_SUCH_LEDGER, message)), None
    response = pb.ListEntriesResponse()
    for low, high in page.ranges:
        response.ranges.add(first_entry=low, last_entry=high)
    if request.one_page:
        response.next_entry = page.next_entry or 0
        return response, None
    return response, page.next_entry
