"""The replication lab: each protocol keeps what it promises, and loses what it is known to lose."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spark_ledger.cli.app import main
from spark_ledger.lab.runs import PROTOCOLS, Outcome, run
from spark_ledger.lab.scenarios import SCENARIOS, Scenario
from spark_ledger.lab.world import World
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


def random_deaths(world: World, servers: tuple[str, ...]) -> None:
    """Servers die one at a time, with or without power, and come back."""
    draw, at = world.random_for("deaths"), 2.0
    while at < 11.0:
        name = draw.choice(servers)
        at += draw.uniform(0.2, 1.5)
        world.loop.at(at, None, partial(world.kill, name, power=draw.random() < 0.5))
        at += draw.uniform(0.05, 2.0)
        world.loop.at(at, None, world.restart, name)
        at += 0.5


@pytest.mark.parametrize("protocol", SAFE)
@pytest.mark.parametrize("seed", in_shares(range(LAB_SEEDS.proof), LAB_SEEDS))
def test_deaths_of_one_server_at_a_time_lose_nothing(protocol: str, seed: int) -> None:
    result = run(Scenario("deaths", "", random_deaths), protocol, seed)[0]
    assert (result.acknowledged, result.lost) == (result.sent, 0), f"seed {seed}"


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
