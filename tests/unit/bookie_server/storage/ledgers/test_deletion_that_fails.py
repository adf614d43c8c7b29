"""A deletion that the disk refuses: what it leaves is known, and others are not held up (S17)."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.index import lmdb_update
from bookie_server.storage.index.lmdb_index import LmdbIndex
from spark_ledger.limits import MIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.storage.ledgers.test_deletion import delete, fill
from tests.unit.bookie_server.storage.support import LEDGERS, Machine, formatted, small_config


def test_ledger_whose_deletion_cannot_be_committed_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is counted as new, and if its record is damaged it is denied (rule S9)."""

    def fails(*_of: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with closing(LmdbIndex(tmp_path / "index", map_bytes=8 * MIB)) as index:
        fill(index, range(3))
        for again in range(2):
            update = index.begin()
            update.delete_rows(LedgerId(2), 1000)
            update.delete_ledger_record(LedgerId(2))
            with monkeypatch.context() as patch:
                if not again:
                    patch.setattr(lmdb_update, "commit_now", fails)
                    with pytest.raises(OSError, match="Input/output"):
                        update.commit()
                    update.abort()
                else:
                    update.commit()
            assert index.knows(LedgerId(2)) is (again == 0)
            assert (index.ledger_record(LedgerId(2)) is None) is bool(again)


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_directory_in_which_nothing_can_be_deleted_keeps_only_its_own(
    failing: int, error: int
) -> None:
    """Else a full disk would hold up the deletions that make room on the others."""
    fails = False

    def plan(operation: Operation) -> Fault | None:
        hit = fails and operation.path.is_relative_to(LEDGERS[failing])
        return Fault(error) if hit else None

    machine = Machine(FaultFileSystem(formatted(), plan), small_config())
    for ledger_id in range(2, 8):
        machine.add(ledger_id, range(3))
    machine.flush()
    fails = True
    with pytest.raises(OSError) as caught:
        delete(machine, 2, 3, 4, 5)
    assert caught.value.errno == error
    left = {2, 3, 4, 5} - {each for each in range(2, 6) if each % 2 != failing}
    assert {each.ledger_id for each in machine.bookie.held_ledgers(-1, 9)} == left | {6, 7}
    fails = False
    delete(machine, 2, 3, 4, 5)
    assert [each.ledger_id for each in machine.bookie.held_ledgers(-1, 9)] == [6, 7]
    machine.keys.missing.clear()
    assert machine.add(2, [0]) is BookieStatus.OK and machine.add(3, [0]) is BookieStatus.OK
