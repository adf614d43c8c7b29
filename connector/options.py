"""Options of ``format("ledger")``: text from users in, checked dataclasses out.

``option_table`` knows the single options. Here are the checks that need several of them, and the
dataclasses that readers and writers hold. Checked on the driver, before any task starts; the
dataclasses are pickled into the tasks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from connector.option_parsers import (
    KAFKA,
    NO_SECRET,
    Position,
    PositionsByStream,
    Secret,
    TimesByStream,
    TransactionJson,
)
from connector.option_table import (
    BATCH,
    READ,
    STREAM,
    TABLE_HINT,
    WRITE,
    ParsedOptions,
    parse_options,
)
from connector.several import Several
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.connector import TRIGGER_DELAY_S_DEFAULT
from spark_ledger.stream.model import Retention
from spark_ledger.stream.plan.partitions import PlanLimits
from spark_ledger.stream.where import Where
from spark_ledger.types import LedgerId, Quorums

M = TypeVar("M", PositionsByStream, TimesByStream)

METADATA_ENVIRONMENT: Final = "SPARK_LEDGER_METADATA"
"""Environment variable that stands in for the option ``metadata``."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the cluster. Hashable: it is the key of the per-process connection cache.

    Times are seconds; None leaves the client's own default.
    """

    metadata: str = field(repr=False)  # a password may be in it
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
class ReadOptions:
    """A checked read. Exactly one of ``stream``, ``ledger_id`` and ``several`` is set; the options
    ``of_stream`` of several have ``stream`` too.

    ``start_timestamp_ms`` and ``end_timestamp_ms`` (milliseconds since 1970, UTC) and
    ``start_transaction`` win over the positions, which then have their default.
    """

    connection: ConnectionOptions
    stream: str | None
    ledger_id: LedgerId | None
    start: Position = "earliest"
    end: Position = "latest"
    start_timestamp_ms: int | None = None
    end_timestamp_ms: int | None = None
    start_transaction: TransactionJson | None = None
    trigger: TriggerLimits = TriggerLimits()
    plan: PlanLimits = field(default_factory=PlanLimits)
    fail_on_data_loss: bool = True
    include_metadata: bool = False
    kafka_columns: bool = False
    kafka_headers: bool = False
    task_log: bool = False
    several: Several | None = None
    where: Where = field(default_factory=Where)

    @property
    def subject(self) -> str:
        """What is read, for messages."""
        if self.stream is not None:
            return f"stream {self.stream!r}"
        if self.several is not None:
            return self.several.subject
        return f"ledger {self.ledger_id}"

    @property
    def start_may_move(self) -> bool:
        """Whether the start may be another one a moment later, and is kept by an empty micro-batch:
        the end of a stream, a transaction to come. That of a time is named otherwise (rule T31)."""
        starts = () if self.several is None else self.several.starts.values()
        return "latest" in (self.start, *starts) or self.start_transaction is not None

    def of_stream(self, name: str) -> ReadOptions:
        """The options for one of several streams."""
        several = self.several
        assert several is not None, "only a read of several has streams in it"
        return replace(
            self,
            stream=name,
            start=several.starts.get(name, self.start),
            end=several.ends.get(name, self.end),
            start_timestamp_ms=several.start_times_ms.get(name, self.start_timestamp_ms),
            end_timestamp_ms=several.end_times_ms.get(name, self.end_timestamp_ms),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """A checked write. ``quorums`` and ``retention`` count only when it creates the stream.

    Without a name of the stream ``route_column`` names it, for each row.
    """

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
    retention: Retention | None = None
    task_log: bool = False
    route_column: str | None = None
    keep_route_column: bool = False
    key_columns: tuple[str, ...] = ()
    time_column: str | None = None

    @property
    def subject(self) -> str:
        """What is written to, for messages."""
        if self.stream:
            return f"stream {self.stream!r}"
        return f"streams named in column {self.route_column!r}"

    def of_stream(self, name: str) -> WriteOptions:
        """The options for one of the streams that rows name."""
        return replace(self, stream=name)


def read_options(raw: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Check the options of a read.

    ``streaming`` None: not known yet, as when Spark asks for a schema.

    Raises ConfigurationError naming the option and what is allowed if one is wrong.
    """
    values = parse_options(raw, READ, "" if streaming is None else STREAM if streaming else BATCH)
    values.refuse_both("startingPosition", "startingTimestamp")
    values.refuse_both("startingPosition", "startingTransaction")
    values.refuse_both("startingTimestamp", "startingTransaction")
    values.refuse_both("endingPosition", "endingTimestamp")
    values.refuse_both("stream", "ledgerId")
    number = values.get("ledgerId", int)
    ledger_id = None if number is None else LedgerId(number)
    if ledger_id is None:
        _refuse_password(values)
    several = _several(values)
    stream = None
    if ledger_id is not None:
        _check_ledger_read(values)
    elif several is None:
        stream = _stream_name(values, or_ledger=True)
    read = ReadOptions(
        connection=_connection(values),
        stream=stream,
        ledger_id=ledger_id,
        start=_position(values, "startingPosition", "earliest", ledger_id, several),
        end=_position(values, "endingPosition", "latest", ledger_id, several),
        start_timestamp_ms=_time_ms(values, "startingTimestamp"),
        start_transaction=values.get("startingTransaction", TransactionJson),
        end_timestamp_ms=_time_ms(values, "endingTimestamp"),
        trigger=_trigger_limits(values),
        plan=PlanLimits(values.get_or("minPartitions", 1), values.get("maxBytesPerPartition", int)),
        fail_on_data_loss=values.get_or("failOnDataLoss", True),
        include_metadata=values.get("includeMetadata", object) is True,
        kafka_columns=_kafka_columns(values),
        kafka_headers=values.get_or("includeHeaders", False),
        task_log=values.get_or("taskLog", False),
        several=several,
        where=_where(values),
    )
    if stream is None:
        return read
    by_name = _by_name(values, names=(stream,))  # as Kafka's options name the only topic
    return replace(replace(read, several=by_name).of_stream(stream), several=None)


def _where(values: ParsedOptions) -> Where:
    """Which rows are wanted. Their order is checked here, the rest when the stream is known."""
    start, end = values.get("startingEventTime", int), values.get("endingEventTime", int)
    if start is not None and end is not None and end < start:
        raise ConfigurationError("option endingEventTime lies before startingEventTime")
    key = values.get("keyEquals", object)
    assert key is None or isinstance(key, str | tuple), "what its parser makes"
    return Where(start, end, key)


def _kafka_columns(values: ParsedOptions) -> bool:
    wanted = values.get("includeMetadata", object) == KAFKA
    if values.get("includeHeaders", bool) and not wanted:
        raise ConfigurationError(
            "option includeHeaders needs includeMetadata=kafka: without it a column of headers is "
            "read as any other"
        )
    return wanted


def _several(values: ParsedOptions) -> Several | None:
    """The streams of a read of several; None for a read of one stream or ledger."""
    one_of = ("streams", "streamPattern", "ledgerId", "stream", "path")
    for number, name in enumerate(one_of[:2]):
        for other in one_of[number + 1 :]:
            values.refuse_both(name, other)
    if not values.has("streams") and not values.has("streamPattern"):
        return None
    return _by_name(values, names=values.get("streams", tuple) or ())


def _by_name(values: ParsedOptions, *, names: tuple[str, ...]) -> Several:
    """Streams, with where each begins and ends as far as options say so by name."""
    several = Several(
        names=names,
        pattern=values.get_or("streamPattern", ""),
        starts=_by_stream(values, "startingPosition", PositionsByStream),
        ends=_by_stream(values, "endingPosition", PositionsByStream),
        start_times_ms=_by_stream(values, "startingTimestamp", TimesByStream),
        end_times_ms=_by_stream(values, "endingTimestamp", TimesByStream),
    )
    several.check()
    return several


def _by_stream(values: ParsedOptions, name: str, kind: type[M]) -> M:
    value = values.get(name, object)
    return value if isinstance(value, kind) else kind()


def _time_ms(values: ParsedOptions, name: str) -> int | None:
    value = values.get(name, object)
    return value if isinstance(value, int) else None


def write_options(raw: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Check the options of a write.

    Raises ConfigurationError naming the option and what is allowed if one is wrong.
    """
    if "ledgerid" in {key.lower() for key in raw}:
        raise ConfigurationError(
            "option ledgerId is for reading: a raw ledger has one writer, which Spark tasks cannot "
            "share; write to a stream (option stream)"
        )
    values = parse_options(raw, WRITE, STREAM if streaming else BATCH)
    values.require_both("txnAppId", "txnVersion")
    _refuse_password(values)
    create = values.get_or("createStream", True)
    retention = ("retentionAge", "retentionBytes", "retentionRows")
    of_creation = (*retention, "keyColumns", "timeColumn")
    for name in ("ensembleSize", "writeQuorum", "ackQuorum", *of_creation):
        if values.has(name) and not create:
            raise ConfigurationError(
                f"option {name} counts only when the stream is created; "
                "remove it, or createStream=false"
            )
    routes = values.has("routeColumn")
    for name in ("stream", "path"):
        values.refuse_both("routeColumn", name)
    if values.has("keepRouteColumn") and not routes:
        raise ConfigurationError("option keepRouteColumn needs option routeColumn as well")
    return WriteOptions(
        connection=_connection(values),
        stream="" if routes else _stream_name(values, or_ledger=False),
        create_stream=create,
        quorums=_quorums(values),
        merge_schema=values.get_or("mergeSchema", False),
        compression=values.get("compression", str),
        entry_bytes=values.get("entryBytes", int),
        transaction_app=values.get("txnAppId", str),
        transaction_version=values.get("txnVersion", int),
        sink_id=values.get("sinkId", str),
        fail_on_data_loss=values.get_or("failOnDataLoss", True),
        retention=_retention(values),
        task_log=values.get_or("taskLog", False),
        route_column=values.get("routeColumn", str),
        keep_route_column=values.get_or("keepRouteColumn", False),
        key_columns=values.get("keyColumns", tuple) or (),
        time_column=values.get("timeColumn", str),
    )


def _connection(values: ParsedOptions) -> ConnectionOptions:
    metadata = values.get("metadata", str) or os.environ.get(METADATA_ENVIRONMENT, "")
    if not metadata:
        raise ConfigurationError(
            "option metadata is missing: give the cluster's URI, such as zk://host:2181/ledgers, "
            f"or set the environment variable {METADATA_ENVIRONMENT}. {TABLE_HINT}"
        )
    if "://" not in metadata:
        raise ConfigurationError(  # not quoted: it may hold a password
            "option metadata: not a URI; it looks like zk://host:2181/ledgers"
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


def _stream_name(values: ParsedOptions, *, or_ledger: bool) -> str:
    stream, path = values.get("stream", str), values.get("path", str)
    if stream is not None and path is not None and stream != path:
        raise ConfigurationError(
            f"option stream = {stream!r} and the path {path!r} name different streams: give one"
        )
    name = stream if stream is not None else path
    if name is None:
        also = ", or a raw ledger with the option ledgerId" if or_ledger else ""
        raise ConfigurationError(f"option stream is missing: name the stream{also}. {TABLE_HINT}")
    return name


def _check_ledger_read(values: ParsedOptions) -> None:
    for name in ("startingEventTime", "endingEventTime", "keyEquals"):
        if values.has(name):
            raise ConfigurationError(
                f"option {name} is for streams: the entries of a raw ledger have no columns"
            )
    if values.has("startingTransaction"):
        raise ConfigurationError("option startingTransaction is for streams, not for raw ledgers")
    for name in ("startingTimestamp", "endingTimestamp", "includeMetadata"):
        if values.get(name, object):  # includeMetadata=false asks for nothing
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


def _refuse_password(values: ParsedOptions) -> None:
    if values.has("ledger.password"):
        raise ConfigurationError(
            "option ledger.password is for raw ledgers (option ledgerId): streams have no password"
        )


def _position(
    values: ParsedOptions,
    name: str,
    default: Position,
    ledger_id: LedgerId | None,
    several: Several | None,
) -> Position:
    by_stream = values.get(name, object)
    if isinstance(by_stream, PositionsByStream):
        if ledger_id is not None:
            raise ConfigurationError(
                f"option {name}: a raw ledger has no streams, of which this gives positions"
            )
        for each in by_stream.values():
            _check_position(name, each, ledger_id)
        return default
    position = values.position_or(name, default)
    if several is not None and not isinstance(position, str):
        raise ConfigurationError(
            f"option {name}: of several streams give positions by stream, such as "
            '{"a": {"segment": 3}, "b": "latest"}'
        )
    return _check_position(name, position, ledger_id)


def _check_position(name: str, position: Position, ledger_id: LedgerId | None) -> Position:
    if isinstance(position, str):
        return position
    is_offset = position.offset is not None
    if ledger_id is None and position.segment is None and not is_offset:
        raise ConfigurationError(f'option {name}: a stream position names its "segment"')
    of_stream = position.segment is not None or position.slot or position.stream or is_offset
    if ledger_id is not None and of_stream:
        raise ConfigurationError(
            f'option {name}: a position in a raw ledger has an "entry" only, such as {{"entry": 0}}'
        )
    return position


def _trigger_limits(values: ParsedOptions) -> TriggerLimits:
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


def _retention(values: ParsedOptions) -> Retention | None:
    """How much of a new stream is kept; None: all."""
    try:
        found = Retention(
            age_s=values.get("retentionAge", float),
            size_bytes=values.get("retentionBytes", int),
            rows=values.get("retentionRows", int),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"option retentionAge: {error}") from None
    return None if found.is_for_ever else found


def _quorums(values: ParsedOptions) -> Quorums:
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
