"""The connector over real streams in memory: no Spark, and replies of the store that get lost."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar, cast

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructField, StructType

from connector import retry, sessions
from connector.options import ReadOptions, WriteOptions, read_options, write_options
from connector.read import stream_source
from connector.task_report import BATCH_ID_PROPERTY, QUERY_ID_PROPERTY, RUN_ID_PROPERTY
from connector.write import repeated, writers
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.errors import ConflictError
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.stream.blocking import Stream, StreamConnection
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.types import BookieId, BookieInfo
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions

T = TypeVar("T")

ROWS = StructType([StructField("a", LongType())])
WIDER = StructType([*ROWS.fields, StructField("b", LongType())])


class Clock:
    """Stands in for the module ``time`` of the retries: a pause moves it, and calls ``meanwhile``
    once."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.meanwhile: Callable[[], object] | None = None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


class _Client(FakeLedgers):
    async def close(self) -> None:
        await self.store.close()

    async def list_bookies(self) -> list[BookieInfo]:
        return [BookieInfo(BookieId(f"b{n}"), f"b{n}:1") for n in range(self.bookies)]


class Cluster:
    """One cluster. ``connections`` are those that the connector has made, in order."""

    def __init__(self) -> None:
        self._tree = MemoryTree()
        self._ledgers = FakeLedgers()
        self.connections: list[StreamConnection] = []
        self.settings: list[dict[str, object]] = []
        self.faults: list[tuple[str, Outcome]] = []
        """What happens to the connector's next operations: (name, outcome), in this order."""
        self.clock = Clock()
        self.bookies = 3
        self.outside = self._connect(MemoryMetadataStore(self._tree))
        """The connection of somebody else."""

    def connect(self, uri: str, **settings: object) -> StreamConnection:
        made = self._connect(MemoryMetadataStore(self._tree, interpose=self._interpose))
        self.connections.append(made)
        self.settings.append(settings)
        return made

    def _connect(self, store: MemoryMetadataStore) -> StreamConnection:
        client = _Client(store)
        client.bookies = self.bookies
        client.ledgers, client.writers = self._ledgers.ledgers, self._ledgers.writers
        return StreamConnection(BlockingPortal.get(), cast(LedgerClient, client))

    def _interpose(self, name: str, path: str) -> Fault:
        if self.faults and self.faults[0][0] == name:
            return Fault(self.faults.pop(0)[1])
        return Fault()

    def lose_the_next_commit_reply(self) -> None:
        """The next transaction takes effect; its reply is lost, and the store is away for the
        look-up behind it."""
        self.faults = [("transaction", Outcome.LOST_REPLY), ("get", Outcome.UNAVAILABLE)]

    def lose_the_next_commit_request(self) -> None:
        self.faults = [("transaction", Outcome.LOST_REQUEST), ("get", Outcome.UNAVAILABLE)]

    def stream(self, name: str = "s") -> Stream:
        """The stream that has the name now, as somebody else sees it."""
        return self.outside.stream(name)

    def create(self, *rows: int, name: str = "s") -> Stream:
        """A stream with one commit for each row; made again if it is there."""
        if name in self.outside.list_streams():
            self.outside.delete_stream(name)
        made = self.outside.create_stream(name, pa.schema({"a": pa.int64()}))
        for row in rows:
            made.append(table(row))
        return made

    def entries(self) -> int:
        """How many entries are stored, in all ledgers, in a commit or not."""
        return sum(len(ledger.payloads) for ledger in self._ledgers.ledgers.values())

    def give_back(self, name: str = "s") -> None:
        """Delete all that dropped commits named, and the pages that held them, as the keeper does.
        Their writers have closed their ledgers by then."""

        async def work() -> None:
            client = _Client(MemoryMetadataStore(self._tree))
            client.ledgers = self._ledgers.ledgers
            for ledger in client.ledgers.values():
                ledger.closed = True
            with contextlib.suppress(ConflictError):
                await client.store.create("keeper", b"")
            stream = await StreamCatalog(client).open(name)
            reclaimer = stream.retention.reclaimer(ClosedDeletions(client), LiveNames())
            while not (await reclaimer.step((await stream.head()).earliest_commit)).is_done:
                pass
            await stream.close()

        BlockingPortal.get().call(work())

    def restart(self) -> None:
        """The connector's processes end, and others begin: they know nothing."""
        sessions._SESSIONS.clear()
        repeated._FIRST_BATCH_OF_RUN.clear()

    def rows(self, name: str = "s") -> list[int]:
        return values(self.stream(name).read())


def table(*rows: int) -> pa.Table:
    return pa.table({"a": pa.array(rows, pa.int64())})


def values(batches: Iterator[Any]) -> list[int]:
    return [row for batch in batches for row in batch.column("a").to_pylist()]


def to_read(streaming: bool = True, /, **options: str) -> ReadOptions:
    one = {"stream": "s"} if options.keys().isdisjoint(["streams", "streamPattern"]) else {}
    return read_options({"metadata": "zk://h/l", **one, **options}, streaming=streaming)


def to_write(streaming: bool = False, /, **options: str) -> WriteOptions:
    return write_options({"metadata": "zk://h/l", "stream": "s", **options}, streaming=streaming)


def copied(value: T) -> T:
    """What another process gets of it."""
    return cast(T, pickle.loads(pickle.dumps(value)))


class Task:
    """Stands in for Spark's TaskContext; ``get`` gives the running task."""

    def __init__(
        self, partition: int = 0, attempt: int = 0, batch: int = 0, run: str = "r"
    ) -> None:
        properties = {QUERY_ID_PROPERTY: "q", BATCH_ID_PROPERTY: str(batch), RUN_ID_PROPERTY: run}
        self._task = SimpleNamespace(
            getLocalProperty=properties.get,
            partitionId=lambda: partition,
            attemptNumber=lambda: attempt,
        )

    def get(self) -> Any:
        return self._task


def batch_write(
    monkeypatch: pytest.MonkeyPatch,
    *partitions: Sequence[int],
    overwrite: bool = False,
    schema: StructType = ROWS,
    options: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """A batch write as Spark does it, up to its commit."""
    writer = writers.LedgerBatchWriter(to_write(**options), schema, overwrite=overwrite)
    messages: list[WriterCommitMessage | None] = []
    for number, rows in enumerate(partitions):
        monkeypatch.setattr(writers, "TaskContext", Task(partition=number))
        batches = iter(table(*rows).to_batches())
        messages.append(copied(writer).write(batches))
        assert next(batches, None) is None, "Spark ends a task that leaves some of its input"
    copied(writer).commit(copied(messages))


def micro_batch(
    monkeypatch: pytest.MonkeyPatch, number: int, *rows: int, run: str = "r", **options: str
) -> None:
    """One micro-batch of a streaming query as Spark does it."""
    writer = writers.LedgerStreamWriter(to_write(True, **options), ROWS, overwrite=False)
    monkeypatch.setattr(writers, "TaskContext", Task(batch=number, run=run))
    message = copied(writer).write(iter(table(*rows).to_batches()))
    copied(writer).commit(copied([message]), number)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster, and no connection of an earlier test."""
    made = Cluster()
    monkeypatch.setattr(StreamConnection, "connect", made.connect)
    monkeypatch.setattr(retry, "time", made.clock)
    monkeypatch.setattr(stream_source, "POLL_WAIT_S", 0.001)
    monkeypatch.setattr(sessions, "_SESSIONS", {})
    monkeypatch.setattr(sessions, "_INHERITED", [])
    monkeypatch.setattr(sessions, "_owner_pid", 0)
    monkeypatch.setattr(repeated, "_FIRST_BATCH_OF_RUN", {})
    yield made
    for connection in [*made.connections, made.outside]:
        connection.close()
