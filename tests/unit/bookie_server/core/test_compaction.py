"""Which logs are copied (rule S20)."""

from __future__ import annotations

from collections.abc import Sequence

from bookie_server.core.compaction import LogState, logs_to_compact


def state(log_id: int, byte_count: int, live: int) -> LogState:
    return LogState(log_id, byte_count, 1, live)


def chosen(*logs: LogState, free: int = 10**9, full: bool = False) -> Sequence[int]:
    picked = logs_to_compact(logs, free_bytes=free, disk_is_full=full)
    return [log.log_id for log in picked]


def test_logs_are_chosen_by_what_they_give_back() -> None:
    alive = state(9, 10_000, 10_000)
    assert chosen(state(1, 1000, 500), state(2, 1000, 501), alive) == [1]
    assert chosen(state(1, 1000, 400), state(2, 1000, 100), alive) == [2, 1]
    crowded = (state(1, 1000, 700), state(2, 1000, 790), state(3, 1000, 810))
    assert chosen(*crowded) == [], "a fifth of the directory is dead"
    assert chosen(*crowded, state(4, 1000, 100)) == [4, 1, 2], "more than a quarter is"
    assert chosen(*crowded, full=True) == [1, 2, 3]
    assert chosen(state(1, 1000, 960), full=True) == []
    assert chosen(state(1, 1000, 400), state(2, 1000, 100), alive, free=399) == [2]
    assert chosen(state(1, 1000, 5000), full=True) == [], "named twice is no garbage"


def test_file_without_a_byte_has_no_garbage() -> None:
    assert state(1, 0, 0).garbage_share == 0.0
