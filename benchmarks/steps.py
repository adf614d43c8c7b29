"""Step: one thing to measure, with a title."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from benchmarks.rows import Row


class Step(NamedTuple):
    """One thing to measure, and its title in the progress line."""

    title: str
    measure: Callable[[], Iterable[Row]]
