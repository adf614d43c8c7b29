"""Any byte of a small store flips: the outcome is the right data or an error with a name.

The index is not flipped here: it has no checksums of its own, see ``test_index`` for what is seen.
"""

from __future__ import annotations

import pytest

from bookie_server.storage.entry_log import LOG_HEADER_BYTES, log_ids, log_path
from bookie_server.storage.journal_files import journal_numbers, journal_path
from bookie_server.storage.memory_fs import MemoryFileSystem
from spark_ledger.errors import CorruptionError
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Machine,
    expected,
    formatted,
)

STORED = {6: list(range(12)), 7: [0, 1, 2, 5, 6, 9]}


@pytest.fixture(scope="module")
def disk() -> MemoryFileSystem:
    """Half of the entries in the entry logs, half in the journal alone."""
    files = formatted()
    machine = Machine(files)
    for ledger_id, ids in STORED.items():
        assert machine.add(ledger_id, ids[:3]) is BookieStatus.OK
    machine.flush()
    for ledger_id, ids in STORED.items():
        assert machine.add(ledger_id, ids[3:]) is BookieStatus.OK
    assert machine.fence(7) is BookieStatus.OK
    return files.crash_clone(None)


def outcome(files: MemoryFileSystem) -> str:
    """Opens the store and reads everything that was promised: "right" or "named"."""
    try:
        machine = Machine(files)
    except CorruptionError as error:
        assert "offset" in str(error)
        return "refused"
    named = False
    for ledger_id, ids in STORED.items():
        for entry_id in ids:
            result = machine.bookie.read(
                LedgerId(ledger_id), EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=1
            )
            if result.status is BookieStatus.IO_ERROR:
                assert "offset" in result.message
                named = True
                continue
            assert result.status is BookieStatus.OK, result
            assert result.runs[0].frames == expected(ledger_id, [entry_id])[entry_id]
    assert machine.is_fenced(7)
    return "named" if named else "right"


def test_entry_logs(disk: MemoryFileSystem) -> None:
    outcomes: dict[str, int] = {}
    for directory in LEDGERS:
        for log_id in log_ids(disk, directory):
            path = log_path(directory, log_id)
            data = disk.open(path).pread(1 << 20, 0)
            blocks_end = len(data.rstrip(b"\0"))
            for place in (*range(20), *range(LOG_HEADER_BYTES, blocks_end)):
                files = disk.crash_clone(None)
                files.damage(path, place, bytes([data[place] ^ 0x24]))
                found = outcome(files)
                outcomes[found] = outcomes.get(found, 0) + 1
            for place in (20, LOG_HEADER_BYTES - 1, blocks_end, len(data) - 1):
                files = disk.crash_clone(None)
                files.damage(path, place, b"\x24")
                assert outcome(files) == "right", f"{place} is between the blocks"
    assert outcomes.keys() == {"named"}, outcomes


def test_journal_up_to_its_last_batch(disk: MemoryFileSystem) -> None:
    """Batches 3 and 4 (the adds) have batch 5 (the fence) behind them: none is a torn tail."""
    outcomes: set[str] = set()
    path = journal_path(JOURNAL, journal_numbers(disk, JOURNAL)[-1])
    data = disk.open(path).pread(1 << 20, 0)
    fence = 5 * 4096
    for place in range(fence):
        if data[place] or place % 97 == 0:
            files = disk.crash_clone(None)
            files.damage(path, place, bytes([data[place] ^ 0x24]))
            outcomes.add(outcome(files))
    assert outcomes == {"right", "refused"}
