"""``ledger cluster placement``: shows the policy, and changes what is named."""

from __future__ import annotations

import asyncio
import json

import pytest

from spark_ledger.metadata.cluster import ensure_cluster
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from tests.unit.spark_ledger.cli.conftest import Run


@pytest.fixture
def _tree(tree: MemoryTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LEDGER_METADATA", "zk://none/x")
    asyncio.run(ensure_cluster(MemoryMetadataStore(tree)))


@pytest.mark.usefixtures("_tree")
def test_placement_is_shown_and_only_what_is_named_is_changed(run: Run) -> None:
    assert "min_racks                  1\n" in run("cluster", "placement").out
    assert run("cluster", "placement", "--min-racks", "2", "--strict").status == 0
    outcome = run("cluster", "placement", "--min-regions-for-durability", "2")
    assert outcome.out.splitlines() == [
        "min_racks                  2",
        "min_regions                1",
        "min_racks_for_durability   1",
        "min_regions_for_durability 2",
        "strict                     yes",
    ]
    changed = json.loads(run("cluster", "placement", "--not-strict", "--json").out)
    assert (changed["strict"], changed["min_racks"]) == (False, 2)


def test_placement_refuses_no_racks(run: Run) -> None:
    assert run("cluster", "placement", "--min-racks", "0").status == 2
