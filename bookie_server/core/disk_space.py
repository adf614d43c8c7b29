"""When a directory counts as full, and when it takes adds again. Pure.

Two water marks, with a distance between them: a directory that is full stays so until clearly more
is free than when it became full. With one mark only, the space that a single flush takes or gives
back would make a bookie change its state, and all clients their ensembles, again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from spark_ledger.bookie_api import Refusal
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieStatus


class Space(NamedTuple):
    """What the disk of a directory says of itself; ``free_bytes`` are those that we may use."""

    size_bytes: int
    free_bytes: int

    @property
    def used_share(self) -> float:
        """How full the disk is, from 0 to 1."""
        if self.size_bytes <= 0:
            return 1.0
        return 1.0 - min(self.free_bytes, self.size_bytes) / self.size_bytes


@dataclass(frozen=True, slots=True)
class WaterMarks:
    """A directory is full from ``high`` (a share of its disk) on, or with less than
    ``reserve_bytes`` free. It takes adds again at ``low``, with half as much again free."""

    high: float
    low: float
    reserve_bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 1:
            raise ConfigurationError(
                f"disk_low_water_mark is {self.low} and disk_high_water_mark is {self.high}: they "
                "are shares of a disk, above 0 and at most 1, and the low one is not above the "
                "high one"
            )
        if self.reserve_bytes < 0:
            raise ConfigurationError(
                f"disk_reserve_bytes is {self.reserve_bytes}: at least 0 is needed"
            )


class DirectoryState(NamedTuple):
    """What is known of a directory. ``reason``: why it is full; empty while it is not.

    ``above_marks``: the disk is fuller than the marks allow. A directory can be full without that:
    the system refused to store something in it (a quota, an index that has reached its size).
    """

    space: Space
    reason: str = ""
    above_marks: bool = False


UNKNOWN = DirectoryState(Space(0, 0))
"""Nothing was asked yet: not full."""


def next_state(
    before: DirectoryState, name: str, space: Space, marks: WaterMarks, refusal: str
) -> DirectoryState:
    """The state of directory ``name`` once its disk was asked.

    ``refusal``: what the last attempt to store in it was refused with for want of space, empty
    if it went well. It counts whatever the disk says of itself.
    """
    above = _is_above(space, marks, was_above=before.above_marks)
    if above:
        percent = space.used_share * 100
        reason = f"disk full: {name} is {percent:.1f} % full, {space.free_bytes} bytes are free"
    elif refusal:
        reason = f"disk full: {refusal}"
    else:
        reason = ""
    return DirectoryState(space, reason, above)


def _is_above(space: Space, marks: WaterMarks, *, was_above: bool) -> bool:
    """Whether the disk is fuller than it may be; leaving that takes more than entering it."""
    if was_above:
        wanted = marks.reserve_bytes + marks.reserve_bytes // 2
        return space.used_share > marks.low or space.free_bytes < wanted
    # A mark of 1 is never reached: it switches the share off, and leaves the reserve.
    return (
        marks.high < 1 and space.used_share >= marks.high
    ) or space.free_bytes < marks.reserve_bytes


def bookie_is_full(journal: DirectoryState, ledgers: Iterable[DirectoryState]) -> str:
    """Why the bookie takes no adds of writers at all; empty while a part of it does.

    Without a journal nothing can be acknowledged. Of ledger directories one with room is enough:
    ledgers that live in another are refused one by one.
    """
    if journal.reason:
        return journal.reason
    reasons = [state.reason for state in ledgers]
    assert reasons, "a bookie has a ledger directory"
    return reasons[0] if all(reasons) else ""


def refuse_for_space(reason: str) -> Refusal:
    """The answer to a request that the disk has no room for."""
    assert reason, "it says which disk is full"
    return Refusal(BookieStatus.READ_ONLY, reason)
