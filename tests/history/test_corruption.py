"""Legal histories pass; after one corruption of any kind the checkers report that anomaly."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from spark_ledger.types import EntryId
from tests.history.build import Builder, entry
from tests.history.checkers import check_all
from tests.history.facts import facts_of
from tests.history.final import Final, FinalCommit, FinalLedger, FinalStream
from tests.history.legal import LEDGER, legal
from tests.history.model import History, Operation, Phase, value

SEEDS = st.integers(0, 2**32)
FOREIGN = value("nobody", "L1", 1)


class Corrupt:
    """A legal history, taken apart so that it can be changed."""

    def __init__(self, seed: int) -> None:
        self.builder, final = legal(seed)
        self.rng = random.Random(seed + 1)
        self.events = self.builder.history.events
        self.ledger: FinalLedger = final.ledgers[LEDGER]
        self.stream: FinalStream = final.streams["rows"]

    def names(self) -> set[str]:
        final = Final.of(self.ledger, self.stream)
        return {v.name for v in check_all(History(self.events), final, exact=True)}

    def pick(self, *names: str, where: Callable[[Operation], bool] = lambda _: True) -> Operation:
        """Draw a successful operation of one of these names; give up the example if there is
        none."""
        found = [o for o in self.builder.history.operations(*names) if o.ok and where(o)]
        assume(found)
        return self.rng.choice(found)

    def change(self, operation: Operation, **fields: object) -> None:
        """Change the end of an operation."""
        assert operation.end is not None
        self.events[operation.ended] = replace(operation.end, **fields)  # type: ignore[arg-type]

    def replace_value(self, operation: Operation, at: int, other: str) -> None:
        values = list(operation.values)
        values[at] = other
        self.change(operation, values=tuple(values))

    def later(self) -> Builder:
        """Add operations at the end of the history."""
        return self.builder

    def acknowledged(self) -> list[Operation]:
        return [o for o in self.builder.history.operations("append") if o.ok]

    def with_values(self, values: tuple[str, ...], commits: tuple[FinalCommit, ...]) -> None:
        self.stream = replace(self.stream, commits=commits, values=values)

    def with_commits(self, commits: list[FinalCommit]) -> None:
        made = tuple(replace(c, number=n) for n, c in enumerate(commits))
        self.with_values(tuple(v for c in made for v in c.values), made)


def lost(c: Corrupt) -> None:
    count = len(c.acknowledged())
    assume(count)
    kept = c.rng.randrange(count)
    c.ledger = replace(c.ledger, end=kept - 1, values=c.ledger.values[:kept])


def phantom(c: Corrupt) -> None:
    read = c.pick("read", "tail")
    c.replace_value(read, c.rng.randrange(len(read.values)), FOREIGN)


def divergence(c: Corrupt) -> None:
    read = c.pick("read", "tail", where=lambda o: len(o.values) > 1)
    c.replace_value(read, 0, read.values[1])


def divergence_of_a_replica(c: Corrupt) -> None:
    held = [(b, e) for b, all_ in c.ledger.replicas.items() for e in all_ if e <= c.ledger.end]
    assume(held)
    bookie, entry_id = c.rng.choice(held)
    changed = {**c.ledger.replicas[bookie], entry_id: entry(entry_id + 1)}
    c.ledger = replace(c.ledger, replicas={**c.ledger.replicas, bookie: changed})


def order(c: Corrupt) -> None:
    appends = c.acknowledged()
    assume(len(appends) > 1)
    at = c.rng.randrange(len(appends) - 1)
    c.change(appends[at], entry_id=at + 1)
    c.change(appends[at + 1], entry_id=at)


def duplicate(c: Corrupt) -> None:
    assume(c.ledger.values)
    again = (*c.ledger.values, c.rng.choice(c.ledger.values))
    c.ledger = replace(c.ledger, values=again, end=c.ledger.end + 1)


def hole(c: Corrupt) -> None:
    read = c.pick("read")
    at = c.rng.randrange(len(read.values))
    c.change(read, values=read.values[:at] + read.values[at + 1 :])


def denied(c: Corrupt) -> None:
    read = c.pick("read", "tail")
    c.change(read, phase=Phase.FAIL, values=(), error="NoSuchEntryError")


def dirty_read(c: Corrupt) -> None:
    """Let a reader see an entry in flight."""
    (ledger,) = facts_of(c.builder.history)
    appends = ledger.appends

    def in_flight(read: Operation) -> list[int]:
        """Entries beyond the read that were sent and not acknowledged."""
        at = read.last_entry + 1
        pushed = at < len(appends) and appends[at].began < read.ended < appends[at].ended
        return [at] if pushed and read.ended < ledger.closing_began else []

    read = c.pick("read", "tail", where=lambda o: bool(in_flight(o)))
    (at,) = in_flight(read)
    invoke = replace(read.invoke, last_entry=at) if read.invoke.name == "read" else read.invoke
    c.events[read.began] = invoke
    c.change(read, values=(*read.values, entry(at)), last_add_confirmed=at)


def lac_backwards(c: Corrupt) -> None:
    read = c.pick("read", "tail")
    assert read.end is not None
    c.change(read, last_add_confirmed=read.end.last_add_confirmed - 1)


def lac_beyond(c: Corrupt) -> None:
    look = c.pick("open", "refresh", where=lambda o: o.end is not None and not o.end.closed)
    assert look.end is not None
    c.change(look, last_add_confirmed=len(c.builder.history.operations("append")))


def stale(c: Corrupt) -> None:
    """Lower the LAC of a fresh open below what was confirmed before it began."""
    ledger = facts_of(c.builder.history).ledgers[LEDGER]

    def floor(look: Operation) -> int:
        done = [o for o in ledger.acknowledged if o.ended < look.began]
        return max((ledger.acknowledged_before(o.began) for o in done), default=-1)

    look = c.pick("open", where=lambda o: floor(o) >= 0 and not (o.end and o.end.closed))
    c.change(look, last_add_confirmed=c.rng.randint(-1, floor(look) - 1))


def close_disagreement(c: Corrupt) -> None:
    c.later().close(c.ledger.end + c.rng.choice((-1, 1)), name="recover", process="r3")


def acknowledged_after_close(c: Corrupt) -> None:
    c.later().append(c.ledger.end + 1, value("w", "L1", 10_000))


def not_linearizable(c: Corrupt) -> None:
    c.later().look("open", c.ledger.end, process="r3")


def under_replicated(c: Corrupt) -> None:
    assume(c.ledger.end >= 0)
    entry_id = c.rng.randint(0, c.ledger.end)
    keep = c.rng.randrange(c.ledger.quorums.ack_quorum)
    replicas = {b: dict(held) for b, held in c.ledger.replicas.items()}
    for bookie in [b for b in c.ledger.write_set(entry_id) if entry_id in replicas[b]][keep:]:
        del replicas[bookie][entry_id]
    c.ledger = replace(c.ledger, replicas=replicas)


def fragments(c: Corrupt) -> None:
    changed = c.rng.choice(
        (
            (*c.ledger.fragments, c.ledger.fragments[-1]),
            c.ledger.fragments[1:],
            (
                *c.ledger.fragments,
                c.ledger.fragments[0]._replace(first_entry=EntryId(c.ledger.end + 2)),
            ),
        )
    )
    c.ledger = replace(c.ledger, fragments=changed)


def lost_commit(c: Corrupt) -> None:
    assume(c.stream.commits)
    commits = list(c.stream.commits)
    del commits[c.rng.randrange(len(commits))]
    c.with_commits(commits)


def duplicate_commit(c: Corrupt) -> None:
    assume(c.stream.commits)
    c.with_commits([*c.stream.commits, c.rng.choice(c.stream.commits)])


def phantom_commit(c: Corrupt) -> None:
    c.with_commits([*c.stream.commits, FinalCommit(0, "nobody", 0, (FOREIGN,))])


def stream_order(c: Corrupt) -> None:
    commits = list(c.stream.commits)
    mine = [n for n, commit in enumerate(commits) if commit.sink_id == "s1"]
    assume(len(mine) > 1)
    first, second = mine[-2:]
    commits[first], commits[second] = commits[second], commits[first]
    c.with_commits(commits)


def stream_divergence(c: Corrupt) -> None:
    read = c.pick("stream_read", where=lambda o: bool(o.values))
    c.replace_value(read, c.rng.randrange(len(read.values)), FOREIGN)


def stream_stale(c: Corrupt) -> None:
    """Let the sink of the last commit read again, without its newest row."""
    assume(c.stream.commits)
    reader = c.stream.commits[-1].sink_id
    c.later().stream_read(c.stream.values[:-1], process=reader)


OPERATORS = [
    (lost, "lost"),
    (phantom, "phantom"),
    (divergence, "divergence"),
    (divergence_of_a_replica, "divergence"),
    (order, "order"),
    (duplicate, "duplicate"),
    (hole, "hole"),
    (denied, "denied"),
    (dirty_read, "dirty-read"),
    (lac_backwards, "lac-backwards"),
    (lac_beyond, "lac-beyond"),
    (stale, "stale"),
    (close_disagreement, "close-disagreement"),
    (acknowledged_after_close, "acknowledged-after-close"),
    (not_linearizable, "not-linearizable"),
    (under_replicated, "under-replicated"),
    (fragments, "fragments"),
    (lost_commit, "lost-commit"),
    (duplicate_commit, "duplicate-commit"),
    (phantom_commit, "phantom"),
    (stream_order, "stream-order"),
    (stream_divergence, "divergence"),
    (stream_stale, "stale"),
]

PATIENT = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


@settings(PATIENT, max_examples=150)
@given(SEEDS)
def test_legal_histories_pass(seed: int) -> None:
    builder, final = legal(seed)
    for exact in (True, False):
        assert check_all(builder.history, final, exact=exact) == []


@pytest.mark.parametrize(
    ("corrupt", "name"), OPERATORS, ids=[operator.__name__ for operator, _ in OPERATORS]
)
def test_corrupted_history_is_reported(corrupt: Callable[[Corrupt], None], name: str) -> None:
    @PATIENT
    @given(SEEDS)
    def check(seed: int) -> None:
        changed = Corrupt(seed)
        corrupt(changed)
        assert name in changed.names()

    check()
