"""The members of one ensemble: what was sent to each, what each holds, which have failed.

Shared by the append machine and by recovery's write-back. One number per member suffices, because
a bookie answers one appender in order (rule P3): ``acked_to`` says that the bookie holds every
entry of its index up to it, counted from where the bookie was installed. Entries before that are
confirmed, so nobody asks this bookie about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_ledger.protocol.events import (
    BookiesChosen,
    ChooseBookies,
    CloseAppender,
    Command,
    OpenAppender,
    SendEntries,
)
from spark_ledger.protocol.quorum import (
    can_confirm,
    confirmed_end,
    last_entry_of_index,
)
from spark_ledger.types import BookieId, EntryId, Quorums


class EnsembleMember:
    """A bookie at one index of the ensemble. Replaced as a whole, never given another bookie.

    With C the last add confirmed when the bookie was installed, and P the last entry pushed:

        C <= acked_to <= sent_to <= P
        failed  =>  sent_to does not grow

    ``acked_to`` never goes back while the bookie stands here; a new member starts at C, which is
    how its predecessor's acknowledgements are forgotten (rule P8).
    """

    __slots__ = ("acked_to", "bookie_id", "failed", "retry_at", "sent_to", "silent_since")

    def __init__(self, bookie_id: BookieId, last_confirmed: int, now: float) -> None:
        self.bookie_id = bookie_id
        self.acked_to = last_confirmed
        self.sent_to = last_confirmed
        self.failed = False
        self.retry_at = now
        """A failed member without a replacement: when to look for one again."""
        self.silent_since = now
        """When the bookie last had nothing to answer, or answered."""


class Replication:
    """The members, and what follows from them: every rule about "who must hold what".

    With L the last add confirmed of the machine that owns this, P = ``last_pushed``, and w(i) the
    highest entry up to P that index i stores:

        L <= P
        acked_to(i) <= sent_to(i) <= P                    for every index i
        not failed(i)  =>  sent_to(i) >= w(i)             whoever lives is sent all of its own
        confirmed_end() = max e: every entry up to e is
            acknowledged by AQ members of its write set   L never passes it

    Failed members count in the last line: a bookie holds what it acknowledged, and it stays in the
    metadata until it is replaced.
    """

    def __init__(
        self, quorums: Quorums, bookies: Sequence[BookieId], last_confirmed: int, now: float
    ) -> None:
        assert len(bookies) == quorums.ensemble_size, "An ensemble has E members."
        assert len(set(bookies)) == len(bookies), "A bookie stands at one index only."
        assert last_confirmed >= -1, "Entries count from 0."
        self._quorums = quorums
        self._members = [EnsembleMember(bookie, last_confirmed, now) for bookie in bookies]
        self._last_pushed = last_confirmed
        self._asked: tuple[int, ...] = ()
        """The indexes for which replacements are being looked for; empty if none are."""
        self._failed_before: set[BookieId] = set()
        """Bookies that failed and have acknowledged nothing since."""

    # -- state -------------------------------------------------------------------------------------

    @property
    def last_pushed(self) -> int:
        """The last entry that exists: everything up to it is for the members to store."""
        return self._last_pushed

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The ensemble in index order."""
        return tuple(member.bookie_id for member in self._members)

    @property
    def live_bookies(self) -> tuple[BookieId, ...]:
        """The bookies that have not failed, in index order."""
        return tuple(member.bookie_id for member in self._members if not member.failed)

    @property
    def failed_indexes(self) -> frozenset[int]:
        """Indexes whose bookie failed and has not been replaced."""
        return frozenset(index for index, member in enumerate(self._members) if member.failed)

    @property
    def failed_bookies(self) -> tuple[BookieId, ...]:
        """The bookies that failed and have not been replaced, in index order."""
        return tuple(member.bookie_id for member in self._members if member.failed)

    @property
    def is_choosing(self) -> bool:
        """Whether replacements are being looked for."""
        return bool(self._asked)

    def can_confirm(self) -> bool:
        """Whether the members that have not failed can still give every entry AQ copies."""
        return can_confirm(self.failed_indexes, self._quorums)

    def confirmed_end(self) -> EntryId:
        """The highest entry up to which all have AQ copies in this ensemble (rule P4)."""
        acked = [member.acked_to for member in self._members]
        return confirmed_end(acked, self._last_pushed, self._quorums)

    def held_by_all_live(self) -> int:
        """The highest entry up to which no live member owes an acknowledgement."""
        held = self._last_pushed
        for member in self._members:
            if member.acked_to < held and member.sent_to > member.acked_to and not member.failed:
                held = member.acked_to
        assert held <= self._last_pushed, "Nobody holds what does not exist."
        return held

    # -- sending -----------------------------------------------------------------------------------

    def open_all(self) -> list[Command]:
        """Appenders for a fresh ensemble."""
        return [OpenAppender(i, member.bookie_id) for i, member in enumerate(self._members)]

    def push(self, last: int, now: float) -> list[Command]:
        """Entries up to ``last`` exist now: send them to the live members."""
        assert last > self._last_pushed, "Entry ids only grow (rule P2)."
        first, self._last_pushed = self._last_pushed + 1, last
        commands: list[Command] = []
        for index, member in enumerate(self._members):
            if member.failed:
                continue  # its appender is closed; a replacement is sent all that is unconfirmed
            if not self._owes(member):
                # Silence counts from the first entry owed (rule P11): a bookie that was asked
                # nothing for an hour has not been silent for an hour.
                member.silent_since = now
            commands.extend(self._send(index, first))
        self._check()
        return commands

    def acknowledge(self, index: int, bookie_id: BookieId, last: int, now: float) -> bool:
        """A bookie holds its entries up to ``last``. False: a stale or repeated answer."""
        member = self._members[index]
        # A late answer of the bookie that stood here before says nothing of the one that does now:
        # counting it would confirm an entry by a copy that the metadata do not name (rule P8).
        if member.bookie_id != bookie_id or last <= member.acked_to:
            return False
        if last > member.sent_to:
            return False  # a bookie cannot hold what was never sent to it
        member.acked_to = last
        member.silent_since = now
        self._failed_before.discard(bookie_id)
        return True

    # -- failures ----------------------------------------------------------------------------------

    def fail(self, index: int, bookie_id: BookieId, now: float, retry_s: float) -> bool:
        """A bookie failed. False: it no longer stands at the index, or was known to have failed.

        A replacement is due at once, but only after ``retry_s`` when the bookie has failed before
        and done nothing since: it was the last resort, so the next choice would be no better, and
        a bookie that answers yet refuses to store would be chosen again as fast as it can refuse.
        """
        member = self._members[index]
        if member.bookie_id != bookie_id or member.failed:
            return False
        member.failed = True
        member.retry_at = now + retry_s if bookie_id in self._failed_before else now
        self._failed_before.add(bookie_id)
        return True

    def fail_silent(self, indexes: Sequence[int], now: float, retry_s: float) -> list[Command]:
        """Members that said nothing for too long fail, all in one step, so that one ensemble
        change replaces them all (rule P11)."""
        commands: list[Command] = []
        for index in indexes:
            failed = self.fail(index, self._members[index].bookie_id, now, retry_s)
            assert failed, "Only a live member is silent."
            commands.append(CloseAppender(index))
        return commands

    def retry_now(self, now: float) -> None:
        """Look for replacements of all failed members now, however recently it was tried."""
        for member in self._members:
            member.retry_at = min(member.retry_at, now)

    def silent_indexes(self, now: float, silence_s: float) -> list[int]:
        """Live members that owe an acknowledgement and have given none for so long (rule P11)."""
        return [
            index
            for index, member in enumerate(self._members)
            if not member.failed and self._owes(member) and now - member.silent_since >= silence_s
        ]

    def next_silence(self, silence_s: float) -> float | None:
        """When a member will be silent for so long if it goes on saying nothing."""
        since: float | None = None  # a loop: this runs after each event of a writer
        for member in self._members:
            if (
                member.sent_to > member.acked_to
                and not member.failed
                and (since is None or member.silent_since < since)
            ):
                since = member.silent_since
        return None if since is None else since + silence_s

    def next_retry(self) -> float | None:
        """When a replacement of a failed member should be looked for."""
        return min((member.retry_at for member in self._members if member.failed), default=None)

    def spare_indexes(self, now: float, silence_s: float) -> list[int]:
        """Silent members that can be spared: without them every entry still gets AQ copies.

        Those that answer have to suffice: when so many are silent that nothing is confirmed, giving
        them up would not help, and might cost the ledger. All silent members are looked at
        together, because each alone may be spared where all of them may not (rule P11).
        """
        silent = self.silent_indexes(now, silence_s)
        return silent if can_confirm(self.failed_indexes.union(silent), self._quorums) else []

    # -- replacing ---------------------------------------------------------------------------------

    def failed_due(self, now: float) -> tuple[int, ...]:
        """Failed members for which a replacement should be looked for now."""
        return tuple(
            i for i, member in enumerate(self._members) if member.failed and member.retry_at <= now
        )

    def choose(self, now: float) -> ChooseBookies:
        """Ask for replacements of every failed member that is due."""
        due = self.failed_due(now)
        assert self.failed_indexes.issuperset(due), "Only failed members are replaced."
        assert due, "Replacements are looked for when a member has failed and is due."
        assert not self._asked, "One question for replacements is open at a time."
        self._asked = due
        return ChooseBookies(
            indexes=due,
            members=frozenset(member.bookie_id for member in self._members),
            failed={index: self._members[index].bookie_id for index in due},
        )

    def chosen(self, event: BookiesChosen, now: float, retry_s: float) -> dict[int, BookieId]:
        """Take in the answer: the replacements that still apply, by index.

        Members for which none was found are looked at again after ``retry_s`` (rule P10). A
        replacement is for a member that failed: nobody else may be exchanged, because the new
        bookie has nothing and the old one's copies would be forgotten (rule P8).
        """
        assert self._asked, "Bookies were chosen that nobody asked for."
        for index in self._asked:
            if index not in event.replacements:
                self._members[index].retry_at = now + retry_s
        self._asked = ()
        failed = self.failed_indexes
        return {i: bookie for i, bookie in event.replacements.items() if i in failed}

    def install(
        self, replacements: Mapping[int, BookieId], last_confirmed: int, now: float
    ) -> list[Command]:
        """Put bookies at indexes and resend to them all that is not confirmed.

        Every replaced member forgets its acknowledgements here, before the caller may confirm
        anything: an entry must not count a copy on a bookie that the metadata no longer name
        (rule P8).
        """
        assert last_confirmed <= self._last_pushed, "What is confirmed was pushed."
        for index, bookie_id in replacements.items():
            assert self._members[index].failed, "Only failed members are replaced."
            self._members[index] = EnsembleMember(bookie_id, last_confirmed, now)
        commands: list[Command] = []
        for index, bookie_id in sorted(replacements.items()):
            commands.append(OpenAppender(index, bookie_id))
            # From the last add confirmed on, not from the oldest entry that failed: which of the
            # unconfirmed entries the old bookie held does not matter any more.
            commands.extend(self._send(index, last_confirmed + 1))
        # Two indexes with one bookie would count one copy twice (rule P1).
        assert len(set(self.bookies)) == len(self._members), "A bookie stands at one index only."
        self._check()
        return commands

    def close_all(self) -> list[Command]:
        """No more appends."""
        return [CloseAppender(index) for index in range(len(self._members))]

    # -- inside ------------------------------------------------------------------------------------

    def _send(self, index: int, first: int) -> list[Command]:
        last = last_entry_of_index(index, self._last_pushed, self._quorums)
        if last < first:
            return []
        self._members[index].sent_to = last
        return [SendEntries(index, EntryId(first), EntryId(last))]

    def _owes(self, member: EnsembleMember) -> bool:
        """Whether entries were sent to the bookie that it has not acknowledged."""
        return member.sent_to > member.acked_to

    def _check(self) -> None:
        """The invariants of the class; a few comparisons, whatever the number of entries."""
        for index, member in enumerate(self._members):
            assert member.acked_to <= member.sent_to, "A member holds more than it was sent."
            assert member.sent_to <= self._last_pushed, "A member was sent what does not exist."
            if not member.failed:
                due = last_entry_of_index(index, self._last_pushed, self._quorums)
                assert member.sent_to >= due, "A live member was not sent an entry of its own."
