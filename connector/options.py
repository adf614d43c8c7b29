"""Options of ``format("ledger")``: text from users in, typed and checked values out.

Spark gives every option as text under a lower-case key. One table below names each option, its
type and where it applies; everything else follows from it: parsing, ranges, the error for a
misspelt name (which suggests the nearest valid one) and the error for an option in the wrong place.

An option of the other direction (``sinkId`` on a read) is refused in streaming queries and ignored
in batch ones, because one SQL view (``CREATE TEMPORARY VIEW ... USING ledger OPTIONS (...)``)
serves both SELECT and INSERT.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from connector.option_parsers import (
    NO_SECRET,
    Position,
    PositionJson,
    Secret,
    parse_boolean,
    parse_duration_s,
    parse_name,
    parse_one_of,
    parse_path,
    parse_position,
    parse_size_bytes,
    parse_timestamp_ms,
    parse_whole_number,
)
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import (
    ENSEMBLE_SIZE_MAX,
    ENTRY_PAYLOAD_BYTES_MAX,
    KIB,
    TRIGGER_DELAY_S_DEFAULT,
)
from spark_ledger.stream.model import ENTRY_BYTES_MIN
from spark_ledger.types import LedgerId, Quorums

METADATA_ENVIRONMENT: Final = "SPARK_LEDGER_METADATA"
"""Environment variable that stands in for the option ``metadata``."""

T = TypeVar("T")

READ, WRITE = "read", "write"
STREAM, BATCH = "streaming", "batch"


class Option(NamedTuple):
    """One row of the table. Empty ``direction`` or ``mode`` means both; ``instead`` is the advice
    to a user who gives the option in the other mode."""

    name: str
    parse: Callable[[str], object]
    direction: str = ""
    mode: str = ""
    instead: str = ""


_ROWS: Final = parse_whole_number(1)
_BYTES: Final = parse_size_bytes(1)

OPTIONS: Final[tuple[Option, ...]] = (
    Option("metadata", parse_name("a metadata URI such as zk://host:2181/ledgers")),
    Option("stream", parse_name("a stream name")),
    Option("ledgerId", parse_whole_number(0), READ),
    Option("path", parse_name("a stream name")),
    # reading
    Option("startingPosition", parse_position, READ),
    Option("startingTimestamp", parse_timestamp_ms, READ),
    Option("endingPosition", parse_position, READ, BATCH, "a streaming query has no end"),
    Option("endingTimestamp", parse_timestamp_ms, READ, BATCH, "a streaming query has no end"),
    Option("maxRowsPerTrigger", _ROWS, READ, STREAM, "a batch read has no trigger"),
    Option("maxBytesPerTrigger", _BYTES, READ, STREAM, "a batch read has no trigger"),
    Option("minRowsPerTrigger", _ROWS, READ, STREAM, "a batch read has no trigger"),
    Option("maxTriggerDelay", parse_duration_s, READ, STREAM, "a batch read has no trigger"),
    Option("minPartitions", parse_whole_number(1, 10_000), READ),
    Option("maxBytesPerPartition", parse_size_bytes(64 * KIB), READ),
    Option("failOnDataLoss", parse_boolean),
    Option("includeMetadata", parse_boolean, READ),
    Option("readTimeout", parse_duration_s, READ),
    Option("speculativeReadDelay", parse_duration_s, READ),
    # writing
    Option("ensembleSize", parse_whole_number(1, ENSEMBLE_SIZE_MAX), WRITE),
    Option("writeQuorum", parse_whole_number(1, ENSEMBLE_SIZE_MAX), WRITE),
    Option("ackQuorum", parse_whole_number(1, ENSEMBLE_SIZE_MAX), WRITE),
    Option("createStream", parse_boolean, WRITE),
    Option("mergeSchema", parse_boolean, WRITE),
    Option("compression", parse_one_of("none", "lz4", "zstd"), WRITE),
    Option("entryBytes", parse_size_bytes(ENTRY_BYTES_MIN, ENTRY_PAYLOAD_BYTES_MAX // 2), WRITE),
    Option(
        "txnAppId",
        parse_name("an application name"),
        WRITE,
        BATCH,
        "a streaming query is exactly-once by its checkpoint; sinkId fixes its name",
    ),
    Option(
        "txnVersion",
        parse_whole_number(0),
        WRITE,
        BATCH,
        "a streaming query is exactly-once by its checkpoint; sinkId fixes its name",
    ),
    Option(
        "sinkId",
        parse_name("a sink name"),
        WRITE,
        STREAM,
        "use txnAppId with txnVersion for an idempotent batch write",
    ),
    # security
    Option("tls.caFile", parse_path),
    Option("tls.certFile", parse_path),
    Option("tls.keyFile", parse_path),
    Option("tls.keyPassword", Secret),
    Option("ledger.password", Secret),
    Option("ledger.auth.token", Secret),
)

_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}

SPARK_KEYS: Final = frozenset({"paths", "checkpointlocation", "queryname"})
"""What Spark's own API adds to a data source's options."""

_TABLE_HINT: Final = (
    "Spark does not hand the options of a table (CREATE TABLE, saveAsTable, toTable) to later "
    "reads: use CREATE TEMPORARY VIEW ... USING ledger OPTIONS (...)"
)

_REFUSED: Final = {
    "provider": _TABLE_HINT,
    "asyncprogresstrackingenabled": (
        "asynchronous progress tracking replays batches under other boundaries, which would break "
        "exactly-once; remove the option"
    ),
    "startingoffsets": "the option of this source is startingPosition",
    "endingoffsets": "the option of this source is endingPosition",
    "maxoffsetspertrigger": "the option of this source is maxRowsPerTrigger",
    "minoffsetspertrigger": "the option of this source is minRowsPerTrigger",
    "kafka.bootstrap.servers": "the option of this source is metadata, such as zk://host:2181/ledgers",
}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the cluster. Hashable: it is the key of the per-process connection cache.

    Times are seconds; None leaves the client's own default.
    """

    metadata: str
    read_timeout_s: float | None = None
    speculative_read_delay_s: float | None = None
    password: Secret = NO_SECRET
    auth_token: Secret = NO_SECRET
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    key_password: Secret = NO_SECRET


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much one micro-batch may take. ``None`` means no limit."""

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    max_delay_s: float = TRIGGER_DELAY_S_DEFAULT

    @property
    def unlimited(self) -> bool:
        return self.max_rows is None and self.max_bytes is None and self.min_rows is None


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How a range becomes Spark partitions. ``max_bytes_per_partition`` None: chosen by size."""

    min_partitions: int = 1
    max_bytes_per_partition: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A checked read. Exactly one of ``stream`` and ``ledger_id`` is set.

    ``start_timestamp_ms`` and ``end_timestamp_ms`` (milliseconds since 1970, UTC) win over the
    positions, which then have their default.
    """

    connection: ConnectionOptions
    stream: str | None
    ledger_id: LedgerId | None
    start: Position = "earliest"
    end: Position = "latest"
    start_timestamp_ms: int | None = None
    end_timestamp_ms: int | None = None
    trigger: TriggerLimits = TriggerLimits()
    plan: PlanLimits = PlanLimits()
    fail_on_data_loss: bool = True
    include_metadata: bool = False

    @property
    def subject(self) -> str:
        """What is read, for messages."""
        if self.stream is not None:
            return f"stream {self.stream!r}"
        return f"ledger {self.ledger_id}"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """A checked write. ``quorums`` counts only when the write creates the stream."""

    connection: ConnectionOptions
    stream: str
    quorums: Quorums
    create_stream: bool = True
    merge_schema: bool = False
    compression: str | None = None
    entry_bytes: int | None = None
    transaction_app: str | None = None
    transaction_version: int | None = None
    sink_id: str | None = None
    fail_on_data_loss: bool = True


class _ParsedOptions:
    """Parsed options by name, with the questions that the checks below ask."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def get(self, name: str, kind: type[T]) -> T | None:
        """The value of an option, None if it was not given. ``kind`` is what its parser makes."""
        value = self._values.get(name.lower())
        assert value is None or isinstance(value, kind), f"the parser of {name} makes another type"
        return value

    def get_or(self, name: str, default: T) -> T:
        """The value of an option, or a default of the same type."""
        value = self.get(name, type(default))
        return default if value is None else value

    def position_or(self, name: str, default: Position) -> Position:
        """A position as its parser makes it: a word or a PositionJson."""
        value = self.get(name, object)
        if value is None:
            return default
        assert value == "earliest" or value == "latest" or isinstance(value, PositionJson)
        return value

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def refuse_both(self, one: str, other: str) -> None:
        if self.has(one) and self.has(other):
            raise ConfigurationError(f"options {one} and {other} exclude each other: give one")

    def require_both(self, one: str, other: str) -> None:
        if self.has(one) != self.has(other):
            given, missing = (one, other) if self.has(one) else (other, one)
            raise ConfigurationError(f"option {given} needs option {missing} as well")


def read_options(raw: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Check the options of a read.

    ``streaming`` None: not known yet, as when Spark asks for a schema.

    Raises ConfigurationError naming the option and what is allowed if one is wrong.
    """
    values = _parse(raw, READ, "" if streaming is None else STREAM if streaming else BATCH)
    values.refuse_both("startingPosition", "startingTimestamp")
    values.refuse_both("endingPosition", "endingTimestamp")
    values.refuse_both("stream", "ledgerId")
    number = values.get("ledgerId", int)
    ledger_id = None if number is None else LedgerId(number)
    if ledger_id is None:
        _refuse_password(values)
    stream = None if ledger_id is not None else _stream_name(values, or_ledger=True)
    if ledger_id is not None:
        _check_ledger_read(values)
    return ReadOptions(
        connection=_connection(values),
        stream=stream,
        ledger_id=ledger_id,
        start=_position(values, "startingPosition", "earliest", ledger_id),
        end=_position(values, "endingPosition", "latest", ledger_id),
        start_timestamp_ms=values.get("startingTimestamp", int),
        end_timestamp_ms=values.get("endingTimestamp", int),
        trigger=_trigger_limits(values),
        plan=PlanLimits(values.get_or("minPartitions", 1), values.get("maxBytesPerPartition", int)),
        fail_on_data_loss=values.get_or("failOnDataLoss", True),
        include_metadata=values.get_or("includeMetadata", False),
    )


def write_options(raw: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Check the options of a write.

    Raises ConfigurationError naming the option and what is allowed if one is wrong.
    """
    if "ledgerid" in {key.lower() for key in raw}:
        raise ConfigurationError(
            "option ledgerId is for reading: a raw ledger has one writer, which Spark tasks cannot "
            "share; write to a stream (option stream)"
        )
    values = _parse(raw, WRITE, STREAM if streaming else BATCH)
    values.require_both("txnAppId", "txnVersion")
    _refuse_password(values)
    create = values.get_or("createStream", True)
    for name in ("ensembleSize", "writeQuorum", "ackQuorum"):
        if values.has(name) and not create:
            raise ConfigurationError(
                f"option {name} counts only when the stream is created; "
                "remove it, or createStream=false"
            )
    return WriteOptions(
        connection=_connection(values),
        stream=_stream_name(values, or_ledger=False),
        create_stream=create,
        quorums=_quorums(values),
        merge_schema=values.get_or("mergeSchema", False),
        compression=values.get("compression", str),
        entry_bytes=values.get("entryBytes", int),
        transaction_app=values.get("txnAppId", str),
        transaction_version=values.get("txnVersion", int),
        sink_id=values.get("sinkId", str),
        fail_on_data_loss=values.get_or("failOnDataLoss", True),
    )


def _parse(raw: Mapping[str, str], direction: str, mode: str) -> _ParsedOptions:
    values: dict[str, object] = {}
    for given in raw:
        if given.lower() in _REFUSED:
            raise _unknown(given)
    for given, text in raw.items():
        key = given.lower()
        if key in SPARK_KEYS:
            continue
        option = _BY_KEY.get(key)
        if option is None:
            raise _unknown(given)
        if option.direction not in ("", direction):
            if mode != STREAM:
                continue
            raise ConfigurationError(
                f"option {option.name} is for a {option.direction}, "
                f"not for a streaming {direction}: remove it"
            )
        if mode and option.mode not in ("", mode):
            raise ConfigurationError(
                f"option {option.name} is for {option.mode} queries only: {option.instead}"
            )
        values[key] = _parse_one(option, text)
    return _ParsedOptions(values)


def _parse_one(option: Option, text: str) -> object:
    try:
        return option.parse(text)
    except ValueError as error:
        shown = "" if option.parse is Secret else f" = {text!r}"
        raise ConfigurationError(f"option {option.name}{shown}: {error}") from None


def _unknown(given: str) -> ConfigurationError:
    reason = _REFUSED.get(given.lower())
    if reason is not None:
        return ConfigurationError(f"option {given} is not supported: {reason}")
    near = difflib.get_close_matches(given.lower(), _BY_KEY, n=1, cutoff=0.6)
    if near:
        return ConfigurationError(
            f"unknown option {given!r}: did you mean {_BY_KEY[near[0]].name}?"
        )
    names = ", ".join(sorted(option.name for option in OPTIONS))
    return ConfigurationError(f"unknown option {given!r}; the options are {names}")


def _connection(values: _ParsedOptions) -> ConnectionOptions:
    metadata = values.get("metadata", str) or os.environ.get(METADATA_ENVIRONMENT, "")
    if not metadata:
        raise ConfigurationError(
            "option metadata is missing: give the cluster's URI, such as zk://host:2181/ledgers, "
            f"or set the environment variable {METADATA_ENVIRONMENT}"
        )
    if "://" not in metadata:
        raise ConfigurationError(
            f"option metadata = {metadata!r}: not a URI; it looks like zk://host:2181/ledgers"
        )
    values.require_both("tls.certFile", "tls.keyFile")
    return ConnectionOptions(
        metadata=metadata,
        read_timeout_s=values.get("readTimeout", float),
        speculative_read_delay_s=values.get("speculativeReadDelay", float),
        password=values.get_or("ledger.password", NO_SECRET),
        auth_token=values.get_or("ledger.auth.token", NO_SECRET),
        ca_file=values.get_or("tls.caFile", ""),
        cert_file=values.get_or("tls.certFile", ""),
        key_file=values.get_or("tls.keyFile", ""),
        key_password=values.get_or("tls.keyPassword", NO_SECRET),
    )


def _stream_name(values: _ParsedOptions, *, or_ledger: bool) -> str:
    stream, path = values.get("stream", str), values.get("path", str)
    if stream is not None and path is not None and stream != path:
        raise ConfigurationError(
            f"option stream = {stream!r} and the path {path!r} name different streams: give one"
        )
    name = stream if stream is not None else path
    if name is None:
        also = f", or a raw ledger with the option ledgerId. {_TABLE_HINT}" if or_ledger else ""
        raise ConfigurationError(f"option stream is missing: name the stream{also}")
    return name


def _check_ledger_read(values: _ParsedOptions) -> None:
    for name in ("startingTimestamp", "endingTimestamp", "includeMetadata"):
        if values.get(name, int):  # includeMetadata=false asks for nothing
            raise ConfigurationError(
                f"option {name} is for streams: the entries of a raw ledger (option ledgerId) "
                "have an id and a payload only; use startingPosition and endingPosition"
            )
    if values.has("maxBytesPerTrigger"):
        raise ConfigurationError(
            "option maxBytesPerTrigger is for streams: use maxRowsPerTrigger, which counts the "
            "entries of a raw ledger"
        )
    if values.has("path"):
        raise ConfigurationError("option ledgerId and a path exclude each other: give one")


def _refuse_password(values: _ParsedOptions) -> None:
    if values.has("ledger.password"):
        raise ConfigurationError(
            "option ledger.password is for raw ledgers (option ledgerId): streams have no password"
        )


def _position(
    values: _ParsedOptions, name: str, default: Position, ledger_id: LedgerId | None
) -> Position:
    position = values.position_or(name, default)
    if isinstance(position, str):
        return position
    if ledger_id is None and position.segment is None:
        raise ConfigurationError(f'option {name}: a stream position names its "segment"')
    of_stream = position.segment is not None or position.slot or position.stream
    if ledger_id is not None and of_stream:
        raise ConfigurationError(
            f'option {name}: a position in a raw ledger has an "entry" only, such as {{"entry": 0}}'
        )
    return position


def _trigger_limits(values: _ParsedOptions) -> TriggerLimits:
    limits = TriggerLimits(
        max_rows=values.get("maxRowsPerTrigger", int),
        max_bytes=values.get("maxBytesPerTrigger", int),
        min_rows=values.get("minRowsPerTrigger", int),
        max_delay_s=values.get_or("maxTriggerDelay", TRIGGER_DELAY_S_DEFAULT),
    )
    if values.has("maxTriggerDelay") and limits.min_rows is None:
        raise ConfigurationError("option maxTriggerDelay needs option minRowsPerTrigger as well")
    if limits.min_rows is not None and limits.min_rows > (limits.max_rows or limits.min_rows):
        raise ConfigurationError(
            f"option minRowsPerTrigger = {limits.min_rows} is above "
            f"maxRowsPerTrigger = {limits.max_rows}"
        )
    return limits


def _quorums(values: _ParsedOptions) -> Quorums:
    """The quorums that are given; for the others the default, narrowed to those given: with
    ensembleSize=2 alone, two copies and two acknowledgements."""
    standard = Quorums()
    given = [values.get(name, int) for name in ("ensembleSize", "writeQuorum", "ackQuorum")]
    write_quorum = given[1] or min(standard.write_quorum, given[0] or standard.write_quorum)
    ensemble_size = given[0] or max(standard.ensemble_size, write_quorum)
    ack_quorum = given[2] or min(standard.ack_quorum, write_quorum)
    try:
        return Quorums(ensemble_size, write_quorum, ack_quorum)
    except ConfigurationError:
        raise ConfigurationError(
            f"options ensembleSize = {ensemble_size}, writeQuorum = {write_quorum}, "
            f"ackQuorum = {ack_quorum}: needs ensembleSize >= writeQuorum >= ackQuorum >= 1"
        ) from None
