"""The plan of a seed, the workload's payloads, and the arithmetic of reports."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tests.chaos.faults import MIXES, Fault, plan
from tests.chaos.payload import LARGE_EVERY, new_value, payload_of, size_of, value_of
from tests.chaos.recorder import Recorder
from tests.chaos.report import Report, add, make_report, table, write_json
from tests.history.build import Builder, entries, entry, final_ledger
from tests.history.final import Final
from tests.history.liveness import Window
from tests.history.model import Event, History, Phase, verify
from tests.history.violation import Violation


def make_plan(seed: int, mix: str, seconds: float = 120.0) -> list[Fault]:
    return plan(seed, seconds, mix, bookies=4, clients=3)


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_a_seed_gives_one_plan_that_fits_its_time(mix: str) -> None:
    for seed in range(20):
        made = make_plan(seed, mix)
        assert made == make_plan(seed, mix)
        assert made != make_plan(seed + 1, mix)
        assert all(f.start_s >= 0 and f.start_s + f.seconds <= 120 for f in made)
        assert [f.start_s for f in made] == sorted(f.start_s for f in made)


def test_every_kind_comes_before_any_comes_often() -> None:
    kinds = [fault.kind for fault in make_plan(5, "all", seconds=600)]
    assert set(kinds) == set(MIXES["all"])
    counts = [kinds.count(kind) for kind in MIXES["all"]]
    assert max(counts) <= min(counts) + 3


def test_faults_at_the_same_time_do_not_hit_the_same_server() -> None:
    for seed in range(30):
        made = make_plan(seed, "all")
        for at, one in enumerate(made):
            for other in made[at + 1 :]:
                if other.start_s < one.start_s + one.seconds:
                    assert one.lane != other.lane
                    same = one.target == other.target == "bookie"
                    assert not (same and set(one.bookies) & set(other.bookies))
                    targets = {one.target, other.target}
                    assert "all" not in targets or "client" in targets


def test_a_payload_gives_back_its_value_and_shows_damage() -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    for counter in (0, 1, 6, LARGE_EVERY - 1):
        text = new_value("c0g0.w0", 7, counter)
        payload = payload_of(text)
        assert verify(text)
        assert value_of(payload) == text
        assert len(payload) >= size_of(counter)
        at = rng.randrange(len(payload))
        damaged = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
        assert not verify(value_of(damaged)), f"seed {seed}: byte {at}"
        assert not verify(value_of(payload[:-1]))
        assert not verify(value_of(payload + b"x"))
    assert not verify(value_of(b""))


def test_the_recorder_writes_what_the_checkers_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h", 3)
    first = recorder.begin("w", "append", ledger_id=1, values=(entry(0),))
    recorder.ok(first, entry_id=0, last_add_confirmed=0)
    recorder.error(recorder.begin("w", "append", ledger_id=1, values=(entry(1),)), OSError())
    recorder.failed(recorder.begin("w", "close", ledger_id=1), "TakenOver")
    recorder.close()
    operations = History.load(tmp_path / "h").operations()
    assert [o.phase for o in operations] == [Phase.OK, Phase.UNKNOWN, Phase.FAIL]
    assert operations[0].number == 3 * 10**9 + 1
    assert [o.end.error for o in operations if o.end] == ["", "OSError", "TakenOver"]


def report(seed: int, violations: list[Violation]) -> Report:
    b = Builder()
    b.create()
    for entry_id in range(3):
        b.append(entry_id)
    fault = Fault("kill-bookie", 0, 0.0, 1.0, (0,), (0,), 0.0)
    window = Window("kill-bookie", 0, 4000)
    final = Final.of(final_ledger(entries(3)))
    healed = Window("after healing", 4000, 8000)
    return make_report(seed, "kill", b.history, final, [(fault, window)], healed, violations)


def test_reports_add_up_and_say_what_was_broken(tmp_path: Path) -> None:
    broken = [Violation("I1", "lost", "gone"), Violation("I4", "divergence", "two")]
    total = add(report(1, []), report(2, broken))
    assert (total.seeds, total.acknowledged, total.operations) == ((1, 2), 6, 8)
    assert (total.lost, total.diverged, len(total.violations)) == (1, 1, 2)
    assert total.faults == {"kill-bookie": 2}
    text = table(total)
    assert "VIOLATION I1 lost: gone" in text
    assert "kill-bookie" in text
    write_json(total, tmp_path / "deep" / "report.json")
    stored = msgspec.json.decode((tmp_path / "deep" / "report.json").read_bytes())
    assert stored["violations"] == ["I1 lost: gone", "I4 divergence: two"]


def test_an_event_line_leaves_out_what_is_not_said(tmp_path: Path) -> None:
    event = Event(5, "w", 1, Phase.INVOKE, "create")
    with History(path=tmp_path / "h") as history:
        history.record(event)
    line = (tmp_path / "h").read_bytes()
    assert line == b'{"time_ns":5,"process":"w","operation":1,"phase":"invoke","name":"create"}\n'
    assert History.load(tmp_path / "h").events == [event]
