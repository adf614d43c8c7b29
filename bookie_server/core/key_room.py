"""How much a bookie holds of adds that wait for the key of their ledger. Pure.

Anybody can send adds to ledgers that do not exist, and while the metadata store is away each of
them waits until its look-up is given up. So they have a bound of their own. They are not counted
with those that are on their way to the disk, for which the bookie stops reading: these are of
writers whose ledgers are known, and who need no metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from spark_ledger.bookie_api import Refusal
from spark_ledger.limits.bookie import BOOKIE_KEY_WAITING_BYTES_MAX
from spark_ledger.types import BookieStatus

F = TypeVar("F")

_BESIDE_BYTES: Final = 1024
"""What an add takes beside its frames."""


class Place(Protocol):
    """A request that has room, whatever it waits for."""

    who: str
    frames_bytes: int

    @property
    def cost(self) -> int:
        """Bytes of memory; 0 needs no room."""

    def make_way(self, refusal: Refusal) -> None:
        """It is refused, and goes on no more."""


class Waiter(Generic[F]):
    """A request that waits: ``go_on`` receives, once, what was found. It is None when the request
    had to make way."""

    __slots__ = ("frames_bytes", "go_on", "who")

    def __init__(self, who: str, frames_bytes: int, go_on: Callable[[F | Refusal], None]) -> None:
        """``frames_bytes`` is 0 for a request that is no add; ``who`` names its connection."""
        self.who = who
        self.frames_bytes = frames_bytes
        self.go_on: Callable[[F | Refusal], None] | None = go_on

    @property
    def cost(self) -> int:
        """Bytes of memory."""
        return self.frames_bytes + _BESIDE_BYTES if self.frames_bytes else 0

    def make_way(self, refusal: Refusal) -> None:
        """See ``Place``."""
        go_on, self.go_on = self.go_on, None
        assert go_on is not None, "who has room has not made way yet"
        go_on(refusal)


class KeyRoom:
    """Counts the adds that wait, by connection. For one that has no room the newest of the
    connection that has most of them makes way, unless its own connection would have as much.

    The newest, as nothing behind a refused add may be acknowledged (rule P3). Requests that are no
    adds cost nothing: there are bounds for their calls.
    """

    def __init__(self, bytes_max: int = BOOKIE_KEY_WAITING_BYTES_MAX) -> None:
        """``bytes_max`` is more than a single add costs."""
        self._bytes_max = bytes_max
        self._waiters: dict[str, dict[Place, None]] = {}
        """By connection, the oldest first; none is empty."""
        self._costs: dict[str, int] = {}
        self._cost = 0
        self.frames_bytes = 0

    def enter(self, waiter: Place) -> Refusal | None:
        """Count a request until it leaves. A refusal: there is no room for it."""
        if not waiter.cost:
            return None
        leaving = self._who_makes_way(waiter)
        if leaving is None:
            return self._busy()
        for each in leaving:
            self._make_way(each)
        self._waiters.setdefault(waiter.who, {})[waiter] = None
        self._count(waiter, 1)
        return None

    def _who_makes_way(self, waiter: Place) -> list[Place] | None:
        """Those whose room a request gets. None: they would be too few, and all of them stay."""
        too_much = self._cost + waiter.cost - self._bytes_max
        if too_much <= 0:
            return []
        share = self._costs.get(waiter.who, 0) + waiter.cost
        above = {who: cost for who, cost in self._costs.items() if cost > share}
        newest = {who: reversed(self._waiters[who]) for who in above}
        leaving: list[Place] = []
        while too_much > 0:
            if not above:
                return None
            most = max(above, key=above.__getitem__)
            leaving.append(next(newest[most]))
            too_much -= leaving[-1].cost
            above[most] -= leaving[-1].cost
            if above[most] <= share:
                del above[most]
        return leaving

    def leave(self, waiter: Place) -> None:
        """A request that was let in goes on, or is refused."""
        if waiter.cost:
            of_connection = self._waiters[waiter.who]
            del of_connection[waiter]
            self._count(waiter, -1)
            if not of_connection:
                del self._waiters[waiter.who], self._costs[waiter.who]

    def _count(self, waiter: Place, sign: int) -> None:
        self._costs[waiter.who] = self._costs.get(waiter.who, 0) + sign * waiter.cost
        self._cost += sign * waiter.cost
        self.frames_bytes += sign * waiter.frames_bytes

    def _make_way(self, waiter: Place) -> None:
        refusal = self._busy()
        self.leave(waiter)
        waiter.make_way(refusal)

    def _busy(self) -> Refusal:
        return Refusal(
            BookieStatus.TOO_MANY_REQUESTS,
            f"{self.frames_bytes} bytes of adds wait for the keys of their ledgers: send it again "
            "later",
        )
