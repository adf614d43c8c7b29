"""What must hold in every state of every scope: the promises I1 to I9 of the protocol.

Disks never lose data here, so a promise about copies is checked on all disks, dead bookies
included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spark_ledger.types import BookieId, LedgerMetadata, LedgerState


class Broken(Exception):
    """A promise is broken; the text names it."""


class Disk(Protocol):
    """What a promise about copies looks at."""

    @property
    def entries(self) -> frozenset[int]:
        """The entries a bookie holds."""

    @property
    def last_add_confirmed(self) -> int:
        """What it tells readers."""


def check_change(old: LedgerMetadata, new: LedgerMetadata, confirmed: int) -> None:
    """I7 and I9: whether metadata may follow upon others."""
    if old.is_closed:
        raise Broken("I7: a closed ledger was changed")
    if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.OPEN:
        raise Broken("I7: a ledger left recovery and is open again")
    if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.IN_RECOVERY:
        raise Broken("I9: metadata were changed during recovery, before its end")
    kept = len(old.fragments) - 1
    if new.fragments[:kept] != old.fragments[:kept]:
        raise Broken("I9: a fragment that had ended was changed")
    if new.state is LedgerState.OPEN and new.fragments[-1] != old.fragments[-1]:
        first = new.last_fragment.first_entry
        if first != confirmed + 1:
            raise Broken(
                f"I9: a fragment from {first} on was written when {confirmed} was the last entry "
                "confirmed"
            )


def check_state(
    metadata: LedgerMetadata,
    confirmed: int,
    disks: Mapping[BookieId, Disk],
    entry_bytes: int,
) -> None:
    """I1, I2, I3, I6 and I7."""
    closed = metadata.is_closed
    if closed and confirmed > metadata.last_entry_id:
        raise Broken(
            f"I1: entry {confirmed} was acknowledged, the ledger ends at {metadata.last_entry_id}"
        )
    if closed and metadata.length != entry_bytes * (metadata.last_entry_id + 1):
        raise Broken(f"I7: closed at {metadata.last_entry_id} with length {metadata.length}")
    end = metadata.last_entry_id if closed else confirmed
    quorums = metadata.quorums
    for entry_id in range(end + 1):
        fragment = [f for f in metadata.fragments if f.first_entry <= entry_id][-1]
        holders = [
            name
            for bookie_index, name in enumerate(fragment.bookies)
            if (bookie_index - entry_id) % quorums.ensemble_size < quorums.write_quorum
            and entry_id in disks[name].entries
        ]
        if len(holders) < quorums.ack_quorum:
            raise Broken(
                f"{'I3' if closed else 'I2'}: entry {entry_id} is confirmed, but of the bookies "
                f"that the metadata name only {' '.join(holders) or 'none'} hold it"
            )
    proved = max(confirmed, metadata.last_entry_id)
    for name, disk in disks.items():
        if disk.last_add_confirmed > proved:
            raise Broken(
                f"I6: {name} tells readers {disk.last_add_confirmed} is confirmed; it is {proved}"
            )
