"""Elections after the Raft paper (5.2 and 5.4.1), with pre-vote: what Raft and DLedger share.

Pre-vote is from section 9.6 of Ongaro's dissertation, "Consensus: Bridging Theory and Practice": a
server first asks whether it would be elected, in no new term. So one that was cut off does not
depose a leader whom the others hear. The election timeout begins anew also with each later term
that a server hears of; in figure 2 of the paper only a leader's message or a vote does that.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Final, NamedTuple

from spark_ledger.lab.machines import Effect, Note, Send, Store

ELECTION_S: Final = (0.5, 1.0)
"""A follower that hears no leader for a time drawn from this stands for election."""

HEARTBEAT_S: Final = 0.1


class RequestVote(NamedTuple):
    """A candidate asks for a vote, and says how far its log goes (5.4.1)."""

    term: int
    last_index: int
    last_term: int


class Vote(NamedTuple):
    """The answer."""

    term: int
    granted: bool


class RequestPreVote(NamedTuple):
    """Would you vote for me in that term? Nobody's term changes by the question."""

    next_term: int
    last_index: int
    last_term: int


class PreVote(NamedTuple):
    """The answer, in the voter's own term."""

    term: int
    next_term: int
    granted: bool


class Voter(ABC):
    """One server: follower, candidate or leader of a term. Indexes count from 1."""

    def __init__(
        self,
        name: str,
        peers: tuple[str, ...],
        store: Store,
        draw: random.Random,
        now: float,
        *,
        pre_vote: bool = False,
    ) -> None:
        self.name, self.peers, self.store = name, peers, store
        self._draw, self._asks_first = draw, pre_vote
        self.role = "follower"
        self.leader = ""
        self.commit = 0
        self._votes: set[str] = set()
        self._pre_votes: set[str] = set()
        self._heard_at = -ELECTION_S[1]
        """When a leader of this term was heard last."""
        self._deadline = now + draw.uniform(*ELECTION_S)
        if not now and name < min(peers):
            self._deadline = 0.0  # of a new group the first server stands first

    @property
    def term(self) -> int:
        return self.store.meta.get("term", 0)

    def knows(self) -> str:
        return f"{self.role} in term {self.term}, leader {self.leader or '?'}, commit {self.commit}"

    # -- what a log adds to elections --------------------------------------------------------------

    @abstractmethod
    def _take_office(self, now: float) -> list[Effect]:
        """It is elected: what a leader does first."""

    @abstractmethod
    def _leave_office(self) -> None:
        """It follows, perhaps in a new term: what a leader or follower knew of the old one goes."""

    # -- terms -------------------------------------------------------------------------------------

    def _see_term(self, message: object, now: float) -> None:
        """Whoever hears of a later term follows in it."""
        term = getattr(message, "term", 0)
        if term > self.term:
            self._follow(term, now)

    def _follow(self, term: int, now: float) -> None:
        if term > self.term:
            self.store.meta.update(term=term)
            self.store.meta.pop("vote", None)
            self.leader, self._heard_at = "", -ELECTION_S[1]
        self.role = "follower"
        self._pre_votes = set()
        self._deadline = now + self._draw.uniform(*ELECTION_S)
        self._leave_office()

    def _hear(self, leader: str, now: float) -> None:
        """The leader of this term has sent something."""
        assert self.role != "leader", "Two leaders of one term (election safety)."
        if self.role == "candidate" or self.leader != leader:
            self._follow(self.term, now)
            self.leader = leader
        self._heard_at, self._pre_votes = now, set()
        self._deadline = now + self._draw.uniform(*ELECTION_S)

    # -- candidates --------------------------------------------------------------------------------

    def _stand(self, now: float) -> list[Effect]:
        """No leader was heard for long: stand for election, or ask first."""
        if self._asks_first and self.term:
            self._deadline = now + self._draw.uniform(*ELECTION_S)
            self._pre_votes = {self.name}
            ask = RequestPreVote(self.term + 1, len(self.store.log), self._last_term())
            return [Send(peer, ask) for peer in self.peers]
        return self._stand_at_once(now)

    def _stand_at_once(self, now: float) -> list[Effect]:
        self._follow(self.term + 1, now)
        self.role, self._votes, self.leader = "candidate", {self.name}, ""
        self.store.meta["vote"] = _number(self.name)
        request = RequestVote(self.term, len(self.store.log), self._last_term())
        elected = self._lead_if_elected(now)
        return [Note("election"), *(Send(peer, request) for peer in self.peers), *elected]

    def _on_vote(self, source: str, message: object, now: float) -> list[Effect]:
        match message:
            case RequestVote():
                return self._on_request_vote(source, message, now)
            case Vote(term, granted):
                if self.role == "candidate" and term == self.term and granted:
                    self._votes.add(source)
                    return self._lead_if_elected(now)
            case RequestPreVote():
                return self._on_request_pre_vote(source, message, now)
            case PreVote(_, next_term, granted):
                if granted and next_term == self.term + 1 and self._pre_votes:
                    self._pre_votes.add(source)
                    if self._is_majority(len(self._pre_votes)):
                        return self._stand_at_once(now)
            case _:
                pass
        return []

    def _lead_if_elected(self, now: float) -> list[Effect]:
        if self.role != "candidate" or not self._is_majority(len(self._votes)):
            return []
        self.role, self.leader = "leader", self.name
        return [Note("leader"), *self._take_office(now)]

    # -- voters ------------------------------------------------------------------------------------

    def _on_request_vote(self, source: str, request: RequestVote, now: float) -> list[Effect]:
        free = self.store.meta.get("vote") in (None, _number(source))
        complete = self._is_complete(request)
        granted = request.term == self.term and free and complete
        if granted:
            self.store.meta["vote"] = _number(source)
            self._deadline = now + self._draw.uniform(*ELECTION_S)
        return [Send(source, Vote(self.term, granted))]

    def _on_request_pre_vote(
        self, source: str, request: RequestPreVote, now: float
    ) -> list[Effect]:
        hears_leader = self.role == "leader" or now - self._heard_at < ELECTION_S[0]
        is_later = request.next_term > self.term
        granted = is_later and not hears_leader and self._is_complete(request)
        return [Send(source, PreVote(self.term, request.next_term, granted))]

    def _is_complete(self, request: RequestVote | RequestPreVote) -> bool:
        """The election restriction: its log has all that is committed."""
        mine = (self._last_term(), len(self.store.log))
        return (request.last_term, request.last_index) >= mine

    def _last_term(self) -> int:
        return self.store.log[-1].epoch if self.store.log else 0

    def _is_majority(self, count: int) -> bool:
        return 2 * count > len(self.peers) + 1


def _number(name: str) -> int:
    return int(name.lstrip("abcdefghijklmnopqrstuvwxyz-"))
