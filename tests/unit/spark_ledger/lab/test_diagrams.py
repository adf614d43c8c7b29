"""Space-time diagrams show each message of a part of a run, and those that never came."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from spark_ledger.cli.app import main
from spark_ledger.lab.pictures import picture
from spark_ledger.lab.runs import run
from spark_ledger.lab.scenarios import SCENARIOS

SVG = "{http://www.w3.org/2000/svg}"


def drawn(path: Path, *arguments: str) -> tuple[list[str], list[str]]:
    """The messages and the words of a diagram."""
    command = ["lab", "explain", "leader-dies", "--protocol", "raft", "--messages", str(path)]
    with pytest.raises(SystemExit) as ended:
        main([*command, *arguments])
    assert not ended.value.code
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    messages = [str(each.text) for each in root.iter(f"{SVG}title")]
    return messages, [str(each.text) for each in root.iter(f"{SVG}text")]


def test_diagram_of_an_election_has_its_messages_and_decisions(tmp_path: Path) -> None:
    messages, words = drawn(tmp_path / "x.svg", "--from", "3.47", "--ms", "60")
    votes = [each for each in messages if "Vote(" in each]
    assert any(each.startswith("n2 to n1: RequestVote(term=2") for each in votes)
    assert "n1 to n2: Vote(term=2, granted=True)" in votes
    assert {"n0", "n1", "n2", "client", "election", "leader", "RequestVote"} <= set(words)


def test_diagram_without_a_beginning_is_drawn_around_the_first_fault(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    messages, words = drawn(path)
    assert {"2.99 s", "power cut", "3.04 s"} <= set(words)
    assert any(each.startswith("client to n0: Produce(value=101,") for each in messages)
    lines = path.read_text(encoding="utf-8").splitlines()
    lost = [line for line in lines if "<title>client to n0: Produce(value=102," in line]
    assert len(lost) == 1 and "#d00000" in lost[0], "n0 is dead"


def test_picture_with_a_long_title_has_it_in_two_lines() -> None:
    runs = [run(SCENARIOS["steady"], "rocketmq", 1)]
    words = "one two three four five six seven eight nine ten"
    root = ElementTree.fromstring(picture(f"{words} {words} {words}", runs))
    bold = [each for each in root.iter(f"{SVG}text") if each.get("font-weight") == "bold"]
    assert " ".join(str(each.text) for each in bold) == f"{words} {words} {words}"
    assert [each.get("y") for each in bold] == ["20", "38"]
