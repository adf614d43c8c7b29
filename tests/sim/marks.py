"""What repair says and whom it stops: marks of ledgers that lack copies are true, and go when
nothing is lacking any more; no writer loses its ledger before it had time (rules R3 and R7).

Metadata may be read late, and processes stand still. So each check asks for what no moment since
allows: that is an error whoever was slow.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from spark_ledger.metadata.bookies import BOOKIES_PATH
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.cookies import LEAVING_PATH
from spark_ledger.metadata.json_nodes import decode_node
from spark_ledger.repair.nodes import MARKED_PATH, PRIORITIES, Mark
from spark_ledger.types import BookieId, BookieState, Fragment, LedgerId, LedgerMetadata
from tests.sim.base import SimBase

_NODE: Final = r"(\d{2})/(\d{4})/L(\d{4})"
_LEDGER: Final = re.compile(f"ledgers/{_NODE}")
_MARK: Final = re.compile(f"{MARKED_PATH}/(\\d)/{_NODE}")
_REGISTRATION: Final = re.compile(
    f"{BOOKIES_PATH}/({BookieState.WRITABLE.value}|{BookieState.READ_ONLY.value})/([^/]+)"
)
_LEAVING: Final = re.compile(f"{LEAVING_PATH}/([^/]+)")
_FASTEST_CLOCK: Final = 1.25


class _Marked(NamedTuple):
    """A mark, and when it was written."""

    at: float
    bookies: frozenset[BookieId]


class Marks:
    """Belongs to the world of a schedule with repairers."""

    def __init__(self, world: SimBase, bookies: Collection[BookieId], open_grace_s: float) -> None:
        self._world = world
        self._open_grace_s = open_grace_s / _FASTEST_CLOCK
        self._registered: dict[BookieId, set[str]] = {each: set() for each in bookies}
        self._gone_since: dict[BookieId, float] = dict.fromkeys(bookies, 0.0)
        self._leaving_since: dict[BookieId, float] = {}
        self._versions: dict[LedgerId, list[LedgerMetadata]] = {}
        self._named_since: dict[LedgerId, dict[BookieId, float]] = {}
        self._last_fragments: dict[LedgerId, list[tuple[float, Fragment]]] = {}
        self._marked: dict[str, _Marked] = {}

    def observe(self, path: str, data: bytes | None) -> None:
        """A metadata node has changed."""
        if match := _MARK.fullmatch(path):
            copies, *digits = match.groups()
            self._mark(path, int(copies), LedgerId(int("".join(digits))), data)
        elif match := _LEDGER.fullmatch(path):
            self._ledger(path, LedgerId(int("".join(match.groups()))), data)
        elif match := _REGISTRATION.fullmatch(path):
            self._register(BookieId(match[2]), match[1], gone=data is None)
        elif match := _LEAVING.fullmatch(path):
            if data is None:
                self._leaving_since.pop(BookieId(match[1]), None)
            else:
                self._leaving_since[BookieId(match[1])] = self._world.loop.now

    def _register(self, bookie_id: BookieId, state: str, *, gone: bool) -> None:
        states = self._registered.setdefault(bookie_id, set())
        if not gone:
            states.add(state)
            self._gone_since.pop(bookie_id, None)
            return
        states.discard(state)
        if not states:
            self._gone_since[bookie_id] = self._world.loop.now

    def _ledger(self, path: str, ledger_id: LedgerId, data: bytes | None) -> None:
        if data is None:
            for known in (self._versions, self._named_since, self._last_fragments):
                known.pop(ledger_id, None)
            return
        now, ledger = self._world.loop.now, decode_ledger(path, ledger_id, data)
        self._versions.setdefault(ledger_id, []).append(ledger)
        names = {each for fragment in ledger.fragments for each in fragment.bookies}
        before = self._named_since.get(ledger_id, {})
        self._named_since[ledger_id] = {each: before.get(each, now) for each in names}
        fragments = self._last_fragments.setdefault(ledger_id, [])
        if not fragments or fragments[-1][1] != ledger.last_fragment:
            fragments.append((now, ledger.last_fragment))

    # -- what must hold ----------------------------------------------------------------------------

    @property
    def _is_told_the_truth(self) -> bool:
        """Whether nobody is told of a time that is over."""
        return not (self._world.options.stale_reads or self._world.options.restores)

    def _mark(self, path: str, copies: int, ledger_id: LedgerId, data: bytes | None) -> None:
        before = self._marked.pop(path, None)
        if data is not None:
            bookies = frozenset(map(BookieId, decode_node(Mark, path, data).bookies))
            self._marked[path] = _Marked(self._world.loop.now, bookies)
            versions = self._versions.get(ledger_id, ())
            possible = {_copies(version, bookies) for version in versions}
            # A mark of holes (no bookie is lost) goes by what bookies hold, not by the metadata.
            # What a backup says of a ledger it was not told.
            is_known = bool(possible) and not self._world.faults["metadata restored"]
            if before is None and bookies and is_known and copies not in possible:
                text = (
                    f"ledger {ledger_id} without {', '.join(sorted(bookies))} has "
                    f"{' or '.join(map(str, sorted(possible)))} copies left, and is marked as if "
                    f"it had {copies}"
                )
                self._world.violate("repair", "wrong priority", text)
        elif before is not None and self._is_told_the_truth:
            named = self._named_since.get(ledger_id, {})
            lacking = [
                each
                for each in sorted(before.bookies)
                if named.get(each, before.at) < before.at and self._is_lost_since(each, before.at)
            ]
            if lacking:
                text = f"the mark of ledger {ledger_id} goes, and it names {lacking} still"
                self._world.violate("repair", "done too early", text)

    def _is_lost_since(self, bookie_id: BookieId, at: float) -> bool:
        gone, leaving = self._gone_since.get(bookie_id), self._leaving_since.get(bookie_id)
        return (gone is not None and gone < at) or (leaving is not None and leaving < at)

    def recovers(self, ledger_id: LedgerId) -> None:
        """Repair recovers a ledger: one that a writer had in its hands for long enough."""
        fragments = self._last_fragments.get(ledger_id)
        if not fragments or not self._is_told_the_truth:
            return
        ends = [*(at for at, _ in fragments[1:]), self._world.loop.now]
        longest_s = max(end - at for (at, _), end in zip(fragments, ends, strict=True))
        if longest_s < self._open_grace_s:
            text = f"ledger {ledger_id} is recovered, and its writer had {longest_s:.3f} s"
            self._world.violate("repair", "living writer", text)


def _copies(ledger: LedgerMetadata, lost: Collection[BookieId]) -> int:
    """Copies of the worst entry, counted entry by entry over one round of each fragment."""
    size, write_quorum = ledger.quorums.ensemble_size, ledger.quorums.write_quorum
    counts = [
        sum(fragment.bookies[(entry + i) % size] not in lost for i in range(write_quorum))
        for fragment in ledger.fragments
        for entry in range(size)
    ]
    return min(min(counts), PRIORITIES[-1])
