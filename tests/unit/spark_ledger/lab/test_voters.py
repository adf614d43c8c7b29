"""Pre-vote, reads of a Raft leader, and DLedger's dispatchers, one decision at a time."""

from __future__ import annotations

import random

from spark_ledger.lab.dledger import (
    Compare,
    Compared,
    DLedgerNode,
    Push,
    Pushed,
    Truncate,
)
from spark_ledger.lab.elections import PreVote, RequestPreVote, RequestVote, Vote
from spark_ledger.lab.machines import (
    NO_VALUE,
    Ask,
    Effect,
    Entry,
    Produce,
    Produced,
    Send,
    Shown,
    Store,
    Sync,
    Synced,
    Tick,
)
from spark_ledger.lab.raft import AppendEntries, AppendReply, RaftNode, RaftOptions
from spark_ledger.lab.runs import Outcome, run
from spark_ledger.lab.scenarios import SCENARIOS
from tests.unit.spark_ledger.lab.telling import CLIENT, said, tell


def outcome(scenario: str, protocol: str) -> Outcome:
    return run(SCENARIOS[scenario], protocol, 1)[0]


# -- pre-vote --------------------------------------------------------------------------------------


def asking(log: tuple[Entry, ...] = (), *, term: int) -> RaftNode:
    """n1, with pre-vote."""
    store = Store(list(log), len(log), {"term": term})
    return RaftNode("n1", ("n0", "n2"), store, random.Random(1), 1.0, RaftOptions(pre_vote=True))


def test_server_that_hears_no_leader_asks_before_it_starts_a_term() -> None:
    node = asking(term=4)
    assert said(node.handle(Tick(), 10.0), RequestPreVote) == [RequestPreVote(5, 0, 0)] * 2
    assert (node.role, node.term) == ("follower", 4)
    assert not tell(node, "n0", PreVote(4, 5, False), 10.1)
    assert (
        said(tell(node, "n2", PreVote(4, 5, True), 10.1), RequestVote) == [RequestVote(5, 0, 0)] * 2
    )
    assert (node.role, node.term) == ("candidate", 5)


def test_server_that_hears_a_leader_says_no_and_stays_in_its_term() -> None:
    node = asking(term=4)
    tell(node, "n0", AppendEntries(4, 0, 0, (), 0), 10.0)
    ask = RequestPreVote(9, 5, 4)
    assert said(tell(node, "n2", ask, 10.3), PreVote) == [PreVote(4, 9, False)]
    assert said(tell(node, "n2", ask, 10.6), PreVote) == [PreVote(4, 9, True)]
    assert node.term == 4, "a question starts no term"


def test_server_says_no_to_a_log_that_lacks_what_it_has() -> None:
    node = asking((Entry(4, 7),), term=4)
    for ask in (RequestPreVote(5, 0, 0), RequestPreVote(5, 9, 3)):
        assert said(tell(node, "n2", ask, 10.0), PreVote) == [PreVote(4, 5, False)]


def test_leader_that_was_heard_meanwhile_ends_the_question() -> None:
    node = asking(term=4)
    node.handle(Tick(), 10.0)
    tell(node, "n0", AppendEntries(4, 0, 0, (), 0), 10.1)
    assert not tell(node, "n2", PreVote(4, 5, True), 10.2)
    assert node.role == "follower"


def test_server_that_was_cut_off_deposes_the_leader_only_without_pre_vote() -> None:
    for scenario in ("follower-apart", "one-way"):
        assert outcome(scenario, "raft").decisions["leader"] == 2, scenario
        assert outcome(scenario, "raft-pre-vote").decisions == {"election": 1, "leader": 1}


# -- reads -----------------------------------------------------------------------------------------


def reading(reads: str, *, committed: bool = True) -> RaftNode:
    """n1 leads term 2, and has committed an entry of it if so; before it there is value 5."""
    store = Store([Entry(1, 5)], 1, {"term": 1})
    node = RaftNode("n1", ("n0", "n2"), store, random.Random(1), 1.0, RaftOptions(reads=reads))
    node.handle(Tick(), 10.0)
    tell(node, "n2", Vote(2, True), 10.0)
    if committed:
        node.store.synced = 2
        tell(node, "n0", AppendReply(2, True, 2), 10.0)
        assert (node.role, node.commit) == ("leader", 2)
    return node


def test_read_waits_until_a_majority_answers_what_was_sent_after_it() -> None:
    node = reading("index")
    asked = tell(node, CLIENT, Ask(0))
    assert not said(asked, Shown) and len(said(asked, AppendEntries)) == 2
    assert not said(tell(node, "n2", AppendReply(2, True, 2, 0)), Shown), "sent before the read"
    assert said(tell(node, "n2", AppendReply(2, True, 2, 1)), Shown) == [Shown(0, 1)]


def test_read_of_a_leader_that_has_committed_nothing_of_its_term_is_not_answered() -> None:
    """It has value 5, and does not know yet whether that is committed."""
    node = reading("index", committed=False)
    assert not tell(node, CLIENT, Ask(0))


def test_read_of_a_leader_that_is_deposed_is_not_answered() -> None:
    node = reading("index")
    tell(node, CLIENT, Ask(0))
    tell(node, "n0", AppendReply(3, False, 0, 0))
    assert node.role == "follower"
    assert not said(tell(node, "n2", AppendReply(2, True, 2, 1)), Shown)
    node.handle(Tick(), 20.0)
    tell(node, "n2", Vote(4, True), 20.0)
    node.store.synced = 3
    tell(node, "n0", AppendReply(4, True, 3), 20.0)
    tell(node, CLIENT, Ask(1))
    shown = said(tell(node, "n2", AppendReply(4, True, 3, 1)), Shown)
    assert shown == [Shown(1, 1)], "another one may have led when the first read began"


def test_follower_repeats_the_number_of_the_last_read() -> None:
    node = reading("index")
    follower = RaftNode("n0", ("n1", "n2"), Store([], 0, {"term": 2}), random.Random(1), 1.0)
    (message, _) = said(tell(node, CLIENT, Ask(0)), AppendEntries)
    (reply,) = said(tell(follower, "n1", message), AppendReply)
    assert isinstance(reply, AppendReply) and reply.read == 1


def test_leader_that_answers_alone_shows_old_data_when_it_is_cut_off() -> None:
    local, index = (outcome("partition", f"raft-read-{kind}") for kind in ("local", "index"))
    assert local.stale > 10
    assert index.stale == 0 and index.reads > 100


# -- DLedger ---------------------------------------------------------------------------------------


def dledger(*log: Entry, term: int, flush_each: bool = False) -> DLedgerNode:
    """n1, whose disk has all of its log."""
    store = Store(list(log), len(log), {"term": term})
    draw = random.Random(1)
    return DLedgerNode("n1", ("n0", "n2"), store, draw, 1.0, flush_each=flush_each)


def leading(*log: Entry, term: int) -> tuple[DLedgerNode, list[Effect]]:
    """n1 is elected in the term behind this one, and what it said then."""
    node = dledger(*log, term=term)
    node.handle(Tick(), 10.0)
    effects = tell(node, "n2", Vote(term + 1, True), 10.0)
    assert node.role == "leader"
    return node, effects


def test_new_leader_compares_from_its_end_before_it_pushes() -> None:
    node, effects = leading(Entry(1, 7), term=1)
    assert said(effects, Compare) == [Compare(2, 1, 2, 2)] * 2
    assert not said(tell(node, CLIENT, Produce(8)), Push), "nobody has answered yet"
    assert said(tell(node, "n0", Compared(2, 1, 2, False, 1)), Compare) == [Compare(2, 1, 1, 1)]
    pushed = said(tell(node, "n0", Compared(2, 1, 1, True, 1)), Push)
    assert pushed == [Push(2, 1, 2, Entry(2, NO_VALUE), 0), Push(2, 1, 3, Entry(2, 8), 0)]


def test_leader_pushes_without_waiting_for_answers() -> None:
    node, _ = leading(term=1)
    tell(node, "n0", Compared(2, 1, 1, False, 0))
    tell(node, "n0", Compared(2, 1, 0, True, 0))
    for value in (7, 8, 9):
        sent = tell(node, CLIENT, Produce(value))
        assert [each.entry.value for each in said(sent, Push) if isinstance(each, Push)] == [value]


def test_leader_pushes_only_after_the_follower_has_cut_what_it_lacks() -> None:
    """A push that overtook a lost order to cut would follow entries that nobody else has."""
    node, _ = leading(Entry(1, 7), term=2)
    tell(node, "n0", Compared(3, 1, 2, False, 3, 2, 2))
    effects = tell(node, "n0", Compared(3, 1, 1, True, 3))
    assert said(effects, Truncate) == [Truncate(3, 1, 1)]
    assert not said([*effects, *tell(node, CLIENT, Produce(8))], Push)
    assert len(said(tell(node, "n0", Compared(3, 1, 1, True, 1)), Push)) == 2


def test_leader_compares_where_the_follower_still_has_its_term() -> None:
    """It jumps over a term that only one of them has, never over one that both have."""
    log = (Entry(1, 1), Entry(1, 2), Entry(3, 3), Entry(3, 4))
    node, _ = leading(*log, term=3)
    follower = dledger(Entry(1, 1), Entry(1, 2), Entry(1, 5), Entry(1, 6), Entry(1, 9), term=3)
    asked: object = Compare(4, 1, 5, 4)
    tried = []
    while isinstance(asked, Compare):
        tried.append(asked.at)
        (answer,) = said(tell(follower, "n1", asked), Compared)
        (asked,) = said(tell(node, "n0", answer), object)
    assert tried == [5, 2]
    assert asked == Truncate(4, 1, 2)


def test_leader_ignores_answers_of_an_earlier_attempt() -> None:
    """Since then the follower may have lost its page cache."""
    node, _ = leading(term=1)
    tell(node, "n0", Compared(2, 1, 1, False, 0))
    tell(node, "n0", Compared(2, 1, 0, True, 0))
    assert said(tell(node, "n0", Pushed(2, 1, 1, False)), Compare) == [Compare(2, 2, 1, 2)]
    tell(node, "n0", Pushed(2, 1, 1, True))
    assert node.commit == 0
    tell(node, "n0", Pushed(2, 2, 1, True))
    assert node.commit == 1


def test_leader_commits_pushed_entries_of_older_terms_only_with_one_of_its_own() -> None:
    node, _ = leading(Entry(1, 5), term=1)
    tell(node, "n0", Pushed(2, 1, 1, True))
    assert node.commit == 0
    tell(node, "n0", Pushed(2, 1, 2, True))
    assert node.commit == 2


def test_leader_answers_the_client_when_a_majority_has_the_entry() -> None:
    node, _ = leading(term=1)
    assert not said(tell(node, CLIENT, Produce(7)), Produced)
    assert not said(tell(node, "n0", Pushed(2, 1, 1, True)), Produced)
    assert said(tell(node, "n0", Pushed(2, 1, 2, True)), Produced) == [Produced(7)]


def test_follower_refuses_a_push_behind_a_gap_or_onto_another_entry() -> None:
    node = dledger(Entry(1, 7), term=1)
    for push in (Push(1, 1, 3, Entry(1, 9), 0), Push(1, 1, 1, Entry(1, 8), 0)):
        assert said(tell(node, "n0", push), Pushed) == [Pushed(1, 1, push.at, False)]
    assert node.store.log == [Entry(1, 7)]
    assert said(tell(node, "n0", Push(1, 1, 2, Entry(1, 8), 0)), Pushed) == [Pushed(1, 1, 2, True)]


def test_follower_ignores_what_was_sent_before_the_last_attempt() -> None:
    node = dledger(term=1)
    tell(node, "n0", Compare(1, 2, 0, 0))
    assert not tell(node, "n0", Push(1, 1, 1, Entry(1, 8), 0))
    assert not node.store.log


def test_follower_that_flushes_answers_when_the_entry_is_synced() -> None:
    node = dledger(term=1, flush_each=True)
    for at in (1, 2):
        assert tell(node, "n0", Push(1, 1, at, Entry(1, at), 0)) == [Sync()]
    node.store.synced = 1
    assert node.handle(Synced(1), 0.0) == [Send("n0", Pushed(1, 1, 1, True))]


def test_dledger_elects_by_itself_and_loses_nothing_when_its_leader_dies() -> None:
    result = outcome("leader-dies", "dledger")
    assert (result.acknowledged, result.lost) == (result.sent, 0)
    assert result.longest_gap_ms < outcome("leader-dies", "rocketmq-sync").longest_gap_ms


def test_dledger_without_a_flush_loses_what_no_disk_had() -> None:
    lost = [outcome("power-cut", name).lost for name in ("dledger", "dledger-flush")]
    assert lost[0] > 0 and lost[1] == 0


def test_former_leader_of_a_dledger_group_cuts_what_it_had_alone() -> None:
    result = outcome("partition", "dledger-flush")
    assert result.truncated > 50 and result.lost == 0
