"""Reading a range on the bookie: one chunk at a time in a thread pool, each as one message."""

from __future__ import annotations

from typing import Final

from spark_ledger.bookie_api import BookieApi, LedgerDisks, ReadOutcome
from spark_ledger.limits.entries import READ_CHUNK_BYTES_TARGET, READ_REQUEST_BYTES_MAX
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import encode_read_end, encode_read_response

ONE_DISK: Final = LedgerDisks([""], lambda _ledger_id: 0, lambda *_wanted: None)
"""Of a bookie that has all ledgers in one directory, and does not say what is in memory."""


class RangeRead:
    """Progress of one Read call.

    ``next_messages`` and ``in_memory`` run in threads, one at a time, and change everything here;
    the service thread looks at it only while none of them runs, and no more once it has left one
    that does not end. So there is one owner at any time, and no lock.
    """

    def __init__(
        self, bookie: BookieApi, request: pb.ReadRequest, disks: LedgerDisks = ONE_DISK
    ) -> None:
        self._bookie = bookie
        self._disks = disks
        self._ledger_id = LedgerId(request.ledger_id)
        self._next_entry = EntryId(request.first_entry)
        self._last_entry = EntryId(request.last_entry)
        self._stride = request.stride or 1
        self._bytes_left = min(request.max_bytes or READ_REQUEST_BYTES_MAX, READ_REQUEST_BYTES_MAX)
        self.bytes_read = 0
        self.status = BookieStatus.OK

    @property
    def ended(self) -> bool:
        """The range, the byte limit or an error was reached."""
        return (
            self.status is not BookieStatus.OK
            or self._next_entry > self._last_entry
            or self._bytes_left <= 0
        )

    @property
    def next_entry(self) -> EntryId:
        """Where the next part begins."""
        return self._next_entry

    def next_messages(self) -> list[bytes]:
        """Read one more chunk: the encoded ReadResponses, a run and perhaps the end."""
        outcome = self._bookie.read(
            self._ledger_id,
            self._next_entry,
            self._last_entry,
            stride=self._stride,
            max_bytes=min(self._bytes_left, READ_CHUNK_BYTES_TARGET),
        )
        return self._messages_of(outcome)

    def in_memory(self) -> list[bytes] | None:
        """The same if it is in memory; None: a disk has to be asked."""
        outcome = self._disks.read_in_memory(
            self._ledger_id,
            self._next_entry,
            self._last_entry,
            self._stride,
            min(self._bytes_left, READ_CHUNK_BYTES_TARGET),
        )
        return None if outcome is None else self._messages_of(outcome)

    def _messages_of(self, outcome: ReadOutcome) -> list[bytes]:
        messages: list[bytes] = []
        if outcome.runs:
            size = sum([len(run.frames) for run in outcome.runs])
            self.bytes_read += size
            self._bytes_left -= size
            self._next_entry = EntryId(outcome.runs[-1].last_entry + self._stride)
            if self._bytes_left < len(outcome.runs[-1].frames):
                # The next run is likely to be cut. Whoever asks on gets it whole.
                self._bytes_left = 0
            messages.append(encode_read_response(outcome.runs))
        self.status = outcome.status
        if outcome.status is not BookieStatus.OK:
            messages.append(encode_read_end(outcome.status, outcome.entry_id, outcome.message))
        assert messages, "an OK read has at least one entry"
        return messages


def read_request_error(request: pb.ReadRequest) -> str:
    """Why a ReadRequest makes no sense, or ""."""
    if request.ledger_id < 0 or request.first_entry < 0:
        return f"negative ledger id {request.ledger_id} or entry id {request.first_entry}"
    if request.last_entry < request.first_entry:
        return f"the range {request.first_entry}..{request.last_entry} is empty"
    if request.stride < 0:
        return f"stride {request.stride} is negative"
    return ""
