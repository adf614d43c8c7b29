"""Segments name exactly the rows written, and only confirmed entries, whatever fails."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    ConfigurationError,
    EntryTooLargeError,
    FencedError,
    LedgerClosedError,
    LedgerError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
)
from spark_ledger.limits import KIB
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format.entries import EntryDecoder
from spark_ledger.stream.model import UNPLACED, Segment
from spark_ledger.stream.segment_writer import SegmentWriter, as_batches
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Quorums
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeWriter
from tests.unit.spark_ledger.stream.world import SCHEMA, run, table


async def new_stream(ledgers: FakeLedgers, **config: Any) -> Stream:
    return await StreamCatalog(ledgers).create("s", SCHEMA, entry_bytes=KIB, **config)


def rows_of(ledgers: FakeLedgers, stream: Stream, segments: list[Segment]) -> list[int]:
    rows: list[int] = []
    for segment in segments:
        payloads = ledgers.ledgers[segment.ledger_id].payloads
        part = payloads[segment.first_entry : segment.last_entry + 1]
        assert segment.size_bytes == sum(map(len, part))
        schema = stream.config.schemas[segment.schema_version]
        batches = [EntryDecoder(schema).decode(payload, "e") for payload in part]
        assert tuple(batch.num_rows for batch in batches) == segment.entry_rows
        rows += [n for batch in batches for n in batch.column("n").to_pylist() if n is not None]
    return rows


def test_a_micro_batch_becomes_one_segment_and_the_ledger_is_kept() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        assert await writer.write(table(0, 200)) == 200
        assert await writer.write([table(200, 5).to_batches()[0], table(205, 5)]) == 10
        (first,) = await writer.finish()
        await writer.write(table(300, 3))
        (second,) = await writer.finish()
        assert rows_of(ledgers, stream, [first]) == list(range(210))
        assert rows_of(ledgers, stream, [second]) == [300, 301, 302]
        assert first.entries > 3
        assert first.number == second.number == UNPLACED
        assert second.ledger_id == first.ledger_id
        assert second.first_entry == first.last_entry + 1
        assert len(ledgers.ledgers) == 1
        assert ledgers.room_waits == ledgers.appends, "back-pressure is asked for at every append"
        tags = ledgers.ledgers[first.ledger_id].metadata.custom_metadata
        assert tags == {
            "stream": "s",
            "stream_id": stream.config.stream_id,
            "purpose": "segments",
        }
        await writer.close()
        assert ledgers.ledgers[first.ledger_id].closed

    run(scenario())


def test_no_rows_make_no_entry_and_no_ledger() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        assert await writer.finish() == []
        assert await writer.write(table(0, 0)) == 0
        assert await writer.write([]) == 0
        assert await writer.finish() == []
        assert ledgers.ledgers == {}
        await writer.close()

    run(scenario())


def test_appends_are_pipelined_and_segments_wait_for_the_last_confirmation() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0, 500))
        finishing = asyncio.ensure_future(writer.finish())
        while ledgers.appends < 5:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert not finishing.done(), "nothing is confirmed yet"
        ledgers.writers[0].deliver()
        assert rows_of(ledgers, stream, await finishing) == list(range(500))

    run(scenario())


def test_a_large_ledger_is_replaced_in_the_middle_and_closed() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers, segment_roll_bytes=4 * KIB)
        writer = stream.writer(compression="none")
        await writer.write(table(0, 600))
        segments = await writer.finish()
        assert len(segments) > 2
        assert rows_of(ledgers, stream, segments) == list(range(600))
        for ledger_id in [segment.ledger_id for segment in segments[:-1]]:
            stored = ledgers.ledgers[ledger_id]
            assert sum(map(len, stored.payloads)) <= 4 * KIB
        await writer.close()
        assert all(ledger.closed for ledger in ledgers.ledgers.values())

    run(scenario())


def test_an_old_ledger_is_replaced() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers, segment_roll_age_s=60.0)
        now_s = [0.0]
        writer = SegmentWriter(ledgers, stream._schemas, clock=lambda: now_s[0])
        used = []
        for now_s[0] in (0.0, 59.0, 60.0, 61.0):
            await writer.write(table(0))
            used.append((await writer.finish())[0].ledger_id)
        assert used == [used[0], used[0], used[2], used[2]]
        assert used[0] != used[2]

    run(scenario())


def test_after_a_failed_append_a_new_ledger_takes_the_repetition() -> None:
    async def scenario() -> None:
        for error in (FencedError("taken"), NotEnoughBookiesError("too few")):
            ledgers = FakeLedgers()
            stream = await new_stream(ledgers)
            writer = stream.writer()
            await writer.write(table(0, 300))
            good = await writer.finish()
            ledgers.append_error, ledgers.fail_append_at = error, ledgers.appends + 2
            with pytest.raises(type(error)):
                await writer.write(table(300, 300))
                await writer.finish()
            writer.abandon()
            await writer.write(table(300, 300))
            again = await writer.finish()
            assert rows_of(ledgers, stream, good + again) == list(range(600))
            assert again[0].ledger_id != good[0].ledger_id
            await writer.close()

    run(scenario())


def test_a_failure_of_the_last_append_fails_finish_and_nothing_else() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        ledgers.append_error, ledgers.fail_append_at = FencedError("taken"), 1
        await writer.write(table(0))
        with pytest.raises(FencedError):
            await writer.finish()
        await writer.write(table(0))
        assert rows_of(ledgers, stream, await writer.finish()) == [0]
        await writer.close()

    run(scenario())


def test_a_ledger_closed_by_others_between_micro_batches_is_replaced() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0))
        (first,) = await writer.finish()
        ledgers.ledgers[first.ledger_id].closed = True
        await writer.write(table(1))
        (second,) = await writer.finish()
        assert second.ledger_id != first.ledger_id

    run(scenario())


def test_a_cancelled_finish_cancels_no_append() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        writer = (await new_stream(ledgers)).writer()
        await writer.write(table(0))
        finishing = asyncio.ensure_future(writer.finish())
        while not ledgers.appends:
            await asyncio.sleep(0)
        finishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await finishing
        assert not ledgers.writers[0]._held[0][0].cancelled()
        ledgers.writers[0].deliver()

    run(scenario())


def test_a_change_of_schema_starts_a_new_segment() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer(merge_schema=True)
        await writer.write(table(0, 3))
        await writer.write(table(3, 2).append_column("extra", pa.array([1.5, 2.5])))
        segments = await writer.finish()
        assert [segment.schema_version for segment in segments] == [0, 1]
        assert stream.config.schema_version == 0, "the commit adds it"
        segments = list((await stream.commit_segments(segments)).segments)
        assert rows_of(ledgers, stream, segments) == [0, 1, 2, 3, 4]

    run(scenario())


def test_a_row_too_large_is_named() -> None:
    async def scenario() -> None:
        writer = (await new_stream(FakeLedgers())).writer(compression="none")
        texts = ["x", "y" * (ENTRY_PAYLOAD_BYTES_MAX + 1), "z"]
        with pytest.raises(EntryTooLargeError, match="row 1 "):
            await writer.write(pa.table({"n": [0, 1, 2], "text": texts}))

    run(scenario())


def test_data_of_other_kinds_are_refused() -> None:
    wrong: list[Any] = [5, "text", {"n": [1]}, [1], [[table(0)]]]
    for data in wrong:
        with pytest.raises(ConfigurationError, match="pyarrow"):
            list(as_batches(data))


@pytest.mark.parametrize(
    ("error", "is_closed_later"),
    [
        (MetadataUnavailableError("no ZooKeeper"), True),
        (OutcomeUnknownError("no reply"), True),
        (FencedError("another client has it"), False),
        (AddOutcomeUnknownError("metadata put refused"), True),
    ],
)
def test_ledger_that_cannot_be_closed_is_closed_later_unless_that_is_up_to_others(
    error: LedgerError, is_closed_later: bool
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        await writer.write(table(0))
        assert await writer.finish()
        ledgers.writers[0]._failed = error
        await writer.close()
        await writer.close()
        assert ledgers.closed_later == [ledgers.writers[0].ledger_id] * is_closed_later

    run(scenario())


def test_a_ledger_is_filled_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        probe = FakeLedgers()
        writer = (await new_stream(probe)).writer(compression="none")
        await writer.write(table(0))
        size_bytes = (await writer.finish())[0].size_bytes
        for room, per_ledger in ((3 * size_bytes, 3), (3 * size_bytes - 1, 2)):
            ledgers = FakeLedgers()
            stream = await new_stream(ledgers, segment_roll_bytes=max(room, KIB))
            object.__setattr__(stream._schemas.config, "segment_roll_bytes", room)
            writer = stream.writer(compression="none")
            for n in range(7):
                await writer.write(table(n % 10))
                await writer.finish()
            counts = [len(ledger.payloads) for ledger in ledgers.ledgers.values()]
            assert counts[:2] == [per_ledger] * 2, "each ledger begins with nothing in it"
            await writer.close()

    run(scenario())


def test_the_age_of_a_ledger_counts_from_its_creation() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers, segment_roll_age_s=10.0)
        now_s = [0.0]
        writer = SegmentWriter(ledgers, stream._schemas, clock=lambda: now_s[0])
        used = []
        for now_s[0] in (100.0, 105.0, 109.9, 110.0, 119.9, 120.0):
            await writer.write(table(0))
            used.append((await writer.finish())[0].ledger_id)
        assert used == [100, 100, 100, 101, 101, 102]
        await writer.close()

    run(scenario())


def test_ledgers_have_the_streams_quorums() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers, ensemble_size=4, write_quorum=2, ack_quorum=1)
        writer = stream.writer()
        assert writer.ledger_id is None
        await writer.write(table(0))
        (segment,) = await writer.finish()
        assert writer.ledger_id == segment.ledger_id
        assert ledgers.ledgers[segment.ledger_id].metadata.quorums == Quorums(4, 2, 1)
        await writer.close()
        assert writer.ledger_id is None

    run(scenario())


def test_a_failure_in_an_older_ledger_leaves_the_present_one_alone() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0))
        first = await writer.seal()
        ledgers.ledgers[100].closed = True  # as when it was rolled: the next goes elsewhere
        await writer.write(table(1))
        second = await writer.seal()
        ledgers.writers[0]._failed = FencedError("taken")
        for held in ledgers.writers:
            held.deliver()
        with pytest.raises(FencedError):
            await first.confirm()
        assert writer.ledger_id == 101, "nothing failed there"
        assert [segment.ledger_id for segment in await second.confirm()] == [101]
        await writer.close()

    run(scenario())


def test_an_append_that_is_refused_fails_its_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0))
        first = await writer.finish()
        inner = FakeWriter.wait_for_room

        async def closed_meanwhile(self: FakeWriter) -> None:
            await inner(self)
            ledgers.ledgers[100].closed = True

        monkeypatch.setattr(FakeWriter, "wait_for_room", closed_meanwhile)
        await writer.write(table(1))
        with pytest.raises(LedgerClosedError):
            await writer.finish()
        await writer.write(table(1))
        second = await writer.finish()
        assert rows_of(ledgers, stream, first + second) == [0, 1]
        await writer.close()

    run(scenario())


def test_a_ledger_that_was_replaced_is_closed_once_its_appends_are_decided() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await new_stream(ledgers, segment_roll_age_s=60.0)
        now_s = [0.0]
        writer = SegmentWriter(ledgers, stream._schemas, clock=lambda: now_s[0])
        await writer.write(table(0))
        first = await writer.seal()
        now_s[0] = 60.0
        await writer.write(table(1))
        await writer.seal()
        await asyncio.sleep(0.01)
        assert not ledgers.ledgers[100].closed, "its append would fail"
        for held in ledgers.writers:
            held.deliver()
        assert rows_of(ledgers, stream, await first.confirm()) == [0]
        await writer.close()
        assert ledgers.ledgers[100].closed

    run(scenario())


def test_write_after_failed_append_raises_the_first_failure() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        writer = (await new_stream(ledgers)).writer()
        await writer.write(table(0, 300))
        pending = await writer.seal()
        (first, _), *others = ledgers.writers[0]._held
        first.set_exception(FencedError("taken"))
        for other, _ in others:
            other.set_exception(OutcomeUnknownError("behind it"))
        with pytest.raises(FencedError):
            await pending.confirm()
        await writer.write(table(0, 300))
        (first, _), *others = ledgers.writers[1]._held
        first.set_exception(FencedError("taken again"))
        with pytest.raises(FencedError, match="again"):
            await writer.write(table(300, 300))
        for other, _ in others:
            other.set_exception(OutcomeUnknownError("behind it"))
        await writer.close()

    run(scenario())


def test_a_ledger_to_which_nothing_was_pushed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()

        async def no_room(_self: FakeWriter) -> None:
            raise NotEnoughBookiesError("too few")

        monkeypatch.setattr(FakeWriter, "wait_for_room", no_room)
        with pytest.raises(NotEnoughBookiesError):
            await writer.write(table(0, 300))
            await writer.finish()
        await writer.close()
        assert ledgers.ledgers[100].closed

    run(scenario())


def test_failed_appends_are_not_reported_as_unhandled() -> None:
    """asyncio reports a failure that nobody looked at, once its future is gone."""
    reported: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0, 300))
        pending = await writer.seal()
        assert ledgers.appends > 2
        ledgers.writers[0]._failed = FencedError("taken")
        ledgers.writers[0].deliver()
        with pytest.raises(FencedError):
            await pending.confirm()
        writer.abandon()

    run(scenario())
    gc.collect()
    assert not reported


@pytest.mark.parametrize("which", [0, 1, 2])
def test_append_cancelled_with_its_ledger_is_not_stored(which: int) -> None:
    """Whoever cancels a future of a ledger: the segment does not name the entry as confirmed."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write([table(0, 100), table(100, 100), table(200, 100)])
        pending = await writer.seal()
        (ledger,) = ledgers.writers
        assert len(ledger._held) >= 3
        future, _ = ledger._held.pop(which)
        future.cancel()
        ledger.deliver()
        with pytest.raises((OutcomeUnknownError, asyncio.CancelledError)):
            await pending.confirm()
        ledgers.hold = False
        await writer.write(table(300))
        assert rows_of(ledgers, stream, await writer.finish()) == [300]

    run(scenario())
