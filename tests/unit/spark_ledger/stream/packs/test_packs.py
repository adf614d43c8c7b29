"""What packs promise: the same rows from fewer entries, for every reader, and no ledger too few."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError, CorruptionError, DataLossError, LedgerError
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.model import Retention, SegmentRange
from spark_ledger.stream.packs import optimizer, store
from spark_ledger.stream.packs.format import decode_packs, encode_packs
from spark_ledger.stream.packs.model import Choice, Chooser, Pack, Packs
from spark_ledger.stream.packs.optimizer import Packed
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.names import count_ledgers
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions, looked_before
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, run, table

COMMITS = 6
TASKS = 2


async def written(ledgers: FakeLedgers, commits: int = COMMITS) -> Stream:
    """A stream whose commits have one row of each of two tasks, which have ended."""
    await ledgers.store.create("keeper", b"")
    stream = await StreamCatalog(ledgers).create("s", SCHEMA)
    await write(stream, range(commits))
    return stream


async def write(stream: Stream, numbers: range, *, close: bool = True) -> None:
    writers = [stream.writer() for _ in range(TASKS)]
    for n in numbers:
        segments = []
        for task, writer in enumerate(writers):
            await writer.write(table(TASKS * n + task))
            segments += await writer.finish()
        await stream.commit_segments(segments)
    for writer in writers if close else []:
        await writer.close()


async def optimize(stream: Stream, entries_min: int = 1) -> list[Packed]:
    return [packed async for packed in stream.optimizer.run(entries_min=entries_min)]


async def planned(stream: Stream) -> list[SegmentRange]:
    head = await stream.head()
    commits = await stream.commits(head.earliest_commit, head.next_commit)
    return ranges_between(commits, head.earliest, head.end)


async def read(stream: Stream, ranges: list[SegmentRange]) -> list[PositionedBatch]:
    return [each async for each in stream.read_ranges(ranges)]


def values(batches: list[PositionedBatch]) -> list[Any]:
    return [n for each in batches for n in each.batch.column("n").to_pylist()]


async def freed(stream: Stream, ledgers: FakeLedgers, upto: int = 0) -> None:
    """A keeper's sweep."""
    reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
    if upto:
        await reclaimer.step(upto)
    await reclaimer.free_packed()


def packs_of(ledgers: FakeLedgers) -> Packs:
    path = "streams/s/packs"
    return decode_packs(ledgers.store.tree.get(path).value, path)


def test_optimized_stream_is_read_from_one_entry_with_the_same_positions() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        ranges = await planned(stream)
        before = await read(stream, ranges)
        (packed,) = await optimize(stream)
        assert packed.pack is not None
        assert (packed.commits, packed.former_entries, packed.pack.entries) == (6, 12, 1)
        fresh = await another(ledgers)[1].open("s")
        other = fresh._ledgers
        assert isinstance(other, FakeLedgers)
        after = await read(fresh, ranges)
        assert [each[:-1] for each in after] == [each[:-1] for each in before]
        assert values(after) == values(before) == list(range(12))
        ledger_id = packed.pack.ledger_id
        assert other.reads == [(ledger_id, 1, 1), (ledger_id, 0, 0)], "the index, and the entry"
        middle = [each for each in ranges if 3 <= each.segment.number < 7]
        assert values(await read(fresh, middle)) == [3, 4, 5, 6]

    run(scenario())


def test_reader_of_a_plan_of_before_goes_on_in_the_pack_when_former_ledgers_are_gone() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        reader = await another(ledgers)[1].open("s")
        ranges = await planned(reader)
        assert len(await read(reader, ranges[:3])) == 3, "it has former ledgers open"
        await optimize(stream)
        await freed(stream, ledgers)
        left = {each.segment.ledger_id for each in ranges} & set(ledgers.ledgers)
        assert not left, "former ledgers are deleted"
        assert values(await read(reader, ranges)) == list(range(12))
        assert packs_of(ledgers).packs[0].is_freed

    run(scenario())


def test_reader_in_the_middle_of_a_former_ledger_goes_on_where_it_was() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for n in range(40):
            await stream.append(table(n))
        await stream.close()
        await optimize(stream)
        reader = await another(ledgers)[1].open("s")
        looked_before(reader)
        ledgers.entries_per_chunk = reader._ledgers.entries_per_chunk = 2  # type: ignore[attr-defined]
        chunks = reader.read_range_chunks(await planned(reader))
        found = await anext(chunks)
        await freed(stream, ledgers)
        found += [each async for chunk in chunks for each in chunk]
        assert values(found) == list(range(40))

    run(scenario())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_pack_whose_transaction_is_in_doubt_is_named_once(outcome: Outcome) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await written(ledgers)
        other, streams = another(ledgers)
        other.store.interpose = Faults([Outcome.NORMAL, outcome])
        (packed,) = await optimize(await streams.open("s"))
        assert [packed.pack] == list(packs_of(ledgers).packs)
        assert packed.pack is not None and packed.pack.ledger_id in ledgers.ledgers

    run(scenario())


def test_two_optimizers_at_once_make_one_pack_and_leave_no_ledger() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await written(ledgers)
        before = set(ledgers.ledgers)
        streams = [await another(ledgers)[1].open("s") for _ in range(2)]
        done = await asyncio.gather(*map(optimize, streams))
        packs = packs_of(ledgers).packs
        made = [each.pack for packed in done for each in packed if each.pack is not None]
        assert made == list(packs) and len(packs) == 1
        assert set(ledgers.ledgers) - before == {packs[0].ledger_id}

    run(scenario())


def test_former_ledger_stays_while_a_commit_outside_of_packs_names_it() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 0)
        writer = stream.writer()
        for n in range(4):
            await writer.write(table(n))
            await stream.commit_segments(await writer.finish())
        await optimize(stream)
        ledger_id = writer.ledger_id
        await freed(stream, ledgers)
        assert ledger_id in ledgers.ledgers, "its writer has it open"
        assert not packs_of(ledgers).packs[0].is_freed, "so it is looked at again"
        await writer.write(table(4))
        await stream.commit_segments(await writer.finish())
        await writer.close()
        await freed(stream, ledgers)
        assert ledger_id in ledgers.ledgers and packs_of(ledgers).packs[0].is_freed
        fresh = await another(ledgers)[1].open("s")
        assert values(await read(fresh, await planned(fresh))) == list(range(5))
        await optimize(stream)
        await freed(stream, ledgers)
        assert ledger_id not in ledgers.ledgers, "the later pack found it"
        assert values(await read(fresh, await planned(fresh))) == list(range(5))

    run(scenario())


def test_pack_goes_when_all_of_its_commits_were_dropped_and_not_before() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        (pack,) = packs_of(ledgers).packs
        await stream.retention.truncate((6, 0, 0))
        await freed(stream, ledgers, 3)
        assert pack.ledger_id in ledgers.ledgers
        fresh = await another(ledgers)[1].open("s")
        ranges = await planned(fresh)
        assert values(await read(fresh, ranges)) == list(range(6, 12))
        await write(stream, range(6, 7))
        await stream.retention.truncate((12, 0, 0))
        await freed(stream, ledgers, 6)
        assert pack.ledger_id not in ledgers.ledgers and not packs_of(ledgers).packs
        with pytest.raises(DataLossError, match="truncated while it was read"):
            await read(fresh, ranges)
        assert values(await read(stream, await planned(stream))) == [12, 13]

    run(scenario())


def test_commits_of_two_schema_versions_are_packed_into_entries_of_one_each() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 2)
        wider = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
        rows = pa.table({"n": [4], "text": ["4"], "more": [44]}, schema=wider)
        await stream.append(rows, merge_schema=True)
        await stream.append(table(5))
        (packed,) = await optimize(stream)
        assert packed.pack is not None and packed.pack.entries == 3
        await stream.close()
        await freed(stream, ledgers)
        fresh = await another(ledgers)[1].open("s")
        found = await read(fresh, await planned(fresh))
        assert values(found) == list(range(6))
        assert [n for each in found for n in each.batch.column("more").to_pylist()] == [
            *[None] * 4,
            44,
            None,
        ]

    run(scenario())


def test_segments_of_several_entries_keep_the_positions_of_their_rows() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA, entry_bytes=1024)
        for n in range(3):
            await stream.append(table(200 * n, 200))
        ranges = await planned(stream)
        ranges[0] = ranges[0]._replace(start=(1, 3))
        ranges[-1] = ranges[-1]._replace(end=(2, 5))
        before = await read(stream, ranges)
        assert max(each.position.entry for each in before) > 2
        run_of = stream.optimizer.run(entry_bytes=1 << 16, entries_min=1)
        assert [each.pack and each.pack.entries async for each in run_of] == [1]
        after = await read(await another(ledgers)[1].open("s"), ranges)
        assert [each[:-1] for each in after] == [each[:-1] for each in before]
        assert values(after) == values(before)

    run(scenario())


def test_optimize_again_packs_only_what_came_since() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        assert await optimize(stream) == []
        await write(stream, range(6, 8))
        assert await optimize(stream, entries_min=5) == [], "four entries are not worth it"
        (packed,) = await optimize(stream)
        assert (packed.first, packed.commits) == (6, 2)
        assert values(await read(stream, await planned(stream))) == list(range(16))

    run(scenario())


def test_dry_run_changes_nothing() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        nodes, before = ledgers.store.tree, set(ledgers.ledgers)
        config = nodes.get("streams/s/config")
        (packed,) = [each async for each in stream.optimizer.run(entries_min=1, dry_run=True)]
        assert (packed.commits, packed.rows, packed.pack) == (6, 12, None)
        assert nodes.get("streams/s/config") == config and set(ledgers.ledgers) == before

    run(scenario())


def test_optimized_stream_is_deleted_with_its_packs() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        await StreamCatalog(ledgers).delete("s")
        assert not ledgers.ledgers and ledgers.store.tree.children("streams") == []

    run(scenario())


def test_pack_is_not_made_of_a_stream_that_is_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer, "_NAME_ATTEMPTS", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        catalog = StreamCatalog(ledgers)
        await stream.retention.allow_packs()
        await catalog._mark_deleted(stream._nodes)
        before = stream.config
        monkeypatch.setattr(stream._schemas, "refresh", lambda: asyncio.sleep(0, before))
        with pytest.raises(Exception, match="keep changing"):
            await optimize(stream)
        assert not packs_of(ledgers).packs

    run(scenario())


def test_index_that_contradicts_the_commits_is_refused() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        (pack,) = packs_of(ledgers).packs
        index = await stream._reader.packs.index(pack, stream.config.stream_id)
        index.segment_rows = (2, *index.segment_rows[1:])
        with pytest.raises(CorruptionError, match="segment 0 has 1 rows, but the pack"):
            await read(stream, await planned(stream))
        ledgers.ledgers[pack.ledger_id].payloads[1] = b"damaged"
        fresh = await another(ledgers)[1].open("s")
        with pytest.raises(CorruptionError, match="index of the pack in ledger"):
            await read(fresh, await planned(fresh))

    run(scenario())


PACK = Pack(0, 4, 0, 8, LedgerId(7), 1, 8, 100)


@pytest.mark.parametrize(
    "packs",
    [
        (PACK, PACK),
        (PACK, PACK._replace(first=4, end=5, first_segment=7, end_segment=9)),
        (PACK._replace(end=0),),
        (PACK._replace(entries=0),),
        (PACK._replace(ledger_id=LedgerId(-1)),),
        (PACK._replace(rows=0),),
        (PACK._replace(size_bytes=0),),
        (PACK._replace(first=-1),),
        (PACK._replace(first_segment=8),),
        (PACK._replace(first_segment=-1),),
        (
            PACK,
            PACK._replace(first=4, end=6, first_segment=8, end_segment=12),
            PACK._replace(first=5, end=7, first_segment=12, end_segment=13),
        ),
    ],
)
def test_decode_packs_that_cannot_be_is_refused(packs: tuple[Pack, ...]) -> None:
    with pytest.raises(CorruptionError, match="node p: "):
        decode_packs(encode_packs(Packs(packs)), "p")


def test_packs_between_which_commits_lie_are_found_by_segment() -> None:
    packs = Packs((PACK, PACK._replace(first=6, end=9, first_segment=10, end_segment=12)))
    assert [packs.of_segment(n) is not None for n in (0, 7, 8, 9, 10, 11, 12)] == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    assert packs.numbers_outside(2, 11) == [4, 5, 9, 10]
    assert packs.numbers_outside(5, 6) == [5] and packs.numbers_outside(1, 3) == []


@pytest.mark.parametrize(
    "numbers", [{"entry_bytes": 10}, {"pack_bytes": 1 << 20}, {"entries_min": 0}]
)
def test_choice_out_of_bounds_is_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="optimize: "):
        Choice(**{"entry_bytes": 1 << 21, "pack_bytes": 1 << 30, "entries_min": 1, **numbers})


def test_chooser_ends_a_pack_where_commits_are_large_or_enough() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        commits = await stream.commits(0, COMMITS)
        chooser = Chooser(Choice(1 << 20, 2 * commits[0].size_bytes + (1 << 20), 1))
        assert [chooser.add(commit) for commit in commits] == [None] * 6
        assert chooser.end() == commits and chooser.end() is None
        tight = Choice(1 << 20, 1 << 20, 1)
        object.__setattr__(tight, "pack_bytes", 2 * commits[0].size_bytes)
        chooser = Chooser(tight)
        ended = [chooser.add(commit) for commit in commits]
        assert [each and len(each) for each in ended] == [None, None, 2, None, 2, None]
        large = Chooser(Choice(1024, 1 << 20, 1))
        assert [large.add(commit) for commit in commits] == [None] * 6 and large.end() is None

    run(scenario())


def test_configuration_of_a_stream_with_packs_is_refused_by_older_programs() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        before = ledgers.store.tree.get("streams/s/config").value
        await optimize(stream)
        after = ledgers.store.tree.get("streams/s/config").value
        assert (json.loads(before)["v"], json.loads(after)["v"]) == (2, 4)
        assert (await another(ledgers)[1].open("s")).config.has_packs
        await write(stream, range(6, 7))
        await stream.retention.set_limits(Retention(rows=100))
        assert json.loads(ledgers.store.tree.get("streams/s/config").value)["v"] == 4

    run(scenario())


def test_handle_keeps_the_indexes_of_a_few_packs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "INDEXES_KEPT", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers, 0)
        for n in range(4):
            await write(stream, range(n, n + 1))
            await optimize(stream)
        assert values(await read(stream, await planned(stream))) == list(range(8))
        assert len(stream._reader.packs._indexes) == 2

    run(scenario())


def test_audit_takes_a_pack_for_named_and_counts_its_ledger() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        (pack,) = packs_of(ledgers).packs
        head = await stream.head()
        before = await count_ledgers(stream._nodes, stream._log, head, 0)
        assert (before.live, before.reclaimable) == (1, 2)
        await freed(stream, ledgers)
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert await reclaimer.delete_unlisted([pack.ledger_id], 0) == 0
        assert pack.ledger_id in ledgers.ledgers
        after = await count_ledgers(stream._nodes, stream._log, head, 0)
        assert (after.live, after.reclaimable) == (1, 0)

    run(scenario())


def test_pack_that_cannot_be_written_leaves_no_open_ledger_behind() -> None:
    """An append that fails, and a caller that leaves, at each entry of the pack and its index."""

    async def scenario(failing: int, leaves: bool) -> bool:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        known = set(ledgers.ledgers)
        ledgers.fail_append_at = ledgers.appends + failing
        if leaves:
            ledgers.append_error = LedgerError("its connection has ended")
            work = asyncio.create_task(optimize(stream))
            while ledgers.appends < ledgers.fail_append_at and not work.done():
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])
        else:
            with contextlib.suppress(LedgerError):
                await optimize(stream)
        if ledgers.appends < ledgers.fail_append_at:
            return False
        made = set(ledgers.ledgers).union(ledgers.deleted) - known
        assert len(made) == 1
        assert made == set(ledgers.closed_later), "the connection closes it"
        assert not packs_of(ledgers).packs
        return True

    for leaves in (False, True):
        tried = 1
        while run(scenario(tried, leaves)):
            tried += 1
        assert tried > 2, "an entry, and the index"
