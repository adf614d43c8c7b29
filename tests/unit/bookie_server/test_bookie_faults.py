"""A bookie on a disk that fails: errors instead of denials, and nothing acknowledged is lost."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.errors import CorruptionError
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.listed import listed
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    Answer,
    Machine,
    expected,
    formatted,
)

IO_ERROR = BookieStatus.IO_ERROR


@pytest.mark.parametrize("error", [OSError("bad sector"), CorruptionError("bad sector")])
def test_requests_for_an_unreadable_record_are_io_errors(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    machine = Machine(formatted())
    assert machine.add(7, [0]) is BookieStatus.OK

    def unreadable(_storage: LedgerStorage, _ledger_id: LedgerId) -> None:
        raise error

    answers: list[Answer] = []
    with monkeypatch.context() as patch:
        patch.setattr(LedgerStorage, "ledger_record", unreadable)
        answers += machine.start_add(7, [1])
        answers += machine.start_fence(7)
        machine.bookie.write_last_confirmed(
            LedgerId(7), EntryId(0), access_key=b"", done=lambda *told: answers.append(told)
        )
        end = machine.bookie.end_of_ledger(LedgerId(7), access_key=b"")
        assert (end.status, end.fenced) == (IO_ERROR, False)
        assert key_status(machine.bookie, LedgerId(7), b"") is IO_ERROR
    assert answers == [(IO_ERROR, "bad sector")] * 3
    assert machine.held(7) == expected(7, [0]) and not machine.is_fenced(7)


def test_requests_after_a_journal_failure_change_nothing() -> None:
    """Not even into memory: nobody would make room there again."""
    failing = False

    def plan(operation: Operation) -> Fault | None:
        in_journal = operation.path.parent == JOURNAL
        return Fault(errno.EIO) if failing and in_journal else None

    machine = Machine(FaultFileSystem(formatted(), plan))
    assert machine.add(7, [0], lac=-1) is BookieStatus.OK
    failing = True
    assert machine.add(7, [1]) is IO_ERROR
    held = machine.held(7)
    answers = [machine.add(7, [2]), machine.fence(7), machine.fence(8)]
    machine.bookie.write_last_confirmed(
        LedgerId(7), EntryId(1), access_key=b"", done=lambda *told: answers.append(told[0])
    )
    machine.settle()
    assert answers == [IO_ERROR] * 4
    assert machine.held(7) == held and machine.lac(7) == -1
    assert not machine.is_fenced(7) and listed(machine.bookie, LedgerId(8)) is None
    assert machine.bookie.append_bytes_in_flight == 0


@pytest.mark.parametrize("kind", ["fdatasync", "pwritev"])
def test_entry_log_that_failed_is_not_written_again(kind: str) -> None:
    """A second sync of the same file may succeed, without the pages that the first one lost."""
    files = formatted()
    failures = 0
    failed: set[str] = set()

    def plan(operation: Operation) -> Fault | None:
        nonlocal failures
        log = operation.path.stem if operation.path.name.startswith("entries-") else ""
        assert log not in failed or operation.kind not in ("pwritev", "fdatasync"), "once more"
        if failures and log and operation.kind == kind:
            failures -= 1
            failed.add(log)
            return Fault(errno.EIO, 0.5)
        return None

    machine = Machine(FaultFileSystem(files, plan))
    for entry in range(6):
        assert machine.add(7, [entry]) is BookieStatus.OK
        failures = entry % 2
        if failures:
            with pytest.raises(OSError, match="Input/output"):
                machine.flush()
        machine.flush()
        assert machine.held(7) == expected(7, range(entry + 1))
        assert not machine.bookie.stats().ledger_storage.cache_bytes
        assert Machine(files.crash_clone(None)).held(7) == expected(7, range(entry + 1))
