"""The scopes that are searched: small enough to see all of, large enough to hold a bug."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ledger.types import Quorums


@dataclass(frozen=True, slots=True)
class Scope:
    """What may happen, and how often. Everything that may happen may happen at any moment."""

    name: str
    quorums: Quorums
    entries: int = 2
    spares: int = 1
    """Bookies outside the first ensemble."""
    recoveries: int = 1
    readers: int = 0
    """Clients that ask for the last add confirmed, without fencing."""
    crashes: int = 0
    """Bookies that die for good. What they answered before may still arrive."""
    losses: int = 0
    """Requests of which a client learns that there is no answer; they may still arrive."""
    closes: bool = False
    """Whether the writer may close its ledger."""
    liar: int | None = None
    """The bookie of this index says to every add of the writer that the ledger is fenced."""
    slow: int | None = None
    """None: messages arrive in any order. Else that many channels may be slow, by choice at any
    moment, and theirs arrive whenever they like; all others bring the oldest message first."""

    def __str__(self) -> str:
        words = [str(self.quorums), _count(self.entries, "entry", "entries")]
        words += [_count(self.recoveries, "recovery", "recoveries")] if self.recoveries else []
        words += [_count(self.readers, "reader")] if self.readers else []
        words += [_count(self.crashes, "crash", "crashes")] if self.crashes else []
        words += [_count(self.losses, "timeout")] if self.losses else []
        words += ["close"] if self.closes else []
        words += [] if self.liar is None else ["a false fence"]
        words += ["any order" if self.slow is None else f"{self.slow} slow"]
        return ", ".join(words)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _scope(name: str, quorums: tuple[int, int, int], **limits: int) -> Scope:
    return Scope(name, Quorums(*quorums), **limits)  # type: ignore[arg-type]


QUICK = (
    _scope("pair-change", (2, 2, 2), crashes=1, slow=1),
    _scope("three-crash", (3, 3, 2), entries=1, crashes=1, slow=1),
    _scope("stripe-crash", (3, 2, 2), entries=1, crashes=1, slow=1),
    _scope("three-timeout", (3, 3, 2), entries=1, losses=1, slow=1),
    _scope("reader", (2, 2, 2), recoveries=0, readers=1, crashes=1),
    _scope("pair-close", (2, 2, 1), closes=True, slow=1),
    _scope("three", (3, 3, 2), entries=1, slow=2),
    _scope("pair-timeout", (2, 2, 1), entries=1, losses=1),
    _scope("pair-crash", (2, 2, 1), entries=1, crashes=1),
    _scope("stripe", (3, 2, 2), entries=1, slow=3),
    _scope("pair-two-recoveries", (2, 2, 2), entries=1, recoveries=2, slow=2),
    _scope("pair-false-fence", (2, 2, 1), entries=1, liar=0),
    _scope("pair-false-fence-timeout", (2, 2, 2), entries=1, losses=1, liar=0, slow=1),
    _scope("three-false-fence", (3, 3, 2), entries=1, liar=0, slow=1),
    _scope("pair-ack-2", (2, 2, 2)),
    _scope("pair", (2, 2, 1)),
)
"""Seen whole in less than a minute together: part of every test run."""

LONG = (
    _scope("long-pair-crash", (2, 2, 1), crashes=1),
    _scope("long-pair-ack-2-crash", (2, 2, 2), crashes=1),
    _scope("long-pair-timeout", (2, 2, 2), losses=1),
    _scope("long-pair-close", (2, 2, 1), closes=True),
    _scope("long-two-recoveries", (2, 2, 2), entries=1, recoveries=2, losses=1, slow=1),
    _scope("long-stripe", (3, 2, 2), entries=1),
    _scope("long-stripe-crash", (3, 2, 2), crashes=1, slow=1),
    _scope("long-three", (3, 3, 2), entries=1),
    _scope("long-three-crash", (3, 3, 2), crashes=1, slow=1),
)
"""Minutes each; ``python -m tests.exhaustive`` searches them after the quick ones."""


def named(name: str) -> Scope:
    """The scope of a name; KeyError if there is none."""
    return {scope.name: scope for scope in (*QUICK, *LONG)}[name]
