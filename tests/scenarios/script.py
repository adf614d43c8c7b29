"""Runs scenario files: lines of commands, each followed by what it caused.

A file consists of comments (``#``), commands (``>``) and, below each command, the output that is
expected of it. ``run`` gives the file as it should be; a test compares, ``--rewrite`` replaces.
The first command says what the file is about (``WORDS``), and so which commands there are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from spark_ledger.errors import ConfigurationError
from tests.scenarios.bookie_words import BookieWords
from tests.scenarios.commands import Commands
from tests.scenarios.quorum_words import QuorumWords
from tests.scenarios.stream_words import StreamWords

FOLDER = Path(__file__).parent


class Words(Protocol):
    """The commands of one kind of file: its methods named ``do_...``."""

    def run(self, line: str) -> list[str]:
        """Run one command; what it caused."""

    def world_lines(self) -> list[str]:
        """What happened in a command that failed."""

    def close(self) -> None:
        """The file is at its end."""


WORDS: dict[str, Callable[[], Words]] = {
    "create": Commands,
    "ledger": Commands,
    "bookie": BookieWords,
    "stream": StreamWords,
    "quorums": QuorumWords,
}


def files() -> list[Path]:
    """All scenario files."""
    return sorted(FOLDER.glob("*.txt"))


def words_of(text: str) -> Words:
    """The words that a file uses, by its first command."""
    first = next(line for line in text.splitlines() if line.startswith("> "))
    word = first[2:].split()[0]
    if word not in WORDS:
        raise ConfigurationError(f"a scenario begins with one of {', '.join(WORDS)}, not {word}")
    return WORDS[word]()


def run(text: str) -> str:
    """The file with the output that its commands have now. Raises what an ``expect`` raises."""
    words = words_of(text)
    try:
        return _run(text, words)
    finally:
        words.close()


def _run(text: str, words: Words) -> str:
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            if lines and lines[-1] and not lines[-1].startswith("#"):
                lines.append("")
            lines.append(line)
        elif line.startswith("> "):
            if lines and lines[-1] and not lines[-1].startswith(("#", ">")):
                lines.append("")
            lines.append(line)
            try:
                lines.extend(words.run(line[2:]))
            except Exception as error:
                error.add_note(f"in line {number}: {line}")
                error.add_note("so far:\n" + "\n".join(lines + words.world_lines()))
                raise
    return "\n".join(lines) + "\n"
