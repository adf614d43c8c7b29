"""What an append stream keeps of one appender: its runs that wait, and how they end."""

from __future__ import annotations

from spark_ledger.bookie_api import Refusal
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId


class AppenderState:
    """The runs of one tag: how many are pending, what is durable, and what ended it.

    ``acknowledged`` is durable and not reported yet; ``refused_entry`` is the last entry of the
    earliest run that was refused. Both are NO_ENTRY if there is none. ``told``: its client knows
    that what it sent waits for a disk that stalls, and ``note`` says it. Service thread only.
    """

    __slots__ = (
        "acknowledged",
        "ledger_id",
        "note",
        "pending",
        "refusal",
        "refused_entry",
        "tag",
        "told",
    )

    def __init__(self, tag: int, ledger_id: LedgerId) -> None:
        self.tag = tag
        self.ledger_id = ledger_id
        self.pending = 0
        self.acknowledged = NO_ENTRY
        self.refusal: Refusal | None = None
        self.refused_entry = NO_ENTRY
        self.note = ""
        self.told = False

    def refuse(self, last_entry: EntryId, refusal: Refusal) -> None:
        """Keep the refusal of the earliest run; it is reported once those before it are.

        Refusals do not come in order: one is known at once, another after a sync that failed.
        """
        if self.refusal is None or last_entry < self.refused_entry:
            self.refusal = refusal
            self.refused_entry = last_entry
