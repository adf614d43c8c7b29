"""The members of one ensemble: what was sent to each, what each holds, which have failed.

Shared by the append machine and by recovery's write-back. One number per member suffices, because
a bookie answers one appender in order (rule P3): ``acked_to`` says that the bookie holds every
entry of its index up to it, counted from where the bookie was installed. Entries before that are
confirmed, so nobody asks this bookie about them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from spark_ledger.limits.client import (
    BOOKIE_RETURN_DELAY_S,
    BOOKIE_RETURN_DELAY_S_MAX,
    STALLED_BOOKIES_WAIT_S,
)
from spark_ledger.protocol.events import (
    AddFailed,
    BookiesChosen,
    ChooseBookies,
    CloseAppender,
    Command,
    OpenAppender,
    SendEntries,
)
from spark_ledger.protocol.member import EnsembleMember
from spark_ledger.protocol.quorum import (
    can_confirm,
    confirmed_end,
    last_entry_of_index,
)
from spark_ledger.protocol.replaced import Replaced
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, Quorums

_NOBODY: Final[frozenset[int]] = frozenset()


class Replication:
    """The members, and what follows from them: every rule about "who must hold what".

    With L the last add confirmed of the machine that owns this, P = ``last_pushed``, and w(i) the
    highest entry up to P that index i stores:

        L <= P
        acked_to(i) <= sent_to(i) <= P                    for every index i
        not failed(i), not paused(i)  =>  sent_to(i) >= w(i)   whoever lives is sent all of its own
        confirmed_end() = max e: every entry up to e is
            acknowledged by AQ members of its write set   L never passes it

    Failed members count in the last line: a bookie holds what it acknowledged, and it stays in the
    metadata until it is replaced.
    """

    def __init__(
        self,
        quorums: Quorums,
        bookies: Sequence[BookieId],
        last_confirmed: int,
        now: float,
        wait_s: float = STALLED_BOOKIES_WAIT_S,
    ) -> None:
        assert len(bookies) == quorums.ensemble_size, "An ensemble has E members."
        assert len(set(bookies)) == len(bookies), "A bookie stands at one index only."
        assert last_confirmed >= -1, "Entries count from 0."
        self._quorums = quorums
        self._members = [EnsembleMember(bookie, last_confirmed, now) for bookie in bookies]
        self._last_pushed = last_confirmed
        self._asked: tuple[int, ...] = ()
        """The indexes for which replacements are being looked for; empty if none are."""
        self._asked_silent: tuple[int, ...] = ()
        """Those of them whose bookie has not failed: it is silent, and cannot be spared."""
        self._asked_at = now
        """When that was asked."""
        self._failures: dict[BookieId, int] = {}
        """How often a bookie failed since it last worked for as long as a failure keeps it away."""
        self._replaced = Replaced(wait_s)

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
        for member in self._members:  # a loop: this is asked for each append, and mostly none has
            if member.failed:
                break
        else:
            return _NOBODY
        return frozenset(index for index, member in enumerate(self._members) if member.failed)

    @property
    def failed_members(self) -> tuple[EnsembleMember, ...]:
        """The members that failed and have not been replaced, in index order."""
        return tuple(member for member in self._members if member.failed)

    def failed_with(self, status: BookieStatus) -> frozenset[int]:
        """The indexes whose bookie failed in this way."""
        members = enumerate(self._members)
        return frozenset(i for i, member in members if member.failed and member.status is status)

    def suffices_without(self, indexes: Collection[int]) -> bool:
        """Whether every write set has AQ members outside of these indexes."""
        return can_confirm(frozenset(indexes), self._quorums)

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

    def confirmed_by_live(self) -> EntryId:
        """The same by members that have not failed: those stay, whatever is being changed."""
        acked = [NO_ENTRY if member.failed else member.acked_to for member in self._members]
        return confirmed_end(acked, self._last_pushed, self._quorums)

    def answers_wanted(self, last_confirmed: int) -> int:
        """Fewer new acknowledgements than this cannot confirm anything above ``last_confirmed``:
        each raises one member, and AQ of them have to be above it (rule P4)."""
        quorums = self._quorums
        wanted = quorums.ack_quorum
        if quorums.ensemble_size != quorums.write_quorum:
            return 1  # a member may be above it with entries of other lanes
        for member in self._members:
            if member.acked_to > last_confirmed:
                wanted -= 1
        return max(wanted, 1)

    def held_by_all_live(self) -> int:
        """The highest entry up to which no live member owes an acknowledgement."""
        held = self._last_pushed
        for member in self._members:  # after each event: most owe nothing
            owes = member.sent_to > member.acked_to or member.paused_until is not None
            if owes and not member.failed:
                held = min(held, member.held_to)
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
            if member.paused_until is not None:
                continue  # it is sent everything once it is asked again
            if not self._owes(member):
                member.starts_to_owe(first, now)
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
        member.acknowledge(last, now)
        if now - member.installed_at >= BOOKIE_RETURN_DELAY_S:
            self._failures.pop(bookie_id, None)
        return True

    # -- failures ----------------------------------------------------------------------------------

    def excuse(self, event: AddFailed, now: float) -> list[Command] | None:
        """What to do instead of failing the bookie, if its answer is no failure (rule P11)."""
        if event.status is BookieStatus.TOO_MANY_REQUESTS:
            return self._pause(event.bookie_index, event.bookie_id, now)
        if event.status is BookieStatus.STALLED:
            # It may store all the same, and be needed. The next look at the clock decides about it
            # as about one that has been silent.
            member = self._members[event.bookie_index]
            if member.bookie_id == event.bookie_id and not member.failed:
                member.stall()
            return []
        return None

    def fail(self, event: AddFailed, now: float, retry_s: float) -> bool:
        """A bookie failed. False: it no longer stands at the index, or was known to have failed.

        A replacement is due at once, but only after ``retry_s`` when the bookie has failed before
        and done nothing since.
        """
        member, bookie_id = self._members[event.bookie_index], event.bookie_id
        if member.bookie_id != bookie_id or member.failed:
            return False
        failures = self._failures.get(bookie_id, 0)
        member.fail(event.status, event.message, failures, now, retry_s)
        self._failures[bookie_id] = failures + 1
        if not self.can_confirm():  # nothing goes on: look again for all that may come back early
            for other in self._members:
                if other.failed and other.may_come_back_early:
                    other.retry_at = min(other.retry_at, now)
        return True

    def fail_silent(
        self, indexes: Iterable[int], now: float, retry_s: float, wait_s: float
    ) -> list[Command]:
        """Members that acknowledge nothing for too long fail, for one ensemble change that replaces
        them all (rule P11). ``wait_s``: see ``silence``."""
        commands: list[Command] = []
        for index in sorted(indexes):
            member = self._members[index]
            member.hopeless = now - member.owing_since >= wait_s
            member.outwaited = now - member.owing_since >= self._replaced.wait_s
            status = BookieStatus.STALLED if member.stalled else BookieStatus.TIMEOUT
            failed = self.fail(AddFailed(index, member.bookie_id, status), now, retry_s)
            assert failed, "Only a live member is silent."
            commands.append(CloseAppender(index))
        return commands

    def _pause(self, index: int, bookie_id: BookieId, now: float) -> list[Command]:
        """A bookie said that it is busy: nothing was decided, so the same is sent to it later, and
        it has not failed (rule P11)."""
        member = self._members[index]
        if member.bookie_id != bookie_id or member.failed or member.paused_until is not None:
            return []
        # What writers that are refused together have pushed differs: it is as good as chance here.
        member.pause(self._last_pushed * 0.618034 % 1, now)
        return [CloseAppender(index)]

    def resume(self, now: float) -> list[Command]:
        """Send busy bookies, after their pause, what they have not acknowledged."""
        commands: list[Command] = []
        for index, member in enumerate(self._members):
            if member.paused_until is not None and member.paused_until <= now:
                member.paused_until = None
                commands.append(OpenAppender(index, member.bookie_id))
                commands.extend(self._send(index, member.held_to + 1))
        if commands:
            self._check()
        return commands

    def retry_now(self, now: float) -> None:
        """Look for replacements of all failed members now, however recently it was tried, and let
        them return: without them nothing can be stored."""
        for member in self._members:
            member.retry_at = min(member.retry_at, now)
            member.return_at = min(member.return_at, now)

    def retry_late(self, now: float) -> None:
        """Nobody can take the places of those that failed: look again in minutes."""
        for member in self._members:
            if member.failed:
                member.retry_at = now + BOOKIE_RETURN_DELAY_S_MAX

    def silent_indexes(self, now: float, silence_s: float) -> list[int]:
        """Live members that owe an acknowledgement and have given none for so long (rule P11)."""
        return [
            index
            for index, member in enumerate(self._members)
            if self._is_asked(member) and now - member.silent_since >= silence_s
        ]

    def owing_indexes(self, now: float, wait_s: float) -> list[int]:
        """Live members that have acknowledged nothing for so long, whatever else they said."""
        return [
            index
            for index, member in enumerate(self._members)
            if self._is_asked(member) and now - member.owing_since >= wait_s
        ]

    def silence(
        self, now: float, timeout_s: float, wait_s: float
    ) -> tuple[set[int], tuple[int, ...]]:
        """The silent members that fail now, and those for which a replacement is looked for first.

        Silent members fail if the others suffice without all of them. If not, others may take
        their places, and who is alive is waited for, but not for longer than ``wait_s`` (rule P11).
        """
        silent, owing = self.silent_indexes(now, timeout_s), self.owing_indexes(now, wait_s)
        if not (silent or owing):
            return set(), ()  # most ticks come for something else
        hopeless = self._unexcused(owing, now)
        if can_confirm(self.failed_indexes.union(silent, hopeless), self._quorums):
            return {*self._unexcused(silent, now), *hopeless}, ()
        waiting = [index for index in silent if index not in hopeless]
        return set(hopeless), tuple(self._unexcused(waiting, now))

    def _unexcused(self, indexes: Iterable[int], now: float) -> list[int]:
        """Without those that were found to be alive a moment ago."""
        return [index for index in indexes if self._members[index].excused_until <= now]

    def next_look(self, silence_s: float, *, chooses: bool) -> float | None:
        """When a member will be silent for so long if it goes on saying nothing, or a busy one is
        to be sent its entries again, or a failed one to be replaced: if the owner ``chooses``."""
        due: float | None = None  # a loop: this runs after each event of a writer
        for member in self._members:
            if member.failed:
                if not chooses:
                    continue
                at = member.retry_at
            elif member.paused_until is not None:
                at = member.paused_until
            elif member.sent_to > member.acked_to:
                at = max(member.silent_since + silence_s, member.excused_until)
            else:
                continue
            if due is None or at < due:
                due = at
        return due

    def look_later(self, now: float, silence_s: float, timeout_s: float, retry_s: float) -> None:
        """Those who are silent still cannot be spared, and nobody is looked for now: what follows
        from their silence follows from a look in a while as well. They are looked at in any case
        when they have been silent for ``timeout_s``."""
        for index in self._unexcused(self.silent_indexes(now, silence_s), now):
            member = self._members[index]
            late, again = member.silent_since + timeout_s, now + retry_s
            member.excused_until = min(late, again) if late > now else again

    def spare_indexes(
        self, now: float, silence_s: float, failing: Collection[int] = ()
    ) -> list[int]:
        """Silent members without whom, and without those ``failing``, every entry gets AQ copies.

        Else giving them up would not help, and might cost the ledger. All are looked at together:
        each alone may be spared where all of them may not (rule P11).
        """
        silent = self.silent_indexes(now, silence_s)
        if not can_confirm(self.failed_indexes.union(silent, failing), self._quorums):
            return []
        return self._unexcused(silent, now)

    # -- replacing ---------------------------------------------------------------------------------

    def failed_due(self, now: float) -> tuple[int, ...]:
        """Failed members for which a replacement should be looked for now."""
        members = self._members
        return tuple(i for i in sorted(self.failed_indexes) if members[i].retry_at <= now)

    def choose(self, now: float, silent: tuple[int, ...] = ()) -> ChooseBookies:
        """Ask for replacements of every failed member that is due, and of these silent ones."""
        due = self.failed_due(now)
        assert self.failed_indexes.issuperset(due), "Only failed members are replaced."
        assert not self.failed_indexes.intersection(silent), "Who failed is not silent."
        assert due or silent, "Replacements are looked for when a member is due."
        assert not self._asked, "One question for replacements is open at a time."
        self._asked, self._asked_silent, self._asked_at = (*due, *silent), silent, now
        members = self._members
        return ChooseBookies(
            indexes=self._asked,
            excluded=self._excluded(now),
            failed={i: members[i].bookie_id for i in due if self._may_return(members[i], now)},
            silent={i: members[i].bookie_id for i in silent},
            ensemble=tuple(member.bookie_id for member in members),
            quorums=self._quorums,
            liars=frozenset(
                member.bookie_id for member in members if member.status is BookieStatus.FENCED
            ),
        )

    def _excluded(self, now: float) -> frozenset[BookieId]:
        """Who may not take another's place: members, who has had its time (rule P11), and who stays
        away, while those that have not failed suffice, be they silent or not (rule P10)."""
        excluded = self._replaced.outwaited(self.confirmed_end()).union(self.bookies)
        return excluded | self._replaced.staying_away(now) if self.can_confirm() else excluded

    def _may_return(self, member: EnsembleMember, now: float) -> bool:
        """Whether a failed bookie may have its own index back, if nobody else takes it (rule P10).

        Where the ledger would end without it, it may at once, if it has worked here, or was given
        up for being silent: neither goes round faster than it takes to work, or to be silent.
        """
        if member.return_at <= now:
            return True
        return not self.can_confirm() and member.may_come_back_early

    def chosen(
        self, event: BookiesChosen, now: float, retry_s: float
    ) -> tuple[dict[int, BookieId], list[Command]]:
        """Take in the answer: the replacements that still apply, by index, and what to close.

        Members for which none was found are looked at again after ``retry_s`` (rule P10). A
        replacement is for a member that failed: nobody else may be exchanged, because the new
        bookie has nothing and the old one's copies would be forgotten (rule P8).
        """
        assert self._asked, "Bookies were chosen that nobody asked for."
        commands = self._judge_silent(event, now, retry_s)
        for index in self._asked:
            if index not in event.replacements:
                self._members[index].retry_at = now + retry_s
        self._asked, self._asked_silent = (), ()
        failed = self.failed_indexes
        return {i: bookie for i, bookie in event.replacements.items() if i in failed}, commands

    def _judge_silent(self, event: BookiesChosen, now: float, retry_s: float) -> list[Command]:
        """A silent member that cannot be spared fails if another bookie can take its place, or if
        it does not even answer a probe. Else it is waited for (rule P11)."""
        judged = [
            index
            for index in self._asked_silent
            if not self._members[index].failed
            and self._owes(self._members[index])
            and self._members[index].silent_since < self._asked_at  # it has said nothing meanwhile
        ]
        lost = [i for i in judged if i in event.replacements or i not in event.answering]
        for index in judged:
            self._members[index].excused_until = now + retry_s
        return self.fail_silent(lost, now, retry_s, math.inf)

    def install(
        self, replacements: Mapping[int, BookieId], last_confirmed: int, now: float
    ) -> list[Command]:
        """Put bookies at indexes and resend to them all that is not confirmed.

        Every replaced member forgets its acknowledgements here, before the caller may confirm
        anything: an entry must not count a copy on a bookie that the metadata no longer name
        (rule P8).
        """
        assert last_confirmed <= self._last_pushed, "What is confirmed was pushed."
        left = [self._members[index] for index in replacements]
        assert all(member.failed for member in left), "Only failed members are replaced."
        owing_since = self._replaced.add(left, last_confirmed, self._last_pushed, now)
        for index, bookie_id in replacements.items():
            self._members[index] = EnsembleMember(bookie_id, last_confirmed, now)
            self._members[index].owing_since = owing_since
        commands: list[Command] = []
        for index, bookie_id in sorted(replacements.items()):
            commands.append(OpenAppender(index, bookie_id))
            # From the last add confirmed on: what the old bookie held above it does not matter.
            commands.extend(self._send(index, last_confirmed + 1))
        # Two indexes with one bookie would count one copy twice (rule P1).
        assert len(set(self.bookies)) == len(self._members), "A bookie stands at one index only."
        self._check()
        return commands

    def close_all(self) -> list[Command]:
        """No more appends."""
        return [CloseAppender(index) for index in range(len(self._members))]

    # -- inside ------------------------------------------------------------------------------------

    def _last_of(self, index: int) -> int:
        """The last entry up to now that the index stores; with E == WQ each stores all."""
        quorums, last = self._quorums, self._last_pushed
        if quorums.ensemble_size == quorums.write_quorum:
            return last
        return last_entry_of_index(index, last, quorums)

    def _send(self, index: int, first: int) -> list[Command]:
        last = self._last_of(index)
        if last < first:
            return []
        self._members[index].sent_to = last
        return [SendEntries(index, EntryId(first), EntryId(last))]

    def _owes(self, member: EnsembleMember) -> bool:
        """Whether it has not acknowledged what it was sent, or will be once its pause is over."""
        return member.paused_until is not None or member.sent_to > member.acked_to

    def _is_asked(self, member: EnsembleMember) -> bool:
        """Whether entries are under way to the bookie, and it has not failed."""
        return not member.failed and member.paused_until is None and self._owes(member)

    def _check(self) -> None:
        """The invariants of the class; a few comparisons, whatever the number of entries."""
        last = self._last_pushed
        for index, member in enumerate(self._members):
            sent_to = member.sent_to
            assert member.acked_to <= sent_to <= last, "A member has what it was not sent."
            if sent_to < last and not member.failed and member.paused_until is None:
                due = self._last_of(index)
                assert sent_to >= due, "A live member was not sent an entry of its own."
