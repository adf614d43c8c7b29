"""Exit codes of the bookie's process; README.md beside this file says what to do about each."""

from __future__ import annotations

import errno
from typing import Final

from spark_ledger.errors import (
    BookieReplacedError,
    ConfigurationError,
    CorruptionError,
    LedgerError,
)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_REFUSED: Final = 2
EXIT_FATAL: Final = 3
EXIT_REPLACED: Final = 4

EXIT_MEANINGS: Final = {
    EXIT_OK: "stopped as asked",
    EXIT_FAILED: "the metadata store did not answer in time, or something unforeseen happened",
    EXIT_REFUSED: "configuration, identity or damaged stored data forbid a start",
    EXIT_FATAL: "the journal or an index's root could not be written, a storage thread ended, a "
    "disk failed at the start, or the service stood still",
    EXIT_REPLACED: "another process is, or was meanwhile, the same bookie",
}
"""One sentence for each exit code: of ``--help``, and of the table in README.md."""


def exit_code_of(error: LedgerError) -> int:
    """That of a start which this ended, or of a bookie that may not serve on because of it."""
    if isinstance(error, BookieReplacedError):
        return EXIT_REPLACED
    cause = error.__cause__  # any step of a start may meet a disk that fails (rule S3)
    if isinstance(error, ConfigurationError) and getattr(cause, "errno", 0) == errno.EIO:
        return EXIT_FATAL
    is_refused = isinstance(error, ConfigurationError | CorruptionError)
    return EXIT_REFUSED if is_refused else EXIT_FAILED
