"""The first contact decides the access key of a ledger; no request passes with another one."""

from __future__ import annotations

import pytest

from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.unit.bookie_server.storage.support import (
    Answer,
    Machine,
    expected,
    formatted,
)

OK = BookieStatus.OK
L = LedgerId(7)


@pytest.fixture
def files() -> MemoryFileSystem:
    return formatted()


@pytest.fixture
def machine(files: MemoryFileSystem) -> Machine:
    return Machine(files)


def test_the_first_contact_decides_the_key(machine: Machine, files: MemoryFileSystem) -> None:
    assert machine.add(7, [0], key=b"secret") is OK
    for one in (machine, Machine(files.crash_clone(None))):
        for wrong in (b"", b"other"):
            assert one.add(7, [1], key=wrong) is BookieStatus.UNAUTHORIZED
            assert one.add(7, [1], key=wrong, recovery=True) is BookieStatus.UNAUTHORIZED
            assert one.fence(7, key=wrong) is BookieStatus.UNAUTHORIZED
            assert key_status(one.bookie, L, wrong) is BookieStatus.UNAUTHORIZED
        assert not one.is_fenced(7), "a wrong password fences nothing"
        assert key_status(one.bookie, L, b"secret") is OK
        assert one.held(7) == expected(7, [0]), "plain reads need no key"
        end = one.bookie.end_of_ledger(L, access_key=b"other")
        assert end.status is BookieStatus.UNAUTHORIZED and end.last_entry == -1
    assert key_status(machine.bookie, LedgerId(8), b"any") is OK


def test_first_contact_that_changes_nothing_else_decides_the_key() -> None:
    machine = Machine(formatted())
    machine.keys.learn(7, b"secret")
    machine.bookie.write_last_confirmed(
        L, EntryId(-1), access_key=b"secret", done=lambda *_answer: None
    )
    assert machine.add(7, [0], key=b"other") is BookieStatus.UNAUTHORIZED
    assert machine.add(7, [0], key=b"secret") is OK


def test_a_ledger_without_password_stays_one(machine: Machine) -> None:
    assert machine.add(7, [0]) is OK
    assert machine.add(7, [1], key=b"key") is BookieStatus.UNAUTHORIZED


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("entries", [0, 2])
def test_wrong_key_is_refused_for_every_request_in_every_state(
    *, fenced: bool, entries: int
) -> None:
    machine = Machine(formatted())
    assert machine.add(8, [0]) is OK
    if entries:
        assert machine.add(7, list(range(entries)), key=b"secret", lac=0) is OK
    if fenced or not entries:
        assert machine.fence(7, key=b"secret") is OK
    answers: list[Answer] = []

    def told(*answer: object) -> None:
        answers.append(answer)  # type: ignore[arg-type]

    for wrong in (b"other", b"secret ", b"secre"):
        end = machine.bookie.end_of_ledger(L, access_key=wrong)
        assert end[:4] == (BookieStatus.UNAUTHORIZED, -1, -1, False)
        assert key_status(machine.bookie, L, wrong) is BookieStatus.UNAUTHORIZED
        assert machine.fence(7, key=wrong) is BookieStatus.UNAUTHORIZED
        for recovery in (False, True):
            status = machine.add(7, [entries], key=wrong, recovery=recovery)
            assert status is BookieStatus.UNAUTHORIZED
        machine.bookie.write_last_confirmed(L, EntryId(9), access_key=wrong, done=told)
    assert [answer[0] for answer in answers] == [BookieStatus.UNAUTHORIZED] * 3
    assert machine.bookie.append_bytes_in_flight == 0
    assert sorted(machine.held(7)) == list(range(entries))
    assert machine.is_fenced(7) == (fenced or not entries)
    assert machine.lac(7) == (0 if entries else -1)


def test_the_end_of_a_ledger_is_told_without_its_key() -> None:
    machine = Machine(formatted())
    assert machine.add(7, [0, 1], lac=0, key=b"secret") is OK
    assert machine.bookie.end_of_ledger(L, access_key=b"") == (OK, 0, 1, False, "")
