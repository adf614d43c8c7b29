"""A bookie whose index is damaged, or that cannot be opened: errors, and nothing left behind."""

from __future__ import annotations

import pytest

from bookie_server.storage.engine import LedgerStorage
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import (
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
        assert machine.bookie.check_access(LedgerId(7), b"") is IO_ERROR
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


def test_a_bookie_of_another_cluster_is_not_opened() -> None:
    files = formatted()
    with pytest.raises(ConfigurationError, match="another-cluster"):
        Machine(files, small_config(cluster_id="another-cluster"))
    assert Machine(files, small_config(cluster_id="test")).add(7, [0]) is BookieStatus.OK
