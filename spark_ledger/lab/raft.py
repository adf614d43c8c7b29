"""Raft: elections, log matching, and the commit rule, after Ongaro and Ousterhout's paper.

"In Search of an Understandable Consensus Algorithm": section 5.2 elections, 5.3 replication, 5.4
safety. Left out: changes of membership, snapshots, pre-vote. What is counted is on disk: a server
answers for what it has synced.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from spark_ledger.lab.machines import (
    NO_VALUE,
    Effect,
    Entry,
    Event,
    Note,
    Produce,
    Produced,
    Received,
    Refused,
    Send,
    Store,
    Sync,
    Synced,
    Tick,
)

ELECTION_S: Final = (0.5, 1.0)
"""A follower that hears no leader for a time drawn from this stands for election."""

HEARTBEAT_S: Final = 0.1
BATCH_MAX: Final = 200


class RequestVote(NamedTuple):
    """A candidate asks for a vote, and says how far its log goes (5.4.1)."""

    term: int
    last_index: int
    last_term: int


class Vote(NamedTuple):
    """The answer."""

    term: int
    granted: bool


class AppendEntries(NamedTuple):
    """A leader's entries behind ``previous_index``; without entries a heartbeat (5.3)."""

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendReply(NamedTuple):
    """``match``: how many entries are synced and equal the leader's; if not ``ok``, where the
    leader should try next."""

    term: int
    ok: bool
    match: int


class RaftNode:
    """One server. Indexes count from 1, as in the paper: ``commit`` entries are committed."""

    def __init__(
        self, name: str, peers: tuple[str, ...], store: Store, draw: random.Random, now: float
    ) -> None:
        self.name, self.peers, self.store = name, peers, store
        self._draw = draw
        self.role = "follower"
        self.leader = ""
        self.commit = 0
        self._votes: set[str] = set()
        self._matched = 0
        self._next: dict[str, int] = {}
        self._match: dict[str, int] = {}
        self._waiting: dict[int, str] = {}
        self._heard: set[str] = set()
        """Who answered since the last heartbeat."""
        self._heartbeat_at = 0.0
        self._deadline = now + draw.uniform(*ELECTION_S)
        if not now and name < min(peers):
            self._deadline = 0.0  # of a new group the first server stands first

    @property
    def term(self) -> int:
        return self.store.meta.get("term", 0)

    def knows(self) -> str:
        return f"{self.role} in term {self.term}, leader {self.leader or '?'}, commit {self.commit}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Tick():
                return self._on_tick(now)
            case Synced(length):
                return self._on_synced(length)
            case Received(source, Produce(value)):
                return self._on_produce(source, value)
            case Received(source, message):
                term = getattr(message, "term", 0)
                if term > self.term:
                    self._follow(term, now)
                return self._on_message(source, message, now)
            case _:
                return []

    def _on_message(self, source: str, message: object, now: float) -> list[Effect]:
        match message:
            case RequestVote():
                return self._on_request_vote(source, message, now)
            case Vote(term, granted):
                if self.role == "candidate" and term == self.term and granted:
                    self._votes.add(source)
                    return self._lead_if_elected(now)
                return []
            case AppendEntries():
                return self._on_append(source, message, now)
            case AppendReply():
                return self._on_reply(source, message)
            case _:
                return []

    # -- elections (5.2) ---------------------------------------------------------------------------

    def _follow(self, term: int, now: float) -> None:
        if term > self.term:
            self.store.meta.update(term=term)
            self.store.meta.pop("vote", None)
            self.leader = ""
        self.role, self._matched, self._waiting = "follower", 0, {}
        self._deadline = now + self._draw.uniform(*ELECTION_S)

    def _on_tick(self, now: float) -> list[Effect]:
        if self.role == "leader":
            if now < self._heartbeat_at:
                return []
            self._heartbeat_at = now + HEARTBEAT_S
            for peer in set(self.peers) - self._heard:
                self._next[peer] = self._match[peer]  # what got lost is sent again
            self._heard.clear()
            return self._replicate(self.peers)
        if now < self._deadline:
            return []
        self._follow(self.term + 1, now)
        self.role, self._votes, self.leader = "candidate", {self.name}, ""
        self.store.meta["vote"] = _number(self.name)
        request = RequestVote(self.term, len(self.store.log), self._last_term())
        elected = self._lead_if_elected(now)
        return [Note("election"), *(Send(peer, request) for peer in self.peers), *elected]

    def _on_request_vote(self, source: str, request: RequestVote, now: float) -> list[Effect]:
        mine = (self._last_term(), len(self.store.log))
        free = self.store.meta.get("vote") in (None, _number(source))
        is_complete = (request.last_term, request.last_index) >= mine  # the election restriction
        granted = request.term == self.term and free and is_complete
        if granted:
            self.store.meta["vote"] = _number(source)
            self._deadline = now + self._draw.uniform(*ELECTION_S)
        return [Send(source, Vote(self.term, granted))]

    def _lead_if_elected(self, now: float) -> list[Effect]:
        if self.role != "candidate" or not self._is_majority(len(self._votes)):
            return []
        self.role, self.leader = "leader", self.name
        self._next = dict.fromkeys(self.peers, len(self.store.log))
        self._match = dict.fromkeys(self.peers, 0)
        self._heartbeat_at = now + HEARTBEAT_S
        # An entry of its own term: older ones are committed with it, never by being counted.
        self.store.log.append(Entry(self.term, NO_VALUE))
        return [Note("leader"), Sync(), *self._replicate(self.peers)]

    # -- replication (5.3) -------------------------------------------------------------------------

    def _on_produce(self, source: str, value: int) -> list[Effect]:
        if self.role != "leader":
            return [Send(source, Refused(value, self.leader))]
        self.store.log.append(Entry(self.term, value))
        self._waiting[len(self.store.log)] = source
        return [Sync(), *self._replicate(self.peers)]

    def _replicate(self, peers: tuple[str, ...]) -> list[Effect]:
        effects: list[Effect] = []
        for peer in peers:
            start = self._next[peer]
            entries = tuple(self.store.log[start : start + BATCH_MAX])
            previous_term = self.store.log[start - 1].epoch if start else 0
            self._next[peer] = start + len(entries)
            message = AppendEntries(self.term, start, previous_term, entries, self.commit)
            effects.append(Send(peer, message))
        return effects

    def _on_append(self, source: str, message: AppendEntries, now: float) -> list[Effect]:
        if message.term < self.term:
            return [Send(source, AppendReply(self.term, False, 0))]
        assert self.role != "leader", "Two leaders of one term (election safety)."
        if self.role == "candidate" or self.leader != source:
            self._follow(message.term, now)
            self.leader = source
        self._deadline = now + self._draw.uniform(*ELECTION_S)
        log, at = self.store.log, message.previous_index
        if at > len(log) or (at and log[at - 1].epoch != message.previous_term):
            return [Send(source, AppendReply(self.term, False, min(self.commit, at)))]
        effects: list[Effect] = []
        for place, entry in enumerate(message.entries, at):
            if place < len(log) and log[place].epoch != entry.epoch:
                assert place >= self.commit, "A committed entry is overwritten."
                effects.append(Note("truncated", self.store.truncate(place)))
            if place >= len(log):
                log.append(entry)
        self._matched = max(self._matched, at + len(message.entries))
        self.commit = max(self.commit, min(message.commit, self._matched))
        if self._matched > self.store.synced:
            return [*effects, Sync()]
        return [*effects, self._reply()]

    def _reply(self) -> Send:
        match = min(self._matched, self.store.synced)
        return Send(self.leader, AppendReply(self.term, True, match))

    def _on_reply(self, source: str, reply: AppendReply) -> list[Effect]:
        if self.role != "leader" or reply.term != self.term:
            return []
        self._heard.add(source)
        if not reply.ok:
            self._next[source] = reply.match
            return self._replicate((source,))
        self._match[source] = max(self._match[source], reply.match)
        more = self._next[source] == reply.match < len(self.store.log)
        return [*self._advance(), *(self._replicate((source,)) if more else [])]

    def _on_synced(self, length: int) -> list[Effect]:
        if self.role == "leader":
            return self._advance()
        return [self._reply()] if self.leader and self._matched else []

    # -- commit (5.4.2) ----------------------------------------------------------------------------

    def _advance(self) -> list[Effect]:
        """An entry of this term that a majority has synced commits all before it."""
        held = sorted([self.store.synced, *self._match.values()], reverse=True)
        index = held[len(held) // 2]
        if index <= self.commit or self.store.log[index - 1].epoch != self.term:
            return []
        effects: list[Effect] = []
        for place in range(self.commit, index):
            client = self._waiting.pop(place + 1, None)
            if client is not None:
                effects.append(Send(client, Produced(self.store.log[place].value)))
        self.commit = index
        return effects

    def _last_term(self) -> int:
        return self.store.log[-1].epoch if self.store.log else 0

    def _is_majority(self, count: int) -> bool:
        return 2 * count > len(self.peers) + 1


def _number(name: str) -> int:
    return int(name.lstrip("abcdefghijklmnopqrstuvwxyz-"))
