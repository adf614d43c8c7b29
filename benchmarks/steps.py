"""Step: one thing to measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from benchmarks.rows import Row


class Step(NamedTuple):
    """One thing to measure, with what a progress line calls it."""

    title: str
    measure: Callable[[], Iterable[Row]]
