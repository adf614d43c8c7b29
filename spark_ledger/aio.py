"""The asyncio client: the same ledgers and streams for code that runs an asyncio loop.

    async with spark_ledger.aio.connect("zk://127.0.0.1:2181/ledgers") as client:
        async with client.create_ledger() as writer:
            await writer.append(b"payload")
        stream = await client.stream("flights")
        async for batch in stream.read(): ...

What opens something may be awaited as well: ``client = await spark_ledger.aio.connect(uri)``.
Handles belong to the loop that made them.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, Protocol, TypeVar

from spark_ledger.client.context import ClientContext
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format.arrow_types import ArrowSchema, AsyncRows
from spark_ledger.stream.model import Commit
from spark_ledger.stream.several import AppendedStreams
from spark_ledger.stream.stream import Stream


class _Handle(Protocol):
    """What can stand in an ``async with``."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


HandleT = TypeVar("HandleT", bound=_Handle)


class Opening(Coroutine[object, object, HandleT]):
    """A handle to come: ``await`` it, or enter it with ``async with``, which closes it again."""

    __slots__ = ("_handle", "_work")

    def __init__(self, work: Coroutine[object, object, HandleT]) -> None:
        self._work = work
        self._handle: HandleT | None = None

    def send(self, value: object, /) -> object:
        return self._work.send(value)

    def throw(self, *error: Any) -> object:  # Any: typeshed gives it as overloads
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[object, object, HandleT]:
        return self._work.__await__()

    async def __aenter__(self) -> HandleT:
        self._handle = await self._work
        return self._handle

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._handle is not None, "entered before it is left"
        await self._handle.__aexit__(kind, error, traceback)


class StreamClient(LedgerClient):
    """A connection to a cluster: its ledgers and its streams."""

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        self.streams = StreamCatalog(self)
        """Creates, opens, lists and deletes streams."""
        self._appended = AppendedStreams(self.streams)

    async def close(self) -> None:
        """Close the streams that ``append_to`` has opened, then the connection. Idempotent."""
        try:
            await self._appended.close()
        finally:  # also for a caller that leaves: else its session goes on
            await super().close()

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        password: bytes = b"",
        custom_metadata: Mapping[str, str] | None = None,
        until_named: bool = False,
    ) -> Opening[LedgerWriter]:
        """Create a ledger; its only writer. See ``LedgerClient.create_ledger``."""
        return Opening(
            super().create_ledger(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=password,
                custom_metadata=custom_metadata,
                until_named=until_named,
            )
        )

    # Any: the keyword arguments of StreamCatalog.create, which names and checks them.
    async def create_stream(self, name: str, schema: ArrowSchema, **options: Any) -> Stream:
        """Create a stream for rows of a ``pyarrow.Schema``. See ``StreamCatalog.create``."""
        return await self.streams.create(name, schema, **options)

    async def stream(self, name: str) -> Stream:
        """Open a stream. Raises NoSuchStreamError."""
        return await self.streams.open(name)

    async def append_to(
        self,
        data: Mapping[str, AsyncRows],
        *,
        sink_id: str | None = None,
        transaction_id: int | None = None,
        run_id: str = "",
        merge_schema: bool = False,
    ) -> dict[str, Commit]:
        """Append rows to several streams by name: all of them have theirs, or none. See
        ``AppendedStreams.append_to``."""
        return await self._appended.append_to(
            data,
            sink_id=sink_id,
            transaction_id=transaction_id,
            run_id=run_id,
            merge_schema=merge_schema,
        )

    async def list_streams(self) -> list[str]:
        """The names of all streams, sorted."""
        return await self.streams.names()

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and the ledgers that only it names. Raises NoSuchStreamError."""
        await self.streams.delete(name)


def connect(uri: str, **options: object) -> Opening[StreamClient]:
    """Connect to the cluster whose metadata are at ``uri``. See ``LedgerClient.connect``."""
    return Opening(StreamClient.connect(uri, **options))
