"""Timelines show what each server had and when; their file is a picture."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spark_ledger.cli.app import main
from spark_ledger.lab import timelines
from spark_ledger.lab.runs import run
from spark_ledger.lab.scenarios import SCENARIOS
from spark_ledger.lab.timelines import Recorder, Sample


def recorded(scenario: str, protocol: str) -> dict[str, list[Sample]]:
    """The samples of a run with seed 1."""
    recorder = Recorder()
    run(SCENARIOS[scenario], protocol, 1, watch=recorder.record)
    return recorder.samples


def at(samples: list[Sample], second: float) -> Sample:
    """The first sample at or after a time."""
    return next(each for each in samples if each.at >= second)


@pytest.mark.parametrize("protocol", ["raft", "kafka", "rocketmq-sync", "dledger"])
def test_recorder_follows_the_leader_through_its_death(protocol: str) -> None:
    samples = recorded("leader-dies", protocol)
    assert list(samples) == ["n0", "n1", "n2"], "servers, and nobody else"
    assert at(samples["n0"], 2.5).in_charge
    assert [at(samples["n0"], when).alive for when in (2.5, 3.5, 8.5)] == [True, False, True]
    assert [name for name in samples if at(samples[name], 7.0).in_charge] in (["n1"], ["n2"])
    for each in (each for server in samples.values() for each in server):
        assert each.synced <= each.entries
        assert each.watermark is None or each.alive


def test_recorder_shows_which_bookies_are_in_the_ensemble() -> None:
    samples = recorded("leader-dies", "bookkeeper-3-3-2")
    before, after = (
        [name for name in samples if at(samples[name], when).in_charge] for when in (2.5, 7.0)
    )
    assert (before, after) == (["n0", "n1", "n2"], ["n1", "n2", "n3"])


def test_recorder_shows_slowness_and_what_is_committed() -> None:
    samples = recorded("slow-replica", "raft")
    assert [at(samples["n1"], when).slow for when in (2.5, 5.0, 9.0)] == [False, True, False]
    slow, leader = at(samples["n1"], 5.0), at(samples["n0"], 5.0)
    assert slow.watermark is not None and leader.watermark is not None
    assert slow.watermark < leader.watermark <= leader.entries


def test_timeline_is_drawn_with_a_lane_for_each_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="an extra: pip install 'spark-ledger[lab]'")
    heights = []
    for names in ("raft-2", "raft", "raft,bookkeeper-3-3-2"):
        path = tmp_path / f"{names}.png"
        with pytest.raises(SystemExit) as ended:
            main(["lab", "run", "leader-dies", "--protocols", names, "--picture", str(path)])
        assert not ended.value.code, capsys.readouterr().err
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        heights.append(struct.unpack(">II", head[16:])[1])
    two, three, both = heights
    lane = three - two
    assert lane > 50
    assert both - three > 6 * lane, "a lane for the client and five bookies, and their title"


@pytest.mark.parametrize(
    ("path", "said"),
    [("x.png", "pip install 'spark-ledger[lab]'"), ("x.gif", "a picture is an .svg or a .png")],
)
def test_timeline_that_cannot_be_drawn_says_so_before_anything_runs(
    path: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(timelines, "is_installed", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(["lab", "run", "steady", "--picture", str(tmp_path / path)])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert said in shown.err and "bookkeeper" not in shown.out
