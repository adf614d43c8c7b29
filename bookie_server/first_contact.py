"""Requests of ledgers that a bookie has no record of wait here until their key was looked up.

A bookie keeps the hash of a ledger's access key with its record. The first request must not bring
it: whoever came first, with any key, would own the ledger here. So it is compared with the hash in
the ledger's metadata (rule P20), which the client that made the ledger wrote before it sent
anything. One look for each ledger and bookie, for the record says it from then on.

All requests of a ledger wait behind the first and go on in their order, as a later entry must not
be acknowledged before an earlier one (rule P3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from bookie_server.core.copies import CopyGrant
from bookie_server.core.key_room import KeyRoom, Waiter
from bookie_server.core.transitions import KnownLedger
from spark_ledger.bookie_api import ASKED_BY, Done, Refusal
from spark_ledger.limits.bookie import ADDS_GO_ON_AT_ONCE
from spark_ledger.types import BookieStatus, LedgerId

Answer = Callable[[KnownLedger | Refusal], None]
"""Receives, once, what the metadata say of a ledger, or why that cannot be had."""

CopyAnswer = Callable[[CopyGrant | Refusal], None]
"""Receives, once, who may copy the ledger here."""

F = TypeVar("F")


class LedgerKeys(Protocol):
    """Where the keys of ledgers are looked up: the cluster's metadata."""

    def look_up(self, ledger_id: LedgerId, answer: Answer) -> None:
        """Call back within a bounded time, on the service thread, at once or later."""

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        """The same for who may copy the ledger, as the metadata have it now."""


class NoLedgers:
    """For a bookie without metadata: it serves what it holds and takes no new ledger."""

    def look_up(self, ledger_id: LedgerId, answer: Answer) -> None:
        """Refuse."""
        answer(not_in_the_metadata(ledger_id))

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        """Refuse."""
        answer(not_in_the_metadata(ledger_id))


class LookUps(Generic[F]):
    """The requests that wait for a key. Everything here belongs to the service thread.

    Those of one ledger go on some at a time: there may be thousands, if ZooKeeper was slow. Each
    connection that asks for it has it looked up: the look-up of one may have to wait behind the
    thousands that it has asked for, and nobody else shall.
    """

    def __init__(
        self,
        look_up: Callable[[LedgerId, Callable[[F | Refusal], None]], None],
        post: Callable[[Callable[[], None]], None],
        room: KeyRoom | None = None,
    ) -> None:
        """``post`` runs a callable on the service thread, in a later turn. ``room`` is shared with
        others."""
        self.room = room or KeyRoom()
        self._look_up = look_up
        self._post = post
        self._waiting: dict[LedgerId, deque[Waiter[F]]] = {}
        self._asking: dict[LedgerId, set[str]] = {}
        """The connections for which a ledger is looked up, until the first answer that is one."""
        self._closed = False

    def is_waiting(self, ledger_id: LedgerId) -> bool:
        """Whether a request of this ledger waits, so that the next one has to wait as well."""
        return ledger_id in self._waiting

    def wait(
        self,
        ledger_id: LedgerId,
        resume: Callable[[F | Refusal], None],
        frames_bytes: int = 0,
        who: str | None = None,
    ) -> None:
        """Have a request go on once the ledger's key is known, or is not to be had. One that has
        frames is refused when others wait with as many as there is room for. ``who`` names its
        connection, if it does not come from there now."""
        who = ASKED_BY.get() if who is None else who
        waiter: Waiter[F] = Waiter(who, frames_bytes, resume)
        refusal = _closing() if self._closed else self.room.enter(waiter)
        if refusal is not None:
            resume(refusal)
            return
        if ledger_id not in self._waiting:
            self._waiting[ledger_id] = deque()
            self._asking[ledger_id] = set()
        self._waiting[ledger_id].append(waiter)
        asking = self._asking.get(ledger_id)
        if asking is not None and who not in asking:
            asking.add(who)
            asked_by = ASKED_BY.set(who)
            self._look_up(ledger_id, partial(self._answered, ledger_id, who, asking))
            ASKED_BY.reset(asked_by)

    def close(self) -> None:
        """Refuse what waits, and what comes."""
        self._closed = True
        while self._waiting:
            _ledger_id, waiting = self._waiting.popitem()
            for waiter in waiting:
                self._resume(waiter, _closing())
        self._asking.clear()

    def _answered(
        self, ledger_id: LedgerId, who: str, asking: set[str], answer: F | Refusal
    ) -> None:
        """A look-up has ended. One that came to nothing leaves it to those of others, and one that
        others have outrun is no answer to what is asked by now."""
        if self._asking.get(ledger_id) is not asking:
            return  # another one has brought the answer, or it was closed meanwhile
        asking.discard(who)
        is_busy = isinstance(answer, Refusal) and answer.status is BookieStatus.TOO_MANY_REQUESTS
        if not (is_busy and asking):
            del self._asking[ledger_id]
            self._go_on(ledger_id, answer)

    def _go_on(self, ledger_id: LedgerId, answer: F | Refusal) -> None:
        """Have those go on that wait, in their order. Who comes before the last of them has gone on
        waits behind it."""
        waiting = self._waiting.get(ledger_id)
        if waiting is None:  # it was closed meanwhile
            return
        for _ in range(min(len(waiting), ADDS_GO_ON_AT_ONCE)):
            self._resume(waiting.popleft(), answer)
        if waiting:
            self._post(partial(self._go_on, ledger_id, answer))
        else:
            del self._waiting[ledger_id]

    def _resume(self, waiter: Waiter[F], answer: F | Refusal) -> None:
        if waiter.go_on is not None:  # else it had to make way, and was refused
            self.room.leave(waiter)
            waiter.go_on(answer)


def resume(again: Callable[[KnownLedger], None], done: Done, answer: KnownLedger | Refusal) -> None:
    """Go on with a request whose ledger was looked up."""
    if isinstance(answer, Refusal):
        done(*answer)
    else:
        again(answer)


def not_in_the_metadata(ledger_id: LedgerId) -> Refusal:
    """The refusal of a ledger that was deleted, or never made.

    It is no denial: a recovery that took a fence which was not stored for an answer would count on
    it (rule P12).
    """
    return Refusal(
        BookieStatus.UNAUTHORIZED,
        f"ledger {ledger_id} is not in the cluster's metadata: deleted, or never created",
    )


def _closing() -> Refusal:
    return Refusal(BookieStatus.IO_ERROR, "the bookie is shutting down")
