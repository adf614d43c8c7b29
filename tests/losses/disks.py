"""Counts copies on the disks of stopped bookies: each is opened as its next start would, and read.

Neither the network nor a bookie's service is between, so nothing is found that only a process knew.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bookie_server.bookie import Bookie
from bookie_server.config import load
from bookie_server.opening import open_bookie
from spark_ledger.protocol.quorum import write_set
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId, LedgerMetadata
from spark_ledger.wire.frame import Digest, derive_keys, digest_for, open_run
from tests.losses.load import Written, payload


class Count:
    """What was looked for, and what is wrong."""

    def __init__(self) -> None:
        self.copies = 0
        self.racks: dict[BookieId, str] = {}
        self.faults: list[str] = []


def count(
    directories: Mapping[BookieId, Path],
    cluster_id: str,
    ledgers: Mapping[LedgerId, tuple[LedgerMetadata, Written]],
    min_racks: int,
) -> Count:
    """Every acknowledged entry has to be on its whole write set, with its bytes, in so many racks
    or more, as the bookies' own configurations name them."""
    found = Count()
    with ExitStack() as stack:
        bookies: dict[BookieId, Bookie] = {}
        for bookie_id, directory in directories.items():
            config = load(directory / "bookie.toml")
            found.racks[bookie_id] = config.rack
            bookies[bookie_id] = open_bookie(
                config.storage_config(bookie_id, cluster_id),
                post=lambda _: None,
                on_fatal=found.faults.append,
                threads=False,
            )
            stack.callback(bookies[bookie_id].close)
        for metadata, written in ledgers.values():
            _count(found, bookies, metadata, written, min_racks)
    return found


def _count(
    found: Count,
    bookies: Mapping[BookieId, Bookie],
    metadata: LedgerMetadata,
    written: Written,
    min_racks: int,
) -> None:
    ledger_id = metadata.ledger_id
    _, digest_key = derive_keys(written.password, ledger_id, metadata.incarnation)
    digest = digest_for(metadata.digest_type, digest_key)
    if metadata.last_entry_id < max(written.acknowledged, default=-1):
        found.faults.append(f"ledger {ledger_id} ends at {metadata.last_entry_id}")
        return
    for entry_id, number in written.acknowledged.items():
        fragment = [f for f in metadata.fragments if f.first_entry <= entry_id][-1]
        members = [fragment.bookies[index] for index in write_set(entry_id, metadata.quorums)]
        if len({found.racks.get(each, "") for each in members}) < min_racks:
            found.faults.append(f"ledger {ledger_id} entry {entry_id}: racks of {members}")
        for bookie_id in members:
            why = _wrong(bookies.get(bookie_id), digest, ledger_id, entry_id, number)
            found.copies += 1
            if why:
                found.faults.append(f"ledger {ledger_id} entry {entry_id} on {bookie_id}: {why}")


def _wrong(
    bookie: Bookie | None, digest: Digest, ledger_id: LedgerId, entry_id: int, number: int
) -> str:
    """What is wrong with one copy; empty if nothing is."""
    if bookie is None:
        return "the bookie is gone"
    entry = EntryId(entry_id)
    outcome = bookie.read(ledger_id, entry, entry, stride=1, max_bytes=1)
    if outcome.status is not BookieStatus.OK:
        return f"{outcome.status.name}: {outcome.message}"
    entries, error = open_run(digest, outcome.runs[0])
    if error is not None:
        return str(error)
    return "" if entries[0].payload == payload(ledger_id, number) else "other bytes"
