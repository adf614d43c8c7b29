"""The ``ledger`` command as a process, against a real ZooKeeper and real bookies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import spark_ledger
from spark_ledger.local import LocalCluster

TIMEOUT_S = 60


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    def json(self) -> Any:
        """The only line of the output."""
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands with a cluster in the environment, as a user would."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.environment = {**os.environ, "SPARK_LEDGER_METADATA": uri}

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "spark_ledger.cli", *arguments],
            input=stdin,
            capture_output=True,
            env=self.environment,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        """Run a command that must succeed."""
        outcome = self(*arguments, stdin=stdin)
        assert outcome.status == 0, outcome
        return outcome


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as running:
        yield running


@pytest.fixture(scope="module")
def shell(cluster: LocalCluster) -> Shell:
    return Shell(cluster.uri)


def append(shell: Shell, *arguments: str, stdin: bytes = b"") -> int:
    fields = shell.ok("ledgers", "append", "--json", *arguments, stdin=stdin).json()
    assert isinstance(fields["ledger_id"], int)
    return int(fields["ledger_id"])


def test_bookies_are_listed_and_describe_themselves(shell: Shell, cluster: LocalCluster) -> None:
    rows = shell.ok("bookies", "list", "--json").json()
    assert [row["bookie_id"] for row in rows] == sorted(cluster.bookie_ids)
    assert {row["state"] for row in rows} == {"writable"}
    assert all(isinstance(row["free_bytes"], int) for row in rows)
    words = shell.ok("bookie", "status", cluster.bookie_ids[0], "--json").json()
    assert words["bookie_id"] == cluster.bookie_ids[0]
    assert words["state"] == "writable"
    assert cluster.bookie_ids[0] in shell.ok("bookie", "status", cluster.bookie_ids[0]).out


def test_usage_adds_up_what_the_cluster_holds(shell: Shell) -> None:
    append(shell, stdin=b"x" * 1000)
    usage = shell.ok("cluster", "usage", "--json").json()
    assert usage["total"]["replicated_bytes"] == 3 * usage["total"]["user_bytes"] >= 3000
    assert sum(bookie["live_bytes"] for bookie in usage["bookies"]) >= 3000
    assert all(bookie["free_bytes"] > 0 for bookie in usage["bookies"])
    assert usage["metadata_nodes"] > 10 and usage["metadata_bytes"] > 1000


def test_unknown_bookie(shell: Shell) -> None:
    outcome = shell("bookie", "status", "nobody")
    assert outcome.status == 1
    assert "nobody" in outcome.err


def test_append_lines_and_read_them(shell: Shell) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(2_000))
    ledger = str(append(shell, stdin=lines))
    assert shell.ok("ledgers", "read", ledger).out.encode() == lines
    assert shell.ok("ledgers", "tail", ledger, "--start", "1998").out == "line 1998\nline 1999\n"
    found = shell.ok("ledgers", "show", ledger, "--json").json()
    assert found["state"] == "closed"
    assert found["last_add_confirmed"] == 1_999
    assert found["length"] == len(lines) - 2_000
    assert found["zones"][0]["first_entry"] == 0
    assert found["zones"][-1]["last_entry"] == 1_999
    assert {zone["safety"] for zone in found["zones"]} <= {"write_quorum", "ack_quorum"}
    drawing = shell.ok("ledgers", "show", ledger).out
    assert "Fragments" in drawing and "Safety" in drawing and "E3 WQ3 AQ2" in drawing


def test_binary_file_of_large_entries(shell: Shell, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "data").write_bytes(data)
    ledger = str(append(shell, "--file", str(tmp_path / "data"), "--entry-bytes", "1000000"))
    rows = shell.ok("ledgers", "read", ledger, "--hex").out.splitlines()
    assert b"".join(bytes.fromhex(row.split()[1]) for row in rows) == data


def test_list_shows_what_was_made(shell: Shell) -> None:
    ledger = append(shell, "a", "b", "--meta", "app=test")
    row = next(
        row for row in shell.ok("ledgers", "list", "--json").json() if row["ledger_id"] == ledger
    )
    assert row["last_entry"] == 1 and row["length"] == 2
    assert row["custom_metadata"] == {"app": "test"}
    assert str(ledger) in shell.ok("ledgers", "list").out
    assert (row["purpose"], row["stream"], row["owner_lives"]) == ("raw", "", False)
    assert f"owner {row['owner']}: gone" in shell.ok("ledgers", "show", str(ledger)).out


def test_recover_closes_what_a_writer_left_open(shell: Shell) -> None:
    with spark_ledger.connect(shell.uri) as client:
        writer = client.create_ledger()
        for number in range(5):
            writer.append(b"%d" % number)
        ledger = str(writer.ledger_id)
        assert shell.ok("ledgers", "show", ledger, "--json").json()["state"] == "open"
        assert shell.ok("ledgers", "recover", ledger, "--json").json()["last_entry"] == 4
        with pytest.raises(spark_ledger.errors.FencedError):
            writer.append(b"too late")
    found = shell.ok("ledgers", "show", ledger, "--json").json()
    assert found["state"] == "closed" and found["last_add_confirmed"] == 4
    assert all(bookie["fenced"] for bookie in found["bookies"])


def test_password(shell: Shell) -> None:
    ledger = str(append(shell, "secret", "--password", "p"))
    assert shell.ok("ledgers", "read", ledger, "--password", "p").out == "secret\n"
    outcome = shell("ledgers", "read", ledger, "--password", "q")
    assert outcome.status == 1
    assert "--password" in outcome.err and "Traceback" not in outcome.err
    assert outcome.out == ""


def test_delete(shell: Shell) -> None:
    ledger = str(append(shell, "x"))
    shell.ok("ledgers", "delete", "--yes", ledger)
    for command in ("read", "show", "recover"):
        outcome = shell("ledgers", command, ledger)
        assert outcome.status == 1
        assert "ledger ledgers list" in outcome.err
    assert shell("ledgers", "delete", "--yes", ledger).status == 1


def test_read_beyond_the_end_names_tail(shell: Shell) -> None:
    ledger = str(append(shell, "x"))
    outcome = shell("ledgers", "read", ledger, "--last", "5")
    assert outcome.status == 1
    assert "ledger ledgers tail" in outcome.err


def test_tail_follows_a_writer_and_ends_at_its_close(shell: Shell) -> None:
    with spark_ledger.connect(shell.uri) as client, client.create_ledger() as writer:
        writer.append(b"first")
        follower = subprocess.Popen(
            [sys.executable, "-m", "spark_ledger.cli", "ledgers", "tail", str(writer.ledger_id)],
            env=shell.environment,
            stdout=subprocess.PIPE,
        )
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"first\n"
            writer.append(b"second")
            assert follower.stdout.readline() == b"second\n"
            writer.close()
            assert follower.wait(TIMEOUT_S) == 0
        finally:
            follower.kill()
            follower.communicate()


def test_control_c_ends_tail_without_a_traceback(shell: Shell) -> None:
    with spark_ledger.connect(shell.uri) as client, client.create_ledger() as writer:
        writer.append(b"first")
        follower = subprocess.Popen(
            [sys.executable, "-m", "spark_ledger.cli", "ledgers", "tail", str(writer.ledger_id)],
            env=shell.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"first\n"
            follower.send_signal(signal.SIGINT)
            _, err = follower.communicate(timeout=TIMEOUT_S)
            assert follower.returncode == 130
            assert err.strip() == b"interrupted"
        finally:
            follower.kill()
            follower.wait()


def test_stream_from_creation_to_deletion(shell: Shell) -> None:
    shell.ok("streams", "create", "trips", "--schema", "id bigint not null, city string")
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
    ]
    columns = {"id": pa.array([1, 2, 3], pa.int64()), "city": ["a", None, "c"]}
    rows = pa.table(columns, schema=pa.schema(fields))
    with spark_ledger.connect(shell.uri) as client, client.stream("trips") as stream:
        stream.append(rows, sink_id="job", transaction_id=7)
    assert {"stream": "trips"} in shell.ok("streams", "list", "--json").json()
    assert shell.ok("streams", "read", "trips", "--json").json_lines() == rows.to_pylist()
    tailed = shell.ok(
        "streams", "tail", "trips", "--start", "earliest", "--idle-timeout", "0.2", "--json"
    )
    assert tailed.json_lines() == rows.to_pylist()
    found = shell.ok("streams", "show", "trips", "--json").json()
    assert found["sealed_commits"] == 0
    assert found["rows"] == 3 and found["next_commit"] == 1
    assert found["commits"][0]["sink_id"] == "job"
    assert found["commits"][0]["transaction_id"] == 7
    shown = shell.ok("streams", "show", "trips").out
    assert "job" in shown and "of which 0 were put into manifests" in shown
    assert shell("streams", "create", "trips", "--schema", "id bigint").status == 1
    shell.ok("streams", "delete", "--yes", "trips")
    assert shell("streams", "read", "trips").status == 1


def test_show_with_a_dead_bookie() -> None:
    with LocalCluster(bookies=3) as cluster:
        shell = Shell(cluster.uri)
        ledger = str(append(shell, "a", "b", "c"))
        cluster.kill_bookie(0)
        found = shell.ok("ledgers", "show", ledger, "--json").json()
        silent = {bookie["bookie_id"] for bookie in found["bookies"] if bookie["silent"]}
        assert silent == {cluster.bookie_ids[0]}
        assert {zone["copies_min"] for zone in found["zones"]} == {2}
        assert "does not answer" in shell.ok("ledgers", "show", ledger).out
        assert shell.ok("ledgers", "read", ledger).out == "a\nb\nc\n"


def test_local_cluster_from_up_to_down(tmp_path: Path) -> None:
    shell = Shell("")
    directory = ("--directory", str(tmp_path / "cluster"))
    assert shell("local", "status", *directory).status == 1
    started = shell.ok("local", "up", "--bookies", "1", "--json", *directory).json()
    try:
        assert started["running"] and len(started["bookies"]) == 1
        assert shell("local", "up", *directory).status == 2
        assert shell.ok("local", "status", "--json", *directory).json()["uri"] == started["uri"]
        one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
        uri = ("--metadata", started["uri"])
        ledger = append(shell, "kept", *one, *uri)
    finally:
        shell.ok("local", "down", *directory)
    again = shell.ok("local", "up", "--json", *directory).json()
    try:
        assert shell.ok("ledgers", "read", str(ledger), "--metadata", again["uri"]).out == "kept\n"
    finally:
        shell.ok("local", "down", *directory)
    assert shell("local", "status", *directory).status == 1


def test_bookie_is_formatted_runs_and_drains(metadata_uri: str, tmp_path: Path) -> None:
    shell = Shell(metadata_uri)
    config = tmp_path / "bookie.toml"
    config.write_text(
        f'metadata = "{metadata_uri}"\n[listen]\nport = 0\n[admin]\nport = 0\n'
        f'[storage]\njournal_directory = "journal"\nledger_directories = ["ledgers"]\n'
    )
    config_option = ("--config", str(config))
    assert shell("bookie", "run", *config_option).status == 2  # not formatted
    formatted = shell.ok("bookie", "format", *config_option).out
    assert shell("bookie", "format", *config_option).status != 0
    (row,) = shell.ok("bookies", "list", "--json").json()
    assert row["state"] == "down" and row["bookie_id"] in formatted
    server = subprocess.Popen(
        [sys.executable, "-m", "spark_ledger.cli", "bookie", "run", *config_option],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while row["state"] != "writable" and time.monotonic() < deadline:
            (row,) = shell.ok("bookies", "list", "--json").json()
        assert row["state"] == "writable"
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0
    finally:
        server.kill()
        server.wait()
    (row,) = shell.ok("bookies", "list", "--json").json()
    assert row["state"] == "down"
