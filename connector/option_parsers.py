"""Parsers of single option values: numbers, sizes, times, positions, secrets.

Each takes the text that a user wrote. Each raises ValueError with the half sentence that says what
is allowed; ``option_table`` puts the name of the option in front.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timezone, tzinfo
from pathlib import Path
from typing import Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from spark_ledger.errors import ConfigurationError
from spark_ledger.stream.where import where
from spark_ledger.types import Dlsn


class TransactionJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A transaction of a sink, as an option spells it."""

    sink: str
    transaction: int


class PositionJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position as users write it; entry and slot may be left out. Or an offset alone."""

    segment: int | None = None
    entry: int = 0
    slot: int = 0
    offset: int | None = None
    """How many rows of the stream lie before, as the column of Kafka's counts."""
    stream: str = ""
    """The stream's id; present if the position was copied from a query's progress."""
    name: str = ""
    """This and the next four stand beside the end of a stream in a query's progress. A position
    that was copied from there has them; they mean nothing here."""
    rows_behind: int = msgspec.field(default=0, name="rowsBehind")
    bytes_behind: int = msgspec.field(default=0, name="bytesBehind")
    millis_behind: int = msgspec.field(default=0, name="millisBehind")
    batch_rows: int = msgspec.field(default=0, name="batchRows")
    last: dict[str, int] | None = None
    """Stands in the offsets of a checkpoint; a position that is given may be anywhere."""

    @property
    def dlsn(self) -> Dlsn:
        """The position in a stream."""
        assert self.segment is not None, "checked when the options were read"
        return Dlsn(self.segment, self.entry, self.slot)


Position = Literal["earliest", "latest"] | PositionJson


class PositionsByStream(dict[str, Position]):
    """Positions by the names of streams, for a read of several."""


class TimesByStream(dict[str, int]):
    """Times by the names of streams, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, or where to find it: ``env:NAME`` or ``file:PATH``. Never shown.

    The reference is pickled into the tasks; the value is looked up where it is used.
    """

    reference: str

    def __repr__(self) -> str:
        return "Secret(***)" if self.reference else "Secret(none)"

    def __bool__(self) -> bool:
        return bool(self.reference)

    def reveal(self) -> str:
        """The value. Raises ConfigurationError if the variable or file is missing or empty: what
        was to be protected would not be."""
        kind, _, name = self.reference.partition(":")
        if kind == "env":
            value = os.environ.get(name)
            if value is None:
                raise ConfigurationError(
                    f"a secret refers to the environment variable {name}, which is not set here; "
                    "set it for the driver and for the executors (spark.executorEnv.*)"
                )
        elif kind == "file":
            try:
                value = Path(name).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise ConfigurationError(
                    f"a secret refers to the file {name}, which cannot be read: {why}"
                ) from error
        else:
            return self.reference
        if not value:
            raise ConfigurationError(f"a secret refers to {self.reference}, which is empty")
        return value


NO_SECRET: Final = Secret("")
"""No secret was given."""

KAFKA: Final = "kafka"
"""The value of ``includeMetadata`` that gives the columns of Spark's Kafka source."""


def parse_whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers from ``low`` to ``high``, both included."""
    wanted = f"a whole number >= {low}" if high is None else f"a whole number {low} to {high}"

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text.strip()):
            raise ValueError(f"needs {wanted}")
        value = int(text)
        if value < low or (high is not None and value > high):
            raise ValueError(f"needs {wanted}")
        return value

    return parse


def parse_boolean(text: str) -> bool:
    """``true`` or ``false``, in any case."""
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("needs true or false")
    return value


def parse_metadata(text: str) -> bool | Literal["kafka"]:
    """``true``, ``false``, or the word for the columns of Spark's Kafka source."""
    if text.strip().lower() == KAFKA:
        return KAFKA
    try:
        return parse_boolean(text)
    except ValueError:
        raise ValueError("needs true, false or kafka") from None


def parse_one_of(*allowed: str) -> Callable[[str], str]:
    """A parser of one of a few words, in any case."""

    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            raise ValueError(f"needs one of {', '.join(allowed)}")
        return value

    return parse


def parse_name(wanted: str) -> Callable[[str], str]:
    """A parser of non-empty text."""

    def parse(text: str) -> str:
        value = text.strip()
        if not value:
            raise ValueError(f"is empty: give {wanted}")
        return value

    return parse


def parse_path(text: str) -> str:
    """The path of a file. Whether it exists is not checked here: it is used on other machines."""
    return parse_name("the path of a PEM file")(text)


def parse_timestamp_ms(text: str) -> int:
    """Milliseconds since 1970 (UTC), or ISO 8601; a time without a zone is UTC."""
    value = text.strip()
    if re.fullmatch(r"\d{1,15}", value):
        return int(value)
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(
            "needs milliseconds since 1970 or ISO 8601 such as 2026-01-31T12:00:00Z"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1000)


def time_text(timestamp_ms: int) -> str:
    """Milliseconds since 1970, and the time that people read, up to the year 9999."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return str(timestamp_ms)
    return f"{timestamp_ms} ({when.isoformat(timespec='seconds')})"


def parse_event_time_us(text: str) -> int:
    """Microseconds since 1970 of a time spelt as for ``parse_timestamp_ms``, which may also lie
    before 1970."""
    if re.fullmatch(r"-?\d{1,15}", text.strip()):
        return int(text) * 1000
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            "needs milliseconds since 1970 or ISO 8601 such as 2026-01-31T12:00:00Z"
        ) from None
    found = where(event_time_from=when).start_us
    assert found is not None, "it has a start"
    return found


def parse_columns(text: str) -> tuple[str, ...]:
    """Names of columns, separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("needs names of columns, separated by commas, such as customer,region")
    return names


def parse_key(text: str) -> str | tuple[tuple[str, str], ...]:
    """The value of a key; or by column, ``{"customer": 17, "region": "north"}``."""
    by_column = _by_stream(text)
    if by_column is None:
        return text
    for name, value in msgspec.json.decode(text.strip(), type=dict[str, msgspec.Raw]).items():
        if bytes(value) == b"null":
            raise ValueError(f"{name!r} is null, and a key is not null: no row has it")
    return tuple(by_column.items())


def parse_position(text: str) -> Position:
    """``earliest``, ``latest``, or JSON such as ``{"segment": 3, "entry": 0, "slot": 0}`` or
    ``{"offset": 23}``."""
    value = text.strip()
    if value.lower() == "earliest":
        return "earliest"
    if value.lower() == "latest":
        return "latest"
    wanted = (
        'needs earliest, latest or JSON such as {"segment": 3, "entry": 0, "slot": 0} or '
        '{"offset": 23}, the number of rows before'
    )
    try:
        position = msgspec.json.decode(value, type=PositionJson)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{wanted} ({error})") from None
    if min(position.segment or 0, position.entry, position.slot, position.offset or 0) < 0:
        raise ValueError(f"{wanted}; numbers count from 0")
    if position.offset is not None and position != PositionJson(offset=position.offset):
        raise ValueError(f"{wanted}; an offset stands alone")
    return position


def parse_positions(text: str) -> Position | PositionsByStream:
    """As ``parse_position``; or by stream, ``{"a": {"segment": 3}, "b": "latest"}``."""
    by_stream = _by_stream(text) or {}
    inner = _by_stream(by_stream["streams"]) if set(by_stream) == {"streams"} else None
    if inner and not _has_numbers(inner):
        by_stream = inner  # pasted from a query's progress
    if not by_stream or _has_numbers(by_stream):
        return parse_position(text)  # of one stream, or nonsense
    _refuse_partitions(by_stream, 'write {"offset": 23} for 23, "latest" for -1, "earliest" for -2')
    return PositionsByStream({name: parse_position(each) for name, each in by_stream.items()})


def parse_times_ms(text: str) -> int | TimesByStream:
    """As ``parse_timestamp_ms``; or by stream, ``{"a": "2026-01-31", "b": 1700000000000}``."""
    by_stream = _by_stream(text)
    if by_stream is None:
        return parse_timestamp_ms(text)
    _refuse_partitions(by_stream, "write the time itself")
    return TimesByStream({name: parse_timestamp_ms(each) for name, each in by_stream.items()})


def _refuse_partitions(by_stream: Mapping[str, str], instead: str) -> None:
    """Refuse values by partition of each stream, as Kafka's options have them."""
    for name, value in by_stream.items():
        if any(key.isdecimal() for key in _by_stream(value) or ()):
            raise ValueError(f"a stream has one partition: in place of {value} of {name} {instead}")


def parse_zone(text: str) -> tzinfo:
    """A time zone, as Spark's session has it: ``Europe/Berlin`` or ``+02:00``."""
    name = text.strip()
    try:
        if name[:1] in ("+", "-"):
            offset = datetime.strptime(name, "%z").utcoffset()
            assert offset is not None, "it was read as one"
            return timezone(offset)
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfo raises each of them
        raise ValueError("needs a time zone such as Europe/Berlin or +02:00") from None


def in_zone(text: str, zone: tzinfo) -> str:
    """What ``parse_times_ms`` takes, with a zone for times that have none."""
    by_stream = _by_stream(text)
    if by_stream is None:
        return _in_zone(text.strip(), zone)
    times = {name: _in_zone(each.strip(), zone) for name, each in by_stream.items()}
    return msgspec.json.encode(times).decode()


def _in_zone(text: str, zone: tzinfo) -> str:
    if text.isdecimal():  # milliseconds, which could be read as a date
        return text
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text  # ``parse_times_ms`` says what is wrong
    return text if when.tzinfo is not None else when.replace(tzinfo=zone).isoformat()


def _has_numbers(values: Mapping[str, str]) -> bool:
    return any(re.fullmatch(r"-?\d+", value) for value in values.values())


def _by_stream(text: str) -> dict[str, str] | None:
    """The values of a JSON object, each as a text; None if it is no object."""
    try:
        values = msgspec.json.decode(text.strip(), type=dict[str, msgspec.Raw])
        raw = {name: bytes(value).decode() for name, value in values.items()}
        return {
            name: msgspec.json.decode(value, type=str) if value.startswith('"') else value
            for name, value in raw.items()
        }
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def parse_names(text: str) -> tuple[str, ...]:
    """Names of streams, separated by commas; each once."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError("needs the names of streams, separated by commas, such as a,b")
    if len(set(names)) < len(names):
        raise ValueError("names a stream twice")
    return tuple(names)


def parse_pattern(text: str) -> str:
    """A regular expression for names of streams, as Python's ``re`` has them."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"needs a regular expression such as clicks-.* ({error})") from None
    return parse_name("a regular expression such as clicks-.*")(text)


def parse_transaction(text: str) -> TransactionJson:
    """A sink's transaction as JSON such as ``{"sink": "orders", "transaction": 7}``."""
    wanted = 'needs JSON such as {"sink": "orders", "transaction": 7}'
    try:
        return msgspec.json.decode(text.strip(), type=TransactionJson)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{wanted} ({error})") from None
