"""Two things in one moment of a stream that loses rows: a hold beside a truncation, and a commit
that names a ledger again just when the keeper has listed it to delete it (rules T16, T17)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_ledger.errors import LedgerError, MetadataRestoredError, NoSuchLedgerError
from spark_ledger.lab.simulation.loop import Process
from spark_ledger.stream.model import Commit, Segment
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn, LedgerId
from tests.sim.streams import SCHEMA, StreamClient

if TYPE_CHECKING:
    from tests.sim.options import StreamPlan
    from tests.sim.world import World

_LISTED_AFTER_S: Final = 3.0
"""For so long a keeper is waited for."""
_HOLD: Final = "beside"


class Listings:
    """Who waits for the keeper to list a ledger."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._draw = world.random_for("pauses at the list")
        self._waiting: dict[LedgerId, asyncio.Future[None]] = {}

    def wait(self, ledger_id: LedgerId) -> asyncio.Future[None]:
        """Is done once the ledger is listed."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[ledger_id] = future
        return future

    def listed(self, ledger_ids: Sequence[LedgerId], keeper: Process | None) -> None:
        """A keeper has listed ledgers. It stands still for a moment if somebody waits for that."""
        waiting = [self._waiting.pop(each, None) for each in ledger_ids]
        for future in waiting:
            if future is None or future.done():
                continue
            future.set_result(None)
            if keeper is not None and not (self._world.healing or keeper.paused):
                self._world.fault("pause at the list", keeper.name)
                keeper.paused = True
                self._world.loop.later(self._draw.uniform(0.02, 0.3), None, self._resume, keeper)

    def _resume(self, keeper: Process) -> None:
        if keeper.paused:
            self._world.loop.resume(keeper)


class RaceClient(StreamClient):
    """Does two things at once, again and again: holds and truncates, or ``names`` ledgers again."""

    def __init__(self, world: World, name: str, plan: StreamPlan, *, names: bool) -> None:
        super().__init__(world, name, plan)
        self._names = names
        self._number = 0
        self.start(self._run())

    async def _run(self) -> None:
        stream = await self.open_stream()
        while not self.world.healing:
            await asyncio.sleep(self.draw.uniform(0.0, 0.2))
            try:
                await (self._name_again(stream) if self._names else self._hold(stream))
            except MetadataRestoredError:
                stream = await self.opened_anew(stream)
            except LedgerError as error:
                self.world.say(f"{self.name}: {type(error).__name__}: {error}")
        await stream.close()

    # -- a hold beside a truncation ----------------------------------------------------------------

    async def _hold(self, stream: Stream) -> None:
        known, earliest = self.drops.commits, self.drops.earliest
        there = [number for number in sorted(known) if number >= earliest]
        if len(there) < 2:
            return
        held, first = sorted(self.draw.sample(there, 2))
        try:
            await asyncio.gather(
                self._hold_at(stream, Dlsn(known[held].first_segment)),
                self._truncate_to(stream, Dlsn(known[first].first_segment)),
            )
        finally:
            await stream.retention.release(_HOLD)

    async def _hold_at(self, stream: Stream, position: Dlsn) -> None:
        await self._moment()
        try:
            hold = await stream.retention.hold(_HOLD, position, for_s=3600.0)
        except LedgerError as error:
            self.world.say(f"{self.name} holds nothing: {type(error).__name__}")
        else:
            self.drops.check_hold(hold)

    async def _truncate_to(self, stream: Stream, position: Dlsn) -> None:
        await self._moment()
        try:
            await stream.retention.truncate(position)
        except LedgerError as error:
            self.world.say(f"{self.name} drops nothing: {type(error).__name__}")

    async def _moment(self) -> None:
        """About as long as some messages take."""
        await asyncio.sleep(self.draw.choice([0.0, 2.0, 4.0, 8.0]) * self.world.options.delay_s)

    # -- a commit beside a deletion ----------------------------------------------------------------

    async def _name_again(self, stream: Stream) -> None:
        """Two batches in one ledger, of which the first is dropped before the second is
        committed."""
        self._number += 1
        sink_id = f"{self.name}.{self._number}"
        writer = stream.writer()
        try:
            batches = []
            for _ in range(2):
                values = self.new_values(sink_id)
                await writer.write(pa.table({"v": list(values)}, SCHEMA))
                batches.append((values, await writer.finish()))
        finally:
            await writer.close()
        first = await self._commit(stream, sink_id, 0, *batches[0])
        again = {each.ledger_id for each in batches[1][1]} & {
            each.ledger_id for each in first.segments
        }
        if not again:
            return
        listed = self.drops.listings.wait(min(again))
        await self._truncate(stream, first)
        try:
            async with asyncio.timeout(_LISTED_AFTER_S):
                await listed
        except TimeoutError:
            return
        await asyncio.sleep(self.draw.choice([0.0, 0.0, 0.01, 0.1]))
        try:
            await self._commit(stream, sink_id, 1, *batches[1])
        except NoSuchLedgerError:
            self.world.counts["commits refused beside a deletion"] += 1

    async def _truncate(self, stream: Stream, commit: Commit) -> None:
        ignoring = self.drops.ignoring
        ignoring.add(self.process.name)
        try:
            await stream.retention.truncate(Dlsn(commit.end_segment), ignore_holds=True)
        finally:
            ignoring.discard(self.process.name)

    async def _commit(
        self,
        stream: Stream,
        sink_id: str,
        transaction_id: int,
        values: tuple[str, ...],
        segments: Sequence[Segment],
    ) -> Commit:
        operation = self.begin(sink_id, transaction_id, values)
        try:
            commit = await stream.commit_segments(
                segments, sink_id=sink_id, transaction_id=transaction_id, run_id=self.name
            )
        except LedgerError as error:
            self.refused(operation, error, sink_id, transaction_id)
            raise
        self.committed(operation, commit, sink_id, transaction_id)
        return commit
