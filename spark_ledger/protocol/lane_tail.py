"""What recovery knows of one lane behind the LAC: which entry is next, and who said what of it.

An entry is known not to have been written only when WQ - AQ + 1 bookies of its write set deny it
(rule P14). Everything that is not such a denial is silence: an error, damage, an end without a
reason, and above all a denial of another entry than the one that is next.
"""

from __future__ import annotations

from spark_ledger.protocol.events import ReadEnded
from spark_ledger.protocol.quorum import Lane, is_not_written
from spark_ledger.types import BookieStatus, EntryId, LedgerMetadata


class LaneTail:
    """One lane: its next entry n, and the replicas that are asked from n on.

    n grows, in steps of the lane's stride. Every answer kept is about n or a later entry: when n
    grows the answers to it are dropped, and the replicas that gave them are asked again.
    """

    def __init__(self, lane: Lane, next_entry: int) -> None:
        assert lane.first_at_or_after(next_entry) == next_entry, "A lane has every E-th entry only."
        self.lane = lane
        self._next_entry = next_entry
        self._reading: set[int] = set()
        self._without_progress: set[int] = set()
        """Indexes that are being read and have brought nothing yet."""
        self._answers: dict[int, ReadEnded] = {}
        """How reads ended, for replicas that ended at the entry that is next."""

    @property
    def next_entry(self) -> int:
        """The lane's first entry that was not found."""
        return self._next_entry

    @property
    def reading(self) -> tuple[int, ...]:
        """The indexes that are being read."""
        return tuple(self._reading)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._reading)

    def on_asked(self, index: int) -> None:
        """A replica is asked for everything from the next entry on."""
        assert index in self.lane.indexes, "Only the write set is asked for an entry."
        assert index not in self._reading, "One question to a replica is open at a time."
        self._reading.add(index)
        self._without_progress.add(index)
        self._answers.pop(index, None)

    def on_entries(self, index: int) -> None:
        """A replica brought something, whether it was new or not."""
        assert index in self.lane.indexes, "Only the write set is asked for an entry."
        self._without_progress.discard(index)

    def on_found(self, last: EntryId) -> None:
        """Entries up to ``last`` exist; what was said of them does not matter any more."""
        assert last >= self._next_entry, "What was found was found before."
        assert (last - self._next_entry) % self.lane.stride == 0, (
            "A lane has every E-th entry only."
        )
        # A denial of an older entry must not count for the new one: two bookies that lack different
        # entries would together "prove" a hole that neither of them saw (rule P14).
        self._next_entry = last + self.lane.stride
        self._answers.clear()

    def idle_indexes(self) -> list[int]:
        """Replicas that are not being read: they ended where another one then went on."""
        return [index for index in self.lane.indexes if index not in self._reading]

    def on_ended(self, event: ReadEnded) -> bool:
        """Take in how a read ended. True: ask the replica again, it has more to say."""
        self._reading.discard(event.bookie_index)
        if event.status is BookieStatus.OK and event.bookie_index not in self._without_progress:
            return True  # the byte cap
        if event.status is not BookieStatus.OK and event.entry_id < self._next_entry:
            return True  # what it says is of an entry that was found elsewhere meanwhile
        assert event.bookie_index in self.lane.indexes, "Who is not asked has no say (rule P14)."
        self._answers[event.bookie_index] = event
        return False

    def is_settled(self, metadata: LedgerMetadata) -> bool:
        """Whether the next entry is known not to have been written (rule P14)."""
        denials = sum(
            answer.status.is_denial and answer.entry_id == self._next_entry
            for answer in self._answers.values()
        )
        return is_not_written(denials, metadata.quorums)

    def needs_refused(self, metadata: LedgerMetadata) -> bool:
        """Whether denials by the bookies that refuse the password would settle the next entry."""
        answers = [a for a in self._answers.values() if a.entry_id == self._next_entry]
        denials = sum(a.status.is_denial for a in answers)
        refusals = sum(a.status is BookieStatus.UNAUTHORIZED for a in self._answers.values())
        return refusals > 0 and is_not_written(denials + refusals, metadata.quorums)

    def describe(self, metadata: LedgerMetadata) -> str:
        """Who said what of the next entry, for an error message."""
        bookies = metadata.last_fragment.bookies
        return ", ".join(
            f"{bookies[index]}: {answer.status.name.lower()}"
            for index, answer in self._answers.items()
        )
