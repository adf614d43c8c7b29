"""Who is told what bookies answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId

if TYPE_CHECKING:
    from tests.sim.node import BookieNode


class Witness:
    """Is told what bookies answer; see ``invariants``."""

    def stored(self, node: BookieNode, run: EntryRun, collected: int) -> None:
        """A bookie has acknowledged a run, which it accepted when it had collected the ledger so
        often."""

    def told(self, node: BookieNode, ledger_id: LedgerId, last_add_confirmed: EntryId) -> None:
        """A bookie has answered with a last add confirmed."""
