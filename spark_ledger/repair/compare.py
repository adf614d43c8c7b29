"""Compares frames whose digest only the ledger's password can check. Pure (rule R11)."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, EntryId
from spark_ledger.wire.frame import HEADER, HEADER_BYTES


class Comparison:
    """The frames that one bookie sent, and what else was sent under the same ids."""

    def __init__(self, source: BookieId, runs: Sequence[EntryRun]) -> None:
        self._source = source
        self._frames = {entry_id: frame for run in runs for entry_id, frame in run.split()}
        self._ids = list(self._frames)
        self._agreed: set[EntryId] = set()
        self._differs: dict[EntryId, BookieId] = {}
        self._misnamed = {
            entry_id
            for run in runs
            for entry_id, frame in run.split()
            if len(frame) < HEADER_BYTES
            or HEADER.unpack(frame[:HEADER_BYTES])[:2] != (run.ledger_id, entry_id)
        }

    def open(self, *, also_differing: bool) -> list[EntryId]:
        """The entries that nobody has confirmed so far, in order."""
        return [
            each
            for each in self._ids
            if each not in self._agreed
            and each not in self._misnamed
            and (also_differing or each not in self._differs)
        ]

    def look(self, bookie_id: BookieId, run: EntryRun) -> None:
        """What a bookie brought of them. The source itself does not outvote another bookie."""
        for entry_id, frame in run.split():
            known = self._frames.get(entry_id)
            if known is None:
                continue
            if known != frame:
                self._differs.setdefault(entry_id, bookie_id)
            elif bookie_id != self._source or entry_id not in self._differs:
                self._agreed.add(entry_id)

    @property
    def count(self) -> int:
        """How many entries, from the first on, were brought twice with the same bytes."""
        for number, entry_id in enumerate(self._ids):
            if entry_id not in self._agreed or entry_id in self._misnamed:
                return number
        return len(self._ids)

    @property
    def reason(self) -> str:
        """Why the first entry behind these is not copied."""
        entry_id = self._ids[self.count]
        if entry_id in self._misnamed:
            return f"{self._source} sent another entry as {entry_id}"
        other = self._differs.get(entry_id)
        if other is None:
            return f"entry {entry_id} was not brought a second time"
        if other == self._source:
            return f"{self._source} sent entry {entry_id} twice, with different bytes"
        return (
            f"entry {entry_id} is not the same on {self._source} and {other}: one is damaged, and "
            "only the ledger's password tells which"
        )
