"""How long ago rows were dropped, by the time that keepers have worked. Pure (rule K8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Looks = Sequence[tuple[float, int]]
"""When, in seconds of work, a stream was seen to be dropped up to which commit. Ascending."""

_LOOKS_PER_GRACE: Final = 15
"""So many looks of one grace are kept, however often rows are dropped: a stream that drops some all
the time waits up to a fifteenth of the grace longer, and its node stays small."""


class DroppedRows:
    """What keepers have seen one stream drop, and up to where that is long enough ago."""

    def __init__(self, saved: Looks = ()) -> None:
        self._looks = list(saved)

    @property
    def looks(self) -> Looks:
        """What the next keeper goes on from."""
        return tuple(self._looks)

    def before(self, earliest_commit: int, now_s: float, grace_s: float) -> int:
        """A look: up to which commit the stream was dropped at least so long ago."""
        # Metadata that were restored, or written by hand, make nothing older than it is.
        looks = [(min(at, now_s), commit) for at, commit in self._looks]
        looks = [each for each in looks if each[1] <= earliest_commit]
        last_s, last_commit = looks[-1] if looks else (-grace_s, 0)
        if last_commit < earliest_commit and now_s - last_s >= grace_s / _LOOKS_PER_GRACE:
            looks.append((now_s, earliest_commit))
        while len(looks) > 1 and now_s - looks[1][0] >= grace_s:
            looks.pop(0)
        self._looks = looks
        if not looks or now_s - looks[0][0] < grace_s:
            return 0
        return looks[0][1]

    def seen(self, now_s: float, for_s: float) -> int:
        """Up to which commit the stream was seen to be dropped so long ago, at the last looks."""
        return max((commit for at, commit in self._looks if now_s - at >= for_s), default=0)
