"""Flipped bytes over the logs and the index of one bookie: one scrub finds all, copies mend all.

The bookie is a real one over real files, and runs while its disk rots below it. Most of the
bytes are of blocks, a tenth is of rows of the index; each entry that was hit is IO_ERROR after one
pass, and the same bytes as ever once copies came.
"""

from __future__ import annotations

import random
from pathlib import Path

from bookie_server.storage.cookie import INDEX_NAME, format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.lmdb_tables import stored_row
from bookie_server.storage.ledgers.entry_log import block_path
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import (
    BOOKIE_ID,
    Machine,
    expected,
    frame,
    small_config,
)

_ENTRIES = 5
_SIZES = (40, 1200)
"""Of entries: the larger ones go to the run log."""


def scrub_rot(root: Path, seed: int, *, flips: int) -> dict[str, int]:
    """Damage ``flips`` bytes; AssertionError tells what was not found, or was served."""
    choose = random.Random(f"scrub {seed}")
    machine = _opened(root)
    ledgers = range(1, flips // 10 + 1)
    sizes = _filled(machine, ledgers, choose)
    of_blocks = _hit_blocks(machine, root, ledgers[::2], flips - flips // 10, choose)
    of_index = _hit_index(machine, root, ledgers[1::2], flips // 10, choose)

    machine.bookie._storage.scrubber.run_once()
    (counts,) = machine.bookie.stats().ledger_storage.scrub.directories
    assert counts.bad_blocks == len(of_blocks), f"{counts} of {len(of_blocks)} blocks"
    assert counts.bad_ledgers == len(of_index), f"{counts} of {len(of_index)} ledgers"
    refilled = _refill(machine, sizes, of_blocks, of_index)
    machine.bookie._storage.scrubber.run_once()
    assert machine.bookie.stats().ledger_storage.scrub.bad == counts.bad_blocks + counts.bad_ledgers
    machine.close()
    again = _opened(root)
    for ledger_id in ledgers:
        wanted = {
            entry_id: content
            for (each, first), size in sizes.items()
            if each == ledger_id
            for entry_id, content in expected(
                ledger_id, range(first, first + _ENTRIES), size
            ).items()
        }
        assert again.held(ledger_id) == wanted, f"ledger {ledger_id}"
    again.close()
    return {
        "flipped_bytes": flips,
        "damaged_blocks": len(of_blocks),
        "damaged_ledgers_of_the_index": len(of_index),
        "entries_refilled": refilled,
    }


def _opened(root: Path) -> Machine:
    directories = root / "journal", (root / "ledgers",)
    if not root.exists():
        format_directories(PosixFileSystem(), *directories, cluster_id="c", bookie_id=BOOKIE_ID)
    config = small_config(
        journal_directory=directories[0],
        ledger_directories=directories[1],
        write_cache_bytes=8 * MIB,
        entry_log_bytes=MIB,
        write_once_bytes=4 * KIB,
        journal_file_bytes=MIB,
    )
    return Machine(
        PosixFileSystem(),
        config,
        open_index=lambda path: LmdbIndex(path, map_bytes=64 * MIB),  # type: ignore[arg-type,return-value]
    )


def _filled(machine: Machine, ledgers: range, choose: random.Random) -> dict[tuple[int, int], int]:
    """The size of the entries of each block, by ledger and first entry."""
    sizes = {}
    for number in range(20):
        for ledger_id in ledgers:
            size = sizes[ledger_id, _ENTRIES * number] = choose.choice(_SIZES)
            ids = range(_ENTRIES * number, _ENTRIES * (number + 1))
            assert machine.add(ledger_id, ids, size=size) is BookieStatus.OK
        machine.flush()
    return sizes


def _hit_blocks(
    machine: Machine, root: Path, ledgers: range, flips: int, choose: random.Random
) -> set[tuple[int, int, int]]:
    """Flip bytes of blocks; which stretches of which ledgers those are."""
    (store,) = machine.bookie._storage._stores
    rows = [(each, row) for each in ledgers for row in store.index.rows(LedgerId(each))]
    places: set[tuple[int, int]] = set()
    hit: set[tuple[int, int, int]] = set()
    while len(places) < flips:
        number = choose.randrange(len(rows))
        ledger_id, row = rows[number]
        place = number, choose.randrange(row.byte_count)
        if place not in places:
            places.add(place)
            hit.add((ledger_id, row.first_entry, row.last_entry))
            path = block_path(root / "ledgers", row.location)
            _flip(path, row.location.offset + place[1], choose)
    return hit


def _hit_index(
    machine: Machine, root: Path, ledgers: range, flips: int, choose: random.Random
) -> set[int]:
    """Flip bytes of what the index stores of rows; the ledgers of these rows."""
    (store,) = machine.bookie._storage._stores
    path = root / "ledgers" / INDEX_NAME / "data.mdb"
    content = path.read_bytes()
    rows = [(each, row) for each in ledgers for row in store.index.rows(LedgerId(each))]
    hit: set[int] = set()
    for ledger_id, row in choose.sample(rows, flips):
        key, stored = stored_row(LedgerId(ledger_id), row)
        item, within = key + stored, choose.randrange(len(stored))
        at = content.find(item)
        assert at >= 0, "a row is in its page as key and value"
        while at >= 0:  # pages of former commits have copies
            _flip(path, at + len(key) + within, random.Random(within))
            at = content.find(item, at + 1)
        hit.add(ledger_id)
    return hit


def _flip(path: Path, at: int, choose: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << choose.randrange(8))]))


def _refill(
    machine: Machine,
    sizes: dict[tuple[int, int], int],
    of_blocks: set[tuple[int, int, int]],
    of_index: set[int],
) -> int:
    """See that nothing damaged is served or denied, and bring copies; how many entries."""
    lost = {
        (ledger_id, entry_id)
        for ledger_id, first, last in of_blocks
        for entry_id in range(first, last + 1)
    }
    for ledger_id, first in sizes:
        entries = range(first, first + _ENTRIES)
        lost.update((ledger_id, entry_id) for entry_id in entries if ledger_id in of_index)
    for ledger_id, first in sizes:
        for entry_id in range(first, first + _ENTRIES):
            outcome = machine.bookie.read(
                LedgerId(ledger_id), EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=1
            )
            size = sizes[ledger_id, first]
            if (ledger_id, entry_id) in lost:
                assert outcome.status is BookieStatus.IO_ERROR, f"{ledger_id}/{entry_id}: {outcome}"
                status = machine.add(ledger_id, [entry_id], size=size, recovery=True)
                assert status is BookieStatus.OK, f"{ledger_id}/{entry_id}: {status}"
            else:
                assert outcome.runs[0].frames == frame(ledger_id, entry_id, size)
    machine.flush()
    for each in machine.bookie.lacking.ledgers():
        machine.bookie.lacking.refetched(machine.bookie.lacking.of(each))
    return len(lost)
