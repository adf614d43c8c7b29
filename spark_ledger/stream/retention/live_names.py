"""Which ledgers the live commits of a stream need, as far as they were read. Deletes nothing."""

from __future__ import annotations

from collections.abc import Collection

from spark_ledger.limits.stream import LIVE_NAMES_MAX
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.retention.names import read_names
from spark_ledger.types import LedgerId


class LiveNames:
    """The last commit that names each ledger, of one stream's commits from some number on.

    All commits are read once, and then those that were made since. If there are more ledgers than
    may be kept, all commits are read each time. Commits that are in packs need none of the ledgers
    that they name (rule T25).
    """

    def __init__(self, kept_max: int = LIVE_NAMES_MAX) -> None:
        self._kept_max = kept_max
        self._last: dict[LedgerId, int] = {}
        self._next_commit: int | None = None
        self._packs = Packs()
        self.looked_upto = 0
        """Dropped commits below it were looked at, also behind one whose ledger waits; ``left_at``:
        from which of them on, a step's worth each, some more were left."""
        self.left_at: set[int] = set()
        self.tried: set[LedgerId] = set()
        """Open ledgers of dropped commits that were recovered, or could not be, since all were."""
        self.told: set[str] = set()
        """What of dropped commits cannot be read, and why, as far as the log has named it."""

    def were_looked_at(self, first: int, end: int) -> None:
        """What was left of these dropped commits is not, or is added again. Each stood for a step's
        worth from it on: what of that lies behind them is still to be looked at."""
        done = self.left_at.intersection(range(first, end))
        self.left_at -= done
        if any(number > first for number in done):
            self.left_at.add(end)

    async def named(
        self,
        log: CommitLog,
        ledger_ids: Collection[LedgerId],
        first: int,
        end: int,
        packs: Packs = Packs(),  # noqa: B008 - it never changes
        earliest: int = 0,
    ) -> set[LedgerId]:
        """Those of the ledgers that commits ``first`` .. ``end - 1`` name and need.

        Commits below ``earliest`` were dropped, and are not given back yet: such a one that cannot
        be read needs nothing.
        """
        wanted = set(ledger_ids)
        if packs != self._packs:
            self._packs, self._last, self._next_commit = packs, {}, None
        begin = first if self._next_commit is None else max(first, self._next_commit)
        for start in range(begin, end, COMMITS_PER_BUCKET):
            numbers = packs.numbers_outside(start, min(start + COMMITS_PER_BUCKET, end))
            dropped = [number for number in numbers if number < earliest]
            found = (await read_names(log, dropped)).named if dropped else {}
            if len(numbers) > len(dropped):
                found |= await log.ledgers(numbers[len(dropped) :])
            for number, named in found.items():
                kept = named.rows if self._kept_max else named.rows & wanted
                self._last.update(dict.fromkeys(kept, number))
        self._next_commit = max(begin, end)
        self._last = {each: last for each, last in self._last.items() if last >= first}
        needed = {each for each in wanted if each in self._last}
        if len(self._last) > self._kept_max or not self._kept_max:
            self._kept_max, self._last, self._next_commit = 0, {}, None
        return needed
