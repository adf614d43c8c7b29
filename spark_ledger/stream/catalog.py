"""Creates, opens, lists and deletes streams."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    MetadataRestoredError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.limits.stream import CREATE_TRIES_MAX
from spark_ledger.metadata.base import Check, Create, Delete, Operation
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.declared import declared_columns
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.schema import canonical_schema
from spark_ledger.stream.ledgers import Ledgers
from spark_ledger.stream.manifest.format import encode_root
from spark_ledger.stream.manifest.tree import empty_root
from spark_ledger.stream.model import (
    ENTRY_BYTES_DEFAULT,
    SEGMENT_ROLL_AGE_S_DEFAULT,
    SEGMENT_ROLL_BYTES_DEFAULT,
    Compression,
    Head,
    Retention,
    StreamConfig,
    parse_compression,
)
from spark_ledger.stream.nodes import STREAMS_ROOT, StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.stream.packs.store import read_packs
from spark_ledger.stream.retention.format import encode_holds
from spark_ledger.stream.retention.names import read_names
from spark_ledger.stream.stream import Stream
from spark_ledger.types import TAG_STREAM_ID, LedgerId, Quorums, Versioned

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_LEDGERS_AT_ONCE: Final = 64
"""Ledgers that are deleted in parallel."""

_PARTS_AT_ONCE: Final = 16
"""Leaves of manifests, or buckets, whose commits are read in parallel."""

_NODES_PER_TRANSACTION: Final = 500
_TRANSACTIONS_AT_ONCE: Final = 4
"""Nodes that are deleted: a transaction of so many is 50 KB, and takes ZooKeeper some 10 ms."""

_DELETE_ATTEMPTS: Final = 20
_DELETE_DELAY_S: Final = 0.05
"""Another deletion or a late commit changes nodes for less than a second."""


class StreamCatalog:
    """The streams of a cluster."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._store = ledgers.store

    async def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        compression: str | Compression = Compression.LZ4,
        entry_bytes: int = ENTRY_BYTES_DEFAULT,
        segment_roll_bytes: int = SEGMENT_ROLL_BYTES_DEFAULT,
        segment_roll_age_s: float = SEGMENT_ROLL_AGE_S_DEFAULT,
        retention: Retention | None = None,
        key_columns: Sequence[str] = (),
        time_column: str | None = None,
        exist_ok: bool = False,
    ) -> Stream:
        """Create a stream for rows of an Arrow schema.

        Types are normalised to those Spark has (``schema.canonical_schema``). With ``exist_ok`` an
        existing stream of this name is opened instead, whatever its configuration. ``retention``
        says how much is kept, all if it is left out. Readers can ask for one key of
        ``key_columns`` and for a part of the time in ``time_column`` (rule T27).

        Raises ConflictError if the name is taken, ConfigurationError, SchemaMismatchError.
        """
        nodes = StreamNodes(self._store, name)
        stored = canonical_schema(schema)
        keys, time_of_event = declared_columns(stored, key_columns, time_column)
        config = StreamConfig(
            name=name,
            stream_id=uuid.uuid4().hex,
            schemas=(stored,),
            key_columns=keys,
            time_column=time_of_event,
            quorums=Quorums(ensemble_size, write_quorum, ack_quorum),
            compression=parse_compression(compression),
            entry_bytes=entry_bytes,
            segment_roll_bytes=segment_roll_bytes,
            segment_roll_age_s=segment_roll_age_s,
            created_ms=time.time_ns() // 1_000_000,
            has_retention=retention is not None,
            retention=retention or Retention(),
        )
        for _try in range(CREATE_TRIES_MAX):
            try:
                await self._create_nodes(nodes, config)
            except ConflictError as error:
                existing = await self._existing(nodes)
                if existing is None:
                    continue  # it was deleted in between, and the name is free
                if existing.value.stream_id == config.stream_id:
                    return Stream(self._ledgers, nodes, existing)  # ours: only the reply was lost
                if existing.value.deleted:
                    raise ConflictError(
                        f"stream {name!r} is being deleted; delete it again to finish that, "
                        "then create it"
                    ) from error
                if exist_ok:
                    return Stream(self._ledgers, nodes, existing)
                raise ConflictError(
                    f"stream {name!r} exists already; open it, or choose another name"
                ) from error
            return Stream(self._ledgers, nodes, Versioned(config, 0))
        raise ConflictError(
            f"stream {name!r} has nodes and no configuration, {CREATE_TRIES_MAX} times in a row: "
            "choose another name"
        )

    async def _create_nodes(self, nodes: StreamNodes, config: StreamConfig) -> None:
        operations = [
            Create(nodes.root, b""),
            Create(nodes.identity_path(config.stream_id), b""),
            Create(nodes.config_path, codec.encode_config(config)),
            Create(nodes.head_path, codec.encode_head(Head(stream_id=config.stream_id))),
            Create(nodes.sinks_path, b""),
            Create(nodes.commits_path, b""),
            Create(nodes.manifests_path, encode_root(empty_root(config.stream_id))),
            *([Create(nodes.holds_path, encode_holds(()))] if config.has_retention else []),
        ]
        while True:
            try:
                await self._store.transaction(operations)
            except NotFoundError:  # the first stream of the cluster
                try:
                    await self._store.create(STREAMS_ROOT, b"")
                except (ConflictError, OutcomeUnknownError):
                    continue
            except OutcomeUnknownError:
                # Sent again: if the stream was created after all, that is a conflict, and the
                # caller sees by the stream id whether it is ours (rule T7).
                continue
            else:
                return

    async def _existing(self, nodes: StreamNodes) -> Versioned[StreamConfig] | None:
        """The configuration, or None if there is no such stream (any more)."""
        try:
            return await nodes.config()
        except NoSuchStreamError:
            return None

    async def open(self, name: str) -> Stream:
        """Open a stream. Raises NoSuchStreamError if the newest metadata have none of the name."""
        nodes = StreamNodes(self._store, name)
        config = await self._existing(nodes)
        if config is None or config.value.deleted:  # or our server lags (rule T7)
            config = await nodes.config(latest=True)
        if config.value.deleted:
            raise nodes.no_such_stream()
        return Stream(self._ledgers, nodes, config)

    async def names_in_use(self) -> list[str]:
        """The names of all streams, and of those that are just being created or deleted."""
        return sorted(await self._store.children(STREAMS_ROOT))

    async def names(self) -> list[str]:
        """The names of all streams, sorted."""
        names = await self._store.children(STREAMS_ROOT)
        found = await run_all(self._existing(StreamNodes(self._store, name)) for name in names)
        return [
            name
            for name, config in zip(names, found, strict=True)
            if config is not None and not config.value.deleted
        ]

    async def delete(self, name: str) -> None:
        """Delete a stream with its rows.

        It is marked first, so that no commit is made any more and no reader opens it. Then its
        ledgers are deleted, those that name others last, then its nodes. After a crash a second
        call finishes the work. Behind each new connection it is begun anew, if the stream is marked
        still.
        Raises NoSuchStreamError, RetryableError if its nodes keep changing meanwhile,
        MetadataRestoredError if the stream lives again meanwhile, CorruptionError if the node of a
        ledger, or what names ledgers, cannot be read, once the rows of all others are deleted.
        """
        nodes = StreamNodes(self._store, name)
        reading = OneConnection(self._store)
        config: Versioned[StreamConfig] | None = await self._mark_deleted(nodes)
        while config is not None:
            try:
                return await self._delete_marked(nodes, config, reading)
            except (ConflictError, OutcomeUnknownError):
                if not reading.has_ended:
                    raise
            reading = OneConnection(self._store)
            stream_id = config.value.stream_id
            config = await self._marked(nodes, stream_id)
            if config is not None and not config.value.deleted:
                raise MetadataRestoredError(
                    f"stream {name!r} lives again, while it was deleted: ZooKeeper was restored "
                    "from a backup. What is left of it was left alone; if it is to be deleted "
                    "still, delete it again"
                )
        return None  # it is gone, and a stream that has the name by now is another one (rule T7)

    async def finish_deletion(
        self, name: str, stream_id: str, guard: Callable[[], Operation]
    ) -> bool:
        """Finish a deletion that somebody else has begun; whether it was done. A stream that is not
        marked is left alone: a restored store may have it alive again.

        ``guard`` is called for a part of each transaction, and may raise. Raises as ``delete``,
        and ConflictError or OutcomeUnknownError behind a new connection.
        """
        nodes, reading = StreamNodes(self._store, name), OneConnection(self._store)
        config = await self._marked(nodes, stream_id)
        if config is None or not config.value.deleted:
            return False
        await self._delete_marked(nodes, config, reading, guard)
        return True

    async def _marked(self, nodes: StreamNodes, stream_id: str) -> Versioned[StreamConfig] | None:
        """The configuration of a stream that was marked, as it is now; None if it is gone."""
        with suppress(NoSuchStreamError):
            config = await nodes.config(latest=True)
            if config.value.stream_id == stream_id:
                return config
        return None

    async def _delete_marked(
        self,
        nodes: StreamNodes,
        config: Versioned[StreamConfig],
        reading: OneConnection,
        guard: Callable[[], Operation] | None = None,
    ) -> None:
        """Delete what a stream has that was found to be marked by ``reading``. Raises as
        ``delete``, and ConflictError or OutcomeUnknownError once the connection is another."""
        identity = Check(nodes.identity_path(config.value.stream_id), 0)

        def checks() -> list[Operation]:
            """What each deletion is sent with; it sends nothing over another connection."""
            guards = [] if guard is None else [guard()]
            reading.check()
            return [identity, *guards]

        unread: list[LedgerError] = []
        for ledger_ids in await self._named_ledgers(nodes, config.value, unread):
            for batch in _batches(sorted(ledger_ids), _LEDGERS_AT_ONCE):
                found = await run_all(
                    self._delete_ledger(each, config.value, checks) for each in batch
                )
                unread += [error for error in found if error is not None]
            if unread:  # what leads to them stays
                damaged = {str(error): error for error in unread}  # one may keep a hundred commits
                first = next(iter(damaged))
                raise CorruptionError(
                    f"stream {nodes.name!r} is deleted but for {len(damaged)} of its ledgers or "
                    f"commits, whose metadata cannot be read, and what these name: {first}"
                ) from damaged[first]
        await self._delete_nodes(nodes, config, checks)

    async def _mark_deleted(self, nodes: StreamNodes) -> Versioned[StreamConfig]:
        """Set ``deleted``. Every commit checks the configuration's version, so none follows."""
        while True:
            config = await nodes.config()
            if config.value.deleted:
                return config
            marked = replace(config.value, deleted=True)
            try:
                await nodes.replace_config(
                    codec.encode_config(marked), marked.stream_id, config.version
                )
            except (ConflictError, NotFoundError, OutcomeUnknownError):
                continue
            return Versioned(marked, config.version + 1)

    async def _named_ledgers(
        self, nodes: StreamNodes, config: StreamConfig, unread: list[LedgerError]
    ) -> tuple[set[LedgerId], set[LedgerId]]:
        """The ledgers of rows, and those that name them: of segment lists and of manifests.
        ``unread`` is given the errors of what cannot be read.
        """
        log = CommitLog(self._ledgers, nodes, config.stream_id)
        packs = (await read_packs(nodes)).value.packs
        rows = {pack.ledger_id for pack in packs}
        naming: set[LedgerId] = set()
        parts: list[range] = []
        async for page in log.manifests.walk(unread):
            with suppress(NotFoundError, CorruptionError, ConfigurationError):  # ``walk`` tells
                rows.update(await log.manifests.former(await log.manifests.root(), page))
            naming.add(LedgerId(page.pointer.ledger_id))
            if page.level == 0:
                parts.append(range(page.first, page.first + (await log.manifests.root()).span(0)))
        for bucket in await self._store.children(nodes.commits_path):
            commits = await self._store.children(f"{nodes.commits_path}/{bucket}")
            if commits:
                parts.append(range(int(commits[0]), int(commits[-1]) + 1))
        for batch in _batches(parts, _PARTS_AT_ONCE):
            for found in await run_all(read_names(log, part) for part in batch):
                unread += found.unread.values()
                named = found.named.values()
                rows.update(*(each.rows for each in named))
                naming.update(each.segment_list for each in named if each.segment_list is not None)
        return rows, naming

    async def _delete_ledger(
        self, ledger_id: LedgerId, config: StreamConfig, checks: Callable[[], list[Operation]]
    ) -> LedgerError | None:
        """Delete a ledger, unless it was made for another stream, whose commits may name it. The
        error if nobody can tell: it keeps no other waiting (rule K6)."""
        for attempt in range(METADATA_ATTEMPTS):
            try:
                metadata = await self._ledgers.ledger_metadata(ledger_id)
            except NoSuchLedgerError:
                return None
            except MetadataRestoredError:
                raise
            except (CorruptionError, ConfigurationError) as error:
                return error
            if metadata.custom_metadata.get(TAG_STREAM_ID) != config.stream_id:
                return None
            try:
                await self._ledgers.deletions.delete(ledger_id, checks())
            except NotFoundError:
                return None  # another deletion has taken it
            except OutcomeUnknownError:
                if attempt == METADATA_ATTEMPTS - 1:
                    raise
            else:
                return None
        raise AssertionError("the last attempt returns or raises")

    async def _delete_nodes(
        self,
        nodes: StreamNodes,
        config: Versioned[StreamConfig],
        checks: Callable[[], list[Operation]],
    ) -> None:
        """Delete the nodes, until they are gone or are those of a new stream of that name."""
        for _ in range(_DELETE_ATTEMPTS):
            try:
                return await self._try_delete_nodes(nodes, config.value, checks)
            except (ConflictError, NotFoundError, OutcomeUnknownError):
                # Another deletion is at work, a last commit added nodes, or a reply was lost.
                existing = await self._existing(nodes)
                if existing is None or existing.value.stream_id != config.value.stream_id:
                    return None
                checks()  # else nothing would be deleted any more
                await asyncio.sleep(_DELETE_DELAY_S)
        raise RetryableError(
            f"stream {nodes.name!r}: its nodes keep changing while it is deleted; try again"
        )

    async def _try_delete_nodes(
        self, nodes: StreamNodes, config: StreamConfig, checks: Callable[[], list[Operation]]
    ) -> None:
        """Delete the nodes of the stream that was marked, and of no other (rule T7): a second
        deletion may have finished meanwhile, and the name may be in use again."""
        paths: list[str] = []
        for bucket in await self._store.children(nodes.commits_path):
            parent = f"{nodes.commits_path}/{bucket}"
            paths += [f"{parent}/{commit}" for commit in await self._store.children(parent)]
            paths.append(parent)
        sinks = await self._store.children(nodes.sinks_path)
        paths += [f"{nodes.sinks_path}/{sink}" for sink in sinks]
        for batches in _batches(_batches(paths, _NODES_PER_TRANSACTION), _TRANSACTIONS_AT_ONCE):
            await run_all(
                self._store.transaction([*checks(), *(Delete(path) for path in batch)])
                for batch in batches
            )
        await self._store.transaction(
            [
                *checks(),
                Delete(nodes.sinks_path),
                Delete(nodes.commits_path),
                *([Delete(nodes.manifests_path)] if config.has_manifests else []),
                *([Delete(nodes.holds_path)] if config.has_retention else []),
                *([Delete(nodes.packs_path)] if config.has_packs else []),
                Delete(nodes.head_path),
                Delete(nodes.config_path),
                Delete(nodes.identity_path(config.stream_id)),
                Delete(nodes.root),
            ]
        )


def _batches(items: Iterable[T], size: int) -> Iterable[list[T]]:
    """The items in lists of a size."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
