"""Client settings: names, defaults, ranges. Parsed once; an unknown name is an error.

``build`` works for any frozen dataclass of settings, so ``connect`` and the command line
refuse the same mistakes with the same words.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final, TypeVar

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import KIB, NUMBER_MAX, SECONDS_MAX
from spark_ledger.limits.client import (
    ADD_TIMEOUT_S,
    EXPLICIT_LAC_DELAY_S,
    READ_TIMEOUT_S,
    SPECULATIVE_READ_DELAY_S,
    WRITER_BYTES_IN_FLIGHT_MAX,
)
from spark_ledger.limits.metadata import (
    METADATA_TIMEOUT_S,
    SESSION_TIMEOUT_S,
    SESSION_TIMEOUT_S_MAX,
)

T = TypeVar("T")

_HIGHEST: Final[Mapping[str, float]] = {
    "session_timeout_s": SESSION_TIMEOUT_S_MAX,
    "bytes_in_flight_max": NUMBER_MAX,
}
"""Of the numbers that are not bounded by ``SECONDS_MAX``."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How a client behaves. All times are seconds, a century at most, all sizes bytes."""

    add_timeout_s: float = ADD_TIMEOUT_S
    """A bookie that acknowledges nothing for so long while adds wait is replaced."""
    read_timeout_s: float = READ_TIMEOUT_S
    """One read request to one bookie; after it the next replica is asked."""
    speculative_read_delay_s: float = SPECULATIVE_READ_DELAY_S
    """Without an answer for so long, the next replica is asked as well."""
    bytes_in_flight_max: int = WRITER_BYTES_IN_FLIGHT_MAX
    """What a writer holds for its slowest bookie before ``append`` waits: payload, and some 400
    bytes for each entry."""
    explicit_lac_delay_s: float = EXPLICIT_LAC_DELAY_S
    """An idle writer makes its last entry visible to readers after so long."""
    metadata_timeout_s: float = METADATA_TIMEOUT_S
    """How long metadata operations are tried while ZooKeeper cannot be reached."""
    session_timeout_s: float = SESSION_TIMEOUT_S
    """ZooKeeper session timeout, an hour at most."""
    rack: str = ""
    """Where this process is, as ``/region/rack``: nearer bookies are read first. Empty: where a
    bookie on its host is."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "rack":
                if not isinstance(value, str) or (value and value[0] != "/"):
                    raise ConfigurationError(f"rack = {value!r}: a path such as /eu/r1")
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise ConfigurationError(f"{field.name} = {value!r}: must be a number above 0")
            if value > (highest := _HIGHEST.get(field.name, SECONDS_MAX)):
                raise ConfigurationError(f"{field.name} = {value!r}: at most {highest} is allowed")
        if self.bytes_in_flight_max < 64 * KIB:
            raise ConfigurationError(
                f"bytes_in_flight_max = {self.bytes_in_flight_max}: at least {64 * KIB} is needed"
            )


def unknown_name(name: str, valid: Iterable[str], *, what: str) -> ConfigurationError:
    """The error for a name that does not exist; it offers the nearest one that does."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"valid are: {', '.join(names)}"
    return ConfigurationError(f"unknown {what} {name!r}: {hint}")


def build(config_class: type[T], values: Mapping[str, object], *, what: str = "option") -> T:
    """A settings object from named values.

    Raises ConfigurationError if a name is unknown, and what the class raises for a value.
    """
    valid = {field.name for field in fields(config_class)}  # type: ignore[arg-type]
    for name in values:
        if name not in valid:
            raise unknown_name(name, valid, what=what)
    return config_class(**values)
