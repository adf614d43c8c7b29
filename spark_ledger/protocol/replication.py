"""The members of one ensemble: what was sent to each, what each holds, which have failed.

Shared by the append machine and by recovery's write-back. One number per member suffices, because
a bookie answers one appender in order: ``acked_to`` says that the bookie holds every entry of the
member up to it, counted from where the member was installed. Entries before that are confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_ledger.protocol.events import CloseAppender, Command, OpenAppender, SendEntries
from spark_ledger.protocol.quorum import (
    can_confirm,
    confirmed_end,
    last_entry_of_index,
)
from spark_ledger.types import BookieId, EntryId, Quorums


class EnsembleMember:
    """One place in the ensemble."""

    __slots__ = ("acked_to", "bookie_id", "failed", "retry_at", "sent_to", "silent_since")

    def __init__(self, bookie_id: BookieId, acked_to: int, now: float) -> None:
        self.bookie_id = bookie_id
        self.acked_to = acked_to
        self.sent_to = acked_to
        self.failed = False
        self.retry_at = now
        """A failed member without a replacement: when to look for one again."""
        self.silent_since = now
        """When the bookie last had nothing to answer, or answered."""


class Replication:
    """Slots, and what follows from them. All rules about "who must hold what" are asked here."""

    def __init__(
        self, quorums: Quorums, bookies: Sequence[BookieId], last_confirmed: int, now: float
    ) -> None:
        assert len(bookies) == quorums.ensemble_size, "an ensemble has E members"
        self.quorums = quorums
        self.members = [EnsembleMember(bookie, last_confirmed, now) for bookie in bookies]
        self.last_pushed = last_confirmed
        self._failed_before: set[BookieId] = set()
        """Bookies that failed and have acknowledged nothing since."""

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The ensemble in member order."""
        return tuple(member.bookie_id for member in self.members)

    @property
    def live_bookies(self) -> tuple[BookieId, ...]:
        return tuple(member.bookie_id for member in self.members if not member.failed)

    @property
    def failed_indexes(self) -> frozenset[int]:
        return frozenset(index for index, member in enumerate(self.members) if member.failed)

    def failed_due(self, now: float) -> tuple[int, ...]:
        """Failed members for which a replacement should be looked for now."""
        return tuple(
            i for i, member in enumerate(self.members) if member.failed and member.retry_at <= now
        )

    def can_confirm(self) -> bool:
        """Whether the members that have not failed can still give every entry AQ copies."""
        return can_confirm(self.failed_indexes, self.quorums)

    def open_all(self) -> list[Command]:
        """Appenders for a fresh ensemble."""
        return [OpenAppender(i, member.bookie_id) for i, member in enumerate(self.members)]

    def push(self, last: int, now: float) -> list[Command]:
        """Entries up to ``last`` exist now: send them to the live members."""
        assert last > self.last_pushed, "ids only grow"
        first, self.last_pushed = self.last_pushed + 1, last
        commands: list[Command] = []
        for index, member in enumerate(self.members):
            if member.failed:
                continue
            if not self._outstanding(index):
                member.silent_since = now
            commands.extend(self._send(index, first))
        return commands

    def acknowledge(self, index: int, bookie_id: BookieId, last: int, now: float) -> bool:
        """A bookie holds its member's entries up to ``last``. False: a stale or repeated answer."""
        member = self.members[index]
        if member.bookie_id != bookie_id or last <= member.acked_to:
            return False
        if last > member.sent_to:
            return False  # a bookie cannot hold what was never sent to it
        member.acked_to = last
        member.silent_since = now
        self._failed_before.discard(bookie_id)
        return True

    def fail(self, index: int, bookie_id: BookieId, now: float, retry_s: float) -> bool:
        """A bookie failed. False: it no longer stands in the member, or was known to have failed.

        A replacement is due at once, but only after ``retry_s`` when the bookie has failed before
        and done nothing since: it was the last resort, so the next choice would be no better, and
        a bookie that answers yet refuses to store would be chosen again as fast as it can refuse.
        """
        member = self.members[index]
        if member.bookie_id != bookie_id or member.failed:
            return False
        member.failed = True
        member.retry_at = now + retry_s if bookie_id in self._failed_before else now
        self._failed_before.add(bookie_id)
        return True

    def retry_now(self, now: float) -> None:
        """Look for replacements of all failed members now, however recently it was tried."""
        for member in self.members:
            member.retry_at = min(member.retry_at, now)

    def confirmed_end(self) -> EntryId:
        """The highest entry up to which all have AQ copies in this ensemble."""
        acked = [member.acked_to for member in self.members]
        return confirmed_end(acked, self.last_pushed, self.quorums)

    def held_by_all_live(self) -> int:
        """The highest entry up to which no live member owes an acknowledgement."""
        held = self.last_pushed
        for member in self.members:
            if member.acked_to < held and member.sent_to > member.acked_to and not member.failed:
                held = member.acked_to
        return held

    def silent_indexes(self, now: float, silence_s: float) -> list[int]:
        """Live members that owe an acknowledgement and have given none for so long."""
        return [
            index
            for index, member in enumerate(self.members)
            if not member.failed
            and self._outstanding(index)
            and now - member.silent_since >= silence_s
        ]

    def dispensable_indexes(self, now: float, silence_s: float) -> list[int]:
        """Silent members without which every entry still gets AQ copies: slow, holding us up.

        Who answers has to suffice: when so many stand still that nothing is confirmed, giving them
        up would not help, and might cost the ledger.
        """
        silent = self.silent_indexes(now, silence_s)
        return silent if can_confirm(self.failed_indexes.union(silent), self.quorums) else []

    def install(
        self, replacements: Mapping[int, BookieId], last_confirmed: int, now: float
    ) -> list[Command]:
        """Put bookies into members and resend to them all that is not confirmed.

        Every replaced member forgets its acknowledgements here, before the caller may confirm
        anything: an entry must not count a copy on a bookie that metadata no longer name
        (DESIGN 5.4).
        """
        for index, bookie_id in replacements.items():
            self.members[index] = EnsembleMember(bookie_id, last_confirmed, now)
        commands: list[Command] = []
        for index, bookie_id in sorted(replacements.items()):
            commands.append(OpenAppender(index, bookie_id))
            commands.extend(self._send(index, last_confirmed + 1))
        return commands

    def close_all(self) -> list[Command]:
        """No more appends."""
        return [CloseAppender(index) for index in range(len(self.members))]

    def _send(self, index: int, first: int) -> list[Command]:
        member = self.members[index]
        last = last_entry_of_index(index, self.last_pushed, self.quorums)
        if last < first:
            return []
        member.sent_to = last
        return [SendEntries(index, EntryId(first), EntryId(last))]

    def _outstanding(self, index: int) -> bool:
        member = self.members[index]
        return member.sent_to > member.acked_to
