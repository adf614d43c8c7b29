"""What the threads of a journal hand to each other: records that wait, a batch, counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from bookie_server.storage.blocks import Block
from bookie_server.storage.journal.bell import Bell
from spark_ledger.bookie_api import Done
from spark_ledger.types import BookieStatus, LedgerId

_BATCH_RECORDS_MAX: Final = 2_048
"""All of a batch are answered in one turn of the service loop: a few milliseconds for these. It
takes some ten thousand small adds in a second, so a disk that syncs in 20 ms still keeps up."""


class Waiting(NamedTuple):
    """A record that was appended, and who waits for it: nobody any more once it was refused."""

    record_type: int
    body: Block
    done: Done | None
    place: RunPlace | None = None
    """Of a run that is written once."""
    with_next: bool = False
    """It becomes durable together with the record behind it."""

    @property
    def ledger(self) -> bytes:
        """Its ledger's id as it is stored: each body begins with it."""
        return bytes(self.body.buffers[0][:8])

    @property
    def ledger_id(self) -> LedgerId:
        """The same as a number."""
        return LedgerId(int.from_bytes(self.ledger, "big"))

    def in_front(self, record_type: int, body: Block) -> Waiting:
        """A record that becomes durable with this one, or not at all. This one is told of both."""
        return Waiting(record_type, body, _not_told, with_next=True)


def next_batch(queue: deque[Waiting], bytes_max: int) -> list[Waiting]:
    """Take the first of a queue: one record, and more while they are within both bounds.

    Bounded, so that the first of a long queue is not answered as late as the last, in one turn.
    What belongs together goes beyond the bound.
    """
    batch: list[Waiting] = []
    room, records, with_next = bytes_max, _BATCH_RECORDS_MAX, False
    while queue and (with_next or (records > 0 and (not batch or room >= queue[0].body.length))):
        records -= 1
        waiting = queue.popleft()
        with_next = waiting.with_next
        room -= waiting.body.length
        batch.append(waiting)
    return batch


def take_out_of(batch: list[Waiting], durable: Sequence[Waiting]) -> list[Waiting]:
    """Those of a part of a batch that somebody waits for. In the batch nobody does from then on."""
    first = [waiting for waiting in durable if waiting.done is not None]
    told = {id(waiting) for waiting in first}
    batch[:] = (w._replace(done=None) if id(w) in told else w for w in batch)
    return first


def _not_told(_status: BookieStatus, _message: str) -> None:
    """For a record whose answer comes with the one behind it."""


class RunPlace:
    """Where a run that is to be written once has become durable.

    The committer settles it after the sync, and before the marks move behind the run: a checkpoint
    that read the marks knows the place of all that they cover (rule S16). Any thread reads.
    """

    __slots__ = ("directory", "is_settled", "location")

    def __init__(self, directory: int) -> None:
        self.directory = directory
        """The number of the ledger directory whose run log it is meant for."""
        self.location: tuple[int, int] | None = None
        """File of the run log, and offset of the record; None: not there, or not yet."""
        self.is_settled = False
        """Durable there, or, without a location, in the journal."""

    def settle(self, location: tuple[int, int] | None) -> None:
        """Say where it is; once."""
        assert not self.is_settled, "a run becomes durable in one place"
        self.location = location
        self.is_settled = True


class JournalStats(NamedTuple):
    """Counters since the start, and what is in flight. Times are seconds.

    ``bytes_written`` are those of the journal, ``run_log_bytes`` those of the run logs.
    ``last_sync_s`` says whether the next sync is waited for in place; it is 0 before the first.
    """

    records: int
    batches: int
    bytes_written: int
    sync_time_s: float
    last_sync_s: float
    bytes_in_flight: int
    file_number: int
    run_log_bytes: int = 0


class HandedBatch:
    """A batch that the service thread has handed to the journal thread, and waits for.

    To wait for it in place costs two changes of threads. To post its completion costs a turn of
    the event loop on top, as long again as the sync of a quick disk takes. But no thread can be
    called back from a sync, so the one that must not stop is not the one that syncs: it waits for
    a bounded time, and then goes on without the batch.

    Whether it came back in time is settled under the journal's lock: the journal thread hands it
    back while the other one waits, or posts its completion. Never both, as each waiter is told
    once; and never neither.

    A batch that was refused comes back empty at once: its waiters are told by a post, and the
    service thread has to be there to run that.
    """

    __slots__ = ("_bell", "_durable", "_is_back")

    def __init__(self, bell: Bell) -> None:
        """``bell`` is rung once it is back."""
        self._bell = bell
        # Under the journal's lock.
        self._durable: list[Waiting] = []  # and not completed
        self._is_back = False

    def hand_back(self, durable: list[Waiting]) -> None:
        """The batch was committed; empty if that failed. Journal thread, under the lock, and
        ``ring`` follows without it.

        After it the batch belongs to the service thread, also if that has just stopped waiting: it
        looks once more, under the same lock.
        """
        self._durable = durable
        self._is_back = True

    def ring(self) -> None:
        """End the wait. Journal thread, without the lock: who is woken wants it."""
        self._bell.ring()

    def wait(self, timeout_s: float) -> None:
        """Return once it is back, or so long has passed. Service thread, without the lock."""
        self._bell.rings_within(timeout_s)

    def take_back(self) -> list[Waiting]:
        """What is to be completed; nothing if it is not back. Service thread, under the lock."""
        if self._is_back:
            self._bell.take()  # if it did not ring yet it does at once, and the next batch uses it
        return self._durable
