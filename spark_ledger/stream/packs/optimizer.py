"""Packs small commits: copies their rows into ledgers of large entries, and names those.

Whoever runs it may die anywhere: a ledger that was not named is deleted as others are (rule K4),
and one that was named is a pack. Two may run at once: of two packs of one commit one is named
(rule T24).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import groupby, pairwise
from typing import Final, NamedTuple, TypedDict, Unpack

import pyarrow as pa

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits.stream import PACKED_ENTRIES_MIN, PACKS_MAX
from spark_ledger.metadata.base import Check, Put
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.format.entries import EncodedEntry, EntryEncoder
from spark_ledger.stream.ledgers import (
    PURPOSE_PACK,
    Ledgers,
    OpenLedger,
    drop_unnamed,
    named_as_made,
    new_ledger,
    written,
)
from spark_ledger.stream.model import Commit, SegmentRange
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.stream.packs.format import encode_index, encode_packs
from spark_ledger.stream.packs.model import Choice, Chooser, Pack, PackIndex, Packs
from spark_ledger.stream.reader import RangeReader
from spark_ledger.stream.retention.handle import StreamRetention

_COMMITS_AT_ONCE: Final = 1000
_SEGMENTS_AT_ONCE: Final = 100_000
"""Commits that are looked up at a time, 30 MB, or one commit. The keeper does that for each stream
that was optimized once, whatever its commits are, in a process beside a bookie."""

_NAME_ATTEMPTS: Final = 20
_NAME_DELAY_S: Final = 0.05
"""How often the pack's transaction is sent while others change the stream's nodes: for a second."""

_TRIES_MAX: Final = 5
"""How often a pack is begun where each time the connection breaks before it is named. A gigabyte
takes a minute; a connection that never lasts so long is told, and not copied for on end."""


class Packed(NamedTuple):
    """Commits that were packed, or would be."""

    first: int
    commits: int
    segments: int
    rows: int
    size_bytes: int
    former_entries: int
    pack: Pack | None
    """None: nothing was written."""


Progress = Callable[[int, int], None]
"""Is told how many rows of a pack were copied, and of how many."""

Pace = Callable[[int], Awaitable[None]]
"""Is waited for before an entry of so many bytes is appended to a pack."""


class OptimizeOptions(TypedDict, total=False):
    """What ``Optimizer.run`` takes."""

    entry_bytes: int | None
    pack_bytes: int | None
    entries_min: int
    dry_run: bool
    pace: Pace | None


class Optimizer:
    """Packs the small commits of one stream. Bound to one event loop."""

    def __init__(
        self,
        ledgers: Ledgers,
        nodes: StreamNodes,
        log: CommitLog,
        reader: RangeReader,
        retention: StreamRetention,
    ) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self._schemas = reader.schemas
        self._log = log
        self._packs = reader.packs
        self._reader = reader
        self._retention = retention

    async def run(
        self,
        *,
        entry_bytes: int | None = None,
        pack_bytes: int | None = None,
        entries_min: int = PACKED_ENTRIES_MIN,
        dry_run: bool = False,
        pace: Pace | None = None,
        progress: Progress | None = None,
    ) -> AsyncGenerator[Packed, None]:
        """Pack what is worth it, oldest first; each pack as it is done.

        Entries of packs have ``entry_bytes``, and packs the commits of ``pack_bytes``: those of the
        stream unless given. Fewer small entries than ``entries_min`` in a row are left as they are.
        It copies no faster than ``pace`` lets it.

        Raises ConfigurationError if the stream has too many packs, NoSuchStreamError,
        DataLossError if commits were truncated meanwhile, RetryableError if the connection to the
        metadata store keeps breaking, MetadataRestoredError if commits are others behind a break,
        and what reading and writing raise.
        """
        config = await self._schemas.refresh()
        choice = Choice(
            entry_bytes or config.entry_bytes, pack_bytes or config.ledger_bytes_max, entries_min
        )
        start = tries = 0
        while True:
            reading = OneConnection(self._nodes.store)
            copying = None if dry_run else _Copying(choice, pace, progress, reading)
            try:
                async with aclosing(self._chosen(choice, start)) as found:
                    async for commits in found:
                        packed = await self._pack(commits, copying)
                        start, tries = commits[-1].number + 1, 0
                        yield packed
                return
            except RetryableError:
                tries += 1
                if not reading.has_ended or tries == _TRIES_MAX:
                    raise

    async def _chosen(self, choice: Choice, start: int) -> AsyncGenerator[list[Commit], None]:
        """The commits from this one on that are worth a pack, for each."""
        chooser = Chooser(choice)
        async with aclosing(self._unpacked(start)) as found:
            async for commit in found:
                commits = chooser.add(commit)
                if commits is not None:
                    yield commits
        commits = chooser.end()
        if commits is not None:
            yield commits

    async def run_all(
        self, *, progress: Progress | None = None, **options: Unpack[OptimizeOptions]
    ) -> list[Packed]:
        """As ``run``, all of it."""
        async with aclosing(self.run(progress=progress, **options)) as found:
            return [packed async for packed in found]

    async def _unpacked(self, first: int) -> AsyncGenerator[Commit, None]:
        """The commits from this one on that can be read and are in no pack, in order."""
        head = (await self._nodes.head(latest=True)).value
        packs = (await self._packs.read()).value
        for start in range(max(first, head.earliest_commit), head.next_commit, _COMMITS_AT_ONCE):
            numbers = packs.numbers_outside(start, min(start + _COMMITS_AT_ONCE, head.next_commit))
            gaps = [n for n, (a, b) in enumerate(pairwise(numbers), 1) if a + 1 != b]
            for low, high in pairwise([0, *gaps, len(numbers)]):
                if low < high:
                    async with aclosing(self._some(numbers[low], numbers[high - 1] + 1)) as some:
                        async for commit in some:
                            yield commit

    async def _some(self, first: int, end: int) -> AsyncGenerator[Commit, None]:
        """Commits ``first`` .. ``end - 1``, in parts of so many segments at most, or one commit."""
        while first < end:
            begin, behind = (await self._log.get(first)).first_segment, end
            while behind > first + 1:
                if (await self._log.get(behind - 1)).end_segment - begin <= _SEGMENTS_AT_ONCE:
                    break
                behind = first + (behind - first) // 2
            for commit in await self._log.range(first, behind):
                yield commit
            first = behind

    async def _pack(self, commits: Sequence[Commit], copying: _Copying | None) -> Packed:
        segments = [segment for commit in commits for segment in commit.segments]
        report = Packed(
            first=commits[0].number,
            commits=len(commits),
            segments=len(segments),
            rows=sum(segment.rows for segment in segments),
            size_bytes=sum(segment.size_bytes for segment in segments),
            former_entries=sum(segment.entries for segment in segments),
            pack=None,
        )
        if copying is None:
            return report
        await self._retention.allow_packs()
        self._refuse_more((await self._packs.read()).value)
        self._check(copying.reading)
        pack, ledger = await self._write(commits, copying)
        if not await self._name(pack, ledger, copying.reading):
            await self._drop(ledger)
            return report
        return report._replace(pack=pack)

    # -- the copy ----------------------------------------------------------------------------------

    async def _write(self, commits: Sequence[Commit], copying: _Copying) -> tuple[Pack, OpenLedger]:
        """A closed ledger with the rows of commits and its index, all confirmed (rule T23)."""
        config = self._schemas.config
        ledger = await new_ledger(self._ledgers, config, PURPOSE_PACK)
        copy = _Copy(ledger, copying.pace)
        try:
            async with written(self._ledgers, ledger):
                total = sum(commit.rows for commit in commits)
                async with aclosing(self._encoded(commits, copying.choice)) as encoded:
                    async for entries, version in encoded:
                        self._check(copying.reading)
                        for entry in entries:
                            await copy.push(entry, version)
                        if copying.progress is not None:
                            copying.progress(copy.rows, total)
                segments = [segment for commit in commits for segment in commit.segments]
                assert copy.rows == total, "every row of the commits is in the pack (rule T23)"
                index = PackIndex(copy.entry_rows, copy.versions, [each.rows for each in segments])
                first = commits[0].first_segment
                await copy.push_index(encode_index(index, config.stream_id, first))
        except LedgerError:
            await self._drop(ledger)
            raise
        pack = Pack(
            first=commits[0].number,
            end=commits[-1].number + 1,
            first_segment=first,
            end_segment=commits[-1].end_segment,
            ledger_id=ledger.ledger_id,
            entries=len(copy.entry_rows),
            rows=copy.rows,
            size_bytes=copy.size_bytes,
        )
        return pack, ledger

    async def _encoded(
        self, commits: Sequence[Commit], choice: Choice
    ) -> AsyncGenerator[tuple[list[EncodedEntry], int], None]:
        """The rows of commits as entries of one schema version each, in stream order."""
        ranges = [
            SegmentRange(segment, (0, 0), (segment.entries, 0), commit.number, commit.time_ms)
            for commit in commits
            for segment in commit.segments
        ]
        for version, parts in groupby(ranges, lambda part: part.segment.schema_version):
            schema = await self._schemas.schema(version)
            compression = self._schemas.config.compression
            encoder = EntryEncoder(
                schema, version, compression=compression, entry_bytes=choice.entry_bytes
            )
            async with aclosing(self._reader.read(list(parts), schema=schema)) as chunks:
                async for chunk in chunks:
                    batches = [positioned.batch for positioned in chunk]
                    yield await asyncio.to_thread(_encode, encoder, batches), version
            yield await asyncio.to_thread(encoder.flush), version

    # -- the transaction ---------------------------------------------------------------------------

    def _refuse_more(self, packs: Packs) -> None:
        """Raises ConfigurationError if there is no room for another pack."""
        if len(packs.packs) >= PACKS_MAX:
            raise ConfigurationError(
                f"stream {self._nodes.name!r} has {PACKS_MAX} packs, and may have no more: "
                "optimize it less often, so that packs are larger, or truncate it"
            )

    async def _name(self, pack: Pack, ledger: OpenLedger, reading: OneConnection) -> bool:
        """Make a ledger a pack of the stream; False if another has packed some of its commits.

        After a lost reply the node tells, and if it does not, the same is sent again: both expect
        the version that was read. Raises RetryableError, after which the ledger may be a pack,
        ConfigurationError, and what the metadata store raises. If it is none it is deleted, and
        what may still arrive is refused then.
        """
        try:
            for _ in range(_NAME_ATTEMPTS):
                found = None
                with suppress(OutcomeUnknownError):
                    found = await self._try_to_name(pack, ledger, reading)
                if found is not None:
                    return found
                await asyncio.sleep(_NAME_DELAY_S)
            raise RetryableError(
                f"stream {self._nodes.name!r}: the pack of commits {pack.first}..{pack.end - 1} "
                "could not be named, because the stream's nodes keep changing; try again"
            )
        except LedgerError:
            await self._drop(ledger)
            raise

    async def _try_to_name(
        self, pack: Pack, ledger: OpenLedger, reading: OneConnection
    ) -> bool | None:
        """As ``_name``; None: look again, after a pause."""
        nodes = self._nodes
        config = await self._schemas.refresh()
        before = await self._packs.read()
        if any(each.ledger_id == pack.ledger_id for each in before.value.packs):
            return True
        if before.value.overlaps(pack.first, pack.end):
            return False  # also if ours is on its way: it expects a version that has gone
        if pack.ledger_id in config.dropping:
            return None  # an audit is about to look whether anything names it (rule K9)
        self._refuse_more(before.value)
        self._check(reading)
        after = before.value.with_pack(pack)
        operations = [
            Check(nodes.identity_path(config.stream_id), 0),
            Check(nodes.config_path, self._schemas.versioned.version),
            Put(nodes.packs_path, encode_packs(after), before.version),
            *await named_as_made(self._ledgers, [ledger]),
        ]
        try:
            await reading.transaction(operations)
        except (ConflictError, NotFoundError):
            return None
        self._ledgers.naming.named([pack.ledger_id])
        self._packs.known = after
        return True

    def _check(self, reading: OneConnection) -> None:
        """Raises RetryableError if commits that were read may be others by now (rule T2)."""
        if reading.has_ended:
            raise RetryableError(
                f"stream {self._nodes.name!r}: the connection to the metadata store broke while "
                "commits were packed, so what was read over it counts no more; try again"
            )

    async def _drop(self, ledger: OpenLedger) -> None:
        """Delete a ledger that no transaction has named."""
        whose = f"stream {self._nodes.name!r}, pack"
        await drop_unnamed(self._ledgers, [ledger], whose)


class _Copying(NamedTuple):
    """How packs are written."""

    choice: Choice
    pace: Pace | None
    progress: Progress | None
    reading: OneConnection
    """Over which the commits are read, and packs are made and named."""


class _Copy:
    """Appends entries to a ledger, and keeps count of what is in them."""

    def __init__(self, ledger: OpenLedger, pace: Pace | None) -> None:
        self._ledger = ledger
        self._pace = pace
        self._appends: list[asyncio.Future[int]] = []
        self.entry_rows: list[int] = []
        self.versions: list[int] = []
        self.rows = 0
        self.size_bytes = 0

    async def push(self, entry: EncodedEntry, version: int) -> None:
        self.entry_rows.append(entry.rows)
        self.versions.append(version)
        self.rows += entry.rows
        self.size_bytes += len(entry.payload)
        if self._pace is not None:
            await self._pace(len(entry.payload))
        await self._push(entry.payload)

    async def push_index(self, payload: bytes) -> None:
        """Append the last entry, and wait until all are confirmed."""
        await self._push(payload)
        ended = await asyncio.gather(*self._appends)
        assert ended == list(range(len(ended))), "nothing else is in this ledger"

    async def _push(self, payload: bytes) -> None:
        await self._ledger.wait_for_room()
        future = self._ledger.append_nowait(payload)
        future.add_done_callback(_look_at)
        self._appends.append(future)


def _look_at(future: asyncio.Future[int]) -> None:
    """Look at a failure, or asyncio would report it as not handled; the last append has it too."""
    if not future.cancelled():
        future.exception()


def _encode(encoder: EntryEncoder, batches: Sequence[pa.RecordBatch]) -> list[EncodedEntry]:
    return [entry for batch in batches for entry in encoder.add(batch)]
