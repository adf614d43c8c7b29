"""Attempts at a change of a stream that others may win, with pauses. Knows not what it changes."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from spark_ledger.errors import RetryableError
from spark_ledger.limits.stream import TRUNCATE_TIMEOUT_S

_BACKOFF_S_MIN: Final = 0.002
_BACKOFF_S_MAX: Final = 0.2
"""Pauses between attempts, as those of a commit."""


class Tries:
    """Attempts with growing pauses, until the caller has what it wants, or time is up."""

    def __init__(self, stream_name: str, rng: random.Random) -> None:
        self._stream_name = stream_name
        self._rng = rng
        self._deadline = asyncio.get_running_loop().time() + TRUNCATE_TIMEOUT_S
        self._backoff_s = 0.0

    async def begin(self) -> None:
        """Begin an attempt, after a pause if it is not the first. Raises RetryableError."""
        if asyncio.get_running_loop().time() > self._deadline:
            raise RetryableError(
                f"stream {self._stream_name!r}: other writers won every race for "
                f"{TRUNCATE_TIMEOUT_S:.0f} s, so it may be as it was; try again"
            )
        await asyncio.sleep(self._rng.uniform(0, self._backoff_s))
        self._backoff_s = min(max(2 * self._backoff_s, _BACKOFF_S_MIN), _BACKOFF_S_MAX)
