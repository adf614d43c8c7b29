"""What one pass of the compactor does with the logs that directories show it, and how fast."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from bookie_server.core.compaction import LogState
from bookie_server.storage.ledgers import pacing
from bookie_server.storage.ledgers.compaction import Compactor
from bookie_server.storage.ledgers.pacing import Stopped
from spark_ledger.limits.storage import COMPACTION_FULL_FACTOR

RATE = 1000


class Space:
    """A directory of logs that were given: what is done with them is noted."""

    def __init__(self, *logs: LogState, free: int = 10**6) -> None:
        self.logs = {log.log_id: log for log in logs}
        self.free = free
        self.holes: dict[int, int] = {}
        self.errors: dict[int, OSError] = {}
        self.stays: set[int] = set()
        self.damaged: set[int] = set()
        self.compacted: list[int] = []
        self.removed: list[int] = []
        self.finished = 0

    def survey(self, _lock: threading.Lock) -> list[LogState]:
        return list(self.logs.values())

    def may_go(self, _log_id: int) -> bool:
        return True

    def may_compact(self, log: LogState) -> bool:
        return log.log_id not in self.stays

    def free_bytes(self) -> int:
        return self.free

    def remove(self, log: LogState) -> None:
        self.removed.append(log.log_id)
        del self.logs[log.log_id]

    def give_back(self, log: LogState) -> LogState:
        smaller = log._replace(byte_count=log.byte_count - self.holes.pop(log.log_id, 0))
        self.logs[log.log_id] = smaller
        return smaller

    def compact(
        self, log: LogState, _lock: threading.Lock, pace: Callable[[int], None], _log_bytes: int
    ) -> bool:
        if log.log_id in self.errors:
            raise self.errors[log.log_id]
        pace(log.live_bytes)
        self.compacted.append(log.log_id)
        self.free -= log.live_bytes
        del self.logs[log.log_id]
        return True

    def finish(self) -> None:
        self.finished += 1


class Clock:
    """Stands for ``time``, and for the event that a pass waits on between two copies."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        self.is_stopped = False

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        self.now += max(0.0, timeout_s)
        return self.is_stopped


def half_dead(log_id: int, live: int = 500) -> LogState:
    return LogState(log_id, 2 * live, 1, live)


def compactor_of(
    monkeypatch: pytest.MonkeyPatch, *spaces: Space, rate: int = RATE
) -> tuple[Compactor, Clock]:
    made = Compactor(
        spaces,  # type: ignore[arg-type]
        threading.Lock(),
        log_bytes=1 << 20,
        bytes_per_s=rate,
        on_fatal=lambda message: pytest.fail(message),
    )
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    monkeypatch.setattr(made, "_stop", clock)
    monkeypatch.setattr(made._pacer, "_stop", clock)
    return made, clock


def test_each_directory_is_copied_at_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is urgent, and no reason to take the other ones from their clients."""
    full, calm = Space(half_dead(1)), Space(half_dead(1))
    compactor, clock = compactor_of(monkeypatch, full, calm)
    compactor.disks_are_full((True, False))
    compactor.run_once()
    first, second = clock.waits
    assert first == pytest.approx(500 / RATE / COMPACTION_FULL_FACTOR)
    assert second == pytest.approx(500 / RATE)


def test_only_the_directory_that_is_full_is_copied_for_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spaces = [Space(LogState(1, 1000, 1, 800)) for _ in range(3)]
    compactor, _clock = compactor_of(monkeypatch, *spaces)
    compactor.disks_are_full((False, True, False))
    compactor.run_once()
    assert [space.compacted for space in spaces] == [[], [1], []]


def test_rest_between_passes_earns_no_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(half_dead(1), half_dead(2))
    compactor, clock = compactor_of(monkeypatch, space)
    compactor.run_once()
    clock.now += 3600
    space.logs = {3: half_dead(3), 4: half_dead(4)}
    clock.waits.clear()
    compactor.run_once()
    assert clock.waits == pytest.approx([500 / RATE] * 2)
    assert compactor.stats.copied_bytes == 2000


def test_slow_copy_is_not_made_up_for_by_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(half_dead(1), half_dead(2))
    compactor, clock = compactor_of(monkeypatch, space)
    copy = space.compact

    def slowly(log: LogState, *rest: object) -> bool:
        done = copy(log, *rest)  # type: ignore[arg-type]
        clock.now += 3600
        return done

    monkeypatch.setattr(space, "compact", slowly)
    compactor.run_once()
    assert clock.waits == pytest.approx([500 / RATE] * 2)


def test_stop_within_a_copy_ends_the_pass_and_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(half_dead(1), half_dead(2))
    compactor, clock = compactor_of(monkeypatch, space)
    clock.is_stopped = True
    with pytest.raises(Stopped):
        compactor.run_once()
    assert space.compacted == [] and space.finished == 1
    assert compactor.stats.copied_bytes == 0, "what was not copied is not counted"


def test_space_is_asked_for_before_each_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies before took it; a smaller one that comes later fits all the same."""
    logs = [LogState(1, 3000, 1, 600), LogState(2, 2000, 1, 500), LogState(3, 1000, 1, 300)]
    space = Space(*logs, free=1000)
    compactor, _clock = compactor_of(monkeypatch, space)
    compactor.run_once()
    assert space.compacted == [1, 3] and set(space.logs) == {2}


def test_log_whose_dead_were_given_back_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(half_dead(1), half_dead(2), LogState(3, 700, 0, 0))
    space.holes = {1: 450}
    compactor, _clock = compactor_of(monkeypatch, space)
    compactor.run_once()
    assert (space.compacted, space.removed, space.finished) == ([2], [3], 1)
    stats = compactor.stats
    assert (stats.given_back_bytes, stats.copied_bytes) == (450, 500)
    assert (stats.removed_logs, stats.removed_bytes) == (2, 1700)
    (use,) = stats.directories
    assert use.log_bytes == 550 and use.live_bytes == 500 and use.reclaimable_bytes == 50
    assert (use.logs, use.damaged_logs) == (1, 0)


@pytest.mark.parametrize("paced", [False, True])
def test_what_is_copied_counts_whatever_the_pace(
    monkeypatch: pytest.MonkeyPatch, paced: bool
) -> None:
    compactor, clock = compactor_of(monkeypatch, Space(half_dead(1)))
    compactor.run_once(paced=paced)
    assert compactor.stats.copied_bytes == 500 and bool(clock.waits) is paced


@pytest.mark.parametrize(("number", "copied"), [(errno.EIO, [2, 3]), (errno.ENOSPC, [])])
def test_full_disk_ends_the_pass_of_its_directory_and_another_error_does_not(
    monkeypatch: pytest.MonkeyPatch, number: int, copied: list[int]
) -> None:
    bad, good = Space(half_dead(1), half_dead(2), half_dead(3)), Space(half_dead(1))
    bad.errors[1] = OSError(number, "the disk")
    compactor, _clock = compactor_of(monkeypatch, bad, good)
    with pytest.raises(OSError, match="the disk"):
        compactor.run_once()
    assert bad.compacted == copied and bad.finished == 1
    assert good.compacted == [1]
    assert "the disk" in compactor.stats.last_failure and compactor.stats.passes == 1
    bad.errors.clear()
    bad.damaged = {7, 8}
    compactor.run_once()
    assert compactor.stats.last_failure == "" and compactor.stats.passes == 2
    assert bad.logs == {} and compactor.stats.directories[0].damaged_logs == 2


def test_thread_is_woken_once_when_a_disk_gets_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the disks tells it again: a pass of a full disk waits for its interval."""
    compactor, _clock = compactor_of(monkeypatch, Space(), Space())
    woken = []
    for full in [(False,) * 2, (True, False), (True, False), (True, True), (False,) * 2]:
        compactor.disks_are_full(full)
        woken.append(compactor._wanted.is_set())
        compactor._wanted.clear()
    assert woken == [False, True, False, True, False]
