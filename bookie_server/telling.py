"""What the process of a bookie tells whoever started it: on its output, and in the ready file.

Both may be on a disk that is full, as that of its log, and a full disk ends no bookie (rule S14).
So that raises nothing here, and what could not be written changes no exit code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
from pathlib import Path
from typing import NamedTuple, TextIO

from bookie_server.storage.fs.vfs import is_no_space

logger = logging.getLogger(__name__)


class Ready(NamedTuple):
    """What a bookie that serves tells its starter."""

    bookie_id: str
    address: str
    admin_address: str
    pid: int


def tell_ready(ready: Ready, ready_file: Path | None) -> None:
    """Make the ready file, with all of this as JSON, and print it. Without space the file is empty:
    its name is the sign that the bookie serves, and takes none. Raises OSError if it cannot be made
    for another reason: whoever waits for it would wait for ever."""
    text = json.dumps(ready._asdict())
    if ready_file is not None:
        _make(ready_file, text + "\n")
    say(f"ready {text}")


def _make(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        if not is_no_space(error) and error.errno != errno.EFBIG:  # a limit of this process
            raise
        logger.warning("the ready file stays empty: %s", error)
        temporary.write_bytes(b"")
    temporary.replace(path)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print the last line of a stream; of the standard output, if no other one is named."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        _give_up(stream or sys.stdout)


def end_output() -> None:
    """Nothing is said from here on. What could not be written is dropped: otherwise Python's own
    flush at exit would fail, and the exit code be 120, which tells a supervisor nothing."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue  # it was closed when the process began
        try:
            stream.flush()
        except OSError:
            _give_up(stream)


def _give_up(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # without a descriptor it stays as it is
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
        stream.flush()
