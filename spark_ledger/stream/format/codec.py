"""Stream metadata as JSON nodes: strict and versioned. Pure.

Every node is one JSON object with a format version ``v``. A reader never guesses: every ``decode``
function raises CorruptionError that names the node for unknown or missing fields, wrong types and
values that contradict each other.

A commit whose segment list is large keeps it elsewhere: the node then has ``list_ledger`` and
``list_entries`` (payloads of entries 0 .. n-1 of that ledger, joined, are the JSON of the list).

A commit whose segments are of other schema versions than their entries name (rule T19) is of
format 2: ``versions`` has them, as pairs (number of segments, schema version) in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby, pairwise, repeat
from typing import Final, TypeAlias, TypeVar

import msgspec

from spark_ledger.errors import ConfigurationError, CorruptionError, LedgerError
from spark_ledger.limits.entries import LEDGER_METADATA_BYTES_MAX
from spark_ledger.stream.declared import declared_columns
from spark_ledger.stream.format.schema_text import decode_schema, encode_schema
from spark_ledger.stream.model import (
    Commit,
    Compression,
    Head,
    Retention,
    Segment,
    SinkRecord,
    StreamConfig,
)
from spark_ledger.stream.statistics import Statistics
from spark_ledger.types import Dlsn, EntryId, LedgerId, Quorums

FORMAT_VERSION: Final = 1
FORMAT_WITH_MANIFESTS: Final = 2
"""Of the configuration alone. Every commit checks that node, and whoever misses a commit reads it,
so a program that knows no manifests stops with a sentence (rule T13)."""
FORMAT_WITH_RETENTION: Final = 3
"""Of the configuration alone, likewise (rule T18)."""
FORMAT_WITH_PACKS: Final = 4
"""Of the configuration alone, likewise (rule T26)."""
FORMAT_WITH_DECLARED: Final = 5
"""Of the configuration alone, likewise: of a stream that declares key columns or a time column
(rule T27). The node then says as ``level`` which of the formats before it would have."""
FORMAT_WITH_VERSIONS: Final = 2
"""Of a commit that lost a race for a schema version. Who does not know it stops there."""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node of a stream in the metadata; each kind is a subclass."""

    v: int = FORMAT_VERSION


class _ConfigNode(Node, frozen=True, kw_only=True):
    name: str
    stream_id: str
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    compression: Compression
    entry_bytes: int
    segment_roll_bytes: int
    segment_roll_age_s: float
    created_ms: int
    deleted: bool
    schemas: list[str]
    """Arrow IPC schema messages in base64, long ones compressed; the index is the version."""
    retention_age_s: float | msgspec.UnsetType = msgspec.UNSET
    retention_bytes: int | msgspec.UnsetType = msgspec.UNSET
    retention_rows: int | msgspec.UnsetType = msgspec.UNSET
    dropping: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    level: int | msgspec.UnsetType = msgspec.UNSET
    key_columns: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    time_column: str | msgspec.UnsetType = msgspec.UNSET


class _HeadNode(Node, frozen=True, kw_only=True):
    stream_id: str
    next_commit: int
    next_segment: int
    rows: int
    bytes: int
    time_ms: int
    earliest: tuple[int, int, int]
    earliest_commit: int
    time_resets: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Commits at which the time went back. Left out while there are none."""


_Filter: TypeAlias = bytes  # a field of segments has the name of the type


class _SegmentItem(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    ledger: int
    first: int
    last: int
    rows: int
    bytes: int
    schema: int
    entry_rows: tuple[int, ...] = ()
    """Left out when there is one entry."""
    times: tuple[int, int] | None = None
    keys: tuple[int, int] | None = None
    key_filter: _Filter = b""
    """Its statistics (rule T28); a filter is in base64."""


_Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Schema versions of consecutive segments: (how many, version)."""


class _CommitNode(Node, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    time_ms: int
    first_segment: int
    sink: str
    transaction: int
    run: str = ""
    rows_before: int = 0
    bytes_before: int = 0
    segments: tuple[_SegmentItem, ...] = ()
    list_ledger: int | None = None
    list_entries: int = 0
    versions: _Runs = ()


class _NamedLedger(msgspec.Struct, frozen=True, gc=False):
    ledger: int


class _NamedLedgers(msgspec.Struct, frozen=True, gc=False):
    segments: tuple[_NamedLedger, ...] = ()


class _SinkNode(Node, frozen=True, kw_only=True):
    sink: str
    transaction: int
    commit: int
    run: str


class SegmentListPointer(msgspec.Struct, frozen=True):
    """Where the segment list of a commit is kept if it is too long for the node."""

    ledger_id: LedgerId
    entries: int
    versions: _Runs = ()
    """The schema versions of the segments, if the list does not say them (rule T19)."""


N = TypeVar("N", bound=Node)


def decode_node(data: bytes, kind: type[N], path: str, newest: int = FORMAT_VERSION) -> N:
    """A node of this kind; ``path`` is for the error. Raises CorruptionError, also if its format is
    later than ``newest``."""
    try:
        node = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"metadata node {path}: {error}") from error
    if not FORMAT_VERSION <= node.v <= newest:
        raise CorruptionError(
            f"metadata node {path}: format version {node.v}, but this program knows only "
            f"{newest}; use a newer one"
        )
    return node


def _require(condition: bool, path: str, what: str) -> None:
    if not condition:
        raise CorruptionError(f"metadata node {path}: {what}")


# -- configuration ---------------------------------------------------------------------------------


def encode_config(config: StreamConfig) -> bytes:
    """The ``config`` node. Raises ConfigurationError if it would be too large for the metadata."""
    kept = config.retention
    version = FORMAT_WITH_MANIFESTS if config.has_manifests else FORMAT_VERSION
    if config.has_retention:
        version = FORMAT_WITH_PACKS if config.has_packs else FORMAT_WITH_RETENTION
    node = _ConfigNode(
        v=FORMAT_WITH_DECLARED if config.has_declared else version,
        level=version if config.has_declared else msgspec.UNSET,
        key_columns=config.key_columns or msgspec.UNSET,
        time_column=config.time_column or msgspec.UNSET,
        name=config.name,
        stream_id=config.stream_id,
        ensemble_size=config.quorums.ensemble_size,
        write_quorum=config.quorums.write_quorum,
        ack_quorum=config.quorums.ack_quorum,
        compression=config.compression,
        entry_bytes=config.entry_bytes,
        segment_roll_bytes=config.segment_roll_bytes,
        segment_roll_age_s=float(config.segment_roll_age_s),
        created_ms=config.created_ms,
        deleted=config.deleted,
        schemas=[encode_schema(schema) for schema in config.schemas],
        retention_age_s=msgspec.UNSET if kept.age_s is None else float(kept.age_s),
        retention_bytes=msgspec.UNSET if kept.size_bytes is None else kept.size_bytes,
        retention_rows=msgspec.UNSET if kept.rows is None else kept.rows,
        dropping=config.dropping or msgspec.UNSET,
    )
    data = msgspec.json.encode(node)
    if len(data) > LEDGER_METADATA_BYTES_MAX:
        _refuse_too_many_columns(config, node)
    return data


def _refuse_too_many_columns(config: StreamConfig, node: _ConfigNode) -> None:
    """Raise if the schemas do not fit. What retention adds has room of its own: a stream that is
    full of columns still gives back space (rule T17)."""
    unset = msgspec.UNSET
    without = msgspec.structs.replace(
        node, retention_age_s=unset, retention_bytes=unset, retention_rows=unset, dropping=unset
    )
    size = len(msgspec.json.encode(without))
    if size > LEDGER_METADATA_BYTES_MAX:
        raise ConfigurationError(
            f"stream {config.name!r}: its {len(config.schemas)} schema versions, the newest of "
            f"{len(config.schema)} columns, need {size} bytes, more than "
            f"{LEDGER_METADATA_BYTES_MAX}; use fewer columns, or write to a new stream with the "
            "schema wanted"
        )


def decode_config(data: bytes, path: str) -> StreamConfig:
    """The configuration in a node."""
    node = decode_node(data, _ConfigNode, path, FORMAT_WITH_DECLARED)
    _require(bool(node.schemas), path, "no schema")
    declares, says = bool(node.key_columns or node.time_column), node.level is not msgspec.UNSET
    fits = (node.v == FORMAT_WITH_DECLARED) == declares == says
    _require(fits, path, f"key and time columns in format version {node.v}")
    level = node.level if isinstance(node.level, int) else node.v
    _require(FORMAT_VERSION <= level <= FORMAT_WITH_PACKS, path, f"level {level}")
    limits = (node.retention_age_s, node.retention_bytes, node.retention_rows, node.dropping)
    _require(
        level >= FORMAT_WITH_RETENTION or all(each is msgspec.UNSET for each in limits),
        path,
        f"retention in format version {node.v}",
    )
    _require(all(each is msgspec.UNSET or each for each in limits), path, "a limit of nothing")
    try:
        schemas = tuple(decode_schema(text, path) for text in node.schemas)
        declared = declared_columns(schemas[0], node.key_columns or (), node.time_column or None)
        return StreamConfig(
            name=node.name,
            stream_id=node.stream_id,
            schemas=schemas,
            key_columns=declared[0],
            time_column=declared[1],
            quorums=Quorums(node.ensemble_size, node.write_quorum, node.ack_quorum),
            compression=node.compression,
            entry_bytes=node.entry_bytes,
            segment_roll_bytes=node.segment_roll_bytes,
            segment_roll_age_s=node.segment_roll_age_s,
            created_ms=node.created_ms,
            deleted=node.deleted,
            has_manifests=level >= FORMAT_WITH_MANIFESTS,
            has_retention=level >= FORMAT_WITH_RETENTION,
            has_packs=level >= FORMAT_WITH_PACKS,
            retention=Retention(
                node.retention_age_s or None,
                node.retention_bytes or None,
                node.retention_rows or None,
            ),
            dropping=tuple(LedgerId(each) for each in node.dropping or ()),
        )
    except CorruptionError:
        raise
    except LedgerError as error:
        raise CorruptionError(f"metadata node {path}: {error}") from error


# -- head and sinks --------------------------------------------------------------------------------


def encode_head(head: Head) -> bytes:
    """The ``head`` node."""
    return msgspec.json.encode(
        _HeadNode(
            stream_id=head.stream_id,
            next_commit=head.next_commit,
            next_segment=head.next_segment,
            rows=head.rows,
            bytes=head.size_bytes,
            time_ms=head.time_ms,
            earliest=(head.earliest.segment, head.earliest.entry, head.earliest.slot),
            earliest_commit=head.earliest_commit,
            time_resets=head.time_resets or msgspec.UNSET,
        )
    )


def decode_head(data: bytes, path: str) -> Head:
    """The head in a node."""
    node = decode_node(data, _HeadNode, path)
    numbers = (node.next_commit, node.next_segment, node.rows, node.bytes, *node.earliest)
    _require(min(*numbers, node.earliest_commit) >= 0, path, "negative number")
    _require(node.earliest_commit <= node.next_commit, path, "earliest commit above the next")
    head = Head(
        stream_id=node.stream_id,
        next_commit=node.next_commit,
        next_segment=node.next_segment,
        rows=node.rows,
        size_bytes=node.bytes,
        time_ms=node.time_ms,
        earliest=Dlsn(*node.earliest),
        earliest_commit=node.earliest_commit,
        time_resets=node.time_resets or (),
    )
    _require(head.earliest <= head.end, path, "truncation point above the end")
    resets = (-1, *head.time_resets, node.next_commit)
    _require(all(a < b for a, b in pairwise(resets)), path, "bad list of commits")
    return head


def encode_sink(record: SinkRecord) -> bytes:
    """A ``sinks/<id>`` node."""
    return msgspec.json.encode(
        _SinkNode(
            sink=record.sink_id,
            transaction=record.transaction_id,
            commit=record.commit,
            run=record.run_id,
        )
    )


def decode_sink(data: bytes, path: str) -> SinkRecord:
    """The sink record in a node."""
    node = decode_node(data, _SinkNode, path)
    _require(node.commit >= 0, path, "negative commit")
    return SinkRecord(node.sink, node.transaction, node.commit, node.run)


# -- commits ---------------------------------------------------------------------------------------


def encode_commit(commit: Commit, pointer: SegmentListPointer | None = None) -> bytes:
    """A ``commits/<bucket>/<n>`` node; with a pointer its segment list is kept elsewhere."""
    versions = _runs(commit.segments)
    return msgspec.json.encode(
        _CommitNode(
            v=FORMAT_WITH_VERSIONS if versions else FORMAT_VERSION,
            versions=versions,
            time_ms=commit.time_ms,
            first_segment=commit.first_segment,
            sink=commit.sink_id,
            transaction=commit.transaction_id,
            run=commit.run_id,
            rows_before=commit.rows_before,
            bytes_before=commit.bytes_before,
            segments=() if pointer else tuple(_item(segment) for segment in commit.segments),
            list_ledger=pointer.ledger_id if pointer else None,
            list_entries=pointer.entries if pointer else 0,
        )
    )


def decode_commit(data: bytes, number: int, path: str) -> tuple[Commit, SegmentListPointer | None]:
    """The commit in a node. With a pointer it has no segments yet: they have to be fetched."""
    node = decode_node(data, _CommitNode, path, FORMAT_WITH_VERSIONS)
    _require(
        bool(node.versions) == (node.v == FORMAT_WITH_VERSIONS),
        path,
        f"format version {node.v} and {len(node.versions)} lists of schema versions",
    )
    _require(node.first_segment >= 0, path, "negative segment number")
    pointer = None
    if node.list_ledger is not None:
        _require(node.list_ledger >= 0 and node.list_entries > 0, path, "bad list pointer")
        _require(not node.segments, path, "both a segment list and a pointer to one")
        pointer = SegmentListPointer(LedgerId(node.list_ledger), node.list_entries, node.versions)
    commit = Commit(
        number=number,
        time_ms=node.time_ms,
        first_segment=node.first_segment,
        segments=_segments(
            node.segments, node.first_segment, path, () if pointer else node.versions
        ),
        sink_id=node.sink,
        transaction_id=node.transaction,
        run_id=node.run,
        rows_before=node.rows_before,
        bytes_before=node.bytes_before,
    )
    return commit, pointer


def ledgers_named_in(data: bytes, path: str) -> set[LedgerId]:
    """The ledgers whose rows a commit's node names, none if its list is
    elsewhere. Takes a tenth of the time of ``decode_commit``."""
    try:
        node = msgspec.json.decode(data, type=_NamedLedgers)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"metadata node {path}: {error}") from error
    return {LedgerId(item.ledger) for item in node.segments}


def encode_segment_list(segments: tuple[Segment, ...]) -> bytes:
    """A segment list for entries of a ledger."""
    return msgspec.json.encode([_item(segment) for segment in segments])


def decode_segment_list(
    data: bytes, first_segment: int, path: str, versions: _Runs = ()
) -> tuple[Segment, ...]:
    """The segments of a list made by ``encode_segment_list``, numbered from ``first_segment``;
    ``versions`` are those of its pointer."""
    try:
        items = msgspec.json.decode(data, type=tuple[_SegmentItem, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"segment list of {path}: {error}") from error
    return _segments(items, first_segment, path, versions)


def _item(segment: Segment) -> _SegmentItem:
    known = segment.statistics or Statistics()
    return _SegmentItem(
        ledger=segment.ledger_id,
        first=segment.first_entry,
        last=segment.last_entry,
        rows=segment.rows,
        bytes=segment.size_bytes,
        schema=segment.entries_version,
        entry_rows=segment.entry_rows if segment.entries > 1 else (),
        times=known.times,
        keys=known.keys,
        key_filter=known.key_filter,
    )


def _runs(segments: Sequence[Segment]) -> _Runs:
    """The schema versions of segments; none if their entries name the same ones."""
    if all(segment.written_version is None for segment in segments):
        return ()
    runs = groupby(segment.schema_version for segment in segments)
    return tuple((len(list(same)), version) for version, same in runs)


def _segments(
    items: Sequence[_SegmentItem], first_segment: int, path: str, runs: _Runs
) -> tuple[Segment, ...]:
    made = [_segment(item, number, path) for number, item in enumerate(items, first_segment)]
    if runs:
        counts = [count for count, _ in runs]
        fits = min(counts) > 0 and sum(counts) == len(made) and min(runs, key=_version)[1] >= 0
        _require(fits, path, "schema versions do not fit its segments")
        versions = chain.from_iterable(repeat(version, count) for count, version in runs)
        made = [part.with_version(n) for part, n in zip(made, versions, strict=True)]
    return tuple(made)


def _version(run: tuple[int, int]) -> int:
    return run[1]


def _segment(item: _SegmentItem, number: int, path: str) -> Segment:
    try:
        return Segment(
            number=number,
            ledger_id=LedgerId(item.ledger),
            first_entry=EntryId(item.first),
            last_entry=EntryId(item.last),
            rows=item.rows,
            size_bytes=item.bytes,
            schema_version=item.schema,
            entry_rows=item.entry_rows or (item.rows,),
            statistics=Statistics(item.times, item.keys, item.key_filter)
            if item.times or item.keys or item.key_filter
            else None,
        )
    except ValueError as error:  # checked once: ten thousand commits are planned at a time
        raise CorruptionError(f"metadata node {path}: segment {number}: {error}") from error
