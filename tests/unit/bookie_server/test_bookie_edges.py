"""The largest runs a bookie takes, and what a key protects from the first contact on."""

from __future__ import annotations

import pytest

from bookie_server.storage.blocks import RUN_ENTRIES_MAX, RUN_FRAMES_BYTES_MAX
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.unit.bookie_server.storage.support import Answer, Machine, expected, formatted

OK = BookieStatus.OK
L = LedgerId(7)


@pytest.mark.parametrize(
    ("entries", "size", "status"),
    [
        (1, RUN_FRAMES_BYTES_MAX, OK),
        (1, RUN_FRAMES_BYTES_MAX + 1, BookieStatus.BAD_REQUEST),
        (RUN_ENTRIES_MAX, 1, OK),
        (RUN_ENTRIES_MAX + 1, 1, BookieStatus.BAD_REQUEST),
    ],
)
def test_the_largest_runs(entries: int, size: int, status: BookieStatus) -> None:
    machine = Machine(formatted())
    answers: list[Answer] = []
    machine.bookie.add(
        EntryRun(L, EntryId(0), None, [size] * entries, bytes(entries * size)),
        access_key=b"",
        recovery=False,
        last_add_confirmed=EntryId(-1),
        done=lambda *answer: answers.append(answer),
    )
    machine.settle()
    assert [answer[0] for answer in answers] == [status]


def test_the_end_of_a_ledger_is_told_without_its_key() -> None:
    machine = Machine(formatted())
    assert machine.add(7, [0, 1], lac=0, key=b"secret") is OK
    assert machine.bookie.end_of_ledger(L, access_key=b"") == (OK, 0, 1, False, "")


def test_a_contact_that_changes_nothing_decides_the_key_too() -> None:
    machine = Machine(formatted())
    machine.bookie.write_last_confirmed(
        L, EntryId(-1), access_key=b"secret", done=lambda *_answer: None
    )
    assert machine.add(7, [0], key=b"other") is BookieStatus.UNAUTHORIZED
    assert machine.add(7, [0], key=b"secret") is OK


def test_a_confirmed_end_that_is_known_is_not_written_again() -> None:
    machine = Machine(formatted())
    assert machine.add(7, [0, 1], lac=0) is OK
    records = machine.bookie.stats().journal.records
    answers: list[Answer] = []
    machine.bookie.write_last_confirmed(
        L, EntryId(0), access_key=b"", done=lambda *answer: answers.append(answer)
    )
    assert answers == [(OK, "")]
    assert machine.bookie.stats().journal.records == records


def test_what_was_accepted_is_stored_and_answered_when_the_bookie_closes() -> None:
    files = formatted()
    machine = Machine(files)
    add, fence = machine.start_add(7, [0]), machine.start_fence(8)
    machine.close()
    assert add == fence == [(OK, "")]
    again = Machine(files)
    assert again.held(7) == expected(7, [0]) and again.is_fenced(8)


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("entries", [0, 2])
def test_a_wrong_key_opens_nothing_whatever_the_ledger_is_like(
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


def test_a_bookie_that_closes_commits_all_batches() -> None:
    files = formatted()
    machine = Machine(files)
    adds = [machine.start_add(7, [entry], size=10_000) for entry in range(5)]  # 16 KiB a batch
    machine.close()
    assert adds == [[(OK, "")]] * 5
    assert Machine(files).held(7) == expected(7, range(5), 10_000)
