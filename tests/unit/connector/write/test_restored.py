"""Writes through a restored ZooKeeper, in processes that Spark uses again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_ledger.errors import MetadataRestoredError
from tests.unit.connector.world import Cluster, batch_write, cluster, micro_batch, table
from tests.unit.connector.write import test_routed as routed
from tests.unit.spark_ledger.stream.world import Backup

__all__ = ["cluster"]

Write = Callable[[pytest.MonkeyPatch, int], object]
WRITES: dict[str, Write] = {
    "batch": lambda patch, n: batch_write(patch, [n]),
    "micro-batch": lambda patch, n: micro_batch(patch, n, n, run=f"r{n}"),
    "routed batch": lambda patch, n: routed.batch(patch, [("s", n)]),
    "routed micro-batch": lambda patch, n: routed.micro_batch(patch, n, [("s", n)], run=f"r{n}"),
}


def restored(cluster: Cluster, work: Callable[[], object]) -> None:
    """The work sees two commits of which the restore has lost the last, which is made anew by
    somebody else, and more."""
    cluster.create(1)
    backup = Backup(cluster.outside._client)  # type: ignore[arg-type]
    work()
    backup.restore(*(each._client for each in cluster.connections))  # type: ignore[arg-type]
    for row in (12, 13, 14):
        cluster.stream().append(table(row))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_commit_that_finds_a_restore_fails_and_the_next_one_in_the_process_does_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    restored(cluster, lambda: write(monkeypatch, 2))
    with pytest.raises(MetadataRestoredError, match="is not the one that this process has seen"):
        write(monkeypatch, 3)
    assert cluster.rows() == [1, 12, 13, 14]
    write(monkeypatch, 4)
    assert cluster.rows() == [1, 12, 13, 14, 4]
