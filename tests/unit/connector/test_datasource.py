"""The data source: how Spark finds it, what it shows of its options, what importing it costs."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from connector import pyspark_ledger
from connector.datasource import LedgerDataSource


def test_data_source_shows_no_option_values() -> None:
    source = LedgerDataSource({"ledger.password": "hunter2", "stream": "s"})
    assert "hunter2" not in repr(source)
    assert LedgerDataSource.name() == "ledger"
    assert pickle.loads(pickle.dumps(source)).options == source.options


def test_pyspark_ledger_gives_the_source_to_spark() -> None:
    assert pyspark_ledger.DefaultSource is LedgerDataSource
    with pytest.raises(AttributeError):
        _ = pyspark_ledger.Other


def test_importing_the_connector_loads_no_heavy_library() -> None:
    code = (
        "import sys, connector, connector.pyspark_ledger\n"
        "import connector.read.planner, connector.read.offsets\n"
        "heavy = {'pyspark', 'pyarrow', 'grpc', 'kazoo'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
