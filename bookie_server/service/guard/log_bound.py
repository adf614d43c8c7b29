"""A bound on lines of the log that any stranger can cause: one line each, and not many of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

_LINES: Final = 5
_PERIOD_S: Final = 1.0
"""So many lines in so long a time show what goes on; a gigabyte a day does not show more."""


class LogBound(logging.Filter):
    """Lets a few records through per second, without tracebacks; the next one says how many not.

    Any thread, as loggers are.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._began = -_PERIOD_S
        self._passed = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """See ``logging.Filter``."""
        now = self._clock()
        if now - self._began >= _PERIOD_S:
            self._began, self._passed = now, 0
        if self._passed >= _LINES:
            self._left_out += 1
            return False
        self._passed += 1
        error = record.exc_info[1] if record.exc_info else None
        reason = f": {' '.join(str(error).split())[:200]}" if error is not None else ""
        more = f" ({self._left_out} lines before it were left out)" if self._left_out else ""
        record.msg, record.args = f"{record.getMessage()}{reason}{more}", ()
        record.exc_info = record.exc_text = None
        self._left_out = 0
        return True
