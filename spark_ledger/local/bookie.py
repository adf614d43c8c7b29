"""A bookie of a local cluster: its directory, its config file and its command line."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import spark_ledger
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import MIB
from spark_ledger.limits.repair import LOST_BOOKIE_DELAY_S, OPEN_LEDGER_GRACE_S
from spark_ledger.local.files import replace_file
from spark_ledger.local.ports import HOST
from spark_ledger.types import DEFAULT_RACK

CONFIG_NAME: Final = "bookie.toml"

SESSION_TIMEOUT_S: Final = 2.0
"""A bookie that was killed starts again once its old session has ended. Long enough for a busy
machine, where a process may have to wait for its turn."""

COLLECTION_INTERVAL_S: Final = 30.0
"""Somebody looks at the disk of a small cluster and waits for its space."""

COLLECTION_PAUSE_S: Final = 0.5
"""The one ZooKeeper on loopback has no server that could lag. What was dropped meanwhile lies on
the disk."""

STAYS_ENDED: Final = (0, 2, 4, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes after which a bookie is not started again, as ``bookie_server/README.md`` says of any
supervisor: it was asked to end, or is refused until somebody has done what its log says. A signal
in its first second, in which Python imports, ends it without a code of its own."""

_NAME: Final = re.compile(r"bookie-(\d+)")


class Ports(NamedTuple):
    """Where a bookie listens; 0 is not known yet."""

    port: int = 0
    admin_port: int = 0


def check_installed() -> None:
    """Check that the bookie's packages are there.

    Raises ConfigurationError that says what to install if one is missing.
    """
    for package in ("bookie_server", "lmdb", "aiohttp", "prometheus_client", "grpc_health"):
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(
                f"package {package} is missing, and local bookies need it: "
                "install spark-ledger[bookie]"
            )


def name_of(index: int) -> str:
    """A bookie's id, and the name of its process and directory."""
    return f"bookie-{index}"


def count_existing(directory: Path) -> int:
    """How many bookies an earlier cluster has left in the directory."""
    indexes = [
        int(found[1]) for path in directory.iterdir() if (found := _NAME.fullmatch(path.name))
    ]
    return max(indexes, default=-1) + 1


def ready_file(directory: Path) -> Path:
    """The file that the bookie makes once it serves."""
    return directory / "ready"


def write_config(
    directory: Path,
    bookie_id: str,
    metadata_uri: str,
    ports: Ports,
    *,
    keeper: bool,
    lost_bookie_delay_s: float = LOST_BOOKIE_DELAY_S,
    open_ledger_grace_s: float = OPEN_LEDGER_GRACE_S,
    rack: str = DEFAULT_RACK,
    collection_interval_s: float = COLLECTION_INTERVAL_S,
) -> Path:
    """Write the config file; its path."""
    return replace_file(
        directory / CONFIG_NAME,
        f"metadata = {_quoted(metadata_uri)}\n"
        f"bookie_id = {_quoted(bookie_id)}\n"
        f"rack = {_quoted(rack)}\n"
        f"session_timeout_s = {SESSION_TIMEOUT_S}\n"
        "\n[listen]\n"
        f"host = {_quoted(HOST)}\n"
        f"port = {ports.port}\n"
        "\n[admin]\n"
        f"host = {_quoted(HOST)}\n"
        f"port = {ports.admin_port}\n"
        "\n[keeper]\n"
        f"enabled = {str(keeper).lower()}\n"
        "\n[autorecovery]\n"
        f"lost_bookie_delay_s = {lost_bookie_delay_s}\n"
        f"open_ledger_grace_s = {open_ledger_grace_s}\n"
        "\n[collection]\n"
        f"interval_s = {collection_interval_s}\n"
        f"pause_s = {COLLECTION_PAUSE_S}\n"
        "\n[storage]\n"
        f"journal_directory = {_quoted('journal')}\n"
        f"ledger_directories = [{_quoted('ledgers')}]\n"
        f"journal_file_bytes = {64 * MIB}\n"
        f"write_cache_bytes = {96 * MIB}\n"
        # On somebody's own machine a disk is often nearly full: only the reserve counts.
        "disk_high_water_mark = 1.0\n"
        "disk_low_water_mark = 1.0\n"
        f"disk_reserve_bytes = {64 * MIB}\n",
    )


def read_ports(directory: Path) -> Ports:
    """The ports of the last start, which are used again so that clients find the bookie."""
    config = _last_config(directory)
    return Ports(_port(config.get("listen")), _port(config.get("admin")))


def _port(section: object) -> int:
    """The port of a section, or 0 if it has none that may be one."""
    port = section.get("port") if isinstance(section, dict) else None
    return port if isinstance(port, int) and 0 < port < 1 << 16 else 0


def read_rack(directory: Path) -> str:
    """The rack of the last start."""
    return str(_last_config(directory).get("rack", DEFAULT_RACK))


def _last_config(directory: Path) -> Mapping[str, object]:
    """The file of the last start; empty if there is none, or a full disk has cut it."""
    try:
        return tomllib.loads((directory / CONFIG_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}


def _quoted(text: str) -> str:
    """A TOML string; JSON writes it the same way."""
    return msgspec.json.encode(text).decode()


def command(python: str, directory: Path, config: Path) -> tuple[list[str], dict[str, str]]:
    """Command line and additional environment: format an empty directory, then serve."""
    argv = [python, "-m", "bookie_server", "--config", str(config), "--format"]
    argv += ["--ready-file", str(ready_file(directory))]
    # The packages are found where this one was, also in a source tree that is not installed.
    root = str(Path(spark_ledger.__file__).parent.parent)
    before = os.environ.get("PYTHONPATH", "")
    return argv, {"PYTHONPATH": os.pathsep.join(filter(None, [root, before]))}
