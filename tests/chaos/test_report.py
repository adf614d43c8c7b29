"""The arithmetic of reports."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.chaos.faults import Fault
from tests.chaos.report import Report, add, make_report, table, write_json
from tests.history.build import Builder, entries, final_ledger
from tests.history.final import Final
from tests.history.liveness import Window
from tests.history.violation import Violation


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


def test_reports_add_up_and_list_violations(tmp_path: Path) -> None:
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
