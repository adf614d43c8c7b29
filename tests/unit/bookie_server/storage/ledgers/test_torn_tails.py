"""A log may end inside a block: nothing names that one, and nothing stops at it (rule S20)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bookie_server.checking import main
from bookie_server.storage.blocks import encode_run
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.ledgers.entry_log import (
    EntryLogReader,
    EntryLogWriter,
    log_ids,
    log_path,
)
from bookie_server.storage.ledgers.log_scan import scan_blocks
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.limits import KIB, MIB
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.ledgers.test_compaction import EVEN, compact, delete
from tests.unit.bookie_server.storage.support import (
    Machine,
    expected,
    formatted,
    make_run,
    small_config,
)

EVERY_OTHER = range(0, 3200, 2)
"""Entries of one member of a striped ledger: their block has a list of ids."""


def test_log_that_a_full_disk_has_torn_inside_the_ids_of_a_block_is_compacted() -> None:
    is_full = False

    def plan(operation: Operation) -> Fault | None:
        is_hit = is_full and operation.kind == "pwritev" and "entries-" in operation.path.name
        return Fault(errno.ENOSPC, write_part=0.1) if is_hit else None

    files = FaultFileSystem(formatted(), plan)
    config = small_config(
        write_once_bytes=0,
        entry_log_bytes=256 * KIB,
        write_cache_bytes=2 * MIB,
        journal_file_bytes=256 * KIB,
        journal_batch_bytes_max=64 * KIB,
    )
    machine = Machine(files, config)
    for ledger_id, count in ((2, 200), (4, 3)):
        assert machine.add(ledger_id, range(count)) is BookieStatus.OK
    machine.flush()
    assert machine.add(6, EVERY_OTHER) is BookieStatus.OK
    is_full = True
    with pytest.raises(OSError, match="No space"):
        machine.flush()
    is_full = False
    machine.flush()
    for restarted in range(2):
        assert log_ids(files, EVEN) == [1, 2]
        delete(machine, 2)
        if not restarted:
            machine.close()
            machine = Machine(files, config)
    compact(machine)
    assert 1 not in log_ids(files, EVEN)
    assert machine.held(4) == expected(4, range(3))
    assert machine.held(6) == expected(6, EVERY_OTHER)


@pytest.mark.parametrize(
    "runs",
    [
        [make_run(2, range(9)), make_run(4, range(0, 60, 2))],
        [make_run(2, range(0, 900, 2)), make_run(4, range(300))],
    ],
    ids=["ids in the last block", "ids in the first block"],
)
def test_log_that_is_cut_anywhere_has_the_blocks_before_the_cut(
    runs: list[EntryRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = EntryLogWriter(PosixFileSystem(), tmp_path, 1)
    blocks = [encode_run(run, EntryId(-1)) for run in runs]
    places = [writer.append(block) for run, block in zip(runs, blocks, strict=True)]
    writer.sync()
    writer.abandon(named_bytes=writer.size)
    path = log_path(tmp_path, 1)
    whole = path.read_bytes()
    ends = [place.offset + RECORD_HEADER_BYTES + place.length for place in places]
    sizes = {*range(4096, ends[-1], 211), *(end + by for end in ends for by in (-1, 0))}
    for size in sizes:
        path.write_bytes(whole[:size])
        file, seed = EntryLogReader(PosixFileSystem(), tmp_path, direct=False).open_log(1)
        found = [each.location for each in scan_blocks(file, seed, 1)]
        file.close()
        assert found == [place for place, end in zip(places, ends, strict=True) if end <= size]
    path.write_bytes(whole[: ends[-1] - 1])
    assert main(["dump", str(path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert f"ledger {LedgerId(2)} " in line and line.endswith("whole")
