"""A real ZooKeeper for one machine, from the jars that PySpark's package brings along."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Final

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import GIB, MIB
from spark_ledger.local.files import replace_file
from spark_ledger.local.ports import HOST, is_free

CLASSPATH_VARIABLE: Final = "SPARK_LEDGER_ZOOKEEPER_CLASSPATH"
MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

TICK_MS: Final = 250
"""Sessions end at ticks: a bookie that was killed is noticed that much later at most."""

SESSION_MS_MAX: Final = 10_000
"""Otherwise the longest session would have 20 ticks. The shortest one has 2."""

_PROBE_TIMEOUT_S: Final = 1.0
"""For one question whether the server answers; it is asked again until the start times out."""

ENVIRONMENT: Final = {"LC_ALL": "C.UTF-8"}
"""Java names files by the locale; in one without UTF-8 it cannot open every directory."""

_JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
)

HEAP_BYTES_MIN: Final = 16 * MIB
"""With less the server does not start."""

HEAP_SHARE: Final = 8
"""One part of this many of the machine's memory: the rest is for bookies, Spark and files."""

HEAP_BYTES_DEFAULT_MIN: Final = 256 * MIB
"""The default is never less: ZooKeeper keeps all metadata in its heap, about 1 KiB for a node."""

HEAP_BYTES_DEFAULT_MAX: Final = 4 * GIB
"""Nor more: four million nodes are beyond what one machine's bookies hold."""

HEAP_START_BYTES: Final = 32 * MIB
"""The heap begins small, and grows when it has to: test machines start many servers."""

MESSAGE_BYTES_MAX: Final = 0xFFFFF
"""ZooKeeper's own default for the largest request and node (jute.maxbuffer), stated: what works
with this server works with any other."""

OUT_OF_MEMORY: Final = 3
"""The exit code of Java when its heap is full. It must not go on: what then fails is not said to
anybody, and clients would wait for a server that looks alive."""

_JVM_FLAGS: Final = (
    "-Xss256k",
    # This collector also gives up when it does little else than collect; the serial one never does.
    # Another one may be chosen in $JAVA_TOOL_OPTIONS, and Java refuses two.
    "-XX:-UseSerialGC",
    "-XX:-UseG1GC",
    "-XX:-UseZGC",
    "-XX:+UseParallelGC",
    "-XX:ParallelGCThreads=1",
    "-XX:GCTimeLimit=80",
    "-XX:GCHeapFreeLimit=5",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.preAllocSize=1024",  # KiB; the default reserves 64 MiB for each log file
    f"-Djute.maxbuffer={MESSAGE_BYTES_MAX}",
)


def default_heap_bytes() -> int:
    """The largest heap of a server that nobody chose one for, from the memory of the machine."""
    share = memory_bytes() // HEAP_SHARE
    return min(max(share, HEAP_BYTES_DEFAULT_MIN), HEAP_BYTES_DEFAULT_MAX)


def memory_bytes(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """The memory of the machine, or of the container if that has less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        text = limit_file.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(text)) if text.isdecimal() else machine


def command(config: Path, *, durable: bool, heap_bytes: int) -> list[str]:
    """The command line of a server. Without ``durable`` a power cut may lose metadata.

    Raises ConfigurationError that says what to install if Java or the jars are missing.
    """
    kib = heap_bytes // 1024
    flags = [f"-Xmx{kib}k", f"-Xms{min(kib, HEAP_START_BYTES // 1024)}k", *_JVM_FLAGS]
    if not durable:
        flags.append("-Dzookeeper.forceSync=no")
    return [java(), *flags, "-cp", classpath(), MAIN_CLASS, str(config)]


def write_config(directory: Path, port: int) -> Path:
    """Write ``zoo.cfg`` for a server that keeps its data in ``directory``; the file's path."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    return replace_file(
        directory / "zoo.cfg",
        f"tickTime={TICK_MS}\n"
        f"maxSessionTimeout={SESSION_MS_MAX}\n"
        f"dataDir={_property(str(directory / 'data'))}\n"
        f"clientPort={port}\n"
        f"clientPortAddress={HOST}\n"
        "admin.enableServer=false\n"
        "4lw.commands.whitelist=*\n"
        "maxClientCnxns=0\n"
        "autopurge.snapRetainCount=3\n"
        "autopurge.purgeInterval=1\n",
    )


def _property(value: str) -> str:
    """A value of a Java properties file: Latin-1, where a backslash begins an escape."""
    units = value.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(
        chr(code) if 0x20 <= code < 0x7F and code != ord("\\") else f"\\u{code:04x}"
        for code in codes
    )


def has_data(directory: Path) -> bool:
    """Whether a server has run here."""
    return (directory / "data" / "version-2").exists()


def read_port(directory: Path) -> int:
    """The port of the last start if it is free, so that the URI stays the same; else 0."""
    try:
        text = (directory / "zoo.cfg").read_text()
    except FileNotFoundError:
        return 0
    found = re.search(r"^clientPort=(\d{1,5})$", text, re.MULTILINE)
    return int(found[1]) if found and is_free(int(found[1])) else 0


def answers(directory: Path, port: int) -> bool:
    """True if the server of this directory serves on the port (not another cluster's)."""
    try:
        with socket.create_connection((HOST, port), timeout=_PROBE_TIMEOUT_S) as connection:
            connection.sendall(b"conf")
            reply = b""
            while part := connection.recv(4096):
                reply += part
    except OSError:
        return False
    return f"dataDir={directory / 'data'}{os.sep}version-2".encode() in reply


def java() -> str:
    """The Java program: of ``JAVA_HOME``, else on the path."""
    home = os.environ.get("JAVA_HOME", "")
    if home and (Path(home) / "bin" / "java").is_file():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java")
    if found is None:
        raise ConfigurationError(
            "Java is missing, and the local ZooKeeper needs it: install Java 17 "
            "(apt install openjdk-17-jre-headless), or set JAVA_HOME"
        )
    return found


def classpath() -> str:
    """The jars, from the environment variable or from the pyspark package (which is not loaded)."""
    given = os.environ.get(CLASSPATH_VARIABLE, "")
    if given:
        return given
    spec = importlib.util.find_spec("pyspark")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations:
        raise ConfigurationError(
            "pyspark is missing, and the local ZooKeeper comes from it: install "
            f"spark-ledger[spark], or name the jars of a ZooKeeper in {CLASSPATH_VARIABLE}"
        )
    jars = Path(locations[0]) / "jars"
    found: list[str] = []
    for pattern in _JARS:
        matches = sorted(jars.glob(pattern))
        if not matches:
            raise ConfigurationError(
                f"there is no {pattern} in {jars}: this pyspark package has no ZooKeeper; name "
                f"the jars of one in {CLASSPATH_VARIABLE}"
            )
        found.append(str(matches[-1]))
    return os.pathsep.join(found)
