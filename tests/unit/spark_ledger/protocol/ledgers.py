"""Ledger metadata for machine tests, in one line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)

T = TypeVar("T")


def ids(names: str) -> tuple[BookieId, ...]:
    """``"b0 b1"`` as bookie ids."""
    return tuple(BookieId(name) for name in names.split())


def fragment(first_entry: int, names: str) -> Fragment:
    return Fragment(EntryId(first_entry), ids(names))


def ledger(
    quorums: tuple[int, int, int],
    *fragments: tuple[int, str],
    state: LedgerState = LedgerState.OPEN,
    last: int = -1,
    length: int = 0,
) -> LedgerMetadata:
    """``ledger((3, 3, 2), (0, "b0 b1 b2"))``."""
    return LedgerMetadata(
        LedgerId(7),
        Quorums(*quorums),
        tuple(fragment(first, names) for first, names in fragments),
        state=state,
        last_entry_id=EntryId(last),
        length=length,
    )


def only(commands: Iterable[object], kind: type[T]) -> list[T]:
    """The commands of one kind, in order."""
    return [command for command in commands if isinstance(command, kind)]


def one(commands: Iterable[object], kind: type[T]) -> T:
    """The single command of a kind."""
    found = only(commands, kind)
    assert len(found) == 1, f"{kind.__name__}: {found}"
    return found[0]
