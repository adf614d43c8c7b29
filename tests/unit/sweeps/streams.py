"""Operations on streams: append, seal, read, follow, merge a schema, create, delete."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    LedgerError,
    NoSuchLedgerError,
    NoSuchStreamError,
)
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.model import Commit
from spark_ledger.stream.several import AppendedStreams
from spark_ledger.stream.stream import Stream
from spark_ledger.types import TAG_STREAM_ID
from tests.unit.spark_ledger.stream.world import small_manifests
from tests.unit.sweeps.base import Operation

SCHEMA = pa.schema([("n", pa.int64())])
WIDER = pa.schema([("n", pa.int64()), ("m", pa.int64())])


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)}, SCHEMA)


def numbers(batch: pa.RecordBatch) -> list[int]:
    return [int(str(n)) for n in batch.column("n").to_pylist()]


async def rows_of(stream: Stream) -> list[int]:
    return [n async for batch in stream.read() for n in numbers(batch)]


class OfAStream(Operation):
    """An operation on a stream that has the row 0."""

    async def prepare(self, client: LedgerClient) -> None:
        self.healthy = await StreamCatalog(client).create("s", SCHEMA)
        await self.healthy.append(rows(0))

    async def open(self, client: LedgerClient) -> None:
        self.stream = await StreamCatalog(client).open("s")

    async def meanwhile(self, client: LedgerClient) -> None:
        await self.healthy.append(rows(9))

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        with contextlib.suppress(LedgerError):  # its connection may be closed
            await self.stream.close()
        await self.healthy.close()


class AppendRows(OfAStream):
    """Append under a name: the same pair again changes nothing."""

    async def act(self, client: LedgerClient) -> Any:
        return await self.stream.append(rows(1), sink_id="q", transaction_id=1)

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        before = await rows_of(self.healthy)
        assert before in ([0, 9], [0, 9, 1])
        if isinstance(outcome, LedgerError):
            assert outcome.outcome_unknown or before == [0, 9], "it says that nothing happened"
        elif outcome is not None:
            assert before == [0, 9, 1]
        again = await self.healthy.append(rows(1), sink_id="q", transaction_id=1)
        assert again.applied is (before == [0, 9])
        assert await rows_of(self.healthy) == [0, 9, 1]
        await super().check(client, outcome)


class AppendRowsWithoutAName(OfAStream):
    """Append without a name."""

    async def act(self, client: LedgerClient) -> Any:
        return await self.stream.append(rows(1))

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        before = await rows_of(self.healthy)
        assert before in ([0, 9], [0, 9, 1])
        if isinstance(outcome, LedgerError):
            assert outcome.outcome_unknown or before == [0, 9], "it says that nothing happened"
        elif outcome is not None:
            assert before == [0, 9, 1]
        await super().check(client, outcome)


class AppendToTwoStreams(OfAStream):
    """Append to two streams in one transaction: both have the rows, or none has."""

    async def prepare(self, client: LedgerClient) -> None:
        await super().prepare(client)
        self.other = await StreamCatalog(client).create("t", SCHEMA)

    async def open(self, client: LedgerClient) -> None:
        await super().open(client)
        self.appended = AppendedStreams(StreamCatalog(client))

    async def act(self, client: LedgerClient) -> Any:
        return await self._append(self.appended)

    async def _append(self, appended: AppendedStreams) -> dict[str, Commit]:
        data = {"s": rows(1), "t": rows(2)}
        return await appended.append_to(data, sink_id="q", transaction_id=1)

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        before = [await rows_of(self.healthy), await rows_of(self.other)]
        assert before in ([[0, 9], []], [[0, 9, 1], [2]])
        is_done = before[1] == [2]
        if isinstance(outcome, LedgerError):
            assert outcome.outcome_unknown or not is_done, "it says that nothing happened"
        elif outcome is not None:
            assert is_done
        with contextlib.suppress(LedgerError):  # its connection may be closed
            await self.appended.close()
        again = AppendedStreams(StreamCatalog(client))
        found = await self._append(again)
        assert [commit.applied for commit in found.values()] == [not is_done] * 2
        await again.close()
        assert [await rows_of(self.healthy), await rows_of(self.other)] == [[0, 9, 1], [2]]
        await self.other.close()
        await super().check(client, outcome)


class AppendALongList(AppendRows):
    """The list of segments is kept in a ledger of its own."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 8)


class SealCommits(OfAStream):
    """Commits go into manifests while others are made, and pages are put above pages."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        small_manifests(monkeypatch)

    async def prepare(self, client: LedgerClient) -> None:
        await super().prepare(client)
        for number in (1, 2, 3):
            await self.healthy.append(rows(number))

    async def act(self, client: LedgerClient) -> Any:
        for number in (4, 5):
            await self.stream.append(rows(number), sink_id=f"q{number}", transaction_id=1)
        await self.stream._committer.sealer.close()
        return "made"

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.stream._committer.sealer.close()  # two that seal at once give way to each other
        for number in (4, 5):
            await self.healthy.append(rows(number), sink_id=f"q{number}", transaction_id=1)
        await self.healthy._committer.sealer.close()
        await self.healthy._committer.sealer.seal((await self.healthy.head()).next_commit)
        reader = await StreamCatalog(client).open("s")
        assert await rows_of(reader) == [0, 1, 2, 3, 9, 4, 5]
        assert [commit.number for commit in await reader.commits(0, 7)] == list(range(7))
        assert await reader.sealed_commits() == 6
        await reader.close()
        await super().check(client, outcome)


class ReadRows(OfAStream):
    """Read the rows."""

    async def act(self, client: LedgerClient) -> Any:
        return await rows_of(self.stream)

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, list) or outcome in ([0], [0, 9])
        await super().check(client, outcome)


class TailRows(OfAStream):
    """Follow a stream to which others append."""

    async def act(self, client: LedgerClient) -> Any:
        found: list[int] = []
        async for batch in self.stream.tail("earliest", idle_timeout=20.0):
            found += numbers(batch)
            if found[-1] > 7:
                await self.healthy.append(rows(found[-1] - 1))
        return found

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, list) or outcome == [0, 9, 8, 7]
        await super().check(client, outcome)


class MergeASchema(OfAStream):
    """Add a column."""

    async def act(self, client: LedgerClient) -> Any:
        return (await self.stream.merge_schema(WIDER)).names

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        config = await self.healthy.refresh()
        assert len(config.schemas) <= 2, "it is added once"
        if isinstance(outcome, list):
            assert outcome == config.schema.names == ["n", "m"]
        elif isinstance(outcome, LedgerError) and not outcome.outcome_unknown:
            assert len(config.schemas) == 1 or outcome.retryable
        assert (await self.healthy.merge_schema(WIDER)).names == ["n", "m"]
        assert len((await self.healthy.refresh()).schemas) == 2
        await super().check(client, outcome)


class CreateAStream(Operation):
    """Create a stream; the first one of the cluster."""

    async def act(self, client: LedgerClient) -> Any:
        return (await StreamCatalog(client).create("s", SCHEMA)).config.stream_id

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        stream = await StreamCatalog(client).create("s", SCHEMA, exist_ok=True)
        if isinstance(outcome, str):
            assert stream.config.stream_id == outcome
        await stream.append(rows(1))
        assert await rows_of(stream) == [1]
        await stream.close()


class DeleteAStream(OfAStream):
    """Delete a stream: a second deletion finishes it."""

    async def open(self, client: LedgerClient) -> None:
        """It is not opened."""

    async def act(self, client: LedgerClient) -> Any:
        await StreamCatalog(client).delete("s")
        return "deleted"

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.healthy.close()
        try:
            await StreamCatalog(client).delete("s")
            assert outcome != "deleted"
        except NoSuchStreamError:
            assert (
                not isinstance(outcome, LedgerError)
                or outcome.outcome_unknown
                or (isinstance(outcome, NoSuchStreamError) or outcome.retryable)
            )
        assert self.world.tree.children("streams") == []
        for ledger_id in await client.list_ledgers():
            try:
                tags = (await client.ledger_metadata(ledger_id)).custom_metadata
            except NoSuchLedgerError:
                continue
            assert TAG_STREAM_ID not in tags, "its ledgers are gone"
