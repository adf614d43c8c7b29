"""Times go from a stream into a Delta table and back as they are, whatever the session's zone."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection
from tests.spark.conftest import ROOT
from tests.spark.submitting import JAVA_OPTIONS

TIMEOUT_S = 280
"""With what Maven takes to bring Delta's jars, the first time."""

EPOCH = datetime.datetime(1970, 1, 1)

TYPES: dict[str, pa.DataType] = {
    "n": pa.int64(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "day": pa.date32(),
}
SCHEMA = pa.schema(TYPES)
LOCAL = [
    "2026-03-08 02:30:00.000001",  # this clock time is not there in New York
    "2026-11-01 01:30:00",  # twice there
    "2026-03-29 02:30:00",  # not there in Berlin
    "1883-11-18 12:00:00",  # New York gets a zone
    "1969-12-31 23:59:59.999999",
    "1582-10-15 00:00:00",  # the first day of the calendar that Spark counts in
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
]
"""The instants are these times in UTC, and each a few hours earlier and later."""


def times() -> pa.Table:
    """A row for each time and each shift, and one of nulls."""
    found = []
    for text in LOCAL:
        local = datetime.datetime.fromisoformat(text)
        for hours in (0, -4, -5, 4, 5, 6):
            at = (local - EPOCH) // datetime.timedelta(microseconds=1) + hours * 3_600_000_000
            found.append((at, local, local.date()))
    ats, locals_, days = zip(*found, strict=True)
    micros = pa.array([*ats, None], pa.int64())
    columns = {
        "n": pa.array(range(len(found) + 1), pa.int64()),
        "at": micros.cast(pa.timestamp("us", "UTC")),
        "local": pa.array([*locals_, None], pa.timestamp("us")),
        "day": pa.array([*days, None], pa.date32()),
    }
    return pa.table(columns, schema=SCHEMA)


def stored(client: StreamConnection, name: str) -> pa.Table:
    """A stream in the order of ``n``, read without Spark."""
    return pa.Table.from_batches(list(client.stream(name).read())).sort_by("n")


def text_of(local: datetime.datetime | None) -> str | None:
    """As Spark writes a timestamp without a zone: no zeros at its end."""
    if local is None:
        return None
    whole = local.strftime("%H:%M:%S")
    part = f".{local.microsecond:06d}".rstrip("0") if local.microsecond else ""
    return f"{local.date().isoformat()} {whole}{part}"


ZONES = ("America/New_York,Asia/Kolkata", "Pacific/Auckland,Europe/Berlin")
"""In which a table is written, and read."""


@pytest.mark.timeout(2 * TIMEOUT_S)
def test_times_are_the_same_in_delta_and_back(
    cluster: LocalCluster, client: StreamConnection, tmp_path: Path
) -> None:
    """Also if the machine itself is in a third zone, as its Python processes see it."""
    given = times()
    client.create_stream("times", SCHEMA).append(given)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.spark.delta_times_job", cluster.uri),
            *("times", "times-back", str(tmp_path), *ZONES),
        ],
        cwd=ROOT,
        env={**os.environ, "JAVA_TOOL_OPTIONS": JAVA_OPTIONS, "TZ": "Pacific/Marquesas"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    micros = given.column("at").cast(pa.int64()).to_pylist()
    clocks = map(text_of, given.column("local").to_pylist())
    days = (day and day.isoformat() for day in given.column("day").to_pylist())
    expected = list(zip(micros, clocks, days, strict=True))
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert found == [
        [number, n, *row] for number in range(len(ZONES)) for n, row in enumerate(expected)
    ]
    for number in range(len(ZONES)):
        back = stored(client, f"times-back-{number}")
        assert back.schema.types == SCHEMA.types
        assert back.equals(given), ZONES[number]
