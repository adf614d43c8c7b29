"""The keeper's work on streams: drops what retention allows, and gives back what was dropped.

All of it is by stream, in one visit to each, and an error of one stream keeps no other from its
turn. What was done is in the head and the root of each stream, and since when rows are dropped in a
node of the keeper (rule K8): so one that is killed anywhere has nothing to remember.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    DataLossError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.keeper.clock import SteadyClock
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.deletions import DeletionsInTurn, LedgerDeletions, Turn
from spark_ledger.keeper.dropped import DroppedRows
from spark_ledger.keeper.nodes import (
    DROPPED_PATH,
    SWEPT_PATH,
    DroppedNode,
    SweptNode,
    dropped_path,
    read_or_renew_clock,
    write_clock,
)
from spark_ledger.keeper.sinks import forget_sinks
from spark_ledger.limits.keeper import (
    CONFLICTS_TO_SAY,
    HURRIED_BYTES_MIN,
    HURRIED_SHARE,
    RECLAIM_STEPS_MAX,
    SWEPT_STREAMS_MAX,
)
from spark_ledger.limits.stream import MERGED_LEDGERS_KEPT
from spark_ledger.metadata.base import Check, Create, Delete, Put
from spark_ledger.metadata.json_nodes import decode_node, encode_node, read_or_renew
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import StreamConfig
from spark_ledger.stream.nodes import STREAMS_ROOT, StreamNodes
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Versioned

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Swept:
    """What the keeper knows of one stream from sweep to sweep."""

    dropped: DroppedRows
    merged: DroppedRows
    packed: DroppedRows
    written: DroppedNode
    """What is written down of them."""
    version: int | None
    """Of the node where that is; None: there is none yet."""

    @property
    def now(self) -> DroppedNode:
        """What is to be written down of them."""
        looks = [tuple(each.looks) for each in (self.dropped, self.merged, self.packed)]
        return DroppedNode(name=self.written.name, looks=looks[0], merged=looks[1], packed=looks[2])


class _Due(NamedTuple):
    """What was replaced long enough ago (rule K11)."""

    merged: int
    """Up to which commit leaves have moved."""
    packs: int
    """So many packs were made."""


@contextlib.contextmanager
def _put_off(failed: list[LedgerError]) -> Iterator[None]:
    """An error of one part of a visit, until the others had their turn; not such as they would
    meet as well."""
    try:
        yield
    except (NoSuchStreamError, MetadataUnavailableError, MetadataRestoredError):
        raise
    except LedgerError as error:
        failed.append(error)


class StreamKeeper:
    """What one keeper does for streams. Belongs to the loop of the client."""

    def __init__(
        self,
        client: LedgerClient,
        guard: Callable[[], Check],
        config: KeeperConfig,
        *,
        clock: Callable[[], float],
        worked_s: Callable[[], float],
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = client.store
        self._client = client
        self._streams = StreamCatalog(client)
        self._guard = guard
        self._worked_s = worked_s
        self._sink_records_s = config.sink_records_s
        self._deletions = LedgerDeletions(client, guard, config.deletes_per_s)
        self._rows = DeletionsInTurn(self._deletions, clock)
        """What is dropped. Packs and merged manifests have time of their own."""
        self._former = DeletionsInTurn(self._deletions, clock)
        self._turns = [self._former, self._rows]
        """Whose streams come first changes from sweep to sweep."""
        self._clock = clock
        self._wall_ms = wall_ms
        self._grace_s = config.dropped_grace_s
        self._least_s = min(config.dropped_least_s, config.dropped_grace_s)
        self._replaced_s = config.replaced_grace_s
        self._steady: SteadyClock | None = None
        self._has_warned = False
        self._swept: OrderedDict[str, _Swept] = OrderedDict()
        """By id, the streams of which something was dropped or replaced, the last ones swept."""
        self._names: OrderedDict[str, LiveNames] = OrderedDict()
        """By id, what live commits name of the streams whose space was given back last. Of each it
        takes a read of all its commits; what is in ``_swept``, that of a node."""
        self._waiting: dict[str, SweptNode] = {}
        """By id of the stream, what is dropped and not given back."""
        self._hurried: set[str] = set()
        """Names of streams of which much waited at the last visit that told."""
        self._conflicts: Counter[str] = Counter()
        """By name of a stream, the visits in a row that ended with a conflict."""
        self._crowded_told: set[str] = set()
        """Ids of streams of which was said that backups are not complete for the whole grace."""
        self._marked: dict[str, str] = {}
        """Names of streams that were marked as deleted at the last sweep, by id."""
        self.done: Counter[str] = Counter()
        """What was done: dropped (commits), reclaimed (ledgers), released (holds), sinks, streams
        (whose deletion was finished)."""
        self.last_error = ""
        """Of the last sweep."""

    @property
    def hurries(self) -> bool:
        """Whether some streams are to be visited at each pass."""
        return bool(self._hurried or any(each.left for each in self._turns))

    def forget(self) -> None:
        """Read anew what earlier sweeps have seen: the store may be another one by now."""
        self._swept.clear()
        self._names.clear()
        self._marked = {}

    async def sweep(self, *, whole: bool = True) -> None:
        """One visit to each stream, or to those that are in a hurry, for all that there is to do.
        Those of which some are left come first, of either kind in every other sweep.

        Raises what the metadata store raises at the listing, MetadataUnavailableError, and
        MetadataRestoredError."""
        self.last_error = ""
        now_ms = await self._time()
        self._turns.reverse()
        for each in self._turns:
            each.begin()
        if not whole:
            await self._visit_all(self._in_a_hurry(), now_ms)
        else:
            names = await self._store.children(STREAMS_ROOT)
            for each in reversed(self._turns):
                names = each.in_turn(names)
            marked, swept = await self._visit_all(names, now_ms)
            self._marked = marked
            self._conflicts = Counter({name: self._conflicts[name] for name in names})
            self._hurried.intersection_update(names)
            await self._forget_all_but(swept)
        await self._say_what_waits()

    def _in_a_hurry(self) -> Iterator[str]:
        first, second = self._turns
        for name in dict.fromkeys([*first.left, *sorted(self._hurried), *second.left]):
            may = any(name in each.left and each.has_time() for each in self._turns)
            if may or name in self._hurried:
                yield name

    async def _visit_all(
        self, names: Iterable[str], now_ms: int
    ) -> tuple[dict[str, str], Collection[str]]:
        """Names of those that are marked as deleted, by id; ids of the others."""
        swept: set[str] = set()
        marked: dict[str, str] = {}
        for name in names:
            try:
                config = await StreamNodes(self._store, name).config()
                stream_id = config.value.stream_id
                if config.value.deleted:
                    marked[stream_id] = name
                    self._hurried.discard(name)
                    self._end_visit(name)
                    if stream_id in self._marked:  # whoever marked it had a minute
                        await self._finish_deletion(name, stream_id)
                else:
                    swept.add(stream_id)
                    await self._visit(name, config, now_ms)
            except NoSuchStreamError:
                self._hurried.discard(name)  # deleted meanwhile
                self._end_visit(name)
            except (MetadataUnavailableError, MetadataRestoredError):
                raise  # the others would wait as long for nothing, or go back as well (rule K6)
            except ConflictError as error:
                # Writers of a busy stream change its nodes meanwhile: that is no fault, unless it
                # goes on. The next visit has another look.
                self._conflicts[name] += 1
                if self._conflicts[name] < CONFLICTS_TO_SAY:
                    logger.info("stream %r changed while it was swept: %s", name, error)
                else:
                    self._failed(name, error)
            except LedgerError as error:
                self._failed(name, error)
                self._end_visit(name)
            else:
                self._conflicts.pop(name, None)
        return marked, swept

    def _end_visit(self, name: str) -> None:
        for each in self._turns:
            each.end_visit(name)

    def _failed(self, name: str, error: LedgerError) -> None:
        self.last_error = f"stream {name!r}: {error}"
        logger.warning("the space of stream %r is not given back yet: %s", name, error)

    async def _say_what_waits(self) -> None:
        """Write down how much is to be given back, for those who watch the cluster."""
        before = await read_or_renew(self._store, SweptNode(), SWEPT_PATH)
        parts = self._waiting.values()
        waiting = SweptNode(
            reclaimable_commits=sum(each.reclaimable_commits for each in parts),
            reclaimable_bytes=sum(each.reclaimable_bytes for each in parts),
        )
        if before is not None and before.value == waiting:
            return
        data = encode_node(waiting)
        if before is None:
            await self._store.create(SWEPT_PATH, data)
        else:
            change = Put(SWEPT_PATH, data, before.version)
            await self._store.transaction([self._guard(), change])

    async def _visit(self, name: str, config: Versioned[StreamConfig], now_ms: int) -> None:
        stream = Stream(self._client, StreamNodes(self._store, name), config)
        try:
            await self._sweep_one(stream, now_ms)
            if self._sink_records_s:
                self.done["sinks"] += await forget_sinks(
                    self._store,
                    stream,
                    self._guard,
                    older_than_s=self._sink_records_s,
                    now_ms=now_ms,
                )
        finally:
            await stream.close()

    async def _finish_deletion(self, name: str, stream_id: str) -> None:
        if await self._streams.finish_deletion(name, stream_id, self._guard):
            self.done["streams"] += 1
            logger.info("the deletion of stream %r is finished", name)

    async def _time(self) -> int:
        """The time by which retention counts (rule K7), which is written down."""
        wall_ms, now = self._wall_ms(), self._clock()
        believed_ms = wall_ms if self._steady is None else self._steady.reached_ms
        saved = await read_or_renew_clock(self._store, believed_ms)
        if self._steady is None:
            self._steady = SteadyClock(wall_ms, now, None if saved is None else saved.value.time_ms)
        now_ms = self._steady.read(wall_ms, now)
        try:
            await write_clock(self._store, self._steady.reached_ms, saved)
        except ConflictError:
            self._steady = None  # another keeper has: the next sweep goes on from what that wrote
            raise
        if self._steady.has_jumped and not self._has_warned:
            logger.warning(
                "the clock of this host is %d s ahead of what keepers have seen pass: it jumped, "
                "or there was no keeper for so long; retention goes on slowly until it has caught "
                "up",
                self._steady.behind_ms // 1000,
            )
        self._has_warned = self._steady.has_jumped
        return now_ms

    async def _sweep_one(self, stream: Stream, now_ms: int) -> None:
        """Each part has its turn, whatever another one meets. Raises the first of their errors."""
        failed: list[LedgerError] = []
        with _put_off(failed):
            await self._apply_retention(stream, now_ms)
        due = await self._replaced(stream)
        with self._former.turn_of(stream.name) as turn:
            with _put_off(failed):
                await self._give_back(stream, due, turn)
            with _put_off(failed):
                await self._free_merged(stream, due, turn)
        if failed:  # a conflict is said only if it goes on, so it hides no other
            raise min(failed, key=lambda error: isinstance(error, ConflictError))

    async def _apply_retention(self, stream: Stream, now_ms: int) -> None:
        config, retention = stream.config, stream.retention
        if config.has_retention:
            for hold in await retention.release_void(now_ms):
                self.done["released"] += 1
                logger.info("hold %r of stream %r is over", hold.name, stream.name)
            if not config.retention.is_for_ever:
                assert self._steady is not None, "the time of this sweep is its"
                self.done["dropped"] += await retention.apply(now_ms, self._steady.latest_ms)
        if config.dropping:  # of a keeper that was killed: commits refuse these ledgers
            await retention.reclaimer(self._deletions, LiveNames()).withdraw()

    async def _give_back(self, stream: Stream, due: _Due, turn: Turn) -> None:
        """The space of dropped commits, and what packs have replaced: both read live commits."""
        config = stream.config
        head = await stream.head()
        if head.earliest_commit:
            await self._reclaim(stream, head.earliest_commit, due)
        else:
            self._waiting.pop(config.stream_id, None)
            self._rows.left.pop(stream.name, None)
        # Last, as it reads dropped commits, which must not be half deleted.
        if config.has_packs:
            reclaimer = stream.retention.reclaimer(self._former, LiveNames(), due.packs)
            self.done["reclaimed"] += await reclaimer.free_packed(turn.may_go_on)

    async def _free_merged(self, stream: Stream, due: _Due, turn: Turn) -> None:
        """What leaves have left. Reads no commit, so a lost one holds up nothing."""
        if due.merged:
            reclaimer = stream.retention.reclaimer(self._former, LiveNames(), due.packs)
            count = await reclaimer.free_merged(due.merged, turn.may_go_on)
            self.done["reclaimed"] += count
            turn.did(count)

    async def _replaced(self, stream: Stream) -> _Due:
        """What packs and pages above leaves have replaced long enough ago (rule K11)."""
        replaced, now_s = await stream.retention.replaced(), self._worked_s()
        if not any(replaced):
            return _Due(0, 0)
        known = await self._known(stream)
        merged = known.merged.before(replaced.merged, now_s, self._replaced_s)
        packs = known.packed.before(replaced.packs, now_s, self._replaced_s)
        await self._write_down(stream, known)
        if merged < replaced.crowded and stream.config.stream_id not in self._crowded_told:
            self._crowded_told.add(stream.config.stream_id)
            logger.warning(
                "stream %r: more than %d ledgers of merged manifests wait for backups; the oldest "
                "go before replaced_grace_s is over, so only younger backups are complete",
                stream.name,
                MERGED_LEDGERS_KEPT,
            )
        return _Due(max(merged, replaced.crowded), packs)

    async def _reclaim(self, stream: Stream, earliest_commit: int, due: _Due) -> None:
        """Give back the space of commits that were dropped long enough ago (rule K8)."""
        known = await self._known(stream)
        upto = known.dropped.before(earliest_commit, self._worked_s(), self._grace_s)
        await self._write_down(stream, known)
        upto = max(upto, await self._crowded(stream, known.dropped))
        reclaimer = stream.retention.reclaimer(self._rows, self._live(stream), due.packs)
        try:
            with self._rows.turn_of(stream.name) as turn:
                for _ in range(RECLAIM_STEPS_MAX):
                    step = await reclaimer.step(upto, turn.may_go_on)
                    self.done["reclaimed"] += step.ledgers
                    if step.is_done or turn.is_left:
                        break
                else:
                    turn.is_left = True
        finally:
            await self._add_what_waits(stream)

    async def _crowded(self, stream: Stream, dropped: DroppedRows) -> int:
        """Up to which commit rows wait that more follows than retention keeps, and have waited for
        the least that a batch has (rule K8)."""
        size_bytes = stream.config.retention.size_bytes
        seen = dropped.seen(self._worked_s(), self._least_s)
        if size_bytes is None or not seen:
            return 0
        # A page may have gone with a keeper that died in a step: then all waits for the grace.
        with contextlib.suppress(DataLossError, NotFoundError):
            return min(seen, await stream.retention.crowded(size_bytes))
        return 0

    async def _add_what_waits(self, stream: Stream) -> None:
        """What one visit has left, for those who watch and for the next visit; what is known stays
        if it cannot be read now: a stream whose visit has failed is in no less of a hurry."""
        with contextlib.suppress(LedgerError):
            extent = await stream.retention.extent()
            self._waiting[stream.config.stream_id] = SweptNode(
                reclaimable_commits=extent.head.earliest_commit - extent.dropped_commits,
                reclaimable_bytes=extent.reclaimable_bytes,
            )
            size_bytes = extent.retention.size_bytes
            if size_bytes is not None and extent.reclaimable_bytes > max(
                HURRIED_BYTES_MIN, HURRIED_SHARE * size_bytes
            ):
                self._hurried.add(stream.name)
            else:
                self._hurried.discard(stream.name)

    # -- since when rows are dropped (rule K8) -----------------------------------------------------

    async def _known(self, stream: Stream) -> _Swept:
        """What is known of a stream, to this keeper or from those before."""
        stream_id = stream.config.stream_id
        known = self._swept.get(stream_id)
        if known is None:
            nothing = DroppedNode(name=stream.name, looks=())  # the grace begins again
            saved = await read_or_renew(self._store, nothing, dropped_path(stream_id))
            written = nothing if saved is None else saved.value
            version = None if saved is None else saved.version
            dropped, merged, packed = (
                DroppedRows(each) for each in (written.looks, written.merged, written.packed)
            )
            known = _Swept(dropped, merged, packed, written, version)
            self._swept[stream_id] = known
        self._swept.move_to_end(stream_id)
        if len(self._swept) > SWEPT_STREAMS_MAX:
            self._swept.popitem(last=False)
        return known

    def _live(self, stream: Stream) -> LiveNames:
        """What is known of the names in live commits of a stream."""
        stream_id = stream.config.stream_id
        names = self._names.setdefault(stream_id, LiveNames())
        self._names.move_to_end(stream_id)
        if len(self._names) > SWEPT_STREAMS_MAX:
            self._names.popitem(last=False)
        return names

    async def _write_down(self, stream: Stream, known: _Swept) -> None:
        """Have the next keeper go on from here. Raises ConflictError if another one has."""
        now, stream_id = known.now, stream.config.stream_id
        if now == known.written:
            return
        path, data = dropped_path(stream_id), encode_node(now)
        try:
            if known.version is None:
                with contextlib.suppress(ConflictError):
                    await self._store.create(DROPPED_PATH, b"")
                await self._store.transaction([self._guard(), Create(path, data)])
                known.version = 0
            else:
                await self._store.transaction([self._guard(), Put(path, data, known.version)])
                known.version += 1
        except LedgerError:
            del self._swept[stream_id]  # it is read again
            raise
        known.written = now

    async def _forget_all_but(self, swept: Collection[str]) -> None:
        """Forget what was known of streams that are gone."""
        self._crowded_told.intersection_update(swept)
        for known in (self._swept, self._names, self._waiting):
            for stream_id in known.keys() - swept:
                del known[stream_id]
        for stream_id in set(await self._store.children(DROPPED_PATH)).difference(swept):
            with contextlib.suppress(ConflictError, NotFoundError):
                await self._forget_note(stream_id)

    async def _forget_note(self, stream_id: str) -> None:
        """Remove the note of a stream that is gone. Raises NotFoundError if there is none."""
        path = dropped_path(stream_id)
        note = await self._store.get_latest(path)
        try:
            name = decode_node(DroppedNode, path, note.value).name
            # It may only have failed, or a server lags.
            await self._store.get_latest(StreamNodes(self._store, name).identity_path(stream_id))
        except NotFoundError:
            pass
        except ConfigurationError as error:
            logger.warning("%s", error)
            return
        except CorruptionError as error:  # of which stream it is it does not say
            logger.warning("%s; it is removed", error)
        else:
            return
        await self._store.transaction([self._guard(), Delete(path, note.version)])
