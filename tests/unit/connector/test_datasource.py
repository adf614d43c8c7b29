"""The data source: how Spark finds it, what it shows of its options, what importing it costs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
from pyspark.sql.types import StructType

from connector import pyspark_ledger
from connector.datasource import LedgerDataSource
from connector.write import writers
from spark_ledger.errors import ConfigurationError
from tests.unit.connector.world import ROWS, Cluster, cluster

__all__ = ["cluster"]

BASE = {"metadata": "zk://h/l", "stream": "s"}


def test_data_source_shows_no_option_values() -> None:
    source = LedgerDataSource({"ledger.password": "hunter2", "stream": "s"})
    assert "hunter2" not in repr(source)
    assert LedgerDataSource.name() == "ledger"
    assert pickle.loads(pickle.dumps(source)).options == source.options


@pytest.mark.parametrize(
    ("ask", "batch_only", "streaming_only"),
    [
        ("read", {"endingPosition": "latest"}, {"maxRowsPerTrigger": "5"}),
        ("write", {"txnAppId": "a", "txnVersion": "1"}, {"sinkId": "q"}),
    ],
)
def test_each_kind_of_query_takes_its_own_options_and_refuses_the_other_s(
    monkeypatch: pytest.MonkeyPatch,
    ask: str,
    batch_only: dict[str, str],
    streaming_only: dict[str, str],
) -> None:
    monkeypatch.setattr(writers, "prepare_stream", lambda options, schema: "id")
    monkeypatch.setattr(writers.LedgerBatchWriter, "_is_committed", lambda self: False)
    asks: dict[str, tuple[Callable[[LedgerDataSource], object], ...]] = {
        "read": (
            lambda source: source.reader(StructType()),
            # Of a streaming read Spark shows no error of this call.
            lambda source: source.streamReader(StructType()).getDefaultReadLimit(),
        ),
        "write": (
            lambda source: source.writer(StructType(), overwrite=False),
            lambda source: source.streamWriter(StructType(), overwrite=False),
        ),
    }
    of_batch, of_stream = asks[ask]
    own = {of_batch: batch_only, of_stream: streaming_only}
    for call, foreign in ((of_batch, streaming_only), (of_stream, batch_only)):
        assert call(LedgerDataSource({**BASE, **own[call]}))
        with pytest.raises(ConfigurationError, match=f"{next(iter(foreign))} is for"):
            call(LedgerDataSource({**BASE, **foreign}))


def test_schema_is_asked_for_before_the_kind_of_query_is_known(cluster: Cluster) -> None:
    """So it refuses no option of either."""
    cluster.create(1)
    given = {**BASE, "endingPosition": "latest", "maxRowsPerTrigger": "5"}
    assert LedgerDataSource(given).schema() == ROWS


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
