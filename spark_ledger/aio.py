"""The async face: the same client and streams for code that runs an asyncio loop.

    async with await spark_ledger.aio.connect("zk://127.0.0.1:2181/ledgers") as client:
        async with await client.create_ledger() as writer:
            await writer.append(b"payload")
        stream = await client.stream("flights")
        async for batch in stream.read(): ...

Handles belong to the loop that made them.
"""

from __future__ import annotations

from typing import Any

from spark_ledger.client.context import ClientContext
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.stream.stream import Stream
from spark_ledger.stream.streams import Streams


class StreamClient(LedgerClient):
    """A connection to a cluster: its ledgers and its streams."""

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        self.streams = Streams(self)
        """Creates, opens, lists and deletes streams."""

    async def create_stream(self, name: str, schema: Any, **options: Any) -> Stream:
        """Create a stream for rows of a ``pyarrow.Schema``. See ``Streams.create``."""
        return await self.streams.create(name, schema, **options)

    async def stream(self, name: str) -> Stream:
        """Open a stream. Raises NoSuchStreamError."""
        return await self.streams.open(name)

    async def list_streams(self) -> list[str]:
        """The names of all streams, sorted."""
        return await self.streams.names()

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and the ledgers that only it names. Raises NoSuchStreamError."""
        await self.streams.delete(name)


async def connect(uri: str, **options: Any) -> StreamClient:
    """Connect to the cluster whose metadata are at ``uri``. See ``LedgerClient.connect``."""
    return await StreamClient.connect(uri, **options)
