"""The lab's models keep their promises in the first of many schedules, and the command counts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from spark_ledger.lab.exploration import Explored
from tests.effort import LAB_SCHEDULES
from tests.lab import __main__ as command
from tests.lab.__main__ import Model, main


def test_first_schedules_of_each_model_break_no_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lab.json"
    arguments = ["--weak", "0", "--processes", "1", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["lab", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().out
    models = json.loads(path.read_text(encoding="utf-8"))["models"]
    assert list(models) == list(command.MODELS)
    assert {model["schedules"] for model in models.values()} == {LAB_SCHEDULES.test}


FINE = Explored("raft", 2, 0, 0, 0, None, 0, ())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("raft", FINE._replace(lost_in=1)),
        ("raft", FINE._replace(unacknowledged=1)),
        ("raft", FINE._replace(broken=((7, "two leaders"),))),
        ("raft-read-index", FINE._replace(stale_in=1)),
    ],
)
def test_model_with_one_schedule_that_breaks_a_promise_does_not_hold(
    name: str, found: Explored
) -> None:
    model = Model()
    model.add(FINE)
    assert model.holds(name)
    model.add(found)
    assert not model.holds(name) and model.schedules == 4
