"""Entry logs: fixed bytes, blocks verified, damage is never "not there"."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bookie_server.storage.blocks import encode_run
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFile, MemoryFileSystem
from bookie_server.storage.index.base import BlockLocation
from bookie_server.storage.ledgers.entry_log import (
    LOG_HEADER_BYTES,
    EntryLogReader,
    EntryLogWriter,
    log_ids,
    log_path,
)
from bookie_server.storage.ledgers.log_scan import scan_blocks
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, LedgerId
from tests.unit.bookie_server.storage.support import make_run

DIRECTORY = Path("/ledgers")


@pytest.fixture
def files() -> MemoryFileSystem:
    memory = MemoryFileSystem()
    memory.mkdir(DIRECTORY)
    return memory


def put(writer: EntryLogWriter, run: EntryRun) -> BlockLocation:
    return writer.append(encode_run(run, NO_ENTRY))


def entries(run: EntryRun) -> list[tuple[int, bytes]]:
    return [(entry_id, bytes(frame)) for entry_id, frame in run.split()]


def test_golden_bytes(files: MemoryFileSystem) -> None:
    writer = EntryLogWriter(files, DIRECTORY, 258)
    location = put(writer, make_run(7, [0], 2))
    writer.finish()
    assert location == BlockLocation(258, 4096, 42)
    data = files.open(log_path(DIRECTORY, 258)).pread(10_000, 0)
    assert len(data) == 8192 and not any(data[20:4096]) and not any(data[4162:])
    assert (data[:20] + data[4096:4162]).hex() == (
        "534c454c4f470d0a0000000100000102f551a58c"  # file header
        "010000000000002a000001020000100070d91b756ff2c9a7"  # record header
        "00000000000000070000000000000000ffffffffffffffff"  # block
        "000000010000000000000002020000003c37"
    )


def test_log_of_an_older_program_ends_with_what_nobody_reads(files: MemoryFileSystem) -> None:
    """A map of bytes by ledger, and a footer."""
    writer = EntryLogWriter(files, DIRECTORY, 258)
    location = put(writer, make_run(7, [0], 2))
    writer.finish()
    end = bytes.fromhex(
        "10000000000000100000010200001fc4255039bb5f0a3d99"  # record header of the map
        "00000000000000070000000000000042"  # map: ledger 7, 66 bytes
        "534c454d41500d0a0000000000001fc44d179e8e"  # footer
    )
    files.damage(log_path(DIRECTORY, 258), 8192 - len(end), end)
    reader = EntryLogReader(files, DIRECTORY)
    assert entries(reader.read(location)) == [(0, b"<7")]
    found = list(scan_blocks(*reader.open_log(258), 258))
    assert [block.location for block in found] == [location]


def test_blocks_come_back(files: MemoryFileSystem) -> None:
    writer = EntryLogWriter(files, DIRECTORY, 1)
    runs = [
        make_run(7, [0, 1, 2]),
        make_run(8, [0, 5, 9], 100),
        make_run(7, range(3, 3000), 11),  # numbers longer than the first read
        make_run(9, [4], 100_000),  # frames longer than the first read
    ]
    locations = [put(writer, run) for run in runs]
    writer.write_buffered()
    reader = EntryLogReader(files, DIRECTORY)
    for location, run in zip(locations, runs, strict=True):
        found = reader.read(location)
        assert found.ledger_id == run.ledger_id
        assert entries(found) == entries(run)
    end = locations[-1].offset + 24 + locations[-1].length
    assert writer.size == files.open(log_path(DIRECTORY, 1)).size() == end + -end % 4096
    reader.close()
    assert entries(reader.read(locations[0])) == entries(runs[0]), "it opens again"


def test_a_finished_log_is_durable(files: MemoryFileSystem) -> None:
    writer = EntryLogWriter(files, DIRECTORY, 1)
    location = put(writer, make_run(7, [0]))
    writer.finish()
    clone = files.crash_clone(None)
    reader = EntryLogReader(clone, DIRECTORY)
    assert entries(reader.read(location)) == entries(make_run(7, [0]))


def test_every_flipped_byte_of_a_block_is_damage(files: MemoryFileSystem) -> None:
    writer = EntryLogWriter(files, DIRECTORY, 1)
    put(writer, make_run(7, [0]))
    location = put(writer, make_run(7, [1, 3, 4]))
    writer.finish()
    data = files.open(log_path(DIRECTORY, 1)).pread(1 << 20, 0)
    for place in range(location.offset, location.offset + 24 + location.length):
        clone = files.crash_clone(None)
        clone.damage(log_path(DIRECTORY, 1), place, bytes([data[place] ^ 0x10]))
        with pytest.raises(CorruptionError) as caught:
            EntryLogReader(clone, DIRECTORY).read(location)
        assert f"offset {location.offset}" in str(caught.value)
        assert str(log_path(DIRECTORY, 1)) in str(caught.value)


def test_missing_log_or_block_is_damage(files: MemoryFileSystem) -> None:
    writer = EntryLogWriter(files, DIRECTORY, 1)
    location = put(writer, make_run(7, [0]))
    writer.finish()
    reader = EntryLogReader(files, DIRECTORY)
    for wrong in (
        location._replace(offset=location.offset + 1),
        location._replace(length=location.length - 1),
        location._replace(offset=1 << 20),
    ):
        with pytest.raises(CorruptionError, match="damaged at offset"):
            reader.read(wrong)
    with pytest.raises(CorruptionError, match="missing"):
        reader.read(location._replace(log_id=2))
    other = EntryLogWriter(files, DIRECTORY, 2)
    put(other, make_run(7, [0]))
    other.finish()
    files.rename(log_path(DIRECTORY, 2), log_path(DIRECTORY, 3))
    with pytest.raises(CorruptionError, match="not version 1 of log 3"):
        reader.read(BlockLocation(3, LOG_HEADER_BYTES, location.length))
    files.damage(log_path(DIRECTORY, 3), 3, b"x")
    with pytest.raises(CorruptionError, match="damaged file header"):
        reader.read(BlockLocation(3, LOG_HEADER_BYTES, location.length))


def test_disk_error_is_an_os_error(files: MemoryFileSystem) -> None:
    writer = EntryLogWriter(files, DIRECTORY, 1)
    location = put(writer, make_run(7, [0]))
    writer.finish()
    failing = FaultFileSystem(
        files, lambda op: Fault(errno.EIO) if op.kind == "pread" and op.number > 2 else None
    )
    with pytest.raises(OSError, match="Input/output"):
        EntryLogReader(failing, DIRECTORY).read(location)


def test_abandoned_log_is_removed_unless_rows_name_some_of_it(files: MemoryFileSystem) -> None:
    EntryLogWriter(files, DIRECTORY, 1).abandon(named_bytes=0)
    EntryLogWriter(files, DIRECTORY, 2).abandon(named_bytes=LOG_HEADER_BYTES)
    assert log_ids(files, DIRECTORY) == [2]


def test_abandoned_log_keeps_what_rows_name_and_gives_the_rest_back(
    files: MemoryFileSystem,
) -> None:
    writer = EntryLogWriter(files, DIRECTORY, 1)
    named = put(writer, make_run(7, [0]))
    writer.sync()
    named_bytes = writer.size
    unnamed = put(writer, make_run(7, range(1, 3), 9000))
    writer.write_buffered()
    file = files.open(log_path(DIRECTORY, 1))
    assert file.size() == writer.size
    writer.abandon(named_bytes=named_bytes)
    assert file.hole_bytes() == file.size() - named_bytes > 8000
    reader = EntryLogReader(files, DIRECTORY)
    assert bytes(reader.read(named).frames) == bytes(make_run(7, [0]).frames)
    with pytest.raises(CorruptionError):
        reader.read(unnamed)


def test_open_files_are_bounded(files: MemoryFileSystem) -> None:
    locations = []
    for log_id in (1, 2, 3):
        writer = EntryLogWriter(files, DIRECTORY, log_id)
        locations.append(put(writer, make_run(log_id, [0])))
        writer.finish()
    reader = EntryLogReader(files, DIRECTORY, open_logs_max=2)
    for location in locations * 2:
        assert reader.read(location).ledger_id == LedgerId(location.log_id)
        assert len(reader._files) <= 2


def test_log_that_was_read_last_stays_open(files: MemoryFileSystem) -> None:
    """Else the one that all read from is opened and checked again and again."""
    locations = []
    for log_id in (1, 2, 3):
        writer = EntryLogWriter(files, DIRECTORY, log_id)
        locations.append(put(writer, make_run(log_id, [0])))
        writer.finish()
    opened: list[str] = []

    def plan(operation: Operation) -> None:
        if operation.kind == "open":
            opened.append(operation.path.name)

    reader = EntryLogReader(FaultFileSystem(files, plan), DIRECTORY, open_logs_max=2)
    for number in (0, 1, 0, 2, 0, 1, 0):
        reader.read(locations[number])
    names = [log_path(DIRECTORY, log_id).name for log_id in (1, 2, 3, 2)]
    assert opened == names


def test_old_synced_bytes_leave_the_page_cache(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[tuple[int, int]] = []
    monkeypatch.setattr(
        MemoryFile, "drop_cached", lambda self, offset, length: dropped.append((offset, length))
    )
    window = 8 * MIB
    writer = EntryLogWriter(files, DIRECTORY, 1, cached_bytes=window)
    for number in range(5):
        put(writer, make_run(7, [number], 5 * MIB))
        writer.sync()
    ends = [offset + length for offset, length in dropped]
    assert [offset for offset, _ in dropped] == [0, *ends[:-1]], "without gaps or repetition"
    assert ends[-1] <= writer.size - window, "the newest bytes stay"
    assert writer.size - window - ends[-1] < 5 * MIB, "and only they"


def test_intact_block_at_another_offset_is_damage(files: MemoryFileSystem) -> None:
    """As after a misdirected write: right checksums, the same size, but another block."""
    writer = EntryLogWriter(files, DIRECTORY, 1)
    runs = [make_run(7, [entry_id]) for entry_id in range(2)]
    first, second = (writer.append(encode_run(run, NO_ENTRY)) for run in runs)
    writer.finish()
    assert first.length == second.length
    size = RECORD_HEADER_BYTES + first.length
    path = log_path(DIRECTORY, 1)
    files.damage(path, second.offset, files.open(path).pread(size, first.offset))
    reader = EntryLogReader(files, DIRECTORY)
    assert list(reader.read(first).ids()) == [0]
    with pytest.raises(CorruptionError, match=f"offset {second.offset}"):
        reader.read(second)
