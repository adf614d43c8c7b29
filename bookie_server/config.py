"""A bookie's configuration file: TOML, checked as a whole, every mistake named with its key."""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from bookie_server.storage.config import StorageConfig
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import NUMBER_MAX, SECONDS_MAX, TIB
from spark_ledger.limits.bookie import (
    BOOKIE_ANSWER_BYTES_MAX,
    BOOKIE_MEMORY_BYTES,
    BOOKIE_MEMORY_HIGH,
    BOOKIE_PROCESS_BYTES,
    BOOKIE_WAITING_BYTES_MAX,
)
from spark_ledger.limits.collection import (
    COLLECTION_INTERVAL_S,
    COLLECTION_PAUSE_S,
    COLLECTION_SHARE_MAX,
)
from spark_ledger.limits.keeper import (
    AUDIT_S,
    DROPPED_GRACE_S,
    KEEPER_PASS_S,
    OPTIMIZE_BYTES_PER_S,
    OPTIMIZE_S,
    OWNER_GRACE_S,
    REPLACED_GRACE_S,
    UNNAMED_GRACE_S,
)
from spark_ledger.limits.metadata import SESSION_TIMEOUT_S_MAX
from spark_ledger.limits.repair import (
    LOST_BOOKIE_DELAY_S,
    OPEN_LEDGER_GRACE_S,
    REPAIR_BYTES_PER_S,
    REPAIR_SOURCE_BYTES_PER_S,
)
from spark_ledger.types import BookieId

_DEFAULTS: Final[Mapping[str, Any]] = {  # Any: defaults of several types, checked by msgspec
    field.name: field.default for field in fields(StorageConfig) if field.default is not MISSING
}

_PORT: Final = re.compile("[0-9]{1,5}")
_HOST_CHARACTERS_MAX: Final = 253
"""Of any name in DNS."""
_HOST: Final = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(?:\.|$))+")
"""Labels with points between them; underscores stand in names of containers."""
_NUMBERS: Final = re.compile(r"(?:.*\.)?[0-9]+\.?")
"""Whose last label is a number: resolvers take that for an IPv4 address, or for none."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Directory = Annotated[str, msgspec.Meta(min_length=1)]
Bytes = Annotated[int, msgspec.Meta(gt=0, le=NUMBER_MAX)]
BytesOrNone = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=SECONDS_MAX)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class ListenConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the bookie serves clients."""

    host: str = "127.0.0.1"
    port: Port = 3181
    """0 picks a free port."""

    advertised_address: str = ""
    """``host`` or ``host:port`` that clients connect to; empty: where the bookie listens. An IPv6
    address stands in brackets, or alone."""

    @property
    def advertised(self) -> tuple[str, str]:
        """Host, an IPv6 address without brackets, and port of ``advertised_address``; empty where
        it has none. Raises ValueError, with the half sentence that says why, if no client could
        connect to it."""
        return _host_and_port(self.advertised_address)


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where metrics and status are served over HTTP."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Port = 8181
    """0 picks a free port."""


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keeper, which one bookie of a cluster runs as a process beside itself."""

    enabled: bool = True
    owner_grace_s: Annotated[float, msgspec.Meta(ge=0)] = OWNER_GRACE_S
    unnamed_grace_s: Annotated[float, msgspec.Meta(ge=0)] = UNNAMED_GRACE_S
    dropped_grace_s: Annotated[float, msgspec.Meta(ge=0)] = DROPPED_GRACE_S
    replaced_grace_s: Annotated[float, msgspec.Meta(ge=0)] = REPLACED_GRACE_S
    interval_s: Annotated[float, msgspec.Meta(ge=0.1)] = KEEPER_PASS_S
    sink_records_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """0: records of sinks are never removed."""

    audit_s: Annotated[float, msgspec.Meta(ge=0)] = AUDIT_S
    optimize_s: Annotated[float, msgspec.Meta(ge=0)] = OPTIMIZE_S
    optimize_bytes_per_s: Annotated[int, msgspec.Meta(ge=1024)] = OPTIMIZE_BYTES_PER_S


class AutorecoverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Repair: copies of lost bookies are made again, by the keeper's process."""

    enabled: bool = True
    lost_bookie_delay_s: Annotated[float, msgspec.Meta(ge=0)] = LOST_BOOKIE_DELAY_S
    open_ledger_grace_s: Annotated[float, msgspec.Meta(ge=0)] = OPEN_LEDGER_GRACE_S
    bytes_per_s: Annotated[int, msgspec.Meta(ge=1024)] = REPAIR_BYTES_PER_S
    source_bytes_per_s: Annotated[int, msgspec.Meta(ge=1024)] = REPAIR_SOURCE_BYTES_PER_S


class CollectionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The garbage collection: ledgers that were deleted in the metadata leave the bookie."""

    enabled: bool = True
    interval_s: Seconds = COLLECTION_INTERVAL_S
    pause_s: Seconds = COLLECTION_PAUSE_S
    share_max: Share = COLLECTION_SHARE_MAX


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Directories and sizes; what each does is said in ``storage.config.StorageConfig``."""

    journal_directory: Directory
    ledger_directories: Annotated[list[Directory], msgspec.Meta(min_length=1)]
    """Relative directories are taken from the directory of the configuration file."""

    journal_file_bytes: Annotated[int, msgspec.Meta(gt=0, le=TIB)] = _DEFAULTS["journal_file_bytes"]
    journal_batch_bytes_max: Bytes = _DEFAULTS["journal_batch_bytes_max"]
    write_cache_bytes: Bytes = _DEFAULTS["write_cache_bytes"]
    flush_interval_s: Seconds = _DEFAULTS["flush_interval_s"]
    entry_log_bytes: Bytes = _DEFAULTS["entry_log_bytes"]
    entry_log_cached_bytes: BytesOrNone = _DEFAULTS["entry_log_cached_bytes"]
    write_once_bytes: BytesOrNone = _DEFAULTS["write_once_bytes"]
    compaction_bytes_per_s: BytesOrNone = _DEFAULTS["compaction_bytes_per_s"]
    scrub_bytes_per_s: BytesOrNone = _DEFAULTS["scrub_bytes_per_s"]
    scrub_interval_s: Seconds = _DEFAULTS["scrub_interval_s"]
    block_cache_bytes: BytesOrNone = _DEFAULTS["block_cache_bytes"]
    index_map_bytes: Annotated[int, msgspec.Meta(gt=0, le=64 * TIB)] = _DEFAULTS["index_map_bytes"]
    disk_high_water_mark: Share = _DEFAULTS["disk_high_water_mark"]
    disk_low_water_mark: Share = _DEFAULTS["disk_low_water_mark"]
    disk_reserve_bytes: BytesOrNone = _DEFAULTS["disk_reserve_bytes"]
    disk_check_interval_s: Seconds = _DEFAULTS["disk_check_interval_s"]


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a bookie is told. Sizes are bytes, times seconds. ``load`` makes it."""

    metadata: str
    """Metadata URI of the cluster, ``zk://host:port/root``."""

    storage: StorageSettings
    listen: ListenConfig = ListenConfig()
    admin: AdminConfig = AdminConfig()
    keeper: KeeperSettings = KeeperSettings()
    autorecovery: AutorecoverySettings = AutorecoverySettings()
    collection: CollectionSettings = CollectionSettings()
    bookie_id: str = ""
    """Name to format this bookie under; empty: a random one. Later it must be the formatted one."""

    rack: Annotated[str, msgspec.Meta(pattern="^/.+")] = "/default-rack"
    """Failure domain: a path with a leading slash."""

    rack_file: str = ""
    """Look the rack up in this file instead, by bookie_id, then by the address of ``listen``."""

    rack_script: str = ""
    """Or ask this program, which gets the address and prints the rack."""

    memory_bytes: Bytes = BOOKIE_MEMORY_BYTES
    """What the process may take, its caches included; near it, the bookie hangs up on clients that
    keep it waiting."""

    metadata_wait_s: Seconds = 60.0
    """At start the metadata store is tried for this long."""

    session_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=SESSION_TIMEOUT_S_MAX)] = 10.0
    """Others see the bookie as gone after this long without a sign of life; a start after a kill
    waits for that."""

    drain_timeout_s: Seconds = 10.0
    """At stop, calls in flight get this long to finish."""

    def storage_config(self, bookie_id: BookieId, cluster_id: str) -> StorageConfig:
        """The storage's own settings for this identity.

        Raises ConfigurationError if values do not go together.
        """
        settings = msgspec.structs.asdict(self.storage)
        settings["journal_directory"] = self.journal_directory
        settings["ledger_directories"] = self.ledger_directories
        return StorageConfig(bookie_id=bookie_id, cluster_id=cluster_id, **settings)

    @property
    def journal_directory(self) -> Path:
        return Path(self.storage.journal_directory)

    @property
    def ledger_directories(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.storage.ledger_directories))


_SECTIONS: Final = (
    StorageSettings,
    ListenConfig,
    AdminConfig,
    KeeperSettings,
    AutorecoverySettings,
    CollectionSettings,
)


def load(path: Path) -> BookieConfig:
    """Read a configuration file.

    Raises ConfigurationError, which names the file and the key, if it cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"configuration file {path} cannot be read: {error}") from error
    return parse(text, path)


def parse(text: str, path: Path) -> BookieConfig:
    """A configuration from TOML text; ``path`` is the file it came from, for messages.

    Raises ConfigurationError, which names the file and the key, if it cannot be used.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers too long, brackets too deep
        raise ConfigurationError(f"configuration file {path} is not TOML: {error}") from error
    _refuse_unknown(values, BookieConfig, "", path)
    try:
        config = msgspec.convert(values, BookieConfig)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`$.", "`")
        raise ConfigurationError(f"configuration file {path}: {reason}") from error
    try:
        assert config.listen.advertised is not None, "asking for it checks it"
    except ValueError as error:
        raise ConfigurationError(
            f"configuration file {path}: listen.advertised_address is "
            f"{config.listen.advertised_address!r}: {error}"
        ) from error
    absolute = partial(_absolute, path)
    storage = msgspec.structs.replace(
        config.storage,
        journal_directory=absolute("storage.journal_directory", config.storage.journal_directory),
        ledger_directories=[
            absolute("storage.ledger_directories", name)
            for name in config.storage.ledger_directories
        ],
    )
    if sum(map(bool, (config.rack_file, config.rack_script, "rack" in values))) > 1:
        raise ConfigurationError(
            f"configuration file {path}: only one of rack, rack_file and rack_script says the rack"
        )
    places = {
        key: absolute(key, value)
        for key in ("rack_file", "rack_script")
        if (value := values.get(key))
    }
    config = msgspec.structs.replace(config, storage=storage, **places)
    try:
        assert config.storage_config(BookieId("-"), ""), "making it checks it"
    except ConfigurationError as error:  # before anything is made
        raise ConfigurationError(f"configuration file {path}: storage: {error}") from error
    needed = _memory_needed(config.storage)
    if config.memory_bytes < needed:
        raise ConfigurationError(
            f"configuration file {path}: memory_bytes is {config.memory_bytes}, and "
            f"storage.write_cache_bytes and storage.block_cache_bytes together need {needed}: "
            "raise it, or lower them"
        )
    return config


def _memory_needed(storage: StorageSettings) -> int:
    """The least budget that holds what is kept on purpose, and is not near its end with it."""
    kept = storage.write_cache_bytes + storage.block_cache_bytes + BOOKIE_PROCESS_BYTES
    passing = BOOKIE_ANSWER_BYTES_MAX + BOOKIE_WAITING_BYTES_MAX
    return max(math.ceil(kept / BOOKIE_MEMORY_HIGH), kept + passing)


def _refuse_unknown(
    values: Mapping[str, object], kind: type[msgspec.Struct], prefix: str, path: Path
) -> None:
    """Name the first unknown key and the known one it is most like."""
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in values.items():
        if key not in known:
            (near,) = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise ConfigurationError(
                f"configuration file {path}: unknown key {prefix + key!r}, did you mean "
                f"{prefix + near!r}?"
            )
        if isinstance(value, Mapping) and known[key] in _SECTIONS:
            _refuse_unknown(value, known[key], f"{prefix}{key}.", path)


def _host_and_port(text: str) -> tuple[str, str]:
    """The parts of ``host``, ``host:port``, ``[v6]``, ``[v6]:port`` or a bare IPv6 address."""
    if not text:
        return "", ""
    address, bracket, behind = text.removeprefix("[").partition("]")
    if text[0] == "[":
        host, colon, port = address, behind[:1], behind[1:]
        if not bracket or ":" not in host or colon not in ("", ":"):
            raise ValueError("brackets hold an IPv6 address, and nothing but :port follows them")
    elif text.count(":") > 1:
        host, colon, port = text, "", ""
    else:
        host, colon, port = text.partition(":")
    if colon and not (_PORT.fullmatch(port) and 1 <= int(port) <= 65535):
        raise ValueError("the port is not a number from 1 to 65535")
    if ":" in host or _NUMBERS.fullmatch(host):
        try:
            is_nowhere = ipaddress.ip_address(host).is_unspecified
        except ValueError:
            raise ValueError(f"{host!r} is no IP address") from None
        if is_nowhere:
            raise ValueError(f"{host!r} is no address that clients can connect to")
    elif len(host) > _HOST_CHARACTERS_MAX or not _HOST.fullmatch(host):
        raise ValueError("the host is neither a name nor an IP address")
    return host, port


def _absolute(path: Path, key: str, name: str) -> str:
    """A path that is relative to the configuration file, or to somebody's home."""
    try:
        return str((path.resolve().parent / Path(name).expanduser()).resolve())
    except (RuntimeError, ValueError, OSError) as error:  # no such user, a NUL, links in a circle
        raise ConfigurationError(
            f"configuration file {path}: {key} is {name!r}, which is no path here: {error}"
        ) from error
