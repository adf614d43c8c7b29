"""Puts what several lanes bring into the order of its entries, before a bookie gets it (rule R4).

A bookie has one row of its index for a run behind all that it holds, and up to one for each entry
of a run among others. So the lanes of a copy go on side by side, and none is ahead of the others by
more than what was read at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from operator import itemgetter

from spark_ledger.limits.entries import READ_CHUNK_BYTES_TARGET
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, EntryId, LedgerId

Frames = deque[tuple[EntryId, memoryview]]


class MergedLanes:
    """Each lane stores one run after the other, and waits for those of the others meanwhile."""

    def __init__(
        self,
        target: BookieId,
        ledger_id: LedgerId,
        store: Callable[[EntryRun], Awaitable[None]],
        *,
        lanes: int,
        stride: int,
    ) -> None:
        """``store``: returns once the bookie has synced a run. ``stride``: of each lane."""
        self.target = target
        self._ledger_id = ledger_id
        self._store = store
        self._lanes = lanes
        self._stride = stride
        self.chunk_bytes = max(1, READ_CHUNK_BYTES_TARGET // lanes)
        """What a lane reads at once: all of them as much as a bookie sends at once. But a bookie
        sends an entry at least: of larger ones each lane holds one, as it has to."""
        self._waiting: list[tuple[Frames, asyncio.Future[None]]] = []
        """What lanes have brought, one run of each, and who is told when it is stored."""

    async def store(self, run: EntryRun) -> None:
        """Return once a lane's run is stored. Raises what ``store`` raises: to one of the lanes,
        and the others wait on."""
        if self._lanes == 1 and not self._waiting:
            await self._store(run)
            return
        stored = asyncio.get_running_loop().create_future()
        self._waiting.append((deque(run.split()), stored))
        await self._go_on()
        await stored

    async def end(self) -> None:
        """A lane brings nothing more. Raises as ``store``."""
        self._lanes -= 1
        await self._go_on()

    async def _go_on(self) -> None:
        """Store what lies below all that is still to come, once all lanes have brought a run."""
        if not self._waiting or len(self._waiting) < self._lanes:
            return
        end = min(frames[-1][0] for frames, _ in self._waiting) + self._stride
        below: list[tuple[EntryId, memoryview]] = []
        for frames, _ in self._waiting:
            while frames and frames[0][0] < end:
                below.append(frames.popleft())
        for run in _runs(self._ledger_id, sorted(below, key=itemgetter(0))):
            await self._store(run)
        for frames, stored in self._waiting:
            if not frames and not stored.done():
                stored.set_result(None)
        self._waiting = [each for each in self._waiting if each[0]]


def _runs(ledger_id: LedgerId, frames: list[tuple[EntryId, memoryview]]) -> Iterator[EntryRun]:
    """Ascending frames in runs as large as what a bookie sends at once."""
    start = size_bytes = 0
    for number, (_, frame) in enumerate(frames):
        if number > start and size_bytes + len(frame) > READ_CHUNK_BYTES_TARGET:
            yield _run(ledger_id, frames[start:number])
            start, size_bytes = number, 0
        size_bytes += len(frame)
    yield _run(ledger_id, frames[start:])


def _run(ledger_id: LedgerId, frames: list[tuple[EntryId, memoryview]]) -> EntryRun:
    ids = [entry_id for entry_id, _ in frames]
    gaps = ids[-1] - ids[0] + 1 - len(ids)
    assert gaps >= 0, "no two lanes have the same entry"
    sizes = [len(frame) for _, frame in frames]
    joined = _joined([frame for _, frame in frames])
    return EntryRun(ledger_id, ids[0], ids if gaps else None, sizes, joined)


def _joined(frames: list[memoryview]) -> bytes:
    """The frames as one; a large one that came alone is not copied for that."""
    whole = frames[0].obj
    if len(frames) == 1 and isinstance(whole, bytes) and len(whole) == len(frames[0]):
        return whole
    return b"".join(frames)
