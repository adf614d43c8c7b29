"""``spark.speculation``: two attempts of one task at the same time, of which one is to count.

A standalone cluster of two hosts, because Spark starts a second attempt on another host only. The
bookies are this test's own: it looks at everything that they have in their metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.metadata.connect import open_store
from spark_ledger.stream.blocking import StreamConnection
from tests.endurance.judging import leftovers
from tests.endurance.keeping import keep, settle
from tests.endurance.looking import Sample, look
from tests.spark.clusters import ROOT, SPECULATION, StandaloneCluster, conf
from tests.spark.slow_attempts import PACES, Attempts
from tests.spark.speculation_job import KINDS, PARTITIONS, TARGETS
from tests.spark.submitting import Submitter

JOB = Path(__file__).with_name("speculation_job.py")
ROWS = 2_000
SCHEMA = pa.schema([("id", pa.int64())])
DEADLINE_S = 240.0
UNNAMED_GRACE_S = 3.0
"""Nothing is written any more when the keeper starts."""


@pytest.fixture
def own_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as running:
        yield running


async def looked(uri: str, stream: str) -> Sample:
    """What the cluster has now."""
    store = await open_store(uri)
    try:
        return await look(store, stream, 0.0, 0)
    finally:
        await store.close()


def numbers(client: StreamConnection, name: str) -> list[int]:
    """The rows of a stream in its order, read without Spark."""
    return [
        number
        for batch in client.stream(name).read()
        for number in cast("list[int]", batch.column("id").to_pylist())
    ]


def test_of_two_attempts_one_counts_and_nothing_of_the_other_is_left(
    own_cluster: LocalCluster, tmp_path: Path, submitter: Submitter
) -> None:
    """Batch and streaming; attempts that end at the same time, and one that is killed when it has
    appended a part of its rows."""
    uri = own_cluster.uri
    with (
        StreamConnection.connect(uri) as client,
        StandaloneCluster(tmp_path) as standalone,
    ):
        source = client.create_stream("source", SCHEMA)
        share = ROWS // PARTITIONS
        for first in range(0, ROWS, share):
            source.append(pa.table({"id": range(first, first + share)}, SCHEMA))
        job = submitter.submit(
            standalone.url,
            JOB,
            *(uri, source.name, str(tmp_path)),
            options=conf({**SPECULATION, "spark.executorEnv.PYTHONPATH": str(ROOT)}),
        )
        try:
            code = job.wait(DEADLINE_S)
        finally:
            submitter.kill(job)
        assert code == 0, submitter.log_end()
        for kind, pace, target in TARGETS:
            told = f"{kind}, {pace}"
            assert Attempts(tmp_path / target, pace).appended() == [0, 1], told
            assert numbers(client, target) == list(range(ROWS)), told
            assert client.stream(target).head().next_commit == 1, told
    assert len(TARGETS) == len(KINDS) * len(PACES)
    before = asyncio.run(looked(uri, source.name))
    assert before.unnamed >= len(KINDS), "a ledger of each attempt that was killed"
    keep(own_cluster, unnamed_grace_s=UNNAMED_GRACE_S)
    after = asyncio.run(settle(uri, source.name))
    assert leftovers(after) == []
    assert after.ledgers <= before.ledgers - len(KINDS), "they were deleted"
    with StreamConnection.connect(uri) as client:
        for *_, target in TARGETS:
            assert numbers(client, target) == list(range(ROWS)), "and nothing else was"
