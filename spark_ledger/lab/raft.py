"""Raft: log matching, the commit rule and reads, after Ongaro and Ousterhout's paper.

"In Search of an Understandable Consensus Algorithm": section 5.3 replication, 5.4 safety, and 8
reads by read index (6.4 of Ongaro's dissertation). A server whose disk is full ends. Elections are
in ``elections.py``. Left out: changes of membership, snapshots, leases. What is counted is on disk:
a server answers for what it has synced. A follower whose log does not fit names its own commit, and
the leader goes on from there; in the paper it goes back one entry at a time.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from spark_ledger.lab.elections import ELECTION_S, HEARTBEAT_S, Voter
from spark_ledger.lab.machines import (
    NO_VALUE,
    Ask,
    Effect,
    Entry,
    Event,
    Note,
    Produce,
    Produced,
    Received,
    Refused,
    Send,
    Shown,
    Store,
    Sync,
    Synced,
    Tick,
    values_of,
)


class RaftOptions(NamedTuple):
    """What the paper leaves to whoever builds it."""

    pre_vote: bool = False
    check_quorum: bool = False
    """A leader that hears no majority for an election timeout follows (6.2 of the dissertation)."""
    reads: str = ""
    """Who reads: nobody; ``index``: whom the leader answers after a majority said that it still
    leads; ``local``: whom a leader answers at once, as it takes itself for one."""
    batch_max: int = 200
    """Entries of one message."""
    sessions: bool = False
    """The state machine knows which values it has taken: a client that sends one of them again is
    answered at once (8 of the paper)."""
    writes_first: bool = False
    """A leader sends followers what is on its own disk only, instead of writing meanwhile (10.2.1
    of the dissertation)."""
    counts_older_terms: bool = False
    """A known weakness: entries of older terms are committed by counting replicas (5.4.2)."""


class AppendEntries(NamedTuple):
    """A leader's entries behind ``previous_index``; without entries a heartbeat (5.3). ``read``
    grows with each read."""

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int
    read: int = 0

    @property
    def carries(self) -> tuple[int, ...]:
        return values_of(self.entries)


class AppendReply(NamedTuple):
    """``match``: how many entries are synced and equal the leader's; if not ``ok``, where the
    leader should try next."""

    term: int
    ok: bool
    match: int
    read: int = 0


class _Reading(NamedTuple):
    """A read that waits until a majority has answered a message that was sent after it began."""

    source: str
    number: int
    at: int
    read: int


class RaftNode(Voter):
    """One server. Indexes count from 1, as in the paper: ``commit`` entries are committed."""

    def __init__(
        self,
        name: str,
        peers: tuple[str, ...],
        store: Store,
        draw: random.Random,
        now: float,
        options: RaftOptions = RaftOptions(),  # noqa: B008 - a value that nobody changes
    ) -> None:
        super().__init__(name, peers, store, draw, now, pre_vote=options.pre_vote)
        self._options = options
        self._matched = 0
        self._next: dict[str, int] = {}
        self._match: dict[str, int] = {}
        self._waiting: dict[int, str] = {}
        self._heard: set[str] = set()
        """Who answered since the last heartbeat."""
        self._answered_at: dict[str, float] = {}
        self._heartbeat_at = 0.0
        self._last_read = 0
        """Of a leader: the number of its last read; of a follower: the last that it heard of."""
        self._reads_heard: dict[str, int] = {}
        self._reading: list[_Reading] = []
        self._applied: set[int] = set()
        self._applied_up_to = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Tick():
                return self._on_tick(now)
            case Synced():
                return self._on_synced()
            case Received(source, Produce(value)):
                return self._on_produce(source, value)
            case Received(source, Ask(number)):
                return self._on_ask(source, number)
            case Received(source, message):
                self._see_term(message, now)
                match message:
                    case AppendEntries():
                        return self._on_append(source, message, now)
                    case AppendReply():
                        self._answered_at[source] = now
                        return self._on_reply(source, message)
                    case _:
                        return self._on_vote(source, message, now)
            case _:
                return []

    def _leave_office(self) -> None:
        self._matched, self._waiting, self._reading, self._last_read = 0, {}, [], 0

    def _on_tick(self, now: float) -> list[Effect]:
        if self.role == "leader":
            if now < self._heartbeat_at:
                return []
            self._heartbeat_at = now + HEARTBEAT_S
            heard = sum(now - at < ELECTION_S[0] for at in self._answered_at.values())
            if self._options.check_quorum and not self._is_majority(1 + heard):
                self.leader = ""
                self._follow(self.term, now)
                return [Note("stepped down")]
            for peer in set(self.peers) - self._heard:
                self._next[peer] = self._match[peer]  # what got lost is sent again
            self._heard.clear()
            return self._replicate(self.peers)
        return self._stand(now) if now >= self._deadline else []

    def _take_office(self, now: float) -> list[Effect]:
        self._next = dict.fromkeys(self.peers, len(self.store.log))
        self._match = dict.fromkeys(self.peers, 0)
        self._reads_heard = dict.fromkeys(self.peers, 0)
        self._answered_at = dict.fromkeys(self.peers, now)
        self._heartbeat_at = now + HEARTBEAT_S
        # An entry of its own term: older ones are committed with it, never by being counted.
        self.store.append(Entry(self.term, NO_VALUE))
        return [Sync(), *self._replicate(self.peers)]

    # -- replication (5.3) -------------------------------------------------------------------------

    def _on_produce(self, source: str, value: int) -> list[Effect]:
        if self.role != "leader":
            return [Send(source, Refused(value, self.leader))]
        if self._options.sessions and self._is_applied(value):
            return [Send(source, Produced(value))]
        self.store.append(Entry(self.term, value))
        self._waiting[len(self.store.log)] = source
        return [Sync(), *([] if self._options.writes_first else self._replicate(self.peers))]

    def _is_applied(self, value: int) -> bool:
        """Whether the state machine has this value: it takes what is committed."""
        place = self._applied_up_to
        self._applied.update(entry.value for entry in self.store.log[place : self.commit])
        self._applied_up_to = self.commit
        return value in self._applied

    @property
    def _sendable(self) -> int:
        return self.store.synced if self._options.writes_first else len(self.store.log)

    def _replicate(self, peers: tuple[str, ...]) -> list[Effect]:
        effects: list[Effect] = []
        for peer in peers:
            start = self._next[peer]
            end = min(self._sendable, start + self._options.batch_max)
            entries = tuple(self.store.log[start:end])
            previous_term = self.store.log[start - 1].epoch if start else 0
            self._next[peer] = start + len(entries)
            message = AppendEntries(
                self.term, start, previous_term, entries, self.commit, self._last_read
            )
            effects.append(Send(peer, message))
        return effects

    def _on_append(self, source: str, message: AppendEntries, now: float) -> list[Effect]:
        if message.term < self.term:
            return [Send(source, AppendReply(self.term, False, 0))]
        self._hear(source, now)
        self._last_read = max(self._last_read, message.read)
        log, at = self.store.log, message.previous_index
        if at > len(log) or (at and log[at - 1].epoch != message.previous_term):
            weak = self._options.counts_older_terms  # then it may differ in what it has committed
            retry = at - 1 if weak else min(self.commit, at)
            return [Send(source, AppendReply(self.term, False, retry, self._last_read))]
        effects: list[Effect] = []
        for place, entry in enumerate(message.entries, at):
            if place < len(log) and log[place].epoch != entry.epoch:
                self._keep_committed(place)
                effects.append(Note("truncated", self.store.truncate(place)))
            if place >= len(log):
                self.store.append(entry)
        self._matched = max(self._matched, at + len(message.entries))
        self.commit = max(self.commit, min(message.commit, self._matched))
        if self._matched > self.store.synced:
            return [*effects, Sync()]
        return [*effects, self._reply()]

    def _keep_committed(self, place: int) -> None:
        """The log is cut there."""
        is_weak = self._options.counts_older_terms
        assert is_weak or place >= self.commit, "A committed entry is overwritten."
        if place < self.commit:
            self.commit, self._applied_up_to = place, 0
            self._applied.clear()

    def _reply(self) -> Send:
        match = min(self._matched, self.store.synced)
        return Send(self.leader, AppendReply(self.term, True, match, self._last_read))

    def _on_reply(self, source: str, reply: AppendReply) -> list[Effect]:
        if self.role != "leader" or reply.term != self.term:
            return []
        self._heard.add(source)
        self._reads_heard[source] = max(self._reads_heard[source], reply.read)
        read = self._read_if_confirmed()
        if not reply.ok:
            self._next[source] = reply.match
            return [*read, *self._replicate((source,))]
        self._match[source] = max(self._match[source], reply.match)
        more = self._next[source] == reply.match < self._sendable
        return [*self._advance(), *read, *(self._replicate((source,)) if more else [])]

    def _on_synced(self) -> list[Effect]:
        if self.role == "leader":
            more = self._replicate(self.peers) if self._options.writes_first else []
            return [*self._advance(), *more]
        return [self._reply()] if self.leader and self._matched else []

    # -- commit (5.4.2) ----------------------------------------------------------------------------

    def _advance(self) -> list[Effect]:
        """An entry of this term that a majority has synced commits all before it."""
        held = sorted([self.store.synced, *self._match.values()], reverse=True)
        index = held[len(held) // 2]
        is_mine = index > 0 and self.store.log[index - 1].epoch == self.term
        if index <= self.commit or not (is_mine or self._options.counts_older_terms):
            return []
        effects: list[Effect] = []
        for place in range(self.commit, index):
            client = self._waiting.pop(place + 1, None)
            if client is not None:
                effects.append(Send(client, Produced(self.store.log[place].value)))
        self.commit = index
        return effects

    # -- reads (8) ---------------------------------------------------------------------------------

    def _on_ask(self, source: str, number: int) -> list[Effect]:
        """Whoever asks a server that does not lead asks again, and elsewhere."""
        if self.role != "leader":
            return []
        if self._options.reads == "local":
            return [self._show(source, number, self.commit)]
        # Until an entry of its own term is committed, a leader does not know what is.
        if not self.commit or self.store.log[self.commit - 1].epoch != self.term:
            return []
        self._last_read += 1
        self._reading.append(_Reading(source, number, self.commit, self._last_read))
        return self._replicate(self.peers)

    def _read_if_confirmed(self) -> list[Effect]:
        """A majority that answered after a read began says that nobody led since: nothing was
        committed elsewhere when it began."""
        effects: list[Effect] = []
        while self._reading:
            first = self._reading[0]
            confirmed = 1 + sum(each >= first.read for each in self._reads_heard.values())
            if not self._is_majority(confirmed):
                break
            effects.append(self._show(first.source, first.number, first.at))
            del self._reading[0]
        return effects

    def _show(self, source: str, number: int, index: int) -> Send:
        values = sum(entry.value != NO_VALUE for entry in self.store.log[:index])
        return Send(source, Shown(number, values))
