"""Values, files of histories, pairing of events, and the report of waiting times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.history.build import Builder, entry
from tests.history.liveness import SECOND_NS, Window, latencies, longest_stall, never_ended, stalled
from tests.history.model import FOREVER, Event, History, Phase, value, verify


@given(st.integers(0, 10**9), st.integers(0, 2000))
def test_a_value_verifies_and_has_its_size(counter: int, size: int) -> None:
    text = value("w1", "L7", counter, size)
    assert verify(text)
    assert len(text) == size or (len(text) > size and not text.endswith("."))


@given(st.integers(0, 200), st.integers(0, 127), st.sampled_from(["change", "cut", "grow"]))
def test_a_damaged_value_does_not_verify(index: int, character: int, how: str) -> None:
    text = value("w1", "L7", 3, 64)
    at = index % len(text)
    damaged = {
        "change": text[:at] + chr(character) + text[at + 1 :],
        "cut": text[:at],
        "grow": text + chr(character),
    }[how]
    assert verify(damaged) == (damaged == text)


def test_history_file_gives_back_its_events_and_ignores_a_cut_line(tmp_path: Path) -> None:
    one = Event(5, "w", 1, Phase.INVOKE, "append", ledger_id=3, values=("ä\n",))
    two = Event(9, "w", 1, Phase.OK, "append", ledger_id=3, entry_id=0, last_add_confirmed=0)
    three = Event(7, "r", 2, Phase.INVOKE, "open", ledger_id=3)
    with History(path=tmp_path / "w") as history:
        history.record(one)
        history.record(two)
    with History(path=tmp_path / "r") as history:
        history.record(three)
    with (tmp_path / "r").open("ab") as file:
        file.write(b'{"time_ns": 12, "proc')
    assert History.load(tmp_path / "w", tmp_path / "r").events == [one, three, two]


def test_damage_inside_a_history_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "h").write_bytes(b'{"time_ns": "soon"}\n')
    with pytest.raises(ValueError, match="line 1"):
        History.load(tmp_path / "h")


def test_operations_are_paired_and_one_without_an_end_is_unknown() -> None:
    b = Builder()
    b.create()
    b.begin_append(entry(0))
    b.append(1)
    create, first, second = b.history.operations()
    assert (create.ledger_id, create.ok, create.began, create.ended) == (1, True, 0, 1)
    assert (first.end, first.phase, first.ended) == (None, Phase.UNKNOWN, FOREVER)
    assert second.ok
    assert [o.number for o in b.history.operations("append")] == [2, 3]


def test_an_end_without_a_beginning_is_refused() -> None:
    history = History([Event(0, "w", 1, Phase.OK, "append")])
    with pytest.raises(AssertionError, match="without an invocation"):
        history.operations()


def timed(*appends: tuple[float, float | None]) -> History:
    """Appends, given by the seconds at which they began and ended."""
    history = History()
    for number, (began, ended) in enumerate(appends):
        for seconds, phase in ((began, Phase.INVOKE), (ended, Phase.OK)):
            if seconds is not None:
                time_ns, values = int(seconds * SECOND_NS), (entry(number),)
                history.record(
                    Event(time_ns, "w", number, phase, "append", ledger_id=1, values=values)
                )
    history.events.sort(key=lambda event: event.time_ns)
    return history


def test_the_longest_stall_is_measured_within_its_window() -> None:
    history = timed((0, 1), (1, 2), (2, 7), (7, 8), (8, None))
    whole = Window("all", 0, 9 * SECOND_NS)
    assert longest_stall(history, whole) == 5
    assert longest_stall(history, Window("late", 6 * SECOND_NS, 9 * SECOND_NS)) == 1
    assert longest_stall(history, Window("hung", 8 * SECOND_NS, 20 * SECOND_NS)) == 12
    assert longest_stall(history, whole, names=("read",)) == 0


def test_waiting_too_long_after_healing_is_a_violation() -> None:
    history = timed((0, 1), (1, 2), (2, 9), (9, 10), (10, None))
    healed = Window("heal", 3 * SECOND_NS, 10 * SECOND_NS)
    assert stalled(history, healed, 7.0) == []
    assert [v.name for v in stalled(history, healed, 5.0)] == ["stall", "stall"]
    assert [v.operations for v in never_ended(history, ["w"])] == [(4,)]
    assert never_ended(history, ["someone else"]) == []


def test_latencies_count_every_phase() -> None:
    b = Builder()
    b.append(0)
    b.append(-1, entry(1), phase=Phase.FAIL)
    b.append(-1, entry(2), phase=Phase.UNKNOWN)
    b.begin_append(entry(3))
    (row,) = latencies(b.history)
    assert (row.name, row.ok, row.failed, row.unknown) == ("append", 1, 1, 2)
    assert row.p50_s == row.p99_s == row.longest_s == pytest.approx(1e-6)
