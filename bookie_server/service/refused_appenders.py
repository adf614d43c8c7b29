"""How many refused appenders all append streams together keep in mind.

Nothing behind a refusal may be stored, so a stream keeps the tag of each appender that was refused,
for as long as it is open: the last ones of each ledger. A writer that is told to come later opens a
new appender each time, behind the refusal of the one before: of tries without end a few are kept.
A client that goes on with new ledgers, as without the name of the bookie, would hold memory in as
many idle streams as it may have.
"""

from __future__ import annotations

from typing import Protocol

from spark_ledger.limits.bookie import BOOKIE_REFUSED_APPENDERS_MAX


class Refused(Protocol):
    """An append stream of which appenders were refused."""

    def end_refused(self, message: str) -> None:
        """Forget them, and end: ``message`` is for its client."""


class RefusedAppenders:
    """Counts them by stream. Of too many the stream that has most of them ends, also if it is
    idle: one of another client, with one writer that was fenced, goes on. Service thread only."""

    def __init__(self) -> None:
        self._of_stream: dict[Refused, int] = {}
        self.count = 0

    def one_more(self, stream: Refused) -> None:
        """An appender of this stream was refused."""
        self.count += 1
        self._of_stream[stream] = self._of_stream.get(stream, 0) + 1
        if self.count > BOOKIE_REFUSED_APPENDERS_MAX:
            most = max(self._of_stream, key=self._of_stream.__getitem__)
            number = self._of_stream[most]
            self.forget(most)
            most.end_refused(f"{number} appenders of this stream were refused: open a new stream")

    def one_less(self, stream: Refused) -> None:
        """The stream need not keep one of them: its client has read that it was refused."""
        self.count -= 1
        self._of_stream[stream] -= 1

    def forget(self, stream: Refused) -> None:
        """The stream keeps none of them any more."""
        self.count -= self._of_stream.pop(stream, 0)
