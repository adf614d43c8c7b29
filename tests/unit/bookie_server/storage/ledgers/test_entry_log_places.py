"""An intact block is served only from the place that it was written for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_server.storage.blocks import encode_run
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.ledgers.entry_log import EntryLogReader, EntryLogWriter, log_path
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.errors import CorruptionError
from spark_ledger.types import NO_ENTRY, LedgerId
from tests.unit.bookie_server.storage.support import make_run

DIRECTORY = Path("/ledgers")


def test_a_block_of_another_place_is_damage() -> None:
    """As after a write that went astray: right checksums, the same size, and not what is meant."""
    files = MemoryFileSystem()
    files.mkdir(DIRECTORY)
    writer = EntryLogWriter(files, DIRECTORY, 1)
    runs = [make_run(7, [entry_id]) for entry_id in range(2)]
    first, second = (writer.append(LedgerId(7), encode_run(run, NO_ENTRY)) for run in runs)
    writer.finish()
    assert first.length == second.length
    size = RECORD_HEADER_BYTES + first.length
    path = log_path(DIRECTORY, 1)
    files.damage(path, second.offset, files.open(path).pread(size, first.offset))
    reader = EntryLogReader(files, DIRECTORY)
    assert list(reader.read(first).ids()) == [0]
    with pytest.raises(CorruptionError, match=f"offset {second.offset}"):
        reader.read(second)
