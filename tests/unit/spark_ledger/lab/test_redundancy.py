"""How many bytes a value costs, and when each value has all its copies again after a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_ledger.cli.app import main
from spark_ledger.lab.bookie_repair import LOST_S, Auditor
from spark_ledger.lab.bookies import (
    Add,
    Added,
    Listed,
    NodeWritten,
    Pong,
    Read,
    ReadBack,
    WriteNode,
)
from spark_ledger.lab.machines import Note, Received, Send, Tick
from spark_ledger.lab.runs import Outcome, run
from spark_ledger.lab.scenarios import SCENARIOS
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)

BOOKIES = tuple(BookieId(f"n{i}") for i in range(5))


def outcome(scenario: str, protocol: str) -> Outcome:
    return run(SCENARIOS[scenario], protocol, 1)[0]


@pytest.mark.parametrize("protocol", ["raft", "kafka", "rocketmq-sync", "dledger"])
def test_value_with_a_leader_is_sent_once_by_the_client_and_on_by_it(protocol: str) -> None:
    result = outcome("steady", protocol)
    assert result.bytes_per_entry == 3_000
    assert (result.client_bytes_per_entry, result.server_bytes_per_entry) == (1_000, 2_000)
    assert (result.short_ms, result.rebuild_ms, result.copied_bytes) == (0, 0, 0)


def test_value_of_a_ledger_is_sent_to_each_bookie_by_the_writer() -> None:
    result = outcome("steady", "bookkeeper-3-3-2")
    assert (result.client_bytes_per_entry, result.server_bytes_per_entry) == (3_000, 0)


def test_replica_that_returns_is_sent_what_it_missed_and_no_more() -> None:
    """A hundred values a second were added while it was away, from 3 s to 8 s. It had synced what
    came before; Kafka's broker had the first second in its page cache only."""
    raft, kafka = outcome("replica-dies", "raft"), outcome("replica-dies", "kafka")
    for result in (raft, kafka):
        assert result.short_ms is not None and result.rebuild_ms is not None
        assert 5_000 < result.short_ms < 5_100 and 0 < result.rebuild_ms < 100
    assert 450_000 < raft.copied_bytes <= 500_000
    assert 550_000 < kafka.copied_bytes <= 600_000


def test_slow_replica_is_sent_again_what_it_has_without_a_count_as_copied() -> None:
    result = outcome("slow-replica", "raft")
    assert result.bytes_per_entry > 3_000 and result.copied_bytes == 0


def test_value_that_is_lost_never_has_its_copies_again() -> None:
    assert outcome("power-cut", "kafka").short_ms is None
    assert outcome("power-cut", "kafka-flush").short_ms is not None


def test_ledger_with_a_lost_disk_has_all_copies_only_if_it_is_repaired() -> None:
    left, repaired = (outcome("disk-lost", f"bookkeeper-3-3-2{each}") for each in ("", "-repair"))
    assert (left.short_ms, left.copied_bytes) == (None, 0)
    assert repaired.short_ms is not None and repaired.short_ms < 2_500, "before it is back"
    assert repaired.decisions["repair"] == 1
    # a second of values that it had, and one of those that two bookies confirmed without it
    assert 195_000 < repaired.copied_bytes < 210_000


def ledger(*fragments: tuple[int, str]) -> LedgerMetadata:
    """Of three bookies in each fragment, named by their numbers."""
    made = [
        Fragment(EntryId(first), tuple(BookieId(f"n{digit}") for digit in members))
        for first, members in fragments
    ]
    return LedgerMetadata(LedgerId(0), Quorums(3, 3, 2), made)


def auditor_that_lost(name: str) -> Auditor:
    auditor = Auditor(BOOKIES, 0.0)
    for bookie in BOOKIES:
        if bookie != name:
            auditor.handle(Received(bookie, Pong()), LOST_S)
    assert any(isinstance(each, Send) for each in auditor.handle(Tick(), LOST_S))
    return auditor


def test_auditor_names_the_new_bookie_only_when_it_has_every_entry() -> None:
    auditor = auditor_that_lost("n1")
    listed = Received("zookeeper", Listed(((ledger((0, "012"), (2, "023")), 7),)))
    asked = [each for each in auditor.handle(listed, 1.0) if isinstance(each, Send)]
    asks = [each.message for each in asked if isinstance(each.message, Read)]
    assert sorted(ask.first for ask in asks) == [0, 1]
    for left, each in zip((1, 0), asked, strict=True):
        ask = each.message
        assert isinstance(ask, Read) and each.target != "n1"
        back = ReadBack(ask, ((ask.first, 40 + ask.first, -1),))
        (sent,) = auditor.handle(Received(each.target, back), 1.0)
        assert isinstance(sent, Send) and isinstance(sent.message, Add)
        assert sent.target in {"n3", "n4"} and sent.message.value == 40 + ask.first
        added = Added(0, ask.slot, ask.first, BookieStatus.OK, 0)
        named = auditor.handle(Received(sent.target, added), 1.0)
        assert len(named) == (not left), "named before all was copied"
        if named:
            (write,) = named
            assert isinstance(write, Send) and isinstance(write.message, WriteNode)
            assert write.message.version == 7
            bookies = write.message.metadata.fragments[0].bookies
            assert list(map(str, bookies)) == ["n0", sent.target, "n2"]
            written = NodeWritten(True, write.message.metadata, 8)
            assert auditor.handle(Received("zookeeper", written), 1.0) == [Note("repair", 1)]


def test_auditor_with_a_member_that_lacks_the_entry_asks_the_next_one() -> None:
    auditor = auditor_that_lost("n1")
    asked = auditor.handle(Received("zookeeper", Listed(((ledger((0, "012"), (1, "023")), 0),))), 1)
    (first,) = asked
    assert isinstance(first, Send) and isinstance(first.message, Read)
    (second,) = auditor.handle(Received(first.target, ReadBack(first.message, ())), 1.0)
    assert isinstance(second, Send) and {first.target, second.target} <= {"n0", "n1", "n2"}
    assert second.target != first.target


def test_auditor_leaves_the_fragment_that_is_written_to_alone() -> None:
    auditor = auditor_that_lost("n1")
    assert auditor.handle(Received("zookeeper", Listed(((ledger((0, "012")), 0),))), 1.0) == []


def test_comparison_in_processes_finds_what_one_process_finds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    for runs in (1_000, 1):
        monkeypatch.setattr("spark_ledger.cli.lab._RUNS_FOR_A_PROCESS", runs)
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        names = ["--scenario", "steady,replica-dies", "--protocols", "rocketmq"]
        with pytest.raises(SystemExit) as ended:
            main(["lab", "compare", *names, "--json"])
        assert not ended.value.code
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert [json.loads(line)["scenario"] for line in texts[0].splitlines()] == [
        "steady",
        "replica-dies",
    ]


def test_comparison_of_a_named_scenario_shows_a_table_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["lab", "compare", "--scenario", "replica-dies", "--protocols", "rocketmq", "--wide"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    out = capsys.readouterr().out
    assert not ended.value.code and "drawn: lab-pictures/replica-dies.svg" in out
    assert (tmp_path / "lab-pictures" / "replica-dies.svg").exists()
    for column in ("short_s", "kb", "client_kb", "copied_kb", "rebuild_s"):
        assert f" {column} " in out, column
    with pytest.raises(SystemExit):
        main([*command, "--pictures", ""])
    assert "drawn" not in capsys.readouterr().out
