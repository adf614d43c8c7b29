"""The table of options of ``format("ledger")``: names, types, and where each applies. Pure.

Spark gives every option as text under a lower-case key. Everything follows from the table: parsing,
ranges, the error for a misspelt name (which suggests the nearest valid one) and the error for an
option that does not apply.

An option of the other direction (``sinkId`` on a read) is refused in streaming queries and ignored
in batch ones, because one SQL view (``CREATE TEMPORARY VIEW ... USING ledger OPTIONS (...)``)
serves both SELECT and INSERT.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Final, NamedTuple, TypeVar

from connector.foreign_options import instead_of
from connector.option_parsers import (
    Position,
    PositionJson,
    PositionsByStream,
    Secret,
    in_zone,
    parse_boolean,
    parse_columns,
    parse_event_time_us,
    parse_key,
    parse_metadata,
    parse_name,
    parse_names,
    parse_one_of,
    parse_path,
    parse_pattern,
    parse_positions,
    parse_times_ms,
    parse_transaction,
    parse_whole_number,
    parse_zone,
)
from spark_ledger.amounts import parse_age_s, parse_size_bytes, parse_timeout_s
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import KIB
from spark_ledger.limits.entries import ENSEMBLE_SIZE_MAX, ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.stream.model import ENTRY_BYTES_MIN

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
    Option("streams", parse_names, READ),
    Option("streamPattern", parse_pattern, READ),
    Option("taskLog", parse_boolean),
    # reading
    Option("startingPosition", parse_positions, READ),
    Option("startingTimestamp", parse_times_ms, READ),
    Option("startingTransaction", parse_transaction, READ),
    Option("endingPosition", parse_positions, READ, BATCH, "a streaming query has no end"),
    Option("endingTimestamp", parse_times_ms, READ, BATCH, "a streaming query has no end"),
    Option("timeZone", parse_zone, READ),
    Option("startingEventTime", parse_event_time_us, READ),
    Option("endingEventTime", parse_event_time_us, READ),
    Option("keyEquals", parse_key, READ),
    Option("maxRowsPerTrigger", _ROWS, READ, STREAM, "a batch read has no trigger"),
    Option("maxBytesPerTrigger", _BYTES, READ, STREAM, "a batch read has no trigger"),
    Option("minRowsPerTrigger", _ROWS, READ, STREAM, "a batch read has no trigger"),
    Option("maxTriggerDelay", parse_timeout_s, READ, STREAM, "a batch read has no trigger"),
    Option("minPartitions", parse_whole_number(1, 10_000), READ),
    Option("maxBytesPerPartition", parse_size_bytes(64 * KIB), READ),
    Option("failOnDataLoss", parse_boolean),
    Option("includeMetadata", parse_metadata, READ),
    Option("includeHeaders", parse_boolean, READ),
    Option("readTimeout", parse_timeout_s, READ),
    Option("speculativeReadDelay", parse_timeout_s, READ),
    # writing
    Option("ensembleSize", parse_whole_number(1, ENSEMBLE_SIZE_MAX), WRITE),
    Option("writeQuorum", parse_whole_number(1, ENSEMBLE_SIZE_MAX), WRITE),
    Option("ackQuorum", parse_whole_number(1, ENSEMBLE_SIZE_MAX), WRITE),
    Option("retentionAge", parse_age_s, WRITE),
    Option("retentionBytes", _BYTES, WRITE),
    Option("retentionRows", _ROWS, WRITE),
    Option("keyColumns", parse_columns, WRITE),
    Option("timeColumn", parse_name("a column"), WRITE),
    Option("createStream", parse_boolean, WRITE),
    Option("mergeSchema", parse_boolean, WRITE),
    Option("routeColumn", parse_name("a column"), WRITE),
    Option("keepRouteColumn", parse_boolean, WRITE),
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

TABLE_HINT: Final = (
    "Spark does not hand the options of a table (CREATE TABLE, also AS SELECT, saveAsTable, "
    "toTable) to its reads and writes: use CREATE TEMPORARY VIEW ... USING ledger OPTIONS (...)"
)

_REFUSED: Final = {
    "provider": TABLE_HINT,
    "asyncprogresstrackingenabled": (
        "asynchronous progress tracking repeats batches with other boundaries, which would break "
        "exactly-once; remove the option"
    ),
}


class ParsedOptions:
    """Parsed options by name, with the questions that ``connector.options`` asks."""

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
        """A position as its parser makes it: a word or a PositionJson; not one by stream."""
        value = self.get(name, object)
        if value is None or isinstance(value, PositionsByStream):
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


def parse_options(raw: Mapping[str, str], direction: str, mode: str) -> ParsedOptions:
    """Parse options for a read or write (``direction``); empty ``mode``: not known yet.

    Raises ConfigurationError if a name is unknown or does not apply, or a value is not allowed.
    """
    values: dict[str, object] = {}
    for given in raw:
        if given.lower() in _REFUSED or instead_of(given) is not None:
            raise _unknown(given)
    zone = next((text for given, text in raw.items() if given.lower() == "timezone"), None)
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
        values[key] = _parse_one(option, text, zone)
    return ParsedOptions(values)


def _parse_one(option: Option, text: str, zone: str | None) -> object:
    if zone is not None and option.parse is parse_times_ms:
        known = _parse_one(_BY_KEY["timezone"], zone, None)
        assert isinstance(known, tzinfo), "that is what it parses to"
        text = in_zone(text, known)
    try:
        return option.parse(text)
    except ValueError as error:
        shown = "" if option.parse is Secret else f" = {text!r}"
        raise ConfigurationError(f"option {option.name}{shown}: {error}") from None


def _unknown(given: str) -> ConfigurationError:
    name, reason = instead_of(given) or (given, _REFUSED.get(given.lower()))
    if reason is not None:
        return ConfigurationError(f"option {name} is not supported: {reason}")
    near = difflib.get_close_matches(given.lower(), _BY_KEY, n=1, cutoff=0.6)
    if near:
        return ConfigurationError(
            f"unknown option {given!r}: did you mean {_BY_KEY[near[0]].name}?"
        )
    names = ", ".join(sorted(option.name for option in OPTIONS))
    return ConfigurationError(f"unknown option {given!r}; the options are {names}")
