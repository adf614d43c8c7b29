"""What must hold after every step, whatever happened: the promises I1 to I9 of the protocol.

Each check looks at the whole world from above, at every disk and at every value that the metadata
ever had. Disks never lose data here, so a promise about copies is checked on all disks, dead
bookies included.
"""

from __future__ import annotations

from spark_ledger.types import LedgerMetadata, LedgerState
from tests.scenarios.world import World


class Broken(AssertionError):
    """A promise is broken; the message names it."""


class Invariants:
    """Checks a world step by step; remembers what it needs between steps."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen = 1
        self._copies_seen: tuple[int, int] = (-1, -1)
        self._closed_pushed: int | None = None
        self._bookie_lacs: dict[str, int] = {}

    def check(self) -> None:
        """Raise ``Broken`` if a promise is broken now."""
        for fault in self._world.faults:
            raise Broken(fault)
        self._check_history()
        self._check_end()
        self._check_copies()
        self._check_bookies()

    def check_everything(self) -> None:
        """As ``check``, and also what is too slow to look at after every step."""
        self.check()
        for name, bookie in self._world.bookies.items():
            for entry_id, stored in bookie.entries.items():
                if stored != self._world.written.get(entry_id):
                    raise Broken(f"I4: {name} holds something else as entry {entry_id}")

    # -- metadata ----------------------------------------------------------------------------------

    def _check_history(self) -> None:
        history = self._world.metadata.history
        while self._seen < len(history):
            self._check_change(history[self._seen - 1], history[self._seen])
            self._seen += 1

    def _check_change(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if old.is_closed:
            same = (old.state, old.last_entry_id, old.length) == (
                new.state,
                new.last_entry_id,
                new.length,
            )
            if not same:
                raise Broken("I7: a closed ledger changed its end")
            return
        if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.OPEN:
            raise Broken("I7: a ledger left recovery and is open again")
        if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.IN_RECOVERY:
            added = new.fragments[len(old.fragments) - 1 :]
            if added != old.fragments[-1:]:
                raise Broken("I9: the last ensemble changed in the metadata during recovery")
        if new.state is LedgerState.OPEN and new.fragments[-1] != old.fragments[-1]:
            first = new.last_fragment.first_entry
            if first != self._world.confirmed + 1:
                raise Broken(
                    f"I9: a fragment from {first} on was written when {self._world.confirmed} was "
                    "the last entry confirmed"
                )

    # -- the end of the ledger ---------------------------------------------------------------------

    def _check_end(self) -> None:
        world, metadata = self._world, self._world.metadata.value
        if not metadata.is_closed:
            return
        if self._closed_pushed is None:
            self._closed_pushed = max(world.written, default=-1)
        if world.confirmed > metadata.last_entry_id:
            raise Broken(
                f"I1: entry {world.confirmed} was acknowledged, the ledger ends at "
                f"{metadata.last_entry_id}"
            )
        if world.confirmed > self._closed_pushed:
            raise Broken(
                f"I8: entry {world.confirmed} was added after the ledger closed, and acknowledged"
            )
        expected = (
            world.written[metadata.last_entry_id].length if metadata.last_entry_id >= 0 else 0
        )
        if metadata.length != expected:
            raise Broken(f"I7: closed with length {metadata.length}, not {expected}")

    # -- copies ------------------------------------------------------------------------------------

    def _check_copies(self) -> None:
        """I2 and I3. Copies never go away, so only new entries and new metadata are looked at."""
        world, store = self._world, self._world.metadata
        closed = store.value.is_closed
        end = store.value.last_entry_id if closed else world.confirmed
        version, checked = self._copies_seen
        first = 0 if version != store.version else checked + 1
        for entry_id in range(first, end + 1):
            holders = store.holders(entry_id, world.bookies)
            if len(holders) < store.value.quorums.ack_quorum:
                promise = "I3" if closed else "I2"
                raise Broken(
                    f"{promise}: entry {entry_id} is confirmed, but only {len(holders)} bookies "
                    f"that the metadata name hold it ({' '.join(holders) or 'none'})"
                )
        self._copies_seen = (store.version, end)

    def _check_bookies(self) -> None:
        """I6: no bookie knows a LAC beyond what was confirmed, and none forgets."""
        world = self._world
        metadata = world.metadata.value
        proved = max(world.confirmed, metadata.last_entry_id if metadata.is_closed else -1)
        for name, bookie in world.bookies.items():
            if bookie.last_add_confirmed > proved:
                raise Broken(
                    f"I6: {name} tells readers {bookie.last_add_confirmed} is confirmed; "
                    f"it is {proved}"
                )
            if bookie.last_add_confirmed < self._bookie_lacs.get(name, -1):
                raise Broken(f"I6: the last add confirmed of {name} went back")
            self._bookie_lacs[name] = bookie.last_add_confirmed
