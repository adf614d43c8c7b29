"""Streams (I14): each transaction is in exactly one commit, commits are in order and complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.history.facts import Steps
from tests.history.final import Final, FinalCommit, FinalStream
from tests.history.model import History, Operation, Phase
from tests.history.values import short, verify
from tests.history.violation import Violation

_CLOCKS_DIFFER_MS = 60_000
"""Commit times ascend between clocks that differ by no more."""

Pair = tuple[str, int]


@dataclass(eq=False)
class StreamFacts:
    """What a history and the final state say about one stream."""

    name: str
    last: FinalStream | None
    commits: list[Operation] = field(default_factory=list)
    reads: list[Operation] = field(default_factory=list)

    @property
    def is_readable(self) -> bool:
        return self.last is not None and not self.last.unreadable

    @property
    def first(self) -> int:
        """The first commit that was not dropped."""
        return self.last.first if self.last is not None else 0

    def final_commits(self) -> tuple[FinalCommit, ...]:
        return self.last.commits if self.last is not None and self.is_readable else ()


def stream_facts(history: History, final: Final) -> list[StreamFacts]:
    """The streams of a history and of the final state, each with its operations."""
    found = {name: StreamFacts(name, last) for name, last in final.streams.items()}
    for operation in history.operations("commit", "stream_read"):
        name = operation.invoke.stream
        stream = found.setdefault(name, StreamFacts(name, None))
        (stream.commits if operation.invoke.name == "commit" else stream.reads).append(operation)
    return list(found.values())


def pair_of(operation: Operation) -> Pair:
    """The sink and transaction of a commit."""
    return operation.invoke.sink_id, operation.invoke.transaction_id


def lost_commit(history: History, final: Final) -> list[Violation]:
    """Every acknowledged commit exists at the end, under its number and complete."""
    found = []
    for stream in stream_facts(history, final):
        if stream.last is None or stream.last.unreadable:
            if any(o.ok for o in stream.commits):
                reason = "nobody found it" if stream.last is None else stream.last.unreadable
                text = f"stream {stream.name} cannot be read after healing: {reason}"
                found.append(Violation("I13", "unreadable", text))
            continue
        there = {(c.sink_id, c.transaction_id): c for c in stream.final_commits()}
        for operation in stream.commits:
            why = _why_lost(operation, there.get(pair_of(operation)), stream.first)
            if why:
                text = f"stream {stream.name}, {_named(operation)}: {why}"
                found.append(Violation("I14", "lost-commit", text, (operation.number,)))
    return found


def _why_lost(operation: Operation, there: FinalCommit | None, first: int) -> str | None:
    end = operation.end
    if not operation.ok or end is None:
        return None
    if there is None and end.commit < first:
        return None  # it was dropped
    if there is None:
        return f"acknowledged as commit {end.commit}, and not there"
    if there.number != end.commit:
        return f"acknowledged as commit {end.commit}, and is commit {there.number}"
    if end.applied and there.values != operation.invoke.values:
        return (
            f"{len(operation.invoke.values)} values were acknowledged, "
            f"{len(there.values)} others are there"
        )
    return None


def _named(operation: Operation) -> str:
    return f"sink {operation.invoke.sink_id}, transaction {operation.invoke.transaction_id}"


def duplicate_commit(history: History, final: Final) -> list[Violation]:
    """Each pair of sink and transaction is applied once, and each value is in the stream once."""
    found = []
    for stream in stream_facts(history, final):
        numbers: dict[Pair, int] = {}
        values: dict[str, int] = {}
        for commit in stream.final_commits():
            pair = (commit.sink_id, commit.transaction_id)
            if pair in numbers:
                text = f"{pair} is commit {numbers[pair]} and commit {commit.number}"
                found.append(_of(stream, "duplicate-commit", text))
            numbers.setdefault(pair, commit.number)
            for value in commit.values:
                if value in values:
                    text = f"{short(value)} is in commits {values[value]} and {commit.number}"
                    found.append(_of(stream, "duplicate-commit", text))
                values.setdefault(value, commit.number)
        applied: dict[Pair, int] = {}
        for operation in stream.commits:
            if operation.ok and operation.end is not None and operation.end.applied:
                pair = pair_of(operation)
                before = applied.setdefault(pair, operation.number)
                if before != operation.number:
                    text = f"two clients were told that they applied {pair}"
                    found.append(_of(stream, "duplicate-commit", text, before, operation.number))
    return found


def _of(stream: StreamFacts, name: str, text: str, *operations: int) -> Violation:
    return Violation("I14", name, f"stream {stream.name}: {text}", operations)


def phantom_commit(history: History, final: Final) -> list[Violation]:
    """A commit holds the values of one attempt that did not fail, complete and undamaged."""
    found = []
    for stream in stream_facts(history, final):
        attempts: dict[Pair, list[Operation]] = defaultdict(list)
        for operation in stream.commits:
            attempts[pair_of(operation)].append(operation)
        for commit in stream.final_commits():
            tried = attempts.get((commit.sink_id, commit.transaction_id), [])
            who = f"commit {commit.number} of {commit.sink_id}, {commit.transaction_id}"
            same = [o for o in tried if o.invoke.values == commit.values]
            damaged = [short(v) for v in commit.values if not verify(v)]
            if damaged:
                found.append(_of(stream, "phantom", f"{who} holds damaged {damaged[0]}"))
            elif not same:
                numbers = [o.number for o in tried]
                text = f"{who} holds {len(commit.values)} values that nobody committed so"
                found.append(_of(stream, "phantom", text, *numbers))
            elif all(o.phase is Phase.FAIL for o in same):
                text = f"{who} is there, but failed"
                found.append(_of(stream, "phantom", text, *(o.number for o in same)))
    return found


def stream_order(history: History, final: Final) -> list[Violation]:
    """Commits are dense, a sink's transactions ascend, and real time is kept. Commit times go back
    only behind a clock that was far ahead, because readers may start at a time."""
    found = []
    for stream in stream_facts(history, final):
        newest: dict[str, int] = {}
        latest_ms = 0
        for number, commit in enumerate(stream.final_commits(), stream.first):
            if commit.number != number:
                text = f"commit {commit.number} stands at step {number}"
                found.append(_of(stream, "stream-order", text))
            if commit.transaction_id < newest.get(commit.sink_id, -1):
                text = (
                    f"sink {commit.sink_id}: transaction {commit.transaction_id} (commit "
                    f"{commit.number}) follows {newest[commit.sink_id]}"
                )
                found.append(_of(stream, "stream-order", text))
            newest[commit.sink_id] = max(newest.get(commit.sink_id, -1), commit.transaction_id)
            if 0 < latest_ms - commit.time_ms <= _CLOCKS_DIFFER_MS:
                text = (
                    f"commit {commit.number} is {latest_ms - commit.time_ms} ms older than before"
                )
                found.append(_of(stream, "stream-order", text))
            latest_ms = commit.time_ms
        found += _against_time(stream)
        found += _misread(stream)
    return found


def _against_time(stream: StreamFacts) -> Iterator[Violation]:
    """A commit that was acknowledged before another began has the lower number."""
    applied = [o for o in stream.commits if o.ok and o.end is not None and o.end.applied]
    done = Steps([(o.ended, o.end.commit) for o in applied if o.end is not None])
    for operation in applied:
        assert operation.end is not None
        before = done.before(operation.began)
        if operation.end.commit <= before:
            text = (
                f"commit {operation.end.commit} began after commit {before} was acknowledged "
                f"({_named(operation)})"
            )
            yield _of(stream, "stream-order", text, operation.number)


def _misread(stream: StreamFacts) -> Iterator[Violation]:
    """The stream read from the beginning is its commits, one after the other."""
    if stream.last is None or stream.last.unreadable:
        return
    expected = [value for commit in stream.last.commits for value in commit.values]
    read = stream.last.values
    if list(read) != expected:
        at = next(
            (i for i, (a, b) in enumerate(zip(read, expected, strict=False)) if a != b),
            min(len(read), len(expected)),
        )
        text = f"{len(read)} values were read, {len(expected)} are committed; differs at {at}"
        yield _of(stream, "stream-order", text)


def stream_reads(history: History, final: Final) -> list[Violation]:
    """Every read of a stream is a part of its final content, and includes the reader's own commits.
    ``entry_id`` of a stream_read counts values from the beginning of the stream."""
    found: list[Violation] = []
    for stream in stream_facts(history, final):
        ends: dict[int, int] = {}
        total = 0
        for commit in stream.final_commits():
            total += len(commit.values)
            ends[commit.number] = total
        for read in stream.reads:
            if read.ok:
                found += _check_read(stream, read)
        found += _own_commits(stream, ends)
    return found


def _check_read(stream: StreamFacts, read: Operation) -> Iterator[Violation]:
    if stream.last is None or stream.last.unreadable:
        return
    first = max(read.first_entry, 0)
    there = stream.last.values[first : first + len(read.values)]
    if there == read.values:
        return
    pairs = enumerate(zip(read.values, there, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), len(there))
    now = short(there[at]) if at < len(there) else "nothing"
    text = f"value {first + at} was read as {short(read.values[at])}, at the end there is {now}"
    yield _of(stream, "divergence", text, read.number)


def _own_commits(stream: StreamFacts, ends: dict[int, int]) -> Iterator[Violation]:
    """A process that was told of a commit reads it from then on."""
    told: dict[str, Steps] = {}
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for operation in stream.commits:
        if operation.ok and operation.end is not None and operation.end.commit in ends:
            step = (operation.ended, ends[operation.end.commit])
            steps[operation.invoke.process].append(step)
    for process, told_at in steps.items():
        told[process] = Steps(told_at)
    for read in stream.reads:
        wanted = told[read.invoke.process].before(read.began) if read.invoke.process in told else -1
        first = max(read.first_entry, 0)
        if read.ok and read.invoke.last_entry < 0 and first + len(read.values) < wanted:
            text = (
                f"{read.invoke.process} read up to value {first + len(read.values)}, its own "
                f"commit before reaches to {wanted}"
            )
            yield _of(stream, "stale", text, read.number)
