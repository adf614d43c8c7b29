"""Scenarios from files do what they say, and a wrong one is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ledger.cli.app import main
from spark_ledger.errors import ConfigurationError
from spark_ledger.lab.explanation import STORIES, moments
from spark_ledger.lab.protocols import PROTOCOLS
from spark_ledger.lab.runs import run
from spark_ledger.lab.scenario_files import find
from spark_ledger.lab.scenarios import SCENARIOS


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "name", "protocol"),
    [
        ('kind = "slow"\nservers = [1]\nat = 3\nuntil = 8', "slow-replica", "kafka"),
        ('kind = "power"\nservers = [0]\nat = 3.0\nuntil = 8', "leader-dies", "rocketmq"),
        ('kind = "power"\nservers = [0, 1, 2, 3, 4]\nat = 3\nuntil = 5', "power-cut", "kafka"),
        ('kind = "full"\nservers = [0]\nat = 3\nuntil = 8', "leader-disk-full", "raft"),
        ('kind = "apart"\nservers = [0]\nat = 3\nuntil = 8', "partition", "raft"),
        ('kind = "deaf"\nservers = [0]\nat = 3\nuntil = 8', "deaf-leader", "raft-check-quorum"),
        ('kind = "unheard"\nservers = [0]\nothers = [1]\nat = 3\nuntil = 8', "one-way", "raft"),
    ],
)
def test_scenario_of_a_file_is_what_the_one_with_a_name_is(
    tmp_path: Path, text: str, name: str, protocol: str
) -> None:
    mine = find(written(tmp_path, f"[[fault]]\n{text}\n"))
    assert mine.name == "mine"
    found, wanted = (run(each, protocol, 1)[0] for each in (mine, SCENARIOS[name]))
    assert found._replace(scenario=name) == wanted


def test_disk_of_a_file_is_empty_when_its_server_is_back(tmp_path: Path) -> None:
    text = 'what = "a disk"\n[[fault]]\nkind = "disk"\nservers = [1]\nat = 3\nuntil = 8\n'
    mine = find(written(tmp_path, text))
    assert mine.what == "a disk"
    result = run(mine, "bookkeeper-3-3-2", 1)[0]
    assert (result.lost, result.second_holds) == (0, 0)


GOOD = 'kind = "killed"\nservers = [0]\nat = 3\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("what = [", "is not TOML"),
        ("seed = 3", r'wrong seed: it takes what = "..." and \[\[fault\]\] tables'),
        ("[[fault]]\nat = 3", "fault 1 of .* has no kind: choose from killed, power, disk"),
        ("[[fault]]\nkind = 'flood'", "has no kind 'flood': choose from killed"),
        (f"[[fault]]\n{GOOD}speed = 3", "no setting 'speed': choose from kind, at, until, servers"),
        ("[[fault]]\nkind = 'full'\nservers = [0]", "needs a number for at, such as at = 3.5"),
        (f"[[fault]]\n{GOOD}until = 2.5", "from 3 s to 2.5 s: it has to begin and end between 2"),
        ("[[fault]]\nkind = 'full'\nat = 3", r"names no servers: servers = \[0\] is the leader"),
        (f"[[fault]]\n{GOOD}others = [7]", "takes others by their places, 0 to 4"),
        (f"[[fault]]\n{GOOD}factor = 0.5", "has factor 0.5: it is 1 or more"),
    ],
)
def test_wrong_file_is_refused_with_what_to_write_instead(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        find(written(tmp_path, text))


def test_lab_runs_a_file_and_says_that_one_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"what = 'mine own'\n[[fault]]\n{GOOD}")
    for arguments, code in (([path], 0), ([f"{path}.toml"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(["lab", "run", *arguments, "--protocols", "rocketmq"])
        assert (ended.value.code or 0) == code
    out, err = capsys.readouterr()
    assert "mine: mine own (seed 1)" in out and f"cannot read {path}.toml: No such file" in err


@pytest.mark.parametrize("name", STORIES)
def test_story_is_of_a_run_in_which_something_happens(name: str) -> None:
    story = STORIES[name]
    found, outcome = moments(SCENARIOS[story.scenario], story.protocol, 1)
    assert story.protocol in PROTOCOLS and len(found) > 3
    assert outcome.lost or name in ("raft.pre-vote", *(n for n in STORIES if "bookkeeper" in n))


def test_lab_explains_a_story_with_what_to_look_for(capsys: pytest.CaptureFixture[str]) -> None:
    for name, code in (("kafka.truncation", 0), ("kafka.floods", 2)):
        with pytest.raises(SystemExit) as ended:
            main(["lab", "explain", name])
        assert (ended.value.code or 0) == code
    out, err = capsys.readouterr()
    assert "die-in-turn: " in out and "kafka-by-high-watermark, seed 1" in out
    assert STORIES["kafka.truncation"].look in out and "and 1 of these are lost" in out
    assert "no story 'kafka.floods': choose from kafka.truncation" in err
