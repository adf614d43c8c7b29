"""The lab's promises of every state are broken by what breaks them, and by nothing else."""

from __future__ import annotations

import pytest

from spark_ledger.lab.bookies import Add, Metadata
from spark_ledger.lab.invariants import History, Leaders, LedgerPromises, LogMatching
from spark_ledger.lab.kafka import Broker, KafkaOptions
from spark_ledger.lab.machines import Entry, Store
from spark_ledger.lab.protocols import PROTOCOLS
from spark_ledger.lab.world import World
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)


def test_second_leader_of_a_term_breaks_election_safety() -> None:
    leaders = Leaders()
    assert leaders.is_new(1, "n0") and not leaders.is_new(1, "n0") and leaders.is_new(2, "n1")
    with pytest.raises(AssertionError, match="Term 2 has two leaders"):
        leaders.is_new(2, "n0")


@pytest.mark.parametrize(
    "other",
    [
        [Entry(1, 7), Entry(2, 9)],  # another value in the same place
        [Entry(2, 7), Entry(2, 8)],  # the same one behind another entry
    ],
)
def test_logs_that_differ_below_an_equal_entry_do_not_match(other: list[Entry]) -> None:
    matching = LogMatching()
    matching.look("n0", Store([Entry(1, 7), Entry(2, 8)]))
    matching.look("n1", Store([Entry(1, 7), Entry(3, 8)]))
    with pytest.raises(AssertionError, match="Two logs differ"):
        matching.look("n2", Store(other))


def test_log_that_was_cut_is_compared_anew() -> None:
    matching, store = LogMatching(), Store([Entry(1, 7), Entry(1, 8)])
    matching.look("n0", store)
    store.truncate(1)
    store.append(Entry(1, 9))
    with pytest.raises(AssertionError, match="Two logs differ in entry 2"):
        matching.look("n0", store)


def broker(*log: Entry) -> Broker:
    return Broker("n1", Store(list(log), len(log)), KafkaOptions(), 0.0)


def test_committed_entries_may_not_change_nor_be_taken_back_nor_be_missing() -> None:
    history, first = History(), broker(Entry(1, 7), Entry(1, 8))
    history.note(first, 2)
    history.is_in(broker(Entry(1, 7), Entry(1, 8), Entry(1, 9)))
    with pytest.raises(AssertionError, match="takes back"):
        history.note(first, 1)
    with pytest.raises(AssertionError, match="Entry 2 is committed twice"):
        history.note(broker(Entry(1, 7), Entry(2, 8)), 2)
    with pytest.raises(AssertionError, match="leads without"):
        history.is_in(broker(Entry(1, 7)))


def ledger(*, adds: dict[str, list[Add]], acknowledged: tuple[int, ...]) -> LedgerPromises:
    """Bookies with these synced records were looked at."""
    world, metadata = World(1), Metadata()
    for name, records in adds.items():
        world.add(name, lambda _store, _now: broker())
        world.hosts[name].store.synced = len(records)
    world.acknowledged.update(dict.fromkeys(acknowledged, 1.0))
    promises = LedgerPromises(Quorums(3, 3, 2), adds, metadata)
    promises.look(world)
    fragments = [Fragment(EntryId(0), tuple(map(BookieId, "012")))]
    for last in map(EntryId, (3, 3, 4)):
        closed = LedgerMetadata(
            LedgerId(0), Quorums(3, 3, 2), fragments, LedgerState.CLOSED, last_entry_id=last
        )
        metadata.nodes[0] = (closed, 1)
        promises.look(world)
    return promises


ADD = Add(0, 0, 0, 7, -1, False)


@pytest.mark.parametrize(
    ("adds", "broken"),
    [
        ({"n0": [ADD], "n1": [ADD]}, "closed twice"),
        ({"n0": [ADD], "n1": [ADD._replace(value=8)]}, "two values"),
        ({"n0": [ADD], "n1": [ADD._replace(entry=1)]}, "confirmed, and on 1 bookies"),
    ],
)
def test_ledger_with_a_value_on_too_few_bookies_or_two_ends_breaks_a_promise(
    adds: dict[str, list[Add]], broken: str
) -> None:
    with pytest.raises(AssertionError, match=broken):
        ledger(adds=adds, acknowledged=(7,))


@pytest.mark.parametrize("protocol", ["raft", "dledger", "kafka", "rocketmq", "bookkeeper-3-3-2"])
def test_every_model_is_looked_at_in_each_tick(protocol: str) -> None:
    """What no rule allows is seen, whichever server it befalls."""
    world = World(1)
    system = PROTOCOLS[protocol](world)
    system.check()
    for name, value in (("n0", 1), ("n1", 2)):
        store = world.hosts[name].store
        store.log.append(Entry(1, value))
        store.synced = 1
        records = getattr(world.hosts[name].machine, "_records", None)
        if records is not None:
            records.append(ADD._replace(value=value))
    with pytest.raises(AssertionError, match=r"Two logs differ|two values"):
        system.check()
