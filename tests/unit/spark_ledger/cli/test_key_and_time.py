"""``ledger streams create --key/--time`` and ``ledger streams plan --key``, streams in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pytest

from spark_ledger.stream.blocking import Stream
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient
from tests.unit.spark_ledger.cli.test_retention import _Portal
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers

COLUMNS = "id bigint, region string, at timestamp"


class Cluster:
    """What commands create is there for those that come after them."""

    def __init__(self, client: FakeClient) -> None:
        self._portal = _Portal()
        self._catalog = StreamCatalog(FakeLedgers())
        self._client = client
        self.streams: list[Stream] = []

    def create(self, name: str, **words: Any) -> None:
        """As ``LedgerConnection.create_stream``."""
        made = self._portal.call(self._catalog.create(name, **words))
        stream = Stream(self._portal, made, WeakSet())  # type: ignore[arg-type]
        self._client.streams[name] = stream  # type: ignore[assignment]
        self.streams.append(stream)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        self._portal.loop.close()


@pytest.fixture
def cluster(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = Cluster(client)
    monkeypatch.setattr(client, "create_stream", found.create, raising=False)
    yield found
    found.close()


def append(stream: Stream, *ids: int, region: str) -> None:
    """One commit."""
    count = len(ids)
    columns: dict[str, list[Any]] = {
        "id": list(ids),
        "region": [region] * count,
        "at": [None] * count,
    }
    stream.append(pa.table(columns, stream.schema))


def test_created_stream_has_its_keys_in_order_and_its_time(cluster: Cluster, run: Run) -> None:
    keys = ("--key", "region", "--key", "id", "--time", "at")
    outcome = run("streams", "create", "s", "--schema", COLUMNS, *keys, "--json")
    assert outcome.status == 0, outcome
    assert json.loads(outcome.out) == {"stream": "s", "created": True}
    (stream,) = cluster.streams
    assert (stream.config.key_columns, stream.config.time_column) == (("region", "id"), "at")


@pytest.mark.parametrize(
    "wrong",
    [("--key", "no"), ("--time", "no"), ("--time", "region"), ("--key", "id", "--key", "id")],
)
def test_create_with_columns_that_cannot_be_key_or_time_creates_nothing(
    cluster: Cluster, run: Run, wrong: tuple[str, ...]
) -> None:
    outcome = run("streams", "create", "s", "--schema", COLUMNS, *wrong)
    assert outcome.status != 0 and wrong[1] in outcome.err, outcome
    assert not cluster.streams


def test_plan_of_a_key_has_only_the_segments_that_may_hold_it(cluster: Cluster, run: Run) -> None:
    run("streams", "create", "s", "--schema", COLUMNS, "--key", "id")
    for first in (0, 100, 200):
        append(cluster.streams[0], first, first + 1, region="north")
    outcome = run("streams", "plan", "s", "--key", "101", "--json")
    assert outcome.status == 0, outcome
    skipped, row = [json.loads(line) for line in outcome.out.splitlines()]
    assert (row["rows"], row["commits"]) == (2, [1, 1])
    assert skipped["rows_skipped"] == 4 and skipped["bytes_skipped"] > 0
    assert "skipped: 4 rows" in run("streams", "plan", "s", "--key", "101").out
    (nothing,) = run("streams", "plan", "s", "--key", "700", "--json").out.splitlines()
    assert json.loads(nothing)["rows_skipped"] == 6


def test_plan_of_several_keys_takes_them_as_json(cluster: Cluster, run: Run) -> None:
    run("streams", "create", "s", "--schema", COLUMNS, "--key", "region", "--key", "id")
    append(cluster.streams[0], 1, region="north")
    append(cluster.streams[0], 1, region="south")
    wanted = '{"region": "south", "id": 1}'
    _, row = map(
        json.loads, run("streams", "plan", "s", "--key", wanted, "--json").out.splitlines()
    )
    assert (row["rows"], row["commits"]) == (1, [1, 1])


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("1", "region"),
        ('{"region": "south"}', "id"),
        ('{"region": "south", "id": 1, "no": 2}', "no"),
        ('{"region": "south", "id": "x"}', "x"),
        ('{"region": ', "JSON"),
        ('{"region": "south", "id": [1]}', "JSON"),
    ],
)
def test_plan_of_what_is_no_key_says_what_is_wrong(
    cluster: Cluster, run: Run, key: str, says: str
) -> None:
    run("streams", "create", "s", "--schema", COLUMNS, "--key", "region", "--key", "id")
    append(cluster.streams[0], 1, region="north")
    outcome = run("streams", "plan", "s", "--key", key)
    assert outcome.status != 0 and says in outcome.err, outcome
    assert "Traceback" not in outcome.err


def test_plan_by_key_of_a_stream_without_one_is_refused(cluster: Cluster, run: Run) -> None:
    run("streams", "create", "s", "--schema", COLUMNS)
    append(cluster.streams[0], 1, region="north")
    outcome = run("streams", "plan", "s", "--key", "1")
    assert outcome.status != 0 and "key" in outcome.err, outcome
