"""What a pass of the keeper has seen so far, and what it could not recover."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from spark_ledger.errors import MetadataRestoredError
from spark_ledger.keeper.decisions import Verdict
from spark_ledger.types import LedgerId


@dataclass(slots=True)
class Pass:
    """What one pass has seen so far."""

    now: float
    listed: frozenset[str]
    """Owners in the list. Who is in it lives; who is not is looked up (rule K2)."""
    owners: dict[str, float | None] = field(default_factory=dict)
    """For how long each was seen to be gone; None: it lives."""
    streams: dict[str, bool] = field(default_factory=dict)
    """By id, whether it exists."""
    counts: Counter[str] = field(default_factory=Counter)
    ledgers: set[LedgerId] = field(default_factory=set)
    plan: list[tuple[Verdict, LedgerId]] = field(default_factory=list)
    recoveries: set[asyncio.Task[None]] = field(default_factory=set)
    restored: MetadataRestoredError | None = None
    """Of a recovery that met a ledger that went back."""


@dataclass(slots=True)
class Failed:
    """A ledger that could not be recovered."""

    again_at: float
    pause_s: float
