"""A bookie adds, fences, confirms and closes: what it answers, when, and what a crash leaves."""

from __future__ import annotations

import pytest

from bookie_server import bookie
from bookie_server.storage.blocks import RUN_ENTRIES_MAX, RUN_FRAMES_BYTES_MAX
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId
from tests.listed import listed
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


# -- adds ------------------------------------------------------------------------------------------


def test_an_add_is_answered_once_it_is_durable(machine: Machine, files: MemoryFileSystem) -> None:
    answers = machine.start_add(7, [0, 1])
    assert machine.bookie.append_bytes_in_flight == 80
    assert not answers
    assert machine.held(7) == expected(7, [0, 1]), "reads see it before it is durable"
    assert machine.bookie.commit_pending()
    assert not answers, "the completion runs where post puts it"
    machine.settle()
    assert answers == [(OK, "")] and machine.bookie.append_bytes_in_flight == 0
    assert Machine(files.crash_clone(None)).held(7) == expected(7, [0, 1])


def test_an_add_that_was_not_synced_is_gone_after_a_crash(
    machine: Machine, files: MemoryFileSystem
) -> None:
    machine.start_add(7, [0, 1])
    assert Machine(files.crash_clone(None)).held(7) == {}


def test_refused_run_stores_nothing_and_holds_no_bytes(machine: Machine) -> None:
    answers: list[Answer] = []
    size = RUN_FRAMES_BYTES_MAX + 1
    machine.bookie.add(
        EntryRun(L, EntryId(0), None, [size], bytes(size)),
        access_key=b"",
        recovery=False,
        last_add_confirmed=EntryId(-1),
        done=lambda status, message: answers.append((status, message)),
    )
    assert answers[0][0] is BookieStatus.BAD_REQUEST and "ledger 7" in answers[0][1]
    assert machine.held(7) == {} and machine.bookie.append_bytes_in_flight == 0


@pytest.mark.parametrize(
    ("entries", "size", "status"),
    [
        (1, RUN_FRAMES_BYTES_MAX, OK),
        (1, RUN_FRAMES_BYTES_MAX + 1, BookieStatus.BAD_REQUEST),
        (RUN_ENTRIES_MAX, 1, OK),
        (RUN_ENTRIES_MAX + 1, 1, BookieStatus.BAD_REQUEST),
    ],
)
def test_add_of_a_run_above_the_bounds_is_refused(
    entries: int, size: int, status: BookieStatus
) -> None:
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


def test_entries_come_back_through_flush_and_restart(
    machine: Machine, files: MemoryFileSystem
) -> None:
    assert machine.add(7, [0, 1, 2], lac=1) is OK
    assert machine.add(8, [5], lac=4) is OK
    machine.flush()
    assert machine.add(7, [3, 4], lac=2) is OK
    for one in (machine, Machine(files.crash_clone(None))):
        assert one.held(7) == expected(7, range(5))
        assert one.held(8) == expected(8, [5])
        assert (one.lac(7), one.lac(8)) == (2, 4)
        end = one.bookie.end_of_ledger(L, access_key=b"")
        assert (end.last_entry, end.fenced) == (4, False)
    machine.close()
    again = Machine(files)
    assert again.held(7) == expected(7, range(5))
    assert again.bookie.stats().ledger_storage.ledgers == 2


def test_the_same_entry_sent_again_is_stored_once(
    machine: Machine, files: MemoryFileSystem
) -> None:
    for chosen in ([0, 1, 2], [1, 2, 3], [0, 1, 2, 3, 4, 5], [9], [4, 8, 9, 11]):
        assert machine.add(7, chosen, recovery=True) is OK
        assert machine.add(7, chosen, recovery=True) is OK
    everything = expected(7, [0, 1, 2, 3, 4, 5, 8, 9, 11])
    assert machine.held(7) == everything
    machine.flush()
    assert machine.held(7) == everything
    rows = machine.bookie._storage.store_of(L).index.rows(L)
    assert sum(row.location.length for row in rows) < 9 * 40 + len(rows) * 100, "once"
    for chosen in ([6, 7], [0, 10, 12], [3, 10]):
        assert machine.add(7, chosen, recovery=True) is OK
        machine.flush()
    assert machine.held(7) == expected(7, range(13))
    assert Machine(files.crash_clone(None)).held(7) == expected(7, range(13))


# -- fences ----------------------------------------------------------------------------------------


def test_a_fence_stops_the_writer_and_lets_recovery_pass(
    machine: Machine, files: MemoryFileSystem
) -> None:
    assert machine.add(7, [0]) is OK
    assert machine.fence(7) is OK
    for one in (machine, Machine(files.crash_clone(None))):
        assert one.add(7, [1]) is BookieStatus.FENCED
        assert one.is_fenced(7)
        assert one.add(7, [1], recovery=True) is OK
        assert one.fence(7) is OK


def test_a_fence_is_answered_once_it_is_durable(machine: Machine, files: MemoryFileSystem) -> None:
    first = machine.start_fence(7)
    second = machine.start_fence(7)
    assert machine.start_add(7, [0])[0][0] is BookieStatus.FENCED, "it counts at once"
    assert not first and not second, "neither is durable"
    assert not Machine(files.crash_clone(None)).is_fenced(7)
    machine.bookie.commit_pending()
    assert Machine(files.crash_clone(None)).is_fenced(7)
    machine.settle()
    assert first == second == [(OK, "")]
    assert machine.start_fence(7) == [(OK, "")], "durable already: at once"
    assert machine.bookie.stats().journal.records == 1


def test_fences_of_recoveries_that_have_left_are_few_while_the_journal_hangs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot end asks every few seconds, and each of its questions waits for the sync."""
    monkeypatch.setattr(bookie, "BOOKIE_FENCES_MAX", 3)
    asked = [machine.start_fence(7) for _ in range(5)]
    assert [answers[0][0] for answers in asked if answers] == [BookieStatus.TOO_MANY_REQUESTS] * 2
    machine.settle()
    assert [answers[0][0] for answers in asked[:3]] == [OK] * 3
    assert machine.fence(7) is OK


def test_an_add_before_the_fence_is_kept(machine: Machine) -> None:
    add = machine.start_add(7, [0])
    fence = machine.start_fence(7)
    assert machine.held(7) == expected(7, [0]), "the fencing read sees it"
    machine.settle()
    assert add == fence == [(OK, "")]


def test_unknown_ledgers_are_fenced_with_their_key(
    machine: Machine, files: MemoryFileSystem
) -> None:
    assert machine.fence(7, key=b"secret") is OK
    for one in (machine, Machine(files.crash_clone(None))):
        end = one.bookie.end_of_ledger(L, access_key=b"secret")
        assert end == (OK, -1, -1, True, "")
        assert one.add(7, [0], key=b"secret") is BookieStatus.FENCED
        assert one.add(7, [0], key=b"other", recovery=True) is BookieStatus.UNAUTHORIZED
        assert listed(one.bookie, L) == []


def test_a_checkpoint_without_entries_keeps_fence_and_lac(
    machine: Machine, files: MemoryFileSystem
) -> None:
    """The journal is trimmed by the checkpoint, so the index must have them."""
    for ledger_id in (7, 8):
        assert machine.add(ledger_id, [0]) is OK
    machine.flush()
    assert machine.fence(7) is OK
    written: list[Answer] = []
    machine.bookie.write_last_confirmed(
        LedgerId(8), EntryId(5), access_key=b"", done=lambda *answer: written.append(answer)
    )
    machine.settle()
    machine.flush()
    for _restart in range(2):  # each starts a new journal file and drops the one before
        machine = Machine(files := files.crash_clone(None))
    assert machine.is_fenced(7) and not machine.is_fenced(8)
    assert machine.lac(8) == 5 and written == [(OK, "")]


# -- last add confirmed ----------------------------------------------------------------------------


def test_the_last_add_confirmed_only_grows(machine: Machine) -> None:
    assert machine.add(7, [5, 6], lac=4) is OK
    assert machine.add(7, [2, 3], lac=1, recovery=True) is OK
    end = machine.bookie.end_of_ledger(L, access_key=b"")
    assert (end.last_add_confirmed, end.last_entry) == (4, 6)
    answers: list[Answer] = []
    for lac in (6, 3):
        machine.bookie.write_last_confirmed(
            L, EntryId(lac), access_key=b"", done=lambda *answer: answers.append(answer)
        )
        machine.settle()
        assert machine.lac(7) == 6
    assert answers == [(OK, "")] * 2
    machine.bookie.write_last_confirmed(
        L, EntryId(9), access_key=b"wrong", done=lambda *answer: answers.append(answer)
    )
    assert answers[-1][0] is BookieStatus.UNAUTHORIZED and machine.lac(7) == 6


def test_last_confirmed_that_is_known_is_not_journalled_again() -> None:
    machine = Machine(formatted())
    assert machine.add(7, [0, 1], lac=0) is OK
    records = machine.bookie.stats().journal.records
    answers: list[Answer] = []
    machine.bookie.write_last_confirmed(
        L, EntryId(0), access_key=b"", done=lambda *answer: answers.append(answer)
    )
    assert answers == [(OK, "")]
    assert machine.bookie.stats().journal.records == records


def test_watchers_hear_of_growth_and_of_the_fence(machine: Machine) -> None:
    heard: list[str] = []
    cancel = machine.bookie.watch_last_confirmed(L, NO_ENTRY, lambda: heard.append("a"))

    def hear_and_cancel() -> None:
        heard.append("b")
        cancel()

    others = [
        machine.bookie.watch_last_confirmed(L, NO_ENTRY, hear_and_cancel),
        machine.bookie.watch_last_confirmed(LedgerId(8), NO_ENTRY, lambda: heard.append("other")),
        machine.bookie.watch_last_confirmed(L, EntryId(2), lambda: heard.append("above 2")),
    ]
    machine.add(7, [0], lac=-1)
    assert heard == [], "it did not grow"
    machine.add(7, [1], lac=0)
    assert heard == ["a", "b"]
    machine.bookie.write_last_confirmed(
        L, EntryId(1), access_key=b"", done=lambda *_answer: heard.append("done")
    )
    assert heard == ["a", "b", "b"]
    machine.settle()
    fence = machine.start_fence(7)
    assert heard[-1] == "done", "not before it is durable"
    machine.settle()
    assert heard[-2:] == ["b", "above 2"] and fence
    cancel()
    assert machine.bookie._watchers._callbacks.keys() == {7, 8}
    for each in others:
        each()
    assert not machine.bookie._watchers._callbacks


# -- closing ---------------------------------------------------------------------------------------


def test_close_stores_and_answers_what_was_accepted() -> None:
    files = formatted()
    machine = Machine(files)
    add, fence = machine.start_add(7, [0]), machine.start_fence(8)
    machine.close()
    assert add == fence == [(OK, "")]
    again = Machine(files)
    assert again.held(7) == expected(7, [0]) and again.is_fenced(8)


def test_close_commits_all_batches() -> None:
    files = formatted()
    machine = Machine(files)
    adds = [machine.start_add(7, [entry], size=10_000) for entry in range(5)]  # 16 KiB a batch
    machine.close()
    assert adds == [[(OK, "")]] * 5
    assert Machine(files).held(7) == expected(7, range(5), 10_000)
