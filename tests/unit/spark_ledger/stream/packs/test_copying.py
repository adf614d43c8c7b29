"""How a pack is made: of how many bytes, how it is stored, who is told, and when it is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import RetryableError
from spark_ledger.stream import model as stream_model
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.format.entries import read_header
from spark_ledger.stream.model import Commit, Compression, Retention
from spark_ledger.stream.packs import model, optimizer, store
from spark_ledger.stream.packs.model import Packs
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId, Quorums, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import (
    optimize,
    packs_of,
    planned,
    read,
    values,
    write,
    written,
)
from tests.unit.spark_ledger.stream.world import SCHEMA, another, run, table


async def stream_of(ledgers: FakeLedgers, commits: int, **options: Any) -> Stream:
    """As ``written``, with options of the stream."""
    await ledgers.store.create("keeper", b"")
    stream = await StreamCatalog(ledgers).create("s", SCHEMA, **options)
    await write(stream, range(commits))
    return stream


def test_packs_are_no_larger_than_ledgers_of_a_stream_that_keeps_few_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was dropped of a pack lies on the disk until all of it was."""
    size = 16 * 1024
    monkeypatch.setattr(stream_model, "LEDGER_BYTES_LEAST", 0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        kept = Retention(size_bytes=32 * size)
        stream = await stream_of(ledgers, 40, entry_bytes=size, retention=kept)
        of_commit = (await stream.commit(0)).size_bytes
        packs = [each.pack for each in await optimize(stream)]
        assert len(packs) > 1
        for pack in packs:
            assert pack is not None and (pack.end - pack.first - 2) * of_commit < size

    run(scenario())


def test_dry_run_of_several_packs_writes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "PACK_COMMITS_MAX", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        before = set(ledgers.ledgers)
        found = await stream.optimizer.run_all(entries_min=1, dry_run=True)
        assert [(each.first, each.commits, each.pack) for each in found] == [
            (0, 2, None),
            (2, 2, None),
            (4, 2, None),
        ]
        assert set(ledgers.ledgers) == before and not stream.config.has_packs

    run(scenario())


def test_pack_is_stored_as_the_stream_says() -> None:
    sizes = {"ensemble_size": 5, "write_quorum": 4, "ack_quorum": 3}

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await stream_of(ledgers, 4, **sizes, compression=Compression.ZSTD)
        (packed,) = await optimize(stream)
        assert packed.pack is not None
        made = ledgers.ledgers[packed.pack.ledger_id]
        assert made.metadata.quorums == Quorums(5, 4, 3)
        assert read_header(made.payloads[0], "entry").compression == 2

    run(scenario())


def test_copy_is_paced_by_bytes_and_tells_how_far_it_is() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await stream_of(ledgers, 0)
        for n in range(60):
            await stream.append(table(90 * n, 90))
        paced: list[int] = []
        appended: list[int] = []
        told: list[tuple[int, int]] = []
        waits, appends = ledgers.room_waits, ledgers.appends

        async def pace(size_bytes: int) -> None:
            paced.append(size_bytes)
            appended.append(ledgers.appends - appends)

        def progress(rows: int, total: int) -> None:
            told.append((rows, total))

        (packed,) = await stream.optimizer.run_all(
            entry_bytes=1 << 16, entries_min=1, pace=pace, progress=progress
        )
        assert packed.pack is not None and packed.pack.entries > 1
        payloads = ledgers.ledgers[packed.pack.ledger_id].payloads
        assert paced == [len(each) for each in payloads[:-1]], "all but the index"
        assert appended == list(range(len(paced))), "before the entry is appended"
        assert ledgers.room_waits - waits == len(payloads), "and no more of it than has room"
        assert packed.pack.size_bytes == sum(paced)
        assert packed.size_bytes > packed.pack.size_bytes, "of the former entries"
        assert told[0][0] < told[-1][0] and told[-1] == (5400, 5400)
        assert told == sorted(told) and {total for _, total in told} == {5400}

    run(scenario())


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_commits_are_packed_once_however_many_are_looked_up_at_a_time(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer, "_COMMITS_AT_ONCE", at_once)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        (packed,) = await optimize(stream)
        assert (packed.first, packed.commits, packed.rows) == (0, 6, 12)
        assert values(await read(stream, await planned(stream))) == list(range(12))

    run(scenario())


def test_handle_that_made_a_pack_reads_from_it() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        assert values(await read(stream, await planned(stream))) == list(range(12))
        (packed,) = await optimize(stream)
        assert packed.pack is not None
        ledgers.reads.clear()
        assert values(await read(stream, await planned(stream))) == list(range(12))
        assert {ledger_id for ledger_id, *_ in ledgers.reads} == {packed.pack.ledger_id}

    run(scenario())


def test_ledger_that_is_about_to_be_deleted_is_made_no_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An audit lists it in the configuration, between any two steps of its naming (rule K9)."""
    monkeypatch.setattr(optimizer, "_NAME_ATTEMPTS", 3)
    monkeypatch.setattr(optimizer, "_NAME_DELAY_S", 0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await stream.retention.allow_packs()
        look, made = stream._reader.packs.read, set(ledgers.ledgers)

        async def listed_meanwhile() -> Versioned[Packs]:
            found = await look()
            new = [LedgerId(each) for each in set(ledgers.ledgers) - made]
            if new and not stream.config.dropping:
                config = await another(ledgers)[1].open("s")
                await config.refresh()
                after = replace(config.config, dropping=tuple(new))
                assert await config.retention._replace_config(after)
            return found

        monkeypatch.setattr(stream._reader.packs, "read", listed_meanwhile)
        with pytest.raises(RetryableError, match="keep changing"):
            await optimize(stream)
        assert not packs_of(ledgers).packs

    run(scenario())


def test_indexes_that_are_kept_are_those_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "INDEXES_KEPT", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 0)
        for n in range(3):
            await write(stream, range(n, n + 1))
            await optimize(stream)
        first, second, third = packs_of(ledgers).packs
        indexes = (await another(ledgers)[1].open("s"))._reader.packs
        other = indexes._ledgers
        assert isinstance(other, FakeLedgers)
        for pack in (first, second, first, third, first, third, second):
            await indexes.index(pack, stream.config.stream_id)
        assert [ledger_id for ledger_id, *_ in other.reads] == [
            each.ledger_id for each in (first, second, third, second)
        ]

    run(scenario())


def test_pack_of_commits_of_two_versions_has_the_version_of_each_entry() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 2)
        wider = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
        for n in range(4, 6):
            rows = pa.table({"n": [n], "text": ["t"], "more": [n]}, schema=wider)
            await stream.append(rows, merge_schema=True)
        (packed,) = await optimize(stream)
        assert packed.pack is not None
        index = await stream._reader.packs.index(packed.pack, stream.config.stream_id)
        assert (index.entry_rows, index.versions) == ((4, 2), (0, 1))
        assert values(await read(stream, await planned(stream))) == list(range(6))

    run(scenario())


@pytest.mark.parametrize("sizes", [(1,) * 12, (1, 1, 1, 9, 1, 2, 2, 7, 1, 1, 1, 1), (6, 6, 6, 6)])
def test_commits_are_looked_up_by_the_number_of_their_segments(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper looks, beside a bookie, at whatever was committed to the stream."""
    monkeypatch.setattr(optimizer, "_SEGMENTS_AT_ONCE", 5)
    inner, found = CommitLog.range, list[list[int]]()

    async def noted(log: CommitLog, first: int, end: int) -> list[Commit]:
        commits = await inner(log, first, end)
        found.append([len(each.segments) for each in commits])
        return commits

    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        writer = stream.writer()
        for size in sizes:
            segments = []
            for _ in range(size):
                await writer.write(table(0))
                segments += await writer.finish()
            await stream.commit_segments(segments)
        await writer.close()
        monkeypatch.setattr(CommitLog, "range", noted)
        found.clear()
        (packed,) = await stream.optimizer.run_all(entries_min=1, dry_run=True)
        assert (packed.commits, packed.segments) == (len(sizes), sum(sizes))
        assert tuple(size for part in found for size in part) == sizes
        assert all(sum(part) <= 5 or len(part) == 1 for part in found)

    run(scenario())
