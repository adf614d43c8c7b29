"""The words of a script about a stream's commits: drivers, sinks, and a metadata store between.

The committers are the real ones, each driver with a session of its own; what they name are
segments of ledgers that nobody reads here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from spark_ledger.errors import ConfigurationError, LedgerError
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Commit, Segment
from spark_ledger.stream.stream import Stream
from tests.scenarios.world import ranges_text
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, loose

NAME = "flights"
LOSSES = {"request": Outcome.LOST_REQUEST, "answer": Outcome.LOST_REPLY}


class Driver:
    """One process that commits. ``losses`` are what happens to its next transactions."""

    def __init__(self, store: MemoryMetadataStore) -> None:
        self.losses: list[Outcome] = []
        self.cut_off = False
        self.transactions = 0
        self.ledgers = FakeLedgers(store.tree.open_session(interpose=self._fault))
        self.stream: Stream | None = None

    def _fault(self, name: str, _path: str) -> Fault:
        if name == "transaction":
            self.transactions += 1
            if self.losses:
                return Fault(self.losses.pop(0))
        return Fault(Outcome.UNAVAILABLE) if self.cut_off else Fault()

    async def opened(self) -> Stream:
        """The stream as this driver opened it when it first needed it."""
        if self.stream is None:
            self.stream = await StreamCatalog(self.ledgers).open(NAME)
        return self.stream


class StreamWords:
    """One stream. Who looks at it does so through a session without faults."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._told: dict[str, str] = {}
        self._runner = asyncio.Runner()
        self._begin()

    def _begin(self) -> None:
        self._store = MemoryMetadataStore()
        self._ledgers = FakeLedgers(self._store)
        self._drivers: dict[str, Driver] = {}

    def run(self, line: str) -> list[str]:
        word, *arguments = line.split()
        method = getattr(self, "do_" + word.replace("-", "_"), None)
        if method is None:
            raise ConfigurationError(f"no such command: {word}")
        method(*arguments)
        lines, self._lines = ["  " + line for line in self._lines], []
        return lines

    def world_lines(self) -> list[str]:
        return self._lines

    def close(self) -> None:
        self._runner.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def with_deadline() -> Any:
            async with asyncio.timeout(30):
                return await work

        return self._runner.run(with_deadline())

    def _driver(self, name: str) -> Driver:
        if name not in self._drivers:
            self._drivers[name] = Driver(self._store)
        return self._drivers[name]

    # -- the stream ---------------------------------------------------------------------------

    def do_stream(self) -> None:
        """stream: a new, empty stream, and nobody at work."""
        self._begin()
        self._do(StreamCatalog(self._ledgers).create(NAME, SCHEMA))

    def do_delete(self) -> None:
        """delete: somebody deletes the stream."""
        self._do(StreamCatalog(self._ledgers).delete(NAME))

    def do_recreate(self) -> None:
        """recreate: somebody makes another stream of the same name."""
        self._do(StreamCatalog(self._ledgers).create(NAME, SCHEMA))

    def do_lose(self, what: str, driver: str) -> None:
        """lose request d1 | lose answer d1: of the next transaction of the driver."""
        self._driver(driver).losses.append(LOSSES[what])

    def do_cut_off(self, driver: str) -> None:
        """cut-off d1: it cannot reach the metadata store."""
        self._driver(driver).cut_off = True

    def do_reconnect(self, driver: str) -> None:
        self._driver(driver).cut_off = False

    def do_die(self, driver: str) -> None:
        """die d1: the process is gone; another of the same name begins anew."""
        self._drivers.pop(driver)

    # -- commits ------------------------------------------------------------------------------

    def do_commit(self, *words: str) -> None:
        """commit d1 sink q transaction 7 segments 2+3 1: two segments; the first has two entries,
        of two and of three rows. ``and`` begins the words of another commit at the same time."""
        requests = [words]
        while "and" in requests[-1]:
            at = requests[-1].index("and")
            requests[-1:] = [requests[-1][:at], requests[-1][at + 1 :]]
        self._do(self._together(requests, overwrites=False))

    def do_overwrite(self, *words: str) -> None:
        """overwrite d1 ...: as ``commit``, and all rows before it leave the stream."""
        self._do(self._together([words], overwrites=True))

    async def _together(self, requests: list[tuple[str, ...]], *, overwrites: bool) -> None:
        await asyncio.gather(*(self._commit(words, overwrites) for words in requests))

    async def _commit(self, words: tuple[str, ...], overwrites: bool) -> None:
        driver, _sink, sink_id, _transaction, transaction, *rest = words
        assert (_sink, _transaction) == ("sink", "transaction"), words
        segments = [_segment(word) for word in rest[1:]]
        try:
            stream = await self._driver(driver).opened()
            commit = await stream.commit_segments(
                segments,
                sink_id=sink_id,
                transaction_id=int(transaction),
                run_id=driver,
                overwrite=overwrites,
            )
            told = ("commit " if commit.applied else "was done before, by commit ") + str(
                commit.number
            )
        except LedgerError as error:
            told = type(error).__name__
        self._told[driver] = told
        self._lines.append(f"{driver}: {told}")

    # -- looking ------------------------------------------------------------------------------

    def do_show(self) -> None:
        """show: what a reader that comes now finds."""
        self._lines.extend(self._do(self._shown()))

    async def _shown(self) -> list[str]:
        stream = await StreamCatalog(self._ledgers).open(NAME)
        head = await stream.head()
        lines = [_plain(commit) for commit in await stream.commits(0, head.next_commit)]
        start = "" if head.earliest == (0, 0, 0) else f", readable from segment {head.earliest[0]}"
        return [*lines, f"stream: {head.next_segment} segments, {head.rows} rows{start}"]

    def do_sink(self, sink_id: str) -> None:
        """sink q: the last transaction of a sink."""
        record = self._do(self._last(sink_id))
        told = "nothing" if record is None else f"transaction {record[1]} is commit {record[2]}"
        self._lines.append(f"sink {sink_id}: {told}")

    async def _last(self, sink_id: str) -> Any:
        stream = await StreamCatalog(self._ledgers).open(NAME)
        return await stream.last_transaction(sink_id)

    def do_expect(self, kind: str, *words: str) -> None:
        """expect told d1 commit 3; expect commits 4; expect rows 12; expect tries d1 2;
        expect start 2: rows of earlier segments are gone;
        expect in-order: commits and segments are numbered without a gap."""
        if kind == "told":
            assert self._told[words[0]] == " ".join(words[1:]), self._told[words[0]]
        elif kind == "tries":
            assert self._driver(words[0]).transactions == int(words[1])
        else:
            self._do(self._check_stream(kind, words))

    async def _check_stream(self, kind: str, words: tuple[str, ...]) -> None:
        stream = await StreamCatalog(self._ledgers).open(NAME)
        head = await stream.head()
        commits = await stream.commits(0, head.next_commit)
        segments = [segment for commit in commits for segment in commit.segments]
        if kind == "commits":
            assert len(commits) == int(words[0]), len(commits)
        elif kind == "start":
            assert head.earliest == (int(words[0]), 0, 0), head.earliest
        elif kind == "rows":
            assert sum(commit.rows for commit in commits) == head.rows == int(words[0]), head.rows
        else:
            assert kind == "in-order", f"no such expectation: {kind}"
            assert [commit.number for commit in commits] == list(range(head.next_commit))
            assert [segment.number for segment in segments] == list(range(head.next_segment))


def _segment(word: str) -> Segment:
    return loose(*(int(rows) for rows in word.split("+")))


def _plain(commit: Commit) -> str:
    segments = ranges_text(segment.number for segment in commit.segments)
    return (
        f"commit {commit.number}: sink {commit.sink_id} transaction {commit.transaction_id} "
        f"by {commit.run_id}, segments {segments}, {commit.rows} rows after {commit.rows_before}"
    )
