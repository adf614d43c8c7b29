"""Which rows of a stream go: what a truncation makes of its head, and what holds keep. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.stream import HOLD_S_MAX
from spark_ledger.stream.model import Commit, Head
from spark_ledger.types import Dlsn

_HOLD_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Hold:
    """A promise to keep the rows from a commit on until a time, for whoever reads slowly.

    ``bytes_before`` are the stream's bytes before that commit. The hold is void once
    ``size_bytes_max`` follow it, or at ``expires_ms``; then the keeper takes it off.
    Raises ConfigurationError if a field is outside of its bounds.
    """

    name: str
    commit: int
    position: Dlsn
    bytes_before: int
    made_ms: int
    expires_ms: int
    size_bytes_max: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _HOLD_NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"hold {self.name!r}: use 1 to 100 letters, digits, dots, hyphens and underscores, "
                "beginning with a letter or digit"
            )
        if not 0 < self.expires_ms - self.made_ms <= HOLD_S_MAX * 1000:
            raise ConfigurationError(
                f"hold {self.name!r}: it ends after {(self.expires_ms - self.made_ms) / 1000:g} s; "
                f"use a time above 0 and up to {HOLD_S_MAX:g} s"
            )
        if self.size_bytes_max is not None and not 0 < self.size_bytes_max < 2**63:
            raise ConfigurationError(
                f"hold {self.name!r}: a bound of {self.size_bytes_max} bytes; use one above 0"
            )

    def held_bytes(self, head: Head) -> int:
        """How many bytes of payload follow the commit from which it keeps."""
        return head.size_bytes - self.bytes_before

    def is_void(self, head: Head, now_ms: int) -> bool:
        """Whether it keeps nothing any more, at a time of the one who asks."""
        has_many = self.size_bytes_max is not None and self.held_bytes(head) > self.size_bytes_max
        return now_ms >= self.expires_ms or has_many


def first_held(holds: Iterable[Hold]) -> Hold | None:
    """The hold that keeps most, or None."""
    return min(holds, key=lambda hold: (hold.commit, hold.name), default=None)


def truncated(head: Head, first: Commit | None) -> Head:
    """The head when ``first`` is the first commit that is kept; None: nothing is (rule T14)."""
    number = head.next_commit if first is None else first.number
    segment = head.next_segment if first is None else first.first_segment
    assert head.earliest_commit <= number <= head.next_commit, (number, head)
    after = replace(
        head,
        earliest=Dlsn(segment, 0, 0),
        earliest_commit=number,
        time_resets=tuple(reset for reset in head.time_resets if reset > number),
    )
    assert after.earliest >= head.earliest, "what was dropped does not come back"
    return after
