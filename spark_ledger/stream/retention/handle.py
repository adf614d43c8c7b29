"""The end of a stream for its users: truncate it, say what is kept, hold what is still needed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    DataLossError,
    MetadataRestoredError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.stream import HOLDS_MAX, MERGED_LEDGERS_KEPT
from spark_ledger.metadata.base import Check, Create, Operation, Put
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.format import codec
from spark_ledger.stream.manifest.format import encode_root
from spark_ledger.stream.manifest.tree import ManifestRoot, empty_root
from spark_ledger.stream.model import Commit, Head, Retention, StreamConfig
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.stream.packs.format import encode_packs
from spark_ledger.stream.packs.model import NO_PACKS, Packs
from spark_ledger.stream.packs.store import PackStore
from spark_ledger.stream.positions import Position, parse_position
from spark_ledger.stream.retention.deletions import Deletions
from spark_ledger.stream.retention.format import encode_holds
from spark_ledger.stream.retention.held import read_holds
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.names import LedgerCounts, Replaced, count_ledgers
from spark_ledger.stream.retention.reclaim import Reclaimer
from spark_ledger.stream.retention.rules import Hold, first_held, truncated
from spark_ledger.stream.retention.search import first_kept, first_not_before
from spark_ledger.stream.retention.tries import Tries
from spark_ledger.stream.schema_registry import SchemaRegistry
from spark_ledger.types import Dlsn, LedgerId, Versioned


@dataclass(frozen=True, slots=True)
class Extent:
    """What a stream holds: commits dropped | swept of | in manifests | in nodes, and how much.

    Of ``reclaimable`` rows and bytes the ledgers are not deleted yet. ``since_ms`` is the time of
    the first commit that is kept, 0 without one.
    """

    head: Head
    retention: Retention
    holds: tuple[Hold, ...]
    dropped_commits: int
    """Below this commit nothing is left; those up to ``head.earliest_commit`` are to go."""
    sealed_commits: int
    live_rows: int
    live_bytes: int
    reclaimable_rows: int
    reclaimable_bytes: int
    since_ms: int


class StreamRetention:
    """What is kept of one stream. Made by ``Stream``; bound to its loop."""

    def __init__(
        self,
        nodes: StreamNodes,
        schemas: SchemaRegistry,
        log: CommitLog,
        packs: PackStore,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        self._nodes = nodes
        self._schemas = schemas
        self._log = log
        self._packs = packs
        self._clock_ms = clock_ms
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret

    async def packs(self) -> Packs:
        """The packs of the stream, as they are now; none of one that was never optimized."""
        if not self._schemas.config.has_packs:
            return NO_PACKS
        return (await self._packs.read()).value

    # -- limits ------------------------------------------------------------------------------------

    async def limits(self) -> Retention:
        """What is kept, as it is now. Raises NoSuchStreamError."""
        return (await self._schemas.refresh()).retention

    async def set_limits(self, retention: Retention) -> None:
        """Keep so much from now on; the keeper drops what is more. Raises NoSuchStreamError."""
        tries = self._tries()
        while True:
            await tries.begin()
            before = await self._schemas.refresh()
            if before.retention == retention:
                return
            after = replace(before, has_manifests=True, has_retention=True, retention=retention)
            await self._replace_config(after)

    async def _upgrade(self) -> None:
        """Keep programs out that know no retention, before anything depends on it (rule T18)."""
        tries = self._tries()
        while True:
            await tries.begin()
            before = await self._schemas.refresh()
            if before.has_retention:
                return
            after = replace(before, has_manifests=True, has_retention=True)
            await self._replace_config(after)

    async def allow_packs(self) -> None:
        """Keep programs out that know no packs, before there is one (rule T26)."""
        tries = self._tries()
        while True:
            await tries.begin()
            before = await self._schemas.refresh()
            if before.has_packs:
                return
            after = replace(before, has_manifests=True, has_retention=True, has_packs=True)
            await self._replace_config(after)

    async def replaced(self) -> Replaced:
        """What has taken the place of other ledgers, which may be there still. For the keeper."""
        root = await self._log.manifests.read_root()
        merged = root.merged_upto if any(root.levels[1:]) else 0
        crowded = max(0, merged - MERGED_LEDGERS_KEPT * root.leaf_commits)
        return Replaced(merged, (await self.packs()).made, crowded - crowded % root.span(1))

    def reclaimer(
        self, deletions: Deletions, names: LiveNames, packs_upto: int | None = None
    ) -> Reclaimer:
        """Who gives back the space of what was dropped, and of what the first ``packs_upto`` packs
        have replaced; None: all packs. For the keeper."""

        async def listing(ledger_ids: Sequence[LedgerId]) -> Versioned[StreamConfig]:
            before = await self._schemas.refresh()
            version = self._schemas.versioned.version
            dropping = tuple(ledger_ids)
            after = replace(before, has_manifests=True, has_retention=True, dropping=dropping)
            if after == before:
                return Versioned(before, version)
            if not await self._replace_config(after, deletions.guard()):
                raise ConflictError(
                    f"stream {self._nodes.name!r}: its configuration has just changed"
                )
            return Versioned(after, version + 1)

        packs = self._packs
        return Reclaimer(self._nodes, self._log, listing, deletions, names, packs, packs_upto)

    async def _replace_config(self, after: StreamConfig, *checks: Operation) -> bool:
        """Replace the configuration that was just read, and make the nodes that a newer format
        has. False: it may be done, which the next reading tells."""
        before, nodes = self._schemas.versioned, self._nodes
        operations: list[Operation] = [
            *checks,
            Check(nodes.identity_path(after.stream_id), 0),
            Put(nodes.config_path, codec.encode_config(after), before.version),
        ]
        if after.has_manifests and not before.value.has_manifests:
            root = encode_root(empty_root(after.stream_id))
            operations.append(Create(nodes.manifests_path, root))
        if not before.value.has_retention:
            operations.append(Create(nodes.holds_path, encode_holds(())))
        if after.has_packs and not before.value.has_packs:
            operations.append(Create(nodes.packs_path, encode_packs(Packs())))
        return await self._send(operations, self._schemas.reading)

    # -- truncation --------------------------------------------------------------------------------

    async def truncate(
        self,
        before: Position | None = None,
        *,
        before_ms: int | None = None,
        ignore_holds: bool = False,
    ) -> Dlsn:
        """Drop all commits that lie wholly before a position (or were made before a time, in ms
        since 1970); the first position that is left. What was dropped before stays so.

        Raises ConfigurationError for a position behind the end or a time to come, ConflictError if
        a hold keeps some of it, NoSuchStreamError, RetryableError if nothing was dropped because
        others won every race.
        """
        if (before is None) == (before_ms is None):
            raise ConfigurationError("truncate: give a position or a time, and not both")
        position = None if before is None else parse_position(before)
        tries = self._tries()
        while True:
            await tries.begin()
            reading = OneConnection(self._nodes.store)
            await self._schemas.refresh()
            head, holds = await self._head(), await self._holds()
            if position is not None:
                first = await self._commit_of(head, position)
            else:
                assert before_ms is not None, "a position or a time"
                first = await self._commit_since(head, before_ms)
            number = head.value.next_commit if first is None else first.number
            if number <= head.value.earliest_commit:
                return head.value.earliest
            hold = first_held(holds.value)
            if hold is not None and number > hold.commit and not ignore_holds:
                raise ConflictError(
                    f"stream {self._nodes.name!r}: nothing was dropped, because hold "
                    f"{hold.name!r} keeps the rows from position {tuple(hold.position)} on; "
                    "truncate before that, or remove the hold"
                )
            await self._write_head(head, truncated(head.value, first), holds, reading)

    async def apply(self, now_ms: int, ahead_ms: int | None = None) -> int:
        """Drop what the limits allow and no hold keeps; how many commits. For the keeper.

        ``now_ms`` is a clock that cannot have jumped ahead. It may have been set back: commits that
        are dated later than ``ahead_ms`` only, by default the same, were made by a clock that was
        ahead (rule T15).
        """
        ahead_ms = now_ms if ahead_ms is None else ahead_ms
        assert ahead_ms >= now_ms, "a commit is ahead of every clock, or of none"
        dropped_from: int | None = None
        tries = self._tries()
        while True:
            await tries.begin()
            reading = OneConnection(self._nodes.store)
            retention = (await self._schemas.refresh()).retention
            head, holds = await self._head(), await self._holds()
            if dropped_from is None:
                dropped_from = head.value.earliest_commit
            first = await first_kept(self._log, head.value, retention, now_ms, ahead_ms)
            held = first_held(h for h in holds.value if not h.is_void(head.value, now_ms))
            if first is not None and held is not None and held.commit < first.number:
                number = max(held.commit, head.value.earliest_commit)
                first = await self._log.get(number)
            if first is None or first.number <= head.value.earliest_commit:
                return head.value.earliest_commit - dropped_from
            await self._write_head(head, truncated(head.value, first), holds, reading)

    async def _commit_of(self, head: Versioned[Head], position: Dlsn | str) -> Commit | None:
        """The commit that has the row at a position; None at the end."""
        value = head.value
        words = {"earliest": value.earliest, "latest": value.end}
        dlsn = words[position] if isinstance(position, str) else position
        if dlsn > value.end:
            raise ConfigurationError(
                f"stream {self._nodes.name!r}: position {tuple(dlsn)} lies behind the end, "
                f"{tuple(value.end)}"
            )
        if dlsn <= value.earliest:  # also at the end, where the newest commits have no rows
            has_commits = value.earliest_commit < value.next_commit
            return await self._log.get(value.earliest_commit) if has_commits else None
        if dlsn == value.end:
            return None
        return await self._log.at_segment(value, dlsn.segment)

    async def _commit_since(self, head: Versioned[Head], time_ms: int) -> Commit | None:
        now_ms = self._clock_ms()
        if time_ms > now_ms:
            raise ConfigurationError(
                f"stream {self._nodes.name!r}: the time {time_ms} ms since 1970 is still to come"
            )
        number = await first_not_before(self._log, head.value, time_ms, now_ms)
        return None if number is None else await self._log.get(number)

    async def _write_head(
        self,
        before: Versioned[Head],
        after: Head,
        holds: Versioned[tuple[Hold, ...]],
        reading: OneConnection,
    ) -> None:
        """Replace the head in the version that was read, if no hold came meanwhile (rule T16)."""
        nodes, config = self._nodes, self._schemas.versioned
        operations: list[Operation] = [
            Check(nodes.identity_path(after.stream_id), 0),
            Check(nodes.config_path, config.version),
            Put(nodes.head_path, codec.encode_head(after), before.version),
        ]
        if config.value.has_retention:
            operations.append(Check(nodes.holds_path, holds.version))
        await self._send(operations, reading)

    # -- holds -------------------------------------------------------------------------------------

    async def holds(self) -> list[Hold]:
        """The holds of the stream, by name, those that are over but not taken off yet as well."""
        await self._schemas.refresh()
        return list((await self._holds()).value)

    async def hold(
        self,
        name: str,
        position: Position = "earliest",
        *,
        for_s: float,
        size_bytes_max: int | None = None,
    ) -> Hold:
        """Keep the rows from a position on, for so long or until so many bytes follow it. A hold
        of the name that is there is moved and renewed.

        Raises ConfigurationError, DataLossError if rows behind the position were dropped,
        NoSuchStreamError, RetryableError.
        """
        await self._upgrade()
        wanted = parse_position(position)
        sent: list[Hold] = []
        tries = self._tries()
        while True:
            await tries.begin()
            reading = OneConnection(self._nodes.store)
            holds = await self._holds()
            head = await self._head(latest=True)  # read after it, so that it shows what came before
            made = next((hold for hold in holds.value if hold in sent), None)
            if made is not None:
                if made.commit >= head.value.earliest_commit:
                    return made
                await self._put_holds([h for h in holds.value if h != made], holds, reading)
                continue
            if isinstance(wanted, Dlsn) and wanted < head.value.earliest:
                # One that got no reply may still arrive: not once the holds have another version.
                if sent and not await self._put_holds(list(holds.value), holds, reading):
                    continue
                raise DataLossError(
                    f"stream {self._nodes.name!r}: the rows from position {tuple(wanted)} on "
                    "cannot be held, because those before "
                    f"{tuple(head.value.earliest)} were dropped"
                )
            made = await self._hold_at(name, head, wanted, for_s, size_bytes_max)
            others = [hold for hold in holds.value if hold.name != name]
            if len(others) >= HOLDS_MAX:
                raise ConfigurationError(
                    f"stream {self._nodes.name!r} has {len(others)} holds, and may have "
                    f"{HOLDS_MAX}: remove one"
                )
            sent.append(made)
            await self._put_holds([*others, made], holds, reading)

    async def _hold_at(
        self,
        name: str,
        head: Versioned[Head],
        wanted: Dlsn | str,
        for_s: float,
        size_bytes_max: int | None,
    ) -> Hold:
        commit = await self._commit_of(head, wanted)
        value, now_ms = head.value, self._clock_ms()
        position = wanted
        if isinstance(position, str):
            position = value.earliest if wanted == "earliest" else value.end
        return Hold(
            name=name,
            commit=value.next_commit if commit is None else commit.number,
            position=position,
            bytes_before=value.size_bytes if commit is None else commit.bytes_before,
            made_ms=now_ms,
            expires_ms=now_ms + int(for_s * 1000),
            size_bytes_max=size_bytes_max,
        )

    async def release(self, name: str) -> bool:
        """Take a hold off; whether there was one."""
        tries, was_there = self._tries(), False
        while True:
            await tries.begin()
            reading = OneConnection(self._nodes.store)
            await self._schemas.refresh()
            holds = await self._holds()
            others = [hold for hold in holds.value if hold.name != name]
            if len(others) == len(holds.value):
                return was_there  # also if it went, and the reply was lost
            was_there = True
            if await self._put_holds(others, holds, reading):
                return True

    async def release_void(self, now_ms: int) -> list[Hold]:
        """Take holds off that are over. For the keeper, with a clock that cannot have jumped."""
        reading = OneConnection(self._nodes.store)
        head, holds = await self._head(), await self._holds()
        over = [hold for hold in holds.value if hold.is_void(head.value, now_ms)]
        left = [hold for hold in holds.value if hold not in over]
        return over if over and await self._put_holds(left, holds, reading) else []

    async def _holds(self) -> Versioned[tuple[Hold, ...]]:
        return await read_holds(self._nodes, self._schemas.config)

    async def _put_holds(
        self, holds: list[Hold], before: Versioned[tuple[Hold, ...]], reading: OneConnection
    ) -> bool:
        """Replace the holds in the version that was read; whether that is known to be done."""
        nodes = self._nodes
        return await self._send(
            [
                Check(nodes.identity_path(self._schemas.config.stream_id), 0),
                Put(nodes.holds_path, encode_holds(holds), before.version),
            ],
            reading,
        )

    # -- looking -----------------------------------------------------------------------------------

    async def extent(self) -> Extent:
        """What the stream holds, and what is about to go."""
        config = await self._schemas.refresh()
        root = await self._log.manifests.read_root()
        head, holds = (await self._head()).value, await self._holds()
        first = await self._begin(head, head.earliest_commit)
        left = first
        if root.dropped < head.earliest_commit:
            left = await self._begin_of_rest(head, root)
        return Extent(
            head=head,
            retention=config.retention,
            holds=holds.value,
            dropped_commits=min(root.dropped, head.earliest_commit),
            sealed_commits=root.sealed,
            live_rows=head.rows - first[0],
            live_bytes=head.size_bytes - first[1],
            reclaimable_rows=first[0] - left[0],
            reclaimable_bytes=first[1] - left[1],
            since_ms=first[2],
        )

    async def crowded(self, size_bytes: int) -> int:
        """Up to which commit rows are dropped, not given back, and followed by so many bytes that
        are dropped as well; 0 if there are none, or if some of them cannot be read."""
        root = await self._log.manifests.read_root()
        head = (await self._head()).value
        if root.dropped >= head.earliest_commit:
            return 0
        end_bytes = (await self._begin(head, head.earliest_commit))[1]
        among = (root.dropped, head.earliest_commit)
        try:
            return await self._log.last_followed_by(among, end_bytes, size_bytes) or 0
        except MetadataRestoredError:
            raise
        except (CorruptionError, ConfigurationError):
            return 0  # all waits for its time

    async def ledgers(self) -> LedgerCounts:
        """How many ledgers the stream has. Reads all commits that are not given back."""
        config, head = await self._schemas.refresh(), (await self._head()).value
        now_ms = self._clock_ms()
        kept = await first_kept(self._log, head, config.retention, now_ms, now_ms)
        number = head.earliest_commit if kept is None else kept.number
        return await count_ledgers(self._nodes, self._log, head, number)

    async def _begin_of_rest(self, head: Head, root: ManifestRoot) -> tuple[int, int, int]:
        """As ``_begin``, of the first dropped commit that is not given back and can be read: those
        before it may wait for ever (rule K6)."""
        number, step = root.dropped, root.leaf_commits
        while number < head.earliest_commit:
            try:
                return await self._begin(head, number)
            except (MetadataRestoredError, DataLossError):
                raise
            except (CorruptionError, ConfigurationError):
                number += step - number % step
        return await self._begin(head, head.earliest_commit)

    async def _begin(self, head: Head, number: int) -> tuple[int, int, int]:
        """Rows and bytes before a commit, and its time; the totals at the end."""
        if number >= head.next_commit:
            return head.rows, head.size_bytes, 0
        commit = await self._log.get(number)
        return commit.rows_before, commit.bytes_before, commit.time_ms

    # -- transactions ------------------------------------------------------------------------------

    async def _head(self, *, latest: bool = False) -> Versioned[Head]:
        head = await self._nodes.head(latest=latest)
        if head.value.stream_id != self._schemas.config.stream_id:
            raise self._nodes.no_such_stream()  # another stream of the same name (rule T7)
        return head

    async def _send(self, operations: list[Operation], reading: OneConnection) -> bool:
        """Whether a transaction is known to have been applied; all of them may be sent again. It is
        sent over the connection of its reading only (rule T2)."""
        try:
            await reading.transaction(operations)
        except (ConflictError, NotFoundError, OutcomeUnknownError):
            return False
        return True

    def _tries(self) -> Tries:
        return Tries(self._nodes.name, self._rng)
