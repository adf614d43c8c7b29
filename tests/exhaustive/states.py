"""The states of a scope: plain tuples of the bookies, the clients and the messages under way.

A client stands in a state by its number, see ``shells``.
"""

from __future__ import annotations

from typing import NamedTuple


class Bookie(NamedTuple):
    """A bookie's disk and rules."""

    entries: frozenset[int] = frozenset()
    last_add_confirmed: int = -1
    fenced: bool = False
    knows_ledger: bool = False
    up: bool = True


class State(NamedTuple):
    """Everything. ``network`` has a channel's number and the numbers of its messages, in order."""

    metadata: int
    version: int
    bookies: tuple[Bookie, ...]
    clients: tuple[int, ...]
    network: tuple[tuple[int, tuple[int, ...]], ...]
    frames: tuple[int, ...]
    """The last add confirmed that each entry carries."""
    confirmed: int
    crashes: int
    losses: int
    pushed_at_close: int
    slow: tuple[int, ...]
    """Channels that are slow now."""
    slow_left: int


class Action(NamedTuple):
    """Something that may happen: its kind, and the channel, bookie or client it happens to."""

    kind: str
    number: int = 0
