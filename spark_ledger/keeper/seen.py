"""What a pass of the keeper has seen so far, and what it could not recover."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_ledger.errors import MetadataRestoredError, NotFoundError
from spark_ledger.keeper.decisions import Verdict
from spark_ledger.keeper.nodes import Found
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.unsettled import OPEN_PATH, UNNAMED_PATH
from spark_ledger.stream.ledgers import TAG_STREAM_NAME
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.types import TAG_STREAM_ID, LedgerId, LedgerMetadata


class StreamOf(NamedTuple):
    """The stream that a ledger was made for; empty if it was made for none."""

    name: str
    stream_id: str

    @classmethod
    def of(cls, ledger: LedgerMetadata) -> StreamOf:
        """What the tags of a ledger say."""
        tags = ledger.custom_metadata
        return cls(tags.get(TAG_STREAM_NAME, ""), tags.get(TAG_STREAM_ID, ""))


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
    left: list[LedgerId] = field(default_factory=list)
    """Of these, those that had no turn."""
    plan: list[tuple[Verdict, LedgerId]] = field(default_factory=list)
    recoveries: set[asyncio.Task[None]] = field(default_factory=set)
    restored: MetadataRestoredError | None = None
    """Of a recovery that met a ledger that went back."""

    def found(self, *, locked: int, failing: int) -> Found:
        """What people are told of it."""
        return Found(
            open=self.counts[OPEN_PATH],
            open_of_the_dead=self.counts["open dead"],
            unnamed=self.counts[UNNAMED_PATH],
            unnamed_of_the_dead=self.counts["unnamed dead"],
            locked=locked,
            failing=failing,
        )

    async def has_stream(self, store: MetadataStore, made_for: StreamOf) -> bool:
        """Whether the stream that a ledger was made for exists; true for one of no stream."""
        name, stream_id = made_for
        if not name or not stream_id:
            return True
        if stream_id not in self.streams:
            try:
                await store.get_latest(StreamNodes(store, name).identity_path(stream_id))
            except NotFoundError:
                self.streams[stream_id] = False
            else:
                self.streams[stream_id] = True
        return self.streams[stream_id]


@dataclass(slots=True)
class Failed:
    """A ledger that could not be recovered."""

    again_at: float
    pause_s: float
