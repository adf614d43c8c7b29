"""A bookie of a local cluster: its directory, its config file and its command line."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import spark_ledger
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import MIB
from spark_ledger.local.ports import HOST

CONFIG_NAME = "bookie.toml"

_NAME = re.compile(r"bookie-(\d+)")


class Ports(NamedTuple):
    """Where a bookie listens; 0 is not known yet."""

    port: int = 0
    admin_port: int = 0


def check_installed() -> None:
    """Raise ConfigurationError, saying what to install, if the bookie's packages are missing."""
    for package in ("bookie_server", "lmdb", "aiohttp", "prometheus_client", "grpc_health"):
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(
                f"package {package} is missing, and local bookies need it: "
                "install spark-ledger[bookie]"
            )


def name_of(index: int) -> str:
    """Bookie id, and name of its directory."""
    return f"bookie-{index}"


def count_existing(directory: Path) -> int:
    """How many bookies an earlier cluster has left in the directory."""
    indexes = [
        int(found[1]) for path in directory.iterdir() if (found := _NAME.fullmatch(path.name))
    ]
    return max(indexes, default=-1) + 1


def ready_file(directory: Path) -> Path:
    """Made by the bookie when it serves."""
    return directory / "ready"


def write_config(directory: Path, bookie_id: str, metadata_uri: str, ports: Ports) -> Path:
    """Write the config file; its path."""
    config = directory / CONFIG_NAME
    values: dict[str, Any] = {
        "metadata_uri": metadata_uri,
        "bookie_id": bookie_id,
        "listen_host": HOST,
        "listen_port": ports.port,
        "admin_port": ports.admin_port,
        "journal_directory": str(directory / "journal"),
        "ledger_directories": [str(directory / "ledgers")],
        "journal_file_bytes": 64 * MIB,
        "write_cache_bytes": 64 * MIB,
    }
    # A JSON string, number or list of strings is written the same way in TOML.
    lines = [f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in values.items()]
    config.write_text("".join(lines))
    return config


def read_ports(directory: Path) -> Ports:
    """The ports of the last start, so that clients find the bookie where it was."""
    try:
        text = (directory / CONFIG_NAME).read_text()
    except FileNotFoundError:
        return Ports()
    found = {
        name: int(match[1])
        for name in ("listen_port", "admin_port")
        if (match := re.search(rf"^{name} = (\d+)$", text, re.MULTILINE))
    }
    return Ports(found.get("listen_port", 0), found.get("admin_port", 0))


def command(python: str, directory: Path, config: Path) -> tuple[list[str], dict[str, str]]:
    """Command line and additional environment: format an empty directory, then serve."""
    argv = [python, "-m", "bookie_server", "--config", str(config), "--format"]
    argv += ["--ready-file", str(ready_file(directory))]
    # The packages are found where this one was, also in a source tree that is not installed.
    root = str(Path(spark_ledger.__file__).parent.parent)
    before = os.environ.get("PYTHONPATH", "")
    return argv, {"PYTHONPATH": os.pathsep.join(filter(None, [root, before]))}
