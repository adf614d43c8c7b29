"""Draws the protocol machines from their tables: ``python -m tests.style.diagrams``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from enum import Enum

from tests.style.sources import ROOT

DOCUMENT = ROOT / "spark_ledger" / "protocol" / "README.md"
MACHINES = ("append", "read", "recovery")
_BLOCK = re.compile(r"(<!-- transitions: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def diagram(machine: str) -> str:
    """The machine's table as a Mermaid diagram; the first phase is where it begins.

    Each arrow names the events that may lead along it; Start is the call of ``start()``.
    """
    module = importlib.import_module(f"spark_ledger.protocol.{machine}_phases")
    table: Mapping[Enum, Mapping[Enum, tuple[type, ...]]] = module.TRANSITIONS
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(module.Phase)).name}"]
    for phase, changes in table.items():
        for target, events in changes.items():
            names = ", ".join(event.__name__ for event in events)
            lines.append(f"    {phase.name} --> {target.name}: {names}")
        if not changes:
            lines.append(f"    {phase.name} --> [*]")
    return "\n".join([*lines, "```", ""])


def with_diagrams(text: str) -> str:
    """The document with each marked block made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}{diagram(found[2])}{found[3]}", text)


if __name__ == "__main__":
    DOCUMENT.write_text(with_diagrams(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
