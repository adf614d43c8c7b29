"""What bookies' answers may be: looked at before they are decoded, and before anybody uses them.

gRPC takes messages of 17 MiB, for entries. Made of small parts, one of another kind would stop the
loop for seconds and take fifty times its size in memory; so none is decoded that is longer than an
honest one can be. All functions raise MalformedMessageError if an answer is none.
"""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from spark_ledger.errors import MalformedMessageError
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import BOOKIE_LEDGERS_PER_ANSWER, BOOKIE_RANGES_PER_PAGE
from spark_ledger.transport.base import BookieDescription, ListedEntries
from spark_ledger.transport.channel import said
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import status_from_wire

MessageT = TypeVar("MessageT", bound=Message)

ANSWER_BYTES_MAX: Final = 1 * MIB
"""An answer without entries: some numbers and sentences. Protobuf decodes so much in no time."""

LIST_ANSWERS_MAX: Final = 1_000
"""Answers of one call that lists a ledger's entries. There is one; only a bookie of a former
version has more, and of a large ledger in stripes a hundred for each million entries."""

_SECONDS_END: Final = 2**40
"""No age, and no time since 1970, has so many seconds: 35 thousand years."""


def decoded(kind: type[MessageT], data: bytes) -> MessageT:
    """The message that an answer is."""
    if len(data) > ANSWER_BYTES_MAX:
        raise MalformedMessageError(f"its answer is too long: {len(data)} bytes")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MalformedMessageError("its answer is malformed") from error


def page_of(first: EntryId, data: bytes) -> ListedEntries:
    """What an answer lists from an entry on. One that leads back would have a caller ask for ever.
    A bookie of a former version begins with the first entry whatever it is asked."""
    answer = decoded(pb.ListEntriesResponse, data)
    if answer.status != pb.OK:
        return ListedEntries(status_from_wire(answer.status), [])
    if len(answer.ranges) > BOOKIE_RANGES_PER_PAGE:
        raise MalformedMessageError(f"its answer has {len(answer.ranges)} ranges")
    if answer.next_entry and answer.next_entry <= first:
        raise MalformedMessageError("its answer leads back")
    ranges = [
        (EntryId(max(each.first_entry, first)), EntryId(each.last_entry))
        for each in answer.ranges
        if each.last_entry >= first
    ]
    return ListedEntries(BookieStatus.OK, ranges, EntryId(answer.next_entry) or None)


def ledgers_of(first: LedgerId, data: bytes) -> tuple[BookieStatus, list[LedgerId]]:
    """The ledgers that an answer lists from one on. Ids that do not ascend would have a caller ask
    for ever. BAD_REQUEST if it lists entries, or none because no such ledger is known."""
    answer = decoded(pb.ListEntriesResponse, data)
    if not answer.has_ledgers:
        return BookieStatus.BAD_REQUEST, []
    if answer.status != pb.OK:
        return status_from_wire(answer.status), []
    if len(answer.ledger_ids) > BOOKIE_LEDGERS_PER_ANSWER:
        raise MalformedMessageError(f"its answer has {len(answer.ledger_ids)} ledgers")
    found = [LedgerId(each) for each in answer.ledger_ids]
    before = first - 1
    for each in found:
        if each <= before:
            raise MalformedMessageError("its answer does not ascend")
        before = each
    return BookieStatus.OK, found


def description_of(bookie_id: BookieId, answer: pb.DescribeResponse) -> BookieDescription:
    """What a bookie says about itself, fit to be shown."""
    if answer.bookie_id != bookie_id:
        raise MalformedMessageError(f"it says that it is {said(answer.bookie_id)!r}")
    for seconds in (answer.uptime_s, answer.scrubbed_at):
        if not 0 <= seconds < _SECONDS_END:  # nor is NaN
            raise MalformedMessageError(f"its answer is malformed: {seconds} s are no time")
    return BookieDescription(
        bookie_id,
        said(answer.cluster_id),
        said(answer.version),
        said(answer.state),
        answer.ledgers,
        answer.journal_bytes,
        answer.entry_log_bytes,
        answer.free_bytes,
        answer.uptime_s,
        answer.next_ledger_id,
        answer.scrubbed_at,
        answer.damaged,
        answer.lacking,
    )
