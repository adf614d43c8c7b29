"""Copies entries as they are from bookies that hold them to one that does not (rule R4).

A frame is sent on only after its digest was verified, or, of a ledger with a password, after it
was read twice (rule R11). An entry counts only once the target has synced it. What a lane lacks on
every source is an error: nothing is invented and nothing skipped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from spark_ledger.client.context import ClientContext
from spark_ledger.client.lane_reader import verify_chunk, wanted_run
from spark_ledger.errors import BookieUnavailableError, NoSuchEntryError
from spark_ledger.limits.client import BUSY_PAUSE_S, BUSY_PAUSE_S_MAX
from spark_ledger.protocol.events import ReadEnded, ReadEntries
from spark_ledger.repair.compare import Comparison
from spark_ledger.repair.held import BusyPauses
from spark_ledger.repair.merging import MergedLanes
from spark_ledger.repair.plan import LaneCopy
from spark_ledger.repair.throttle import Throttles
from spark_ledger.runs import EntryRun
from spark_ledger.tasks import cancel
from spark_ledger.transport.base import AddResult, Appender, ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import Digest


class TargetFailedError(Exception):
    """The bookie that was to hold the copy did not store it: another one may."""


class Access(NamedTuple):
    """What a worker shows to bookies, and how it verifies what they send."""

    to_read: bytes
    to_copy: bytes
    digest: Digest | None
    """None: only who has the password can check it."""


class Copier:
    """Copies lanes of one ledger."""

    def __init__(
        self,
        context: ClientContext,
        ledger_id: LedgerId,
        access: Access,
        throttles: Throttles,
        counts: Counter[str],
    ) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._access = access
        self._throttles = throttles
        self._counts = counts
        self._brought: set[tuple[BookieId, int, int, int]] = set()
        """Whole lanes that one bookie sent: who, its first and last entry and its stride."""
        self._silent: set[BookieId] = set()
        """Those that did not answer: they are not asked again to compare."""

    async def copy(self, lanes: Sequence[LaneCopy], target: BookieId) -> None:
        """Bring lanes, or parts of them, to a bookie, synced there; ascending, all lanes together:
        else it would have them in as many pieces as there are entries. A lane ends at what nobody
        brings, and the others go on.

        Raises TargetFailedError, NoSuchEntryError if every source denies an entry, and
        BookieUnavailableError if a source that may have it cannot be asked.
        """
        by_lane: dict[int, list[LaneCopy]] = {}
        for each in lanes:
            by_lane.setdefault(each.first % each.stride, []).append(each)
        sink = _Sink(self._context, self._ledger_id, self._access.to_copy, target)
        merged = MergedLanes(
            target, self._ledger_id, sink.store, lanes=len(by_lane), stride=lanes[0].stride
        )
        parts = [asyncio.ensure_future(self._copy_parts(p, merged)) for p in by_lane.values()]
        try:
            errors = [each for each in await asyncio.gather(*parts) if each is not None]
        finally:
            await cancel(*parts)
            sink.close()
        if errors:
            raise next((e for e in errors if isinstance(e, NoSuchEntryError)), errors[0])

    async def _copy_parts(
        self, parts: Sequence[LaneCopy], sink: MergedLanes
    ) -> NoSuchEntryError | BookieUnavailableError | None:
        """Copy what one lane lacks, or why that ended early: a member that holds all that can be
        read is worth more than one that holds what lies before the first hole of any lane."""
        try:
            for lane in parts:
                position = lane.first
                busy = BusyPauses(self._context.config.read_timeout_s)
                while position <= lane.last_entry:
                    position = await self._go_on(lane, position, sink, busy)
        except (NoSuchEntryError, BookieUnavailableError) as error:
            await sink.end()
            return error
        await sink.end()
        return None

    def was_brought(self, lane: LaneCopy, source: BookieId) -> bool:
        """Whether all of a lane was copied from this bookie."""
        return (source, *lane[:3]) in self._brought

    async def _go_on(
        self, lane: LaneCopy, position: int, sink: MergedLanes, busy: BusyPauses
    ) -> int:
        """Ask each source once, from where the one before ended; the next entry to copy. If one
        was busy and none has it, that is after a pause. Who hung lately is asked for what the
        others do not bring.

        If none of them brings an entry, all other bookies are asked: a restored ZooKeeper may name
        those that have given their copies back, and not those that got them (rule R4).
        """
        began, answers, denied, is_busy = position, [], True, False
        present = self._throttles.least_loaded(lane.present)
        named = (*present, *(each for each in lane.sources if each not in present))
        hung = self._throttles.hung
        for source in hung.last(named):
            if source == sink.target:
                continue
            if source in hung and (position > began or (is_busy and await busy.pause())):
                return position  # the others may bring what follows, or are busy for a moment
            is_whole = position == lane.first
            position, ended = await self._copy_from(source, lane, position, sink)
            if position > lane.last_entry:
                if is_whole:
                    self._brought.add((source, *lane[:3]))
                return position
            if ended is not None and position == began:
                denied = denied and ended.status.is_denial
                is_busy = is_busy or ended.status is BookieStatus.TOO_MANY_REQUESTS
                answers.append(f"{source}: {ended.message or ended.status.name}")
        for other in hung.last(each.bookie_id for each in self._context.directory.all()):
            if position > began:
                return position
            if other not in (*named, sink.target):
                position, _ = await self._copy_from(other, lane, position, sink)
        if position > began:
            return position
        if is_busy and await busy.pause():
            return position
        what = f"ledger {self._ledger_id}: entry {position}"
        if denied and answers:
            raise NoSuchEntryError(f"{what} is on no bookie of its write set: it is lost")
        raise BookieUnavailableError(f"{what} cannot be read now ({'; '.join(answers)})")

    async def _copy_from(
        self, source: BookieId, lane: LaneCopy, position: int, sink: MergedLanes
    ) -> tuple[int, ReadEnded | None]:
        """Copy what one source has from ``position`` on; where that ended, and why."""
        command = ReadEntries(
            0, 0, source, EntryId(position), EntryId(lane.last), lane.stride, fence=False
        )
        if self._access.digest is None:
            return await self._copy_compared(command, lane, sink)
        asked_from = -1
        while asked_from < position <= lane.last_entry:
            asked_from = position
            for chunk in await self._answer(
                command._replace(first=EntryId(position)), sink.chunk_bytes
            ):
                good, ended = verify_chunk(
                    self._ledger_id, self._access.digest, command, position, chunk
                )
                if good and chunk.run is not None:
                    run = _prefix(chunk.run, len(good))
                    await self._throttles.take(source, len(run.frames))
                    await self._store(run, sink)
                    position = run.last_entry + lane.stride
                if ended is not None:
                    return position, ended
        return position, None

    async def _copy_compared(
        self, command: ReadEntries, lane: LaneCopy, sink: MergedLanes
    ) -> tuple[int, ReadEnded | None]:
        """The same for frames that nobody here can verify: each is read twice (rule R11)."""
        source, position = command.bookie_id, int(command.first)
        runs, ended = await self._read(command, sink.chunk_bytes)
        for run in runs:
            await self._throttles.take(source, len(run.frames))
        compared = Comparison(source, runs)
        for other in self._throttles.hung.last(lane.present):
            if other not in (source, sink.target) and other not in self._silent:
                await self._compare(compared, other, lane.stride, sink, also_differing=True)
        await self._compare(compared, source, lane.stride, sink, also_differing=False)
        good = compared.count
        for run in runs:
            if good > 0:
                await self._store(_prefix(run, min(good, run.count)), sink)
                position = run.ids()[min(good, run.count) - 1] + lane.stride
            good -= run.count
        if good < 0:
            ended = ReadEnded(0, 0, BookieStatus.IO_ERROR, EntryId(position), compared.reason)
        return position, ended

    async def _compare(
        self,
        compared: Comparison,
        bookie_id: BookieId,
        stride: int,
        sink: MergedLanes,
        *,
        also_differing: bool,
    ) -> None:
        """Read once more, from this bookie, what nobody has confirmed so far."""
        wanted = compared.open(also_differing=also_differing)
        position = 0
        while wanted and position <= wanted[-1]:
            first = EntryId(max(position, wanted[0]))
            command = ReadEntries(0, 0, bookie_id, first, wanted[-1], stride, fence=False)
            runs, ended = await self._read(command, sink.chunk_bytes)
            for run in runs:
                await self._throttles.take(bookie_id, len(run.frames))
                compared.look(bookie_id, run)
            position = runs[-1].last_entry + stride if runs else int(first)
            if ended is None:
                if runs:
                    continue  # that was a chunk
                return  # it says nothing
            if ended.status is BookieStatus.NO_SUCH_LEDGER:
                return  # nor has it another entry
            if not ended.status.is_denial:
                self._silent.add(bookie_id)
                return
            position += stride

    async def _read(
        self, command: ReadEntries, chunk_bytes: int
    ) -> tuple[list[EntryRun], ReadEnded | None]:
        """What one bookie sends at once, if it is what was asked for; no digest is looked at."""
        runs: list[EntryRun] = []
        position = int(command.first)
        for chunk in await self._answer(command, chunk_bytes):
            run, ended = wanted_run(self._ledger_id, command, position, chunk)
            if run is None:
                return runs, ended
            runs.append(run)
            position = run.last_entry + command.stride
        return runs, None

    async def _store(self, run: EntryRun, sink: MergedLanes) -> None:
        await sink.store(run)
        self._counts["entries"] += run.count
        self._counts["bytes"] += len(run.frames)

    async def _answer(self, command: ReadEntries, chunk_bytes: int) -> list[ReadChunk]:
        """A call of one chunk, from its begin to its end. No call is open while a copy waits, for
        its rate or for its target: the bookie would hold the next chunk for it all the time, and
        the ledgers that are repaired at once left no room there for other readers.

        It ends with what was asked for, or with the first chunk that is something else: a source
        may go on sending, and nothing of it is stored before the call is over.
        """
        found: list[ReadChunk] = []
        position, size_bytes = int(command.first), 0
        chunks = self._context.transport.read(
            command.bookie_id,
            self._ledger_id,
            command.first,
            command.last,
            stride=command.stride,
            max_bytes=chunk_bytes,
            access_key=self._access.to_read,
            timeout_s=self._context.config.read_timeout_s,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                found.append(chunk)
                run, _ = wanted_run(self._ledger_id, command, position, chunk)
                if run is None:
                    break
                position = run.last_entry + command.stride
                size_bytes += len(run.frames)
                if size_bytes >= chunk_bytes:
                    break
        if found and found[-1].status is BookieStatus.TIMEOUT:
            self._throttles.hung.note(command.bookie_id)
        return found


def _prefix(run: EntryRun, count: int) -> EntryRun:
    """The first entries of a run."""
    if count == run.count:
        return run
    ids = None if run.entry_ids is None else run.entry_ids[:count]
    sizes = run.sizes[:count]
    return EntryRun(run.ledger_id, run.first_entry, ids, sizes, run.frames[: sum(sizes)])


class _Sink:
    """One bookie that takes copies, one run after the other."""

    def __init__(
        self, context: ClientContext, ledger_id: LedgerId, access_key: bytes, target: BookieId
    ) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._access_key = access_key
        self.target = target
        self._results: asyncio.Queue[AddResult]
        self._appender: Appender
        self._open()

    def _open(self) -> None:
        self._results = asyncio.Queue()
        self._appender = self._context.transport.open_appender(
            self.target,
            self._ledger_id,
            access_key=self._access_key,
            recovery=True,
            on_result=self._results.put_nowait,
        )

    async def store(self, run: EntryRun) -> None:
        """Return once the run is synced there. A busy bookie is asked again.

        Raises TargetFailedError.
        """
        timeout_s = self._context.config.add_timeout_s
        pause_s = BUSY_PAUSE_S
        try:
            async with asyncio.timeout(timeout_s):
                self._appender.send(run)
                while True:
                    result = await self._results.get()
                    if result.status is BookieStatus.OK and result.last_entry >= run.last_entry:
                        return
                    if result.status is BookieStatus.TOO_MANY_REQUESTS:
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, BUSY_PAUSE_S_MAX)
                        self.close()
                        self._open()
                        self._appender.send(run)
                    elif result.status not in (BookieStatus.OK, BookieStatus.STALLED):
                        if result.status is not BookieStatus.UNAUTHORIZED:
                            self._context.suspect(self.target)
                        raise TargetFailedError(
                            f"bookie {self.target} did not store a copy: "
                            f"{result.message or result.status.name}"
                        )
        except TimeoutError:
            self._context.suspect(self.target)
            raise TargetFailedError(
                f"bookie {self.target} did not store a copy within {timeout_s:g} s"
            ) from None

    def close(self) -> None:
        """Nothing more is sent."""
        self._appender.close()
