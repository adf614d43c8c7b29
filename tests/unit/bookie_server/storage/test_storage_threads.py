"""Threads of a bookie's storage: a disk that fails once ends none, and one that ends is told of."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.ledgers import scrub
from spark_ledger.errors import CorruptionError
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.support import Machine, expected, formatted


class Thread(NamedTuple):
    """What runs on it, whose method it calls again and again, and what wakes it."""

    run: Callable[[], None]
    owner: Any
    method: str
    wake: Callable[[], None]
    stop: Callable[[], None]


def thread(machine: Machine, name: str) -> Thread:
    storage, disks = machine.bookie._storage, machine.bookie.disks
    compactor, scrubber = storage.compactor, storage.scrubber
    return {
        "flush": Thread(storage._run, storage, "flush", storage.request_flush, storage.stop),
        "compaction": Thread(
            compactor._run, compactor, "run_once", compactor.look_soon, compactor.stop
        ),
        "scrub": Thread(scrubber._run, scrubber, "_pass", lambda: None, scrubber.stop),
        "disk": Thread(disks._run, disks, "check", disks.check_soon, disks.stop),
    }[name]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(scrub, "SCRUB_FIRST_S", 0.0)
    monkeypatch.setattr(scrub, "SCRUB_AGAIN_S", 0.0)
    return Machine(formatted())


@pytest.mark.parametrize("name", ["flush", "compaction", "scrub", "disk"])
def test_thread_that_ends_by_a_bug_ends_the_process(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Otherwise the bookie would serve on, and nothing would be flushed, freed or looked at."""
    each = thread(machine, name)

    def bug(*_of: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(each.owner, each.method, bug)
    each.wake()
    with pytest.raises(RuntimeError):
        each.run()
    machine.settle()
    assert machine.fatal == [f"the {name} thread ended unexpectedly"]


@pytest.mark.parametrize("name", ["flush", "compaction", "scrub"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output"), CorruptionError("rotten")])
def test_thread_whose_disk_fails_goes_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    each = thread(machine, name)
    calls = 0

    def fails_once(*_of: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            each.wake()
            raise error
        each.stop()

    monkeypatch.setattr(each.owner, each.method, fails_once)
    each.wake()
    each.run()
    machine.settle()
    assert (calls, machine.fatal) == (2, [])


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("work", ["flush", "compaction", "scrub"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output"), CorruptionError("rotten")])
def test_directory_that_fails_holds_up_no_other_until_it_works_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, work: str, failing: int, error: Exception
) -> None:
    storage = machine.bookie._storage
    owners: dict[str, tuple[Callable[[], None], list[tuple[Any, str]]]] = {
        "flush": (storage.flush, [(store, "flush") for store in storage._stores]),
        "compaction": (
            storage.compactor.run_once,
            [(store.space, "free_bytes") for store in storage._stores],
        ),
        "scrub": (storage.scrubber.run_once, [(store.scrub, "run") for store in storage._stores]),
    }
    run, methods = owners[work]
    done: list[int] = []
    fails = True

    def watched(number: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*of: Any) -> Any:
            if fails and number == failing:
                raise error
            done.append(number)
            return original(*of)

        return method

    for number, (owner, name) in enumerate(methods):
        monkeypatch.setattr(owner, name, watched(number, getattr(owner, name)))
    stats = machine.bookie.stats
    with pytest.raises(type(error)):
        run()
    assert done == [1 - failing]
    told = {
        "flush": machine.bookie.failure,
        "compaction": stats().ledger_storage.compaction.last_failure,
        "scrub": stats().ledger_storage.scrub.last_failure,
    }
    assert told.pop(work) == str(error) and not any(told.values())
    fails = False
    run()
    assert done == [1 - failing, 0, 1] and not machine.bookie.failure
    assert stats().ledger_storage.compaction.last_failure == ""
    assert stats().ledger_storage.scrub.last_failure == ""


def test_journal_thread_that_ends_by_a_bug_ends_the_process_and_leaves_nobody_waiting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = machine.start_add(2, [0])
    assert not answers
    journal = machine.bookie._journal

    def bug() -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(journal, "commit_pending", bug)
    with pytest.raises(RuntimeError):
        journal._run()
    while machine.posted:
        machine.posted.popleft()()
    assert [status for status, _ in answers] == [BookieStatus.IO_ERROR]
    assert len(machine.fatal) == 1 and "ended unexpectedly" in machine.fatal[0]


CLOSING = {"create", "pwritev", "fdatasync", "rename", "remove", "sync_directory", "preallocate"}


def test_close_that_fails_at_any_step_lets_the_directories_go_and_loses_nothing() -> None:
    steps_left = 0

    def plan(operation: Operation) -> Fault | None:
        nonlocal steps_left
        steps_left -= operation.kind in CLOSING
        return Fault(errno.EIO) if steps_left == 0 and operation.kind in CLOSING else None

    for step in itertools.count(1):
        inner = formatted()
        machine = Machine(FaultFileSystem(inner, plan))
        for ledger_id in (2, 3):
            assert machine.add(ledger_id, range(10)) is BookieStatus.OK
        steps_left = step
        with suppress(OSError):
            machine.bookie.close()
        if steps_left > 0:
            break
        again = Machine(inner)  # it takes the locks
        for ledger_id in (2, 3):
            assert again.held(ledger_id) == expected(ledger_id, range(10)), f"step {step}"
        again.close()
        for store in machine.bookie._storage._stores:
            assert store.logs._writer is None, f"step {step}: a directory was not closed"
    assert step > 10, "two directories and a journal are closed"


@pytest.mark.parametrize("name", ["flush", "compaction", "scrub", "disk"])
def test_stop_waits_for_the_work_that_a_thread_is_in(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What is closed behind it would be closed under its hands."""
    each = thread(machine, name)
    entered, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def works(*_of: object) -> None:
        entered.set()
        may_end.wait(30)
        ended.set()

    monkeypatch.setattr(each.owner, each.method, works)
    monkeypatch.setattr(machine.bookie._storage.scrubber, "_bytes_per_s", 1 << 20)
    each.owner.start()
    each.wake()
    assert entered.wait(30)
    stopping = threading.Thread(target=each.stop)
    stopping.start()
    stopping.join(0.05)
    assert stopping.is_alive(), "the work goes on"
    may_end.set()
    stopping.join(30)
    assert ended.is_set() and not stopping.is_alive()
    machine.settle()
    assert not machine.fatal
