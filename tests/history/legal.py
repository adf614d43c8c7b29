"""Random legal histories: a small model of a ledger and a stream that keeps every promise."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from spark_ledger.types import BookieId, EntryId, Fragment, Quorums
from tests.history.build import Builder, entry, row
from tests.history.final import Final, FinalCommit, FinalLedger, FinalStream
from tests.history.model import Event, Phase

BOOKIES = tuple("abcdef")
LEDGER = 1


@dataclass(eq=False)
class LegalLedger:
    """One writer, two readers, and at last somebody who closes."""

    rng: random.Random
    builder: Builder
    flying: deque[tuple[Event, int]] = field(default_factory=deque)
    """Appends in flight, each with what was confirmed when it began."""
    pushed: int = -1
    confirmed: int = -1
    visible: int = -1
    """The lowest LAC that a reader can be told now."""
    end: int | None = None
    handles: dict[str, int] = field(default_factory=dict)
    """The last add confirmed of each reader's handle."""

    def step(self) -> None:
        rng = self.rng
        choice = rng.random()
        if choice < 0.35 and self.end is None:
            self.pushed += 1
            invoke = self.builder.begin_append(entry(self.pushed))
            self.flying.append((invoke, self.confirmed))
        elif choice < 0.65 and self.flying and self.end is None:
            self.acknowledge()
        elif choice < 0.8:
            self.look(rng.choice(("r1", "r2")))
        else:
            self.read(rng.choice(("r1", "r2")))

    def acknowledge(self) -> None:
        invoke, before = self.flying.popleft()
        self.confirmed += 1
        self.visible = max(self.visible, before)
        self.builder.finish(invoke, entry_id=self.confirmed, last_add_confirmed=self.confirmed)

    def look(self, process: str) -> None:
        name = self.rng.choice(("open", "refresh") if process in self.handles else ("open",))
        if self.end is not None:
            self.handles[process] = self.end
            self.builder.look(name, self.end, process=process, closed=True)
            return
        floor = self.visible if name == "open" else max(self.visible, self.handles[process])
        self.handles[process] = self.rng.randint(floor, self.confirmed)
        self.builder.look(name, self.handles[process], process=process)

    def read(self, process: str) -> None:
        known = self.handles.get(process, -1)
        if known < 0:
            return
        first = self.rng.randint(0, known)
        last = self.rng.randint(first, known)
        name = self.rng.choice(("read", "tail"))
        values = tuple(entry(e) for e in range(first, last + 1))
        self.builder.read(
            first,
            values,
            last=last if name == "read" else -1,
            process=process,
            name=name,
            last_add_confirmed=known,
        )

    def finish(self) -> None:
        """Close the ledger: by its writer, or by recovery after the writer died or was fenced."""
        how = self.rng.choice(("close", "died", "fenced"))
        if how == "close":
            while self.flying:
                self.acknowledge()
            self.end = self.confirmed
            self.builder.close(self.end)
            return
        recovering = self.builder.begin("recover", "r1", ledger_id=LEDGER)
        self.end = self.rng.randint(self.confirmed, self.pushed)
        self.handles["r1"] = self.end
        self.builder.finish(recovering, entry_id=self.end, closed=True, last_add_confirmed=self.end)
        if how == "fenced":
            for invoke, _ in self.flying:
                self.builder.finish(invoke, Phase.UNKNOWN, error="FencedError")
        if self.rng.random() < 0.5:
            self.builder.close(self.end, name="recover", process="r2")

    def final(self) -> FinalLedger:
        assert self.end is not None, "finish comes first"
        rng = self.rng
        quorums = rng.choice((Quorums(3, 3, 2), Quorums(4, 3, 2), Quorums(3, 2, 2)))
        borders = sorted({0, *(rng.randint(0, self.end + 1) for _ in range(rng.randint(0, 2)))})
        fragments = tuple(
            Fragment(
                EntryId(border),
                tuple(BookieId(b) for b in rng.sample(BOOKIES, quorums.ensemble_size)),
            )
            for border in borders
        )
        values = tuple(entry(e) for e in range(self.end + 1))
        made = FinalLedger(LEDGER, quorums, fragments, True, self.end, values)
        replicas: dict[str, dict[int, str]] = {bookie: {} for bookie in BOOKIES}
        for entry_id in range(self.pushed + 1):
            wanted = list(made.write_set(entry_id))
            rng.shuffle(wanted)
            copies = rng.randint(quorums.ack_quorum, len(wanted))
            if entry_id > self.end:
                copies = rng.randint(0, quorums.ack_quorum - 1)
            for bookie in wanted[:copies]:
                replicas[bookie][entry_id] = entry(entry_id)
        return FinalLedger(LEDGER, quorums, fragments, True, self.end, values, replicas)


@dataclass(eq=False)
class LegalStream:
    """Two sinks that commit, repeat commits of unknown outcome, and read."""

    rng: random.Random
    builder: Builder
    commits: list[FinalCommit] = field(default_factory=list)
    rows: int = 0
    next_transaction: dict[str, int] = field(default_factory=dict)

    def step(self) -> None:
        sink = self.rng.choice(("s1", "s2"))
        if self.rng.random() < 0.4:
            self.read(sink)
            return
        transaction = self.next_transaction.get(sink, 0)
        self.next_transaction[sink] = transaction + 1
        values = tuple(row(self.rows + n) for n in range(self.rng.randint(1, 3)))
        self.rows += len(values)
        applied = False
        while self.rng.random() < 0.3:  # repeat what may have failed
            phase = self.rng.choice((Phase.UNKNOWN, Phase.FAIL))
            self.builder.commit(-1, values, transaction, sink_id=sink, process=sink, phase=phase)
            if phase is Phase.UNKNOWN and not applied and self.rng.random() < 0.5:
                applied = True
                self.apply(sink, transaction, values)
            if phase is Phase.FAIL and applied:
                break
        if not applied:
            self.apply(sink, transaction, values)
        number = next(
            c.number for c in self.commits if (c.sink_id, c.transaction_id) == (sink, transaction)
        )
        self.builder.commit(
            number, values, transaction, sink_id=sink, process=sink, applied=not applied
        )

    def apply(self, sink: str, transaction: int, values: tuple[str, ...]) -> None:
        self.commits.append(FinalCommit(len(self.commits), sink, transaction, values))

    def values(self) -> tuple[str, ...]:
        return tuple(v for commit in self.commits for v in commit.values)

    def read(self, process: str) -> None:
        values = self.values()
        first = self.rng.randint(0, len(values))
        self.builder.stream_read(values[first:], first=first, process=process)

    def final(self) -> FinalStream:
        return FinalStream("rows", tuple(self.commits), self.values())


def legal(seed: int) -> tuple[Builder, Final]:
    """A legal history, and the state after it."""
    rng, builder = random.Random(seed), Builder()
    ledger, stream = LegalLedger(rng, builder), LegalStream(rng, builder)
    builder.create()
    for _ in range(rng.randint(5, 40)):
        (ledger if rng.random() < 0.8 else stream).step()
    ledger.finish()
    for _ in range(rng.randint(0, 8)):
        (ledger if rng.random() < 0.6 else stream).step()
    return builder, Final.of(ledger.final(), stream.final())
