"""Violation: one broken promise, with the operations that show it."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """``invariant`` is the promise (I1 .. I14), ``name`` the anomaly, ``text`` one sentence."""

    invariant: str
    name: str
    text: str
    operations: tuple[int, ...] = ()

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.operations))
        return f"{self.invariant} {self.name}: {self.text}" + (f" [{numbers}]" if numbers else "")
