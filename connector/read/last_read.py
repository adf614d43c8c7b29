"""LastRead: which segment lies before a position of a query, and whether it is still the same one.

A restored ZooKeeper has forgotten commits, and gives their numbers to others (rule T5). A position
alone does not tell: once the new commits have passed it, the query would go on there, and the rows
below would never be read. So the offsets of a checkpoint name the segment before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.read.commit_cache import CommitCache
from connector.read.offsets import LastSegment
from spark_ledger.errors import (
    CorruptionError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotFoundError,
    RetryableError,
)
from spark_ledger.stream.model import Commit, Head
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream


class LastRead:
    """The segments before the positions of one query. Used by one thread."""

    def __init__(self, stream: Stream, commits: CommitCache) -> None:
        self._stream = stream
        self._commits = commits

    def before(self, position: Dlsn, head: Head) -> LastSegment | None:
        """The segment before a position up to the end of this head; None if nothing lies there, or
        its commit cannot be read: truncated, damaged, or its segment list is lost.

        Its commit is one that the micro-batch reads, so it costs no metadata read of its own.
        Raises RetryableError, MetadataRestoredError, NoSuchStreamError.
        """
        if position <= head.earliest:
            return None
        number = _segment_before(position)
        try:
            commit = self._commits.known(number) or self._commit_of(number, head)
        except (NoSuchStreamError, MetadataRestoredError):
            raise
        except (CorruptionError, NotFoundError):  # who reads its rows is told
            return None
        segment = commit.segment(number)
        return LastSegment(commit.number, segment.first_entry, segment.ledger_id)

    def before_start(self, position: Dlsn, head: Head) -> LastSegment | None:
        """The same where a query starts. It does not read that commit, so it does not wait for the
        bookies that have its segment list: None if they are away."""
        try:
            return self.before(position, head)
        except MetadataUnavailableError:
            raise
        except RetryableError:
            return None

    def _commit_of(self, segment: int, head: Head) -> Commit:
        if segment + 1 == head.next_segment:
            newest = self._stream.commit(head.next_commit - 1)
            if newest.segments:
                return newest
        return self._stream.commit_at(segment)

    def is_before(self, last: LastSegment, position: Dlsn) -> bool:
        """Whether this is the segment before a position: one metadata read. A commit that was
        truncated in this moment, or is damaged, or whose segment list is lost, tells nothing: then
        it is believed."""
        try:
            commit = self._stream.commit(last.commit)
        except (NoSuchStreamError, MetadataRestoredError):
            raise
        except (CorruptionError, NoSuchLedgerError, NoSuchEntryError):
            return True
        except NotFoundError:  # it is not made yet
            return False
        number = _segment_before(position)
        if not commit.first_segment <= number < commit.end_segment:
            return False
        segment = commit.segment(number)
        return (segment.ledger_id, segment.first_entry) == (last.ledger, last.entry)


def _segment_before(position: Dlsn) -> int:
    """The segment that has the row before a position."""
    return position.segment if position > Dlsn(position.segment) else position.segment - 1
