"""What packs and merged manifests have replaced stays for the grace of its own (rule K11).

A restore is not needed to see it: what is deleted too early is what a backup would miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ledger.stream.manifest.tree import ManifestRoot
from spark_ledger.stream.model import Commit
from spark_ledger.stream.packs.model import Packs

if TYPE_CHECKING:
    from tests.sim.world import World


def names(commit: Commit, ledger_id: int) -> bool:
    """Whether rows of a commit are in a ledger."""
    return any(each.ledger_id == ledger_id for each in commit.segments)


class Replacements:
    """Since when each ledger is replaced, of one stream."""

    def __init__(self, world: World, grace_s: float) -> None:
        self._world = world
        self._grace_s = grace_s
        """By the fastest clock of a keeper."""
        self._packed_at: dict[int, float] = {}
        self._left: dict[int, tuple[float, int]] = {}
        """The ledgers that leaves have left: when, and the commit behind their last one."""
        self._root: ManifestRoot | None = None

    def packed(self, packs: Packs) -> None:
        """These are the packs now."""
        for pack in packs.packs:
            self._packed_at.setdefault(pack.ledger_id, self._world.loop.now)

    def sealed(self, root: ManifestRoot) -> None:
        """This is the root now."""
        for page in () if self._root is None else self._root.pages():
            ledger_id = page.pointer.ledger_id
            if page.level == 0 and ledger_id not in root.ledgers():
                end = page.first + root.span(0)
                self._left[ledger_id] = (self._world.loop.now, end)
        self._root = root

    def restored(self, root: ManifestRoot | None) -> None:
        """This is the root of a backup, which may name again what leaves had left."""
        self._root = root
        for ledger_id in () if root is None else root.ledgers():
            self._left.pop(ledger_id, None)

    def check(
        self, ledger_id: int, commits: Mapping[int, Commit], earliest: int, packs: Packs
    ) -> None:
        """A ledger is deleted; commits below ``earliest`` are dropped."""
        now = self._world.loop.now
        for pack in packs.packs:
            live = range(max(pack.first, earliest), pack.end)
            if any(n in commits and names(commits[n], ledger_id) for n in live):
                since_s = now - self._packed_at[pack.ledger_id]
                self._check(ledger_id, since_s, f"commits {pack.first} .. {pack.end - 1}")
        at, end = self._left.pop(ledger_id, (0.0, 0))
        if end > earliest:
            self._check(ledger_id, now - at, f"leaves of commits below {end}")
            self._world.counts["former ledgers of manifests deleted"] += 1

    def _check(self, ledger_id: int, since_s: float, what: str) -> None:
        if since_s < self._grace_s:
            text = f"ledger {ledger_id} of {what} is deleted {since_s:.3f} s after it was replaced"
            self._world.violate("retention", "K11", text)
