"""The replication lab: each protocol keeps what it promises, and loses what it is known to lose."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spark_ledger.cli.app import main
from spark_ledger.lab.explanation import Known, Moment, moments
from spark_ledger.lab.exploration import explore
from spark_ledger.lab.protocols import LOSE_NOTHING, PROTOCOLS
from spark_ledger.lab.runs import Outcome, run
from spark_ledger.lab.scenarios import DRAWN, SCENARIOS
from tests.effort import LAB_SEEDS, in_shares

SAFE = ("bookkeeper-3-3-2", "raft", "kafka-flush")
"""They sync before they acknowledge."""

ROCKET_SETTINGS = ("", "-flush", "-sync", "-sync-flush")


def outcome(scenario: str, protocol: str, seed: int = 1) -> Outcome:
    return run(SCENARIOS[scenario], protocol, seed)[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocol_with_nothing_wrong_keeps_each_value_once(protocol: str) -> None:
    result = outcome("steady", protocol)
    assert result.acknowledged == result.sent
    assert (result.lost, result.doubled) == (0, 0)


@pytest.mark.parametrize("protocol", SAFE)
def test_power_cut_with_synced_acknowledgements_loses_nothing(protocol: str) -> None:
    assert outcome("power-cut", protocol).lost == 0


def test_power_cut_with_acknowledgements_from_the_page_cache_loses_values() -> None:
    assert outcome("power-cut", "kafka").lost > 0


def test_slow_replica_is_waited_for_by_an_ack_quorum_of_all_only() -> None:
    assert outcome("slow-replica", "bookkeeper-3-3-2").p99_ms < 10
    assert outcome("slow-replica", "bookkeeper-3-3-3").p99_ms > 100
    assert outcome("slow-replica", "raft").p99_ms < 10


def test_two_copies_with_one_server_lost_go_on_elsewhere() -> None:
    """A majority of three stops when two are away; ledgers take other bookies."""
    assert outcome("two-die", "bookkeeper-2-2-2").longest_gap_ms < 3_000
    assert outcome("two-die", "raft").longest_gap_ms > 4_500


def test_client_of_a_dead_leader_stays_with_the_new_one() -> None:
    """What the dead one never answered says nothing about the one that is asked now."""
    result = outcome("leader-dies", "raft")
    assert result.p99_ms < 2_000
    assert result.messages_per_entry < 10


def test_master_dies_with_asynchronous_replication_loses_the_tail() -> None:
    for protocol in ("rocketmq", "rocketmq-flush"):
        result = outcome("leader-dies", protocol)
        assert 0 < result.lost <= 10, protocol  # what came since the transfer last woke up
        assert result.decisions == {"fail-over by hand": 1}


def test_master_dies_with_synchronous_replication_loses_nothing() -> None:
    for protocol in ("rocketmq-sync", "rocketmq-sync-flush"):
        result = outcome("leader-dies", protocol)
        assert (result.acknowledged, result.lost) == (result.sent, 0), protocol
        assert result.longest_gap_ms > 2_500, "a person is slower than a program"


def test_power_cut_of_master_and_slaves_loses_what_was_not_flushed() -> None:
    lost = [outcome("power-cut", f"rocketmq{each}").lost for each in ROCKET_SETTINGS]
    assert [each > 0 for each in lost] == [True, False, True, False]


def test_synchronous_replication_without_slaves_refuses_values() -> None:
    assert outcome("two-die", "rocketmq-sync").longest_gap_ms > 4_500
    assert outcome("two-die", "rocketmq").longest_gap_ms < 100


def test_former_master_with_a_tail_of_its_own_is_copied_anew() -> None:
    assert outcome("leader-dies", "rocketmq-flush").truncated > 0


def test_recovery_with_questions_open_at_its_end_asks_nothing_more() -> None:
    """Bookies come and go while a striped ledger, which has no spare one, is recovered."""
    result = outcome("last-dies", "bookkeeper-striped-5-3-2")
    assert (result.acknowledged, result.lost) == (result.sent, 0)
    assert result.decisions["recovery"] >= 2


@pytest.mark.parametrize("protocol", sorted(LOSE_NOTHING))
@pytest.mark.parametrize("seed", in_shares(range(LAB_SEEDS.proof), LAB_SEEDS))
def test_protocol_that_syncs_first_loses_nothing_in_drawn_faults(protocol: str, seed: int) -> None:
    result = run(DRAWN, protocol, seed)[0]
    assert (result.acknowledged, result.lost) == (result.sent, 0), f"seed {seed}"


@pytest.mark.parametrize(
    ("protocol", "seed"),
    [
        ("kafka", 4),
        ("kafka-acks-0", 2),
        ("kafka-acks-1", 4),
        ("kafka-by-high-watermark", 4),
        ("kafka-read-leader", 4),
        ("kafka-min-1", 4),
        ("kafka-unclean", 4),
        ("kafka-eligible", 4),
        ("kafka-idempotent", 4),
        ("kafka-2", 2),
        ("rocketmq", 4),
        ("rocketmq-sync", 4),
        ("rocketmq-sync-timeout", 4),
        ("rocketmq-flush", 25),
        ("rocketmq-controller", 4),
        ("rocketmq-controller-flush", 7),
        ("rocketmq-controller-sync", 4),
        ("rocketmq-controller-sync-flush", 6),
        ("dledger", 4),
    ],
)
def test_known_weakness_is_found_by_the_seed_that_the_page_names(protocol: str, seed: int) -> None:
    explored = explore(protocol, [seed], lambda: None)
    assert (explored.lost_in, explored.first_seed) == (1, seed) and explored.most_lost > 0
    assert explored.holds, "it promises no more"


def test_stale_read_of_a_leader_that_answers_alone_is_found_by_a_seed() -> None:
    found, index = (
        explore(name, [44], lambda: None) for name in ("raft-read-local", "raft-read-index")
    )
    assert (found.lost_in, found.stale_in, found.first_seed) == (0, 1, 44)
    assert (index.stale_in, index.first_seed) == (0, None)


def test_lab_with_one_seed_gives_the_same_figures_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["lab", "run", "leader-dies", "--protocols", "raft", "--json"])
        assert not ended.value.code
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["decisions"]["election"] >= 2


def test_lab_with_a_picture_draws_what_each_protocol_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "leader-dies.svg"
    names = "rocketmq,rocketmq-sync"
    with pytest.raises(SystemExit) as ended:
        main(["lab", "run", "leader-dies", "--protocols", names, "--picture", str(path)])
    assert not ended.value.code, capsys.readouterr().err
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    paths = root.findall("{http://www.w3.org/2000/svg}path")
    strokes = [str(each.get("d")).count("M") for each in paths]
    assert strokes == [1001 - 9, 9, 1001], "kept and lost of one, kept of the other"
    events = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "3.000 s: n0 power cut" in events
    assert sum("fail-over by hand" in str(event) for event in events) == 2


def test_lab_with_a_picture_that_cannot_be_written_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nowhere" / "x.svg"
    with pytest.raises(SystemExit) as ended:
        main(["lab", "run", "steady", "--protocols", "rocketmq", "--picture", str(path)])
    assert ended.value.code
    assert f"cannot write {path}: No such file or directory" in capsys.readouterr().err


def test_lab_with_an_unknown_scenario_names_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lab", "run", "earthquake"])
    assert ended.value.code == 2
    assert "slow-replica" in capsys.readouterr().err


def test_comparison_with_pictures_draws_each_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "drawn" / "here"
    scenarios, only = "steady,leader-dies", ("--protocols", "rocketmq")
    with pytest.raises(SystemExit) as ended:
        main(["lab", "compare", "--scenario", scenarios, *only, "--pictures", str(folder)])
    assert not ended.value.code, capsys.readouterr().err
    svg = sorted(path.name for path in folder.iterdir() if path.suffix == ".svg")
    assert svg == ["leader-dies.svg", "steady.svg"]
    text = (folder / "leader-dies.svg").read_text(encoding="utf-8")
    assert "leader-dies: the first server" in text and "lost 9" in text


@pytest.mark.parametrize("protocol", ["bookkeeper-3-3-2", "raft", "kafka", "rocketmq"])
def test_explanation_tells_each_fault_and_what_every_server_knew(protocol: str) -> None:
    found, outcome = moments(SCENARIOS["leader-dies"], protocol, 1)
    assert [moment.at for moment in found] == sorted(moment.at for moment in found)
    cut = next(moment for moment in found if "n0: power cut" in moment.what)
    back = next(moment for moment in found if "n0: started again" in moment.what)
    assert (cut.at, back.at) == (3.0, 8.0)
    assert not _host(cut, "n0").alive and _host(back, "n0").alive
    assert _host(cut, "n1").entries > 50 and cut.acknowledged > 50
    assert found[-1].what == ("end",) and found[-1].acknowledged == outcome.acknowledged
    assert len({_host(moment, "n1").knows for moment in found}) > 1, "n1 learns something"
    for moment in found:
        assert all(each.knows and each.synced <= each.entries for each in moment.hosts)


def test_explanation_of_a_power_cut_shows_what_the_page_cache_lost() -> None:
    """Nobody but the leader had synced what ``acks=all`` acknowledged."""
    found, outcome = moments(SCENARIOS["power-cut"], "kafka", 1)
    cut = next(moment for moment in found if "n0: power cut" in moment.what)
    assert {f"{name}: power cut" for name in ("n0", "n1", "n2")} <= set(cut.what), "one step"
    most = max(_host(cut, name).synced for name in ("n0", "n1", "n2"))
    assert cut.acknowledged - most >= outcome.lost > 0


def _host(moment: Moment, name: str) -> Known:
    return next(each for each in moment.hosts if each.name == name)


def test_lab_explain_prints_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lab", "explain", "leader-dies", "--protocol", "rocketmq"])
    assert not ended.value.code
    out = capsys.readouterr().out
    assert " 3.000 s  n0: power cut (" in out and "fail-over by hand" in out
    assert "slave of n0 in epoch 1" in out and "9 of these are lost" in out


@pytest.mark.parametrize("wrong", [["earthquake"], ["steady", "--protocol", "paxos"]])
def test_lab_explain_of_what_is_not_there_names_what_is(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lab", "explain", *wrong])
    assert ended.value.code
    assert "choose from" in capsys.readouterr().err


def test_lab_explore_ends_with_1_if_a_promise_does_not_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["lab", "explore", "--schedules", "1", "--first", "4", "--protocols", "rocketmq"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert not ended.value.code
    monkeypatch.setattr("spark_ledger.lab.exploration.LOSE_NOTHING", frozenset({"rocketmq"}))
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 1
    assert " 39 " in capsys.readouterr().out, "the values that seed 4 loses"
