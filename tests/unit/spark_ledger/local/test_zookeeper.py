"""Where the local ZooKeeper comes from, and what is said if it is missing."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import socket
import subprocess
from pathlib import Path

import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import GIB, MIB
from spark_ledger.local import zookeeper
from spark_ledger.local.ports import HOST, free_port, is_free

JARS = (
    "zookeeper-3.9.5.jar",
    "zookeeper-jute-3.9.5.jar",
    "slf4j-api-2.0.17.jar",
    "metrics-core-4.2.37.jar",
    "snappy-java-1.1.10.8.jar",
)


def pretend_pyspark(monkeypatch: pytest.MonkeyPatch, package: Path | None) -> None:
    spec = None
    if package is not None:
        spec = importlib.machinery.ModuleSpec("pyspark", None, is_package=True)
        spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    monkeypatch.delenv(zookeeper.CLASSPATH_VARIABLE, raising=False)


def test_jars_are_found_by_pattern(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for name in (*JARS, "zookeeper-extra.jar", "other-1.jar"):
        (tmp_path / "jars" / name).touch()
    pretend_pyspark(monkeypatch, tmp_path)
    assert [Path(jar).name for jar in zookeeper.classpath().split(os.pathsep)] == list(JARS)


def test_a_missing_jar_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for name in JARS[:3]:
        (tmp_path / "jars" / name).touch()
    pretend_pyspark(monkeypatch, tmp_path)
    with pytest.raises(ConfigurationError, match="metrics-core"):
        zookeeper.classpath()


def test_missing_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_pyspark(monkeypatch, None)
    with pytest.raises(ConfigurationError, match=r"install spark-ledger\[spark\]"):
        zookeeper.classpath()
    monkeypatch.setenv(zookeeper.CLASSPATH_VARIABLE, "/a.jar:/b.jar")
    assert zookeeper.classpath() == "/a.jar:/b.jar"


def test_java_of_java_home_goes_before_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("home/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "java").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert zookeeper.java() == str(tmp_path / "home" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert zookeeper.java() == str(tmp_path / "path" / "java")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="install Java 17"):
        zookeeper.java()


def test_the_port_of_the_last_start_is_kept_while_it_is_free(tmp_path: Path) -> None:
    assert zookeeper.read_port(tmp_path) == 0
    port = free_port()
    zookeeper.write_config(tmp_path, port)
    assert zookeeper.read_port(tmp_path) == port
    with socket.socket() as taken:
        taken.bind((HOST, port))
        taken.listen()
        assert not is_free(port)
        assert zookeeper.read_port(tmp_path) == 0


def test_only_the_server_of_this_directory_counts(tmp_path: Path) -> None:
    assert not zookeeper.answers(tmp_path, free_port())


def test_the_data_directory_is_a_java_property(tmp_path: Path) -> None:
    directory = tmp_path / "h\u00f6he \\ \U0001f600"
    text = zookeeper.write_config(directory, 1).read_bytes()
    assert rb"h\u00f6he \u005c \ud83d\ude00/data" in text
    assert text.isascii()


def test_heap_is_a_share_of_the_memory_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for memory, heap in ((512 * MIB, 256 * MIB), (8 * GIB, GIB), (512 * GIB, 4 * GIB)):
        monkeypatch.setattr(zookeeper, "memory_bytes", lambda memory=memory: memory)
        assert zookeeper.default_heap_bytes() == heap


def test_memory_is_that_of_the_container_if_it_has_less(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    machine = zookeeper.memory_bytes(limit)
    for text, memory in (("max\n", machine), ("1048576\n", MIB), (f"{2 * machine}\n", machine)):
        limit.write_text(text)
        assert zookeeper.memory_bytes(limit) == memory


def test_server_that_runs_out_of_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(zookeeper.CLASSPATH_VARIABLE, "/a.jar")
    argv = zookeeper.command(Path("zoo.cfg"), durable=True, heap_bytes=20 * MIB)
    assert "-XX:+ExitOnOutOfMemoryError" in argv
    assert "-Xmx20480k" in argv and "-Xms20480k" in argv
    assert f"-Djute.maxbuffer={2**20 - 1}" in argv
    assert "-Dzookeeper.forceSync=no" not in argv


@pytest.mark.parametrize("collector", ["UseSerialGC", "UseG1GC", "UseZGC", "UseParallelGC"])
def test_command_under_tool_options_with_a_collector_starts_java(
    collector: str, tmp_path: Path
) -> None:
    """Whoever has Spark or a small machine may have chosen one, and Java refuses two."""
    whole = zookeeper.command(tmp_path / "zoo.cfg", durable=True, heap_bytes=64 * MIB)
    flags = whole[: whole.index("-cp")]
    done = subprocess.run(
        [*flags, "-version"],
        env={**os.environ, "JAVA_TOOL_OPTIONS": f"-XX:+{collector}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
