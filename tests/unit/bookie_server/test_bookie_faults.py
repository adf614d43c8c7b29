"""A bookie whose index is damaged, or that cannot be opened: errors, and nothing left behind."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.ledgers.entry_log import log_path
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    LEDGERS,
    Answer,
    Machine,
    expected,
    formatted,
    small_config,
)

IO_ERROR = BookieStatus.IO_ERROR


@pytest.mark.parametrize("error", [OSError("bad sector"), CorruptionError("bad sector")])
def test_a_ledger_whose_state_cannot_be_read_answers_with_an_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    machine = Machine(formatted())
    assert machine.add(7, [0]) is BookieStatus.OK

    def unreadable(_storage: LedgerStorage, _ledger_id: LedgerId) -> None:
        raise error

    answers: list[Answer] = []
    with monkeypatch.context() as patch:
        patch.setattr(LedgerStorage, "state", unreadable)
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


def test_a_bookie_that_cannot_be_opened_lets_go_of_its_directories() -> None:
    files = formatted()
    wrong = small_config()
    object.__setattr__(wrong, "bookie_id", BookieId("somebody-else"))
    for _again in range(2):
        with pytest.raises(ConfigurationError, match="somebody-else"):
            Machine(files, wrong)
    assert Machine(files).add(7, [0]) is BookieStatus.OK


@pytest.mark.parametrize("kind", ["create", "list", "fdatasync", "pread"])
def test_a_disk_that_fails_at_the_start_is_named(kind: str) -> None:
    files = formatted()
    Machine(files).close()

    def plan(operation: Operation) -> Fault | None:
        fails = operation.kind == kind and operation.path.is_relative_to(JOURNAL)
        return Fault(errno.EIO) if fails else None

    with pytest.raises(ConfigurationError, match=f"cannot be .*{JOURNAL}"):
        Machine(FaultFileSystem(files, plan))
    assert Machine(files).add(7, [0]) is BookieStatus.OK, "it let go of its directories"


def test_a_bookie_of_another_cluster_is_not_opened() -> None:
    files = formatted()
    with pytest.raises(ConfigurationError, match="another-cluster"):
        Machine(files, small_config(cluster_id="another-cluster"))
    assert Machine(files, small_config(cluster_id="test")).add(7, [0]) is BookieStatus.OK


def test_what_was_read_before_the_damage_is_served_with_the_error() -> None:
    files = formatted()
    machine = Machine(files)
    for first in (0, 5):
        assert machine.add(7, range(first, first + 5)) is BookieStatus.OK
        machine.flush()
    rows = machine.bookie._storage.store_of(LedgerId(7)).index.rows(LedgerId(7))
    damaged = rows[1].location
    path = log_path(LEDGERS[1], damaged.log_id)
    files.damage(path, damaged.offset + 100, b"\xff\xff\xff")
    outcome = machine.bookie.read(LedgerId(7), EntryId(3), EntryId(9), stride=1, max_bytes=1 << 20)
    assert [entry for run in outcome.runs for entry in run.ids()] == [3, 4]
    assert (outcome.status, outcome.entry_id) == (IO_ERROR, 5)
    assert str(path) in outcome.message


def test_nothing_is_taken_in_once_the_journal_has_failed() -> None:
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
    assert not machine.is_fenced(7) and machine.bookie.list_entries(LedgerId(8)) is None
    assert machine.bookie.append_bytes_in_flight == 0


@pytest.mark.parametrize("kind", ["fdatasync", "pwritev"])
def test_a_log_that_failed_is_not_written_again(kind: str) -> None:
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
        assert not machine.bookie.stats().engine.cache_bytes
        assert Machine(files.crash_clone(None)).held(7) == expected(7, range(entry + 1))
