"""Queries that start, or go on, right behind a commit that they do not read and that is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_ledger.errors import BookieUnavailableError, NoSuchLedgerError
from spark_ledger.metadata.memory import Fault
from spark_ledger.stream.commit import committer
from tests.unit.connector.read.test_several import Query, batch, soon
from tests.unit.connector.world import Cluster, cluster, table
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeReader

__all__ = ["cluster", "soon"]

ONE = {"stream": "s"}
LAST = 2
"""The commit before the place where the queries start."""


def node_of_last(cluster: Cluster) -> str:
    nodes = cluster._tree._nodes
    path = f"streams/s/commits/0000000/{LAST:010d}"
    return next(each for each in nodes if each.endswith(path))


def list_of_last(cluster: Cluster) -> int:
    return int(json.loads(cluster._tree._nodes[node_of_last(cluster)].data)["list_ledger"])


def damage_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    path, nodes = node_of_last(cluster), cluster._tree._nodes
    nodes[path] = replace(nodes[path], data=b"{")


def lose_list(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    del cluster._ledgers.ledgers[list_of_last(cluster)]


def silence_list(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    opens, wanted = FakeLedgers.open_unconfirmed, list_of_last(cluster)

    async def open_unconfirmed(self: FakeLedgers, ledger_id: int) -> FakeReader:
        if ledger_id == wanted:
            raise BookieUnavailableError("b1: no answer")
        return await opens(self, ledger_id)

    monkeypatch.setattr(FakeLedgers, "open_unconfirmed", open_unconfirmed)


Damage = Callable[[Cluster, pytest.MonkeyPatch], None]
DAMAGES: list[Damage] = [damage_node, lose_list, silence_list]


@pytest.fixture
def lists_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 50)


@pytest.mark.usefixtures("lists_elsewhere")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("start", ["latest", '{"segment": 3}'])
@pytest.mark.parametrize("given", [ONE, {"streams": "s,t"}])
def test_query_starts_behind_a_commit_that_it_does_not_read(
    cluster: Cluster,
    given: dict[str, str],
    start: str,
    damage: Damage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.create(name="t")
    cluster.create(1, 2, 3)
    damage(cluster, monkeypatch)
    if start != "latest" and "streams" in given:
        start = f'{{"s": {start}}}'
    query = Query(**given, startingPosition=start)
    cluster.stream().append(table(4))
    assert query.rest() == {"s": [4]}
    assert not cluster.clock.pauses
    cluster.stream().append(table(5))
    assert query.rest() == {"s": [5]}
    assert Query(query.at, **given).trigger() is None


@pytest.mark.usefixtures("lists_elsewhere")
@pytest.mark.parametrize("damage", DAMAGES)
def test_batch_read_starts_behind_a_commit_that_it_does_not_read(
    cluster: Cluster, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1, 2, 3, 4)
    damage(cluster, monkeypatch)
    assert batch(**ONE, startingPosition='{"segment": 3}') == {"s": [4]}
    assert not cluster.clock.pauses


def test_batch_read_reads_no_commit_for_a_checkpoint_that_it_does_not_have(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1, 2, 3)
    reads: list[str] = []

    def interpose(name: str, path: str) -> Fault:
        reads.append(path)
        return Fault()

    monkeypatch.setattr(cluster, "_interpose", interpose)
    assert batch(**ONE, startingPosition="latest") == {}
    assert not [path for path in reads if "/commits/" in path]


@pytest.mark.usefixtures("lists_elsewhere")
@pytest.mark.parametrize("damage", [damage_node, lose_list])
def test_query_goes_on_behind_a_commit_that_was_damaged_since(
    cluster: Cluster, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read before: whether it is still that one cannot be told, and is believed."""
    cluster.create(1, 2, 3)
    query = Query(**ONE)
    assert query.rest() == {"s": [1, 2, 3]}
    at: Any = query.at
    assert at["last"]["commit"] == LAST
    damage(cluster, monkeypatch)
    cluster.stream().append(table(4))
    cluster.restart()
    assert Query(at, **ONE).rest() == {"s": [4]}


@pytest.mark.usefixtures("lists_elsewhere")
def test_query_that_has_to_read_a_lost_list_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1, 2, 3)
    query = Query(**ONE, startingPosition='{"segment": 2}')
    lose_list(cluster, monkeypatch)
    cluster.restart()
    with pytest.raises(NoSuchLedgerError):
        Query(query.at, **ONE).trigger()
