"""A bookie's disk is full, hangs or is slow while its file says so, and in the named part only."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.chaos import disk
from tests.chaos.volatile import VolatileFileSystem


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VolatileFileSystem:
    for name in ("journal", "ledgers"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv(*next(iter(disk.environment(tmp_path).items())))
    return VolatileFileSystem()


def test_full_disk_takes_what_fits_into_reserved_blocks(
    tmp_path: Path, files: VolatileFileSystem
) -> None:
    journal = files.create(tmp_path / "journal" / "f")
    other = files.create(tmp_path / "ledgers" / "f")
    journal.preallocate(4096)
    disk.fall_sick(tmp_path, "full", "journal")
    assert files.space(tmp_path / "journal").free_bytes == 0
    assert files.space(tmp_path / "ledgers").free_bytes > 0
    journal.pwritev([bytes(4096)], 0)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        journal.pwritev([b"x"], 4096)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        journal.preallocate(8192)
    other.pwritev([b"x"], 4096)
    disk.get_well(tmp_path)
    journal.pwritev([b"x"], 4096)
    assert journal.size() == 4097


@pytest.mark.parametrize(("state", "hangs"), [("hangs-at-syncs", 0), ("hangs-at-reads", 1)])
def test_disk_that_hangs_goes_on_when_it_is_well(
    tmp_path: Path, files: VolatileFileSystem, state: str, hangs: int
) -> None:
    file = files.create(tmp_path / "ledgers" / "f")
    disk.fall_sick(tmp_path, state, "ledgers")
    work = (file.fdatasync, lambda: file.pread(1, 0))
    work[1 - hangs]()
    hanging = threading.Thread(target=work[hangs], daemon=True)
    hanging.start()
    hanging.join(5 * disk.LOOK_S)
    assert hanging.is_alive()
    disk.get_well(tmp_path)
    hanging.join(30)
    assert not hanging.is_alive()
