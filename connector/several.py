"""Several: which streams one read takes, and where each begins and ends. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from connector.option_parsers import PositionsByStream, TimesByStream
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.connector import STREAMS_PER_READ_MAX


@dataclass(frozen=True, slots=True)
class Several:
    """The streams of one read: those with ``names``, or those whose whole name fits ``pattern``.

    Where they begin and end by name; those that are not named begin and end as the read does.
    """

    names: tuple[str, ...] = ()
    pattern: str = ""
    starts: PositionsByStream = field(default_factory=PositionsByStream)
    ends: PositionsByStream = field(default_factory=PositionsByStream)
    start_times_ms: TimesByStream = field(default_factory=TimesByStream)
    end_times_ms: TimesByStream = field(default_factory=TimesByStream)

    def takes(self, name: str) -> bool:
        """Whether a stream of this name is read."""
        if self.names:
            return name in self.names
        return re.fullmatch(self.pattern, name) is not None

    @property
    def subject(self) -> str:
        """What is read, for messages."""
        if self.names:
            return "streams " + ", ".join(map(repr, self.names))
        return f"streams that fit {self.pattern!r}"

    def check(self) -> None:
        """Raises ConfigurationError if a position is given for a stream that is not read, or there
        are too many streams."""
        for option, values in (
            ("startingPosition", self.starts),
            ("endingPosition", self.ends),
            ("startingTimestamp", self.start_times_ms),
            ("endingTimestamp", self.end_times_ms),
        ):
            for name in values:
                if not self.takes(name):
                    raise ConfigurationError(
                        f"option {option}: {name!r} is none of the {self.subject}"
                    )
        self.check_count(len(self.names))

    def check_count(self, streams: int) -> None:
        """Raises ConfigurationError if there are more streams than one read takes."""
        if streams > STREAMS_PER_READ_MAX:
            raise ConfigurationError(
                f"{streams} {self.subject if self.pattern else 'streams'}: one read takes "
                f"{STREAMS_PER_READ_MAX} at most; use several reads, and union()"
            )
