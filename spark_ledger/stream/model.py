"""The values of a stream: its configuration, segments, commits and head. Pure.

A stream is a totally ordered sequence of segments, numbered 0, 1, 2 ... A commit appends segments
atomically. The head says how far the stream reaches. Constructors refuse invalid values, so a
value that exists is valid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import GIB, KIB, MIB
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.stream.statistics import Statistics
from spark_ledger.types import Dlsn, EntryId, LedgerId, Quorums

if TYPE_CHECKING:
    import pyarrow as pa

ENTRY_BYTES_DEFAULT: Final = 1 * MIB
"""Arrow bytes of an entry before compression: large enough to make the work per entry small,
small enough that a reader's batch is of the size Spark moves fastest."""

ENTRY_BYTES_MIN: Final = 1 * KIB
SEGMENT_ROLL_BYTES_DEFAULT: Final = 1 * GIB
SEGMENT_ROLL_AGE_S_DEFAULT: Final = 600.0
"""A writer starts a new ledger after this much payload or time. Each new ledger is placed anew, so
the data of one writer spread over all bookies, and new bookies get a share. Ledgers of bounded
size are also what retention needs, which deletes whole ledgers (rule T17)."""

LEDGERS_KEPT: Final = 32
"""Of a stream that keeps so many bytes, a ledger is at most such a share: what was dropped of a
ledger lies on the disk until all of it was, and each writer has one."""

LEDGER_BYTES_LEAST: Final = 16 * MIB
"""Smaller ledgers than this cost more in the metadata than they save on disks."""

RETENTION_AGE_S_MIN: Final = 1.0
RETENTION_AGE_S_MAX: Final = 1000 * 365 * 24 * 3600.0
"""Bounds of the age that retention keeps. No clock is right to less than a second."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
SINK_ID_CHARS_MAX: Final = 200


class Compression(Enum):
    """How the buffers of an entry are compressed."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


def check_stream_name(name: str) -> str:
    """The name, unchanged. Raises ConfigurationError if no stream may have it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"stream name {name!r}: use 1 to 200 letters, digits, dots, hyphens and underscores, "
            "beginning with a letter or digit"
        )
    return name


def check_transaction_id(transaction_id: int) -> int:
    """The id, unchanged. Raises ConfigurationError if it is no integer of 64 bits."""
    if (
        not isinstance(transaction_id, int)
        or isinstance(transaction_id, bool)
        or not -(2**63) <= transaction_id < 2**63
    ):
        raise ConfigurationError(
            f"transaction id {transaction_id!r}: use a whole number of at most 64 bits"
        )
    return transaction_id


def check_sink_id(sink_id: str) -> str:
    """The id, unchanged. Raises ConfigurationError if no sink may have it."""
    if not _is_text(sink_id) or not sink_id:
        raise ConfigurationError(
            f"sink id {sink_id!r}: use a text of 1 to {SINK_ID_CHARS_MAX} characters"
        )
    return sink_id


def check_run_id(run_id: str) -> str:
    """The id of a query run, unchanged; it may be empty. Raises ConfigurationError otherwise."""
    if not _is_text(run_id):
        raise ConfigurationError(
            f"run id {run_id!r}: use a text of at most {SINK_ID_CHARS_MAX} characters, or leave it "
            "out"
        )
    return run_id


def _is_text(value: object) -> bool:
    """Whether a metadata node can hold it. With anything else no client could read the node."""
    if not isinstance(value, str) or len(value) > SINK_ID_CHARS_MAX:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)  # no UTF-8 has surrogates


def parse_compression(value: str | Compression) -> Compression:
    """A compression by name. Raises ConfigurationError, which lists the names, for any other."""
    try:
        return value if isinstance(value, Compression) else Compression(str(value).lower())
    except ValueError:
        allowed = ", ".join(option.value for option in Compression)
        raise ConfigurationError(f"compression {value!r}: use one of {allowed}") from None


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a stream is kept. None: no such limit.

    A commit is dropped once one of the limits allows it: it is older than ``age_s``, or at least
    ``size_bytes`` of payload or ``rows`` rows follow it. The newest commit always stays.
    Raises ConfigurationError if a limit is not above 0.
    """

    age_s: float | None = None
    size_bytes: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("size_bytes", "rows"):
            value = getattr(self, name)
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63
            ):
                raise ConfigurationError(
                    f"retention of {name} {value!r}: needs a whole number above 0, below 2**63"
                )
        age_s = self.age_s
        if age_s is not None and (
            not isinstance(age_s, int | float)
            or isinstance(age_s, bool)
            or not RETENTION_AGE_S_MIN <= age_s <= RETENTION_AGE_S_MAX
        ):
            raise ConfigurationError(
                f"retention of age_s {age_s!r}: needs a number of seconds from "
                f"{RETENTION_AGE_S_MIN:g} to {RETENTION_AGE_S_MAX:g}"
            )

    @property
    def is_for_ever(self) -> bool:
        """Whether nothing is ever dropped."""
        return self == Retention()


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a stream is. ``schemas`` grows, ``deleted`` becomes true, and ``has_manifests`` becomes
    true for a stream of the former format (rule T13), ``has_retention`` when the first of its rows
    are to be dropped (rule T18), and ``has_packs`` when commits are to be packed (rule T26), with
    ``retention``, and ``dropping``: ledgers that no commit may name any more (rule T17).

    ``key_columns`` and ``time_column`` are declared when the stream is created (rule T27).

    ``stream_id`` is random: it tells a stream from a later one of the same name (rule T7). The
    version of a schema is its index in ``schemas``; versions are only added (rule T8).
    Raises ConfigurationError if a field is outside of its bounds.
    """

    name: str
    stream_id: str
    schemas: tuple[pa.Schema, ...]
    quorums: Quorums = field(default_factory=Quorums)
    compression: Compression = Compression.LZ4
    entry_bytes: int = ENTRY_BYTES_DEFAULT
    segment_roll_bytes: int = SEGMENT_ROLL_BYTES_DEFAULT
    segment_roll_age_s: float = SEGMENT_ROLL_AGE_S_DEFAULT
    created_ms: int = 0
    deleted: bool = False
    has_manifests: bool = True
    has_retention: bool = False
    has_packs: bool = False
    retention: Retention = field(default_factory=Retention)
    dropping: tuple[LedgerId, ...] = ()
    key_columns: tuple[str, ...] = ()
    time_column: str | None = None

    def __post_init__(self) -> None:
        assert self.schemas, "a stream has at least one schema"
        assert self.has_manifests or not self.has_retention, "retention drops manifests"
        assert self.has_retention or not self.has_packs, "former ledgers are dropped (rule T25)"
        assert self.has_retention or (self.retention.is_for_ever and not self.dropping), (
            "programs that know no retention are kept out first (rule T18)"
        )
        for name in ("entry_bytes", "segment_roll_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value >= 2**63:
                raise ConfigurationError(f"{name} {value!r}: needs a whole number below 2**63")
        if not ENTRY_BYTES_MIN <= self.entry_bytes <= ENTRY_PAYLOAD_BYTES_MAX // 2:
            raise ConfigurationError(
                f"entry_bytes {self.entry_bytes}: use {ENTRY_BYTES_MIN} to "
                f"{ENTRY_PAYLOAD_BYTES_MAX // 2}"
            )
        if self.segment_roll_bytes < self.entry_bytes:
            raise ConfigurationError(
                f"segment_roll_bytes {self.segment_roll_bytes}: must be at least entry_bytes, "
                f"{self.entry_bytes}"
            )
        age_s = self.segment_roll_age_s
        if not isinstance(age_s, int | float) or not 0 < age_s < math.inf:
            raise ConfigurationError(
                f"segment_roll_age_s {age_s!r}: needs a number of seconds above 0, and not infinite"
            )

    @property
    def ledger_bytes_max(self) -> int:
        """Payload after which a writer starts a new ledger: ``segment_roll_bytes``, or less if
        retention keeps few bytes."""
        kept_bytes = self.retention.size_bytes
        if kept_bytes is None:
            return self.segment_roll_bytes
        return min(self.segment_roll_bytes, max(LEDGER_BYTES_LEAST, kept_bytes // LEDGERS_KEPT))

    @property
    def has_declared(self) -> bool:
        """Whether it declares key columns or a time column."""
        return bool(self.key_columns) or self.time_column is not None

    @property
    def schema(self) -> pa.Schema:
        """The newest schema (``pyarrow.Schema``)."""
        return self.schemas[-1]

    @property
    def schema_version(self) -> int:
        """The version of ``schema``."""
        return len(self.schemas) - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries ``first_entry`` .. ``last_entry`` of one ledger: segment ``number`` of the stream.

    ``size_bytes`` counts payload bytes. ``entry_rows`` is the number of rows of each entry. All
    entries have one schema version (rule T8). In no commit yet, it has the number ``UNPLACED``.

    ``new_schema`` is the schema of its entries while the stream may lack it, and then
    ``schema_version`` is what its writer expects. The commit gives it its version; if that is
    another, ``written_version`` has the one that the entries name (rule T19).

    ``statistics`` None: nothing is known of its times and keys (rule T28).

    Until it is in a commit, ``incarnation`` is that of its ledger, ``stream_id`` of its stream, and
    ``written_in`` what its writer knows as ``schema_version``, above 0 (rule T8). Empty: not said.
    """

    number: int
    ledger_id: LedgerId
    first_entry: EntryId
    last_entry: EntryId
    rows: int
    size_bytes: int
    schema_version: int
    entry_rows: tuple[int, ...]
    written_version: int | None = None
    new_schema: pa.Schema | None = None
    statistics: Statistics | None = None
    incarnation: bytes = field(default=b"", compare=False, repr=False)
    written_in: pa.Schema | None = field(default=None, compare=False, repr=False)
    stream_id: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        reason = segment_error(
            self.ledger_id,
            self.first_entry,
            self.last_entry,
            rows=self.rows,
            size_bytes=self.size_bytes,
            schema_version=self.schema_version,
            entry_rows=self.entry_rows,
        )
        if reason is not None:
            raise ValueError(reason)

    def __setstate__(self, state: list[object]) -> None:
        """From a task: one of an older version lacks the last fields, and a newer one has more."""
        for number, each in enumerate(fields(self)):
            value = state[number] if number < len(state) else each.default
            object.__setattr__(self, each.name, value)

    @property
    def entries(self) -> int:
        """How many entries it has; at least one."""
        return self.last_entry - self.first_entry + 1

    @property
    def entries_version(self) -> int:
        """The schema version that its entries name."""
        return self.schema_version if self.written_version is None else self.written_version

    def with_version(self, version: int) -> Segment:
        """The same segment, of a schema version that the stream has."""
        written = None if version == self.entries_version else self.entries_version
        return replace(self, schema_version=version, written_version=written, new_schema=None)

    def placed(self, number: int) -> Segment:
        """The same segment with a number."""
        return replace(self, number=number)


UNPLACED: Final = -1


def segment_error(
    ledger_id: int,
    first_entry: int,
    last_entry: int,
    *,
    rows: int,
    size_bytes: int,
    schema_version: int,
    entry_rows: Sequence[int],
) -> str | None:
    """What is wrong with these as the fields of a segment, or None."""
    if ledger_id < 0 or not 0 <= first_entry <= last_entry:
        return f"ledger {ledger_id} with entries {first_entry}..{last_entry}"
    if len(entry_rows) != last_entry - first_entry + 1:
        return f"{len(entry_rows)} row counts for entries {first_entry}..{last_entry}"
    if min(entry_rows) < 1 or sum(entry_rows) != rows:
        return f"the rows of its entries do not add up to {rows}"
    if size_bytes < 1 or schema_version < 0:
        return f"{size_bytes} bytes, schema version {schema_version}"
    return None


@dataclass(frozen=True, slots=True)
class Commit:
    """An atomic append: commit ``number`` of the stream. It never changes once stored (rule T5).

    ``first_segment`` is the number of its first segment (of an empty commit: of the next one).
    ``rows_before`` and ``bytes_before`` are the stream's totals before it. ``sink_id`` and
    ``transaction_id`` say who appended; a pair is applied at most once (rule T3). ``applied`` is
    false if an earlier call had applied the pair, so that this one changed nothing. ``truncated``
    says that the segments are not known any more, since the commit was dropped. Neither is stored.
    """

    number: int
    time_ms: int
    first_segment: int
    segments: tuple[Segment, ...]
    sink_id: str
    transaction_id: int
    run_id: str = ""
    rows_before: int = 0
    bytes_before: int = 0
    applied: bool = field(default=True, compare=False)
    truncated: bool = field(default=False, compare=False)

    @property
    def rows(self) -> int:
        """How many rows it appends."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """How many payload bytes it appends."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def memory_bytes(self) -> int:
        """What its objects take in memory, about; measured, and held by a test."""
        entries = sum([segment.entries for segment in self.segments])
        known = sum([part.statistics.memory_bytes for part in self.segments if part.statistics])
        return 400 + 270 * len(self.segments) + 37 * entries + known

    @property
    def end_segment(self) -> int:
        """One above the number of its last segment."""
        return self.first_segment + len(self.segments)

    def segment(self, number: int) -> Segment:
        """One of its segments by number."""
        assert self.first_segment <= number < self.end_segment, (number, self.number)
        return self.segments[number - self.first_segment]

    def position_of_row(self, row: int) -> Dlsn:
        """Where one of its rows is, of which so many were committed to the stream before."""
        left = row - self.rows_before
        assert 0 <= left < self.rows, (row, self.number)
        segments, entry = iter(self.segments), 0
        while left >= (segment := next(segments)).rows:
            left -= segment.rows
        while left >= segment.entry_rows[entry]:
            left -= segment.entry_rows[entry]
            entry += 1
        return Dlsn(segment.number, entry, left)


class CommitMark(NamedTuple):
    """Where a commit begins, without what it appends: enough to share out a long read."""

    number: int
    first_segment: int
    rows_before: int
    bytes_before: int


@dataclass(frozen=True, slots=True)
class Head:
    """How far a stream reaches. Every commit replaces it (rule T2).

    ``earliest`` is the first row that can be read; those before it were truncated.
    ``earliest_commit`` is the first commit with such a row (or the next commit). ``rows`` and
    ``size_bytes`` are totals since the stream began. ``time_ms`` is the time of the last commit.
    Commit times go back only at the commits in ``time_resets``: before them a writer's clock had
    been far ahead (rule T10).
    """

    stream_id: str
    next_commit: int = 0
    next_segment: int = 0
    rows: int = 0
    size_bytes: int = 0
    time_ms: int = 0
    earliest: Dlsn = Dlsn(0, 0, 0)  # noqa: RUF009 - a NamedTuple is immutable
    earliest_commit: int = 0
    time_resets: tuple[int, ...] = ()

    @property
    def end(self) -> Dlsn:
        """The position behind the last row."""
        return Dlsn(self.next_segment, 0, 0)


class SinkRecord(NamedTuple):
    """The newest transaction of a sink, and the number of the commit that applied it (rule T3)."""

    sink_id: str
    transaction_id: int
    commit: int
    run_id: str


RowInSegment: TypeAlias = tuple[int, int]
"""(entry, slot) of a row; both count from 0, the entry from the start of its segment (rule T5)."""


class SegmentRange(NamedTuple):
    """Rows of one segment from ``start`` (inclusive) to ``end`` (exclusive).

    It has all that another process needs to read the rows without stream metadata.
    """

    segment: Segment
    start: RowInSegment
    end: RowInSegment
    commit: int
    commit_time_ms: int
    segment_row: int = 0
    """How many rows of the stream come before the first of the segment."""

    @property
    def first_entry(self) -> EntryId:
        """The id, in its ledger, of the first entry that has rows of the range."""
        return EntryId(self.segment.first_entry + self.start[0])

    @property
    def last_entry(self) -> EntryId:
        """The id, in its ledger, of the last entry that has rows of the range."""
        entry, slot = self.end
        return EntryId(self.segment.first_entry + (entry if slot > 0 else entry - 1))

    @property
    def rows(self) -> int:
        """How many rows the range holds."""
        counts = self.segment.entry_rows
        whole = sum(counts[self.start[0] : self.end[0]])
        return whole - self.start[1] + self.end[1]

    @property
    def is_whole(self) -> bool:
        """Whether it has all rows of its segment."""
        return self.start == (0, 0) and self.end == (len(self.segment.entry_rows), 0)

    @property
    def entry_bytes(self) -> list[int]:
        """About how many payload bytes each entry of the range has, by its rows. An entry counts
        whole, as it is read whole; those of a segment add up to its size."""
        segment = self.segment
        rows = accumulate(segment.entry_rows, initial=0)
        ends = [segment.size_bytes * each // segment.rows for each in rows]
        stop = self.end[0] + (self.end[1] > 0)
        return [b - a for a, b in pairwise(ends[self.start[0] : stop + 1])]

    @property
    def size_bytes(self) -> int:
        """About how many payload bytes the range holds: its share of the segment's, by rows."""
        return -(-self.segment.size_bytes * self.rows // self.segment.rows)
