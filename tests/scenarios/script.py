"""Runs scenario files: lines of commands, each followed by what it caused.

A file consists of comments (``#``), commands (``>``) and, below each command, the output that is
expected of it. ``run`` gives the file as it should be; a test compares, ``--rewrite`` replaces.
Commands are the methods of ``tests.scenarios.commands.Commands``.
"""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.commands import Commands

FOLDER = Path(__file__).parent


def files() -> list[Path]:
    """All scenario files."""
    return sorted(FOLDER.glob("*.txt"))


def run(text: str) -> str:
    """The file with the output that its commands have now. Raises what an ``expect`` raises."""
    commands = Commands()
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
                lines.extend(commands.run(line[2:]))
            except Exception as error:
                error.add_note(f"in line {number}: {line}")
                error.add_note("so far:\n" + "\n".join(lines + commands.world_lines()))
                raise
    return "\n".join(lines) + "\n"
