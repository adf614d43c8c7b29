"""DLedger, RocketMQ's Raft log as commit log: a leader pushes, and compares before it pushes.

After the ``DLedgerEntryPusher`` of openmessaging/dledger: the leader keeps a dispatcher for each
follower, which goes COMPARE, TRUNCATE, APPEND, and pushes entries one by one without waiting for
the answers. A follower answers from its page cache; ``flush_each`` makes it wait for its disk.
Elections are Raft's. A dispatcher that compares once more takes another ``attempt``, so that nobody
acts on what was sent before. Entries of older terms are committed with one of the leader's own, as
in Raft.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Final, NamedTuple

from spark_ledger.lab.elections import HEARTBEAT_S, Voter
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
    values_of,
)

PENDING_MAX: Final = 1_000
"""Entries that are pushed to a follower and not answered (``maxPendingSize``)."""
RESEND_S: Final = 0.3
"""A push or question that has no answer for so long is sent again (``maxPushTimeOutMs``)."""
WRITE_BACK_S: Final = 0.5
"""How often an asynchronous flush syncs the log."""


class Compare(NamedTuple):
    """Does your entry at ``at`` have this term? The first message of an attempt."""

    term: int
    attempt: int
    at: int
    of: int


class Compared(NamedTuple):
    """Whether it does. ``end``: how long the follower's log is. If it does not: ``has`` is the
    term of the follower's entry there, and ``first`` where its entries of that term begin."""

    term: int
    attempt: int
    at: int
    agrees: bool
    end: int
    has: int = 0
    first: int = 0


class Truncate(NamedTuple):
    """Cut what is behind ``at``: it is not in the leader's log."""

    term: int
    attempt: int
    at: int


class Push(NamedTuple):
    """Append this entry at ``at``."""

    term: int
    attempt: int
    at: int
    entry: Entry
    commit: int

    @property
    def carries(self) -> tuple[int, ...]:
        return values_of((self.entry,))


class Commit(NamedTuple):
    """The leader lives, and so much is committed."""

    term: int
    attempt: int
    commit: int


class Pushed(NamedTuple):
    """The log is the leader's up to ``at``; not ``ok``: something before it is missing."""

    term: int
    attempt: int
    at: int
    ok: bool


class _Dispatcher:
    """What the leader knows of one follower. ``watermark``: up to where their logs are equal."""

    def __init__(self, end: int) -> None:
        self.attempt = 0
        self.compares = True
        self.index = end
        """What is compared, or was pushed last."""
        self.watermark = 0
        self.moved_at = 0.0
        """When something was asked or answered last."""


class DLedgerNode(Voter):
    """One server. Indexes count from 1; ``commit`` entries are committed."""

    def __init__(
        self,
        name: str,
        peers: tuple[str, ...],
        store: Store,
        draw: random.Random,
        now: float,
        *,
        flush_each: bool = False,
    ) -> None:
        super().__init__(name, peers, store, draw, now)
        self._flush_each = flush_each
        self._dispatchers: dict[str, _Dispatcher] = {}
        self._waiting: dict[int, str] = {}
        self._attempt = 0
        """Of a follower: the last attempt that it heard of in this term."""
        self._matched = 0
        """Of a follower: up to where its log is that of this term's leader."""
        self._owed: deque[tuple[int, Send]] = deque()
        """Answers that wait for the disk, by the length that has to be synced."""
        self._heartbeat_at = 0.0
        self._write_back_at = now + WRITE_BACK_S

    @property
    def end(self) -> int:
        """How much of the log counts."""
        return self.store.synced if self._flush_each else len(self.store.log)

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Tick():
                return self._on_tick(now)
            case Synced(length):
                return self._on_synced(length)
            case Received(source, Produce(value)):
                return self._on_produce(source, value, now)
            case Received(source, message):
                self._see_term(message, now)
                match message:
                    case Compare() | Truncate() | Push() | Commit():
                        return self._on_leader(source, message, now)
                    case Compared() | Pushed():
                        return self._on_follower(source, message, now)
                    case _:
                        return self._on_vote(source, message, now)
            case _:
                return []

    def _leave_office(self) -> None:
        self._waiting.clear()
        self._owed.clear()
        self._attempt = self._matched = 0

    def _take_office(self, now: float) -> list[Effect]:
        self._heartbeat_at = 0.0
        self._dispatchers = {peer: _Dispatcher(len(self.store.log)) for peer in self.peers}
        if not self.store.is_full:
            self.store.append(Entry(self.term, NO_VALUE))
        effects: list[Effect] = [Sync()] if self._flush_each else []
        return [*effects, *(self._compare_anew(peer, now) for peer in self.peers)]

    # -- the leader --------------------------------------------------------------------------------

    def _on_produce(self, source: str, value: int, now: float) -> list[Effect]:
        if self.role != "leader":
            return [Send(source, Refused(value, self.leader))]
        if self.store.is_full:
            return [Send(source, Refused(value, self.name))]  # ``DISK_FULL``; it goes on leading
        self.store.append(Entry(self.term, value))
        self._waiting[len(self.store.log)] = source
        effects: list[Effect] = [Sync()] if self._flush_each else []
        for peer in self.peers:
            effects += self._push(peer, now)
        return effects

    def _push(self, peer: str, now: float) -> list[Effect]:
        """Push what the follower was not sent yet; nothing waits for an answer."""
        state, log = self._dispatchers[peer], self.store.log
        effects: list[Effect] = []
        if state.compares:
            return effects
        if state.index == state.watermark:
            state.moved_at = now
        while state.index < len(log) and state.index - state.watermark < PENDING_MAX:
            state.index += 1
            entry = log[state.index - 1]
            push = Push(self.term, state.attempt, state.index, entry, self.commit)
            effects.append(Send(peer, push))
        return effects

    def _compare_anew(self, peer: str, now: float) -> Send:
        """Another attempt: from the leader's end backwards."""
        state = self._dispatchers[peer]
        state.attempt += 1
        state.compares, state.index, state.watermark = True, len(self.store.log), 0
        return self._compare(peer, now)

    def _compare(self, peer: str, now: float) -> Send:
        state, log = self._dispatchers[peer], self.store.log
        state.moved_at = now
        of = log[state.index - 1].epoch if state.index else 0
        return Send(peer, Compare(self.term, state.attempt, state.index, of))

    def _on_follower(self, source: str, answer: Compared | Pushed, now: float) -> list[Effect]:
        state = self._dispatchers.get(source)
        if self.role != "leader" or answer.term != self.term or state is None:
            return []
        if answer.attempt != state.attempt:
            return []  # of an earlier attempt: since then it may have cut its log
        match answer:
            case Pushed(_, _, index, True):
                state.watermark = max(state.watermark, index)
                state.moved_at = now
                return [*self._advance(), *self._push(source, now)]
            case Pushed():
                return [self._compare_anew(source, now)]
            case Compared(_, _, index, agrees, end):
                if not state.compares or index != state.index:
                    return []
                if not agrees:
                    state.index = self._earlier(answer)
                    return [self._compare(source, now)]
                state.moved_at = now
                if end > index:  # it has what the leader has not; it answers when that is gone
                    return [Send(source, Truncate(self.term, state.attempt, index))]
                state.compares = False
                return self._push(source, now)

    def _earlier(self, answer: Compared) -> int:
        """Where the logs may agree: before what only one of them has of a term."""
        if answer.end < answer.at:
            return answer.end
        place, log = answer.at - 1, self.store.log
        while place and log[place - 1].epoch > answer.has:
            place -= 1
        shares_term = place > 0 and log[place - 1].epoch == answer.has
        return place if shares_term else min(place, answer.first - 1)

    def _advance(self) -> list[Effect]:
        """An entry of this term that a majority holds commits all before it."""
        held = [self.end, *(state.watermark for state in self._dispatchers.values())]
        index = sorted(held, reverse=True)[len(held) // 2]
        if index <= self.commit or self.store.log[index - 1].epoch != self.term:
            return []
        effects: list[Effect] = []
        for place in range(self.commit, index):
            client = self._waiting.pop(place + 1, None)
            if client is not None:
                effects.append(Send(client, Produced(self.store.log[place].value)))
        self.commit = index
        return effects

    # -- a follower --------------------------------------------------------------------------------

    def _on_leader(
        self, source: str, message: Compare | Truncate | Push | Commit, now: float
    ) -> list[Effect]:
        if message.term < self.term:
            return [Send(source, Pushed(self.term, message.attempt, 0, False))]
        self._hear(source, now)
        if message.attempt < self._attempt:
            return []
        if message.attempt > self._attempt:
            self._attempt = message.attempt
            self._owed.clear()  # answers of an attempt that is over
        match message:
            case Compare(_, attempt, index, of):
                return self._on_compare(source, attempt, index, of)
            case Truncate(_, attempt, index):
                is_lost = self._flush_each and index < self.commit
                assert not is_lost, "A committed entry is truncated."
                gone = self.store.truncate(index)
                answer = Compared(self.term, attempt, index, True, index)
                return [Note("truncated", gone), Send(source, answer)]
            case Push():
                return self._on_push(source, message)
            case Commit(_, _, commit):
                self.commit = max(self.commit, min(commit, self._matched))
                return []

    def _on_compare(self, source: str, attempt: int, index: int, of: int) -> list[Effect]:
        log = self.store.log
        if not index or (index <= len(log) and log[index - 1].epoch == of):
            agreed = Compared(self.term, attempt, index, True, len(log))
            return [Send(source, agreed), *self._hold(source, index)]
        if index > len(log):
            return [Send(source, Compared(self.term, attempt, index, False, len(log)))]
        first, has = index, log[index - 1].epoch
        while first > 1 and log[first - 2].epoch == has:
            first -= 1
        differs = Compared(self.term, attempt, index, False, len(log), has, first)
        return [Send(source, differs)]

    def _on_push(self, source: str, push: Push) -> list[Effect]:
        log, index = self.store.log, push.at
        if self.store.is_full and index > len(log):
            return []  # the leader pushes it again
        if index > len(log) + 1 or (index <= len(log) and log[index - 1] != push.entry):
            return [Send(source, Pushed(self.term, push.attempt, index, False))]
        if index == len(log) + 1:
            self.store.append(push.entry)
        self.commit = max(self.commit, min(push.commit, index))
        return self._hold(source, index)

    def _hold(self, source: str, index: int) -> list[Effect]:
        """The log is the leader's up to there: say so, when it counts."""
        self._matched = max(self._matched, index)
        answer = Send(source, Pushed(self.term, self._attempt, index, True))
        if not self._flush_each or index <= self.store.synced:
            return [answer]
        self._owed.append((index, answer))
        return [Sync()]

    def _on_synced(self, length: int) -> list[Effect]:
        if self.role == "leader":
            return self._advance()
        effects: list[Effect] = []
        while self._owed and self._owed[0][0] <= length:
            effects.append(self._owed.popleft()[1])
        return effects

    # -- time --------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now >= self._write_back_at:
            self._write_back_at = now + WRITE_BACK_S
            effects.append(Sync())
        if self.role != "leader":
            return [*effects, *(self._stand(now) if now >= self._deadline else [])]
        if now < self._heartbeat_at:
            return effects
        self._heartbeat_at = now + HEARTBEAT_S
        for peer, state in self._dispatchers.items():
            effects.append(Send(peer, Commit(self.term, state.attempt, self.commit)))
            waits = state.compares or state.index > state.watermark
            if waits and now - state.moved_at >= RESEND_S:
                effects.append(self._compare_anew(peer, now))
        return effects
