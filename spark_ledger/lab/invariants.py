"""What the protocols promise of every state between two events: looked at in each tick of a run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from spark_ledger.lab.bookies import Add, Metadata
from spark_ledger.lab.machines import Entry, Store
from spark_ledger.lab.world import World
from spark_ledger.types import Quorums


class Leader(Protocol):
    """A server with a log, as these promises see it."""

    name: str
    store: Store


class Leaders:
    """Election safety: an epoch (term) has one leader."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def is_new(self, epoch: int, name: str) -> bool:
        """A server leads in an epoch. Whether nobody was known to lead in it."""
        count = len(self._known)
        other = self._known.setdefault(epoch, name)
        assert other == name, f"Term {epoch} has two leaders (election safety)."
        return len(self._known) > count


class LogMatching:
    """Two logs that have an entry of the same epoch at a place are equal up to there.

    One leader wrote it, behind what it had. So each entry is compared with the first that was seen
    of its epoch at its place, and with the epoch of the one before it.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._read: dict[str, tuple[int, int]] = {}
        """Of each server's log: how often it was cut, and how much of it was compared."""

    def look(self, name: str, store: Store) -> None:
        """Compare what is new in a server's log."""
        log = store.log
        cuts, start = self._read.get(name, (store.cuts, 0))
        if cuts == store.cuts and start == len(log):
            return
        if cuts != store.cuts or start > len(log):
            start = 0
        self._read[name] = store.cuts, len(log)
        before = log[start - 1].epoch if start else 0
        for place, entry in enumerate(islice(log, start, None), start):
            found = (entry, before)
            known = self._seen.setdefault((entry.epoch, place), found)
            assert known == found, (
                f"Two logs differ in entry {place + 1} of one epoch or before it."
            )
            before = entry.epoch


class History:
    """The entries that were committed, in order: no later state may differ from them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._compared: dict[Leader, int] = {}

    def note(self, node: Leader, committed: int) -> None:
        """A server takes the first entries of its log for committed. What it took so before was
        compared then, and it may not take any of it back."""
        known, log = self.entries, node.store.log
        before = self._compared.get(node, max(0, min(committed, len(known)) - 50))
        if committed == before:
            return
        assert committed > before, f"{node.name} takes back what was committed."
        self._compared[node] = committed
        for place in range(before, committed):
            if place < len(known):
                assert log[place] == known[place], f"Entry {place + 1} is committed twice."
            else:
                known.append(log[place])

    def is_in(self, node: Leader) -> None:
        """A server leads now: it has all of it (leader completeness)."""
        count = len(self.entries)
        assert node.store.log[:count] == self.entries, (
            f"{node.name} leads without what is committed."
        )


class LedgerPromises:
    """An entry has one value; a value that was acknowledged is synced on an ack quorum at least;
    and a ledger that is closed stays as it is."""

    def __init__(
        self, quorums: Quorums, journals: dict[str, list[Add]], metadata: Metadata
    ) -> None:
        self._ack_quorum, self._journals, self._metadata = quorums.ack_quorum, journals, metadata
        self._read = dict.fromkeys(journals, 0)
        self._values: dict[tuple[int, int], int] = {}
        """By ledger and entry."""
        self._places: dict[int, list[set[str]]] = {}
        """By value: the bookies that have it on their disks, for each entry that it became."""
        self._holders: dict[tuple[int, int], set[str]] = {}
        self._acknowledged = 0
        self._ends: dict[int, int] = {}

    def look(self, world: World) -> None:
        """Compare what is new."""
        stores = {name: world.hosts[name].store for name in self._journals}
        for name, records in self._journals.items():
            self._take(name, records[self._read[name] : stores[name].synced])
            self._read[name] = max(self._read[name], stores[name].synced)
        fresh = islice(world.acknowledged, self._acknowledged, None)
        # Once a disk was replaced, what it had is not known here.
        if any(store.cuts for store in stores.values()):
            fresh = islice(fresh, 0)
        for value in fresh:
            self._acknowledged += 1
            count = max(map(len, self._places.get(value, ())), default=0)
            assert count >= self._ack_quorum, f"Value {value} is confirmed, and on {count} bookies."
        for ledger, (found, _version) in self._metadata.nodes.items():
            if found.is_closed:
                last = int(found.last_entry_id)
                assert self._ends.setdefault(ledger, last) == last, "A ledger is closed twice."

    def _take(self, name: str, records: Iterable[Add]) -> None:
        for record in records:
            if record.entry < 0:
                continue
            key = (record.ledger, record.entry)
            if key not in self._values:
                self._values[key], self._holders[key] = record.value, set()
                self._places.setdefault(record.value, []).append(self._holders[key])
            assert self._values[key] == record.value, f"Entry {key} has two values."
            self._holders[key].add(name)
