"""What a trigger finds new: rows that come while it waits, and none behind a store of before."""

from __future__ import annotations

from typing import Any

import pytest

from connector.read import ledger_source
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.connector import METADATA_LAG_S
from tests.unit.connector.read.test_ledger_source import Clock, Ledger, offset, source
from tests.unit.connector.read.test_several import Query, soon
from tests.unit.connector.world import Cluster, cluster

__all__ = ["cluster", "soon"]


@pytest.mark.parametrize("ahead", ["a", "b"])
def test_checkpoint_ahead_of_one_of_several_streams_is_refused_and_not_waited_for(
    cluster: Cluster, ahead: str
) -> None:
    """The metadata are of a backup: the query would stand still, and later pass rows over."""
    cluster.create(1, 2, name="a")
    cluster.create(3, 4, name="b")
    query = Query()
    assert query.rest() == {"a": [1, 2], "b": [3, 4]}
    ends: dict[str, Any] = query.at["streams"]
    for segments, is_refused in ((2, False), (3, True)):
        at = {"streams": {**ends, ahead: {**ends[ahead], "segment": segments}}}
        restarted = Query(at, failOnDataLoss="false")
        if not is_refused:
            assert restarted.trigger() is None
            continue
        with pytest.raises(ConfigurationError, match=f"'{ahead}'.*lies behind the end.*older one"):
            restarted.trigger()
        assert 0 < sum(cluster.clock.pauses) <= METADATA_LAG_S, "a server may only lag"


@pytest.mark.parametrize("limit", ["", "1"])
def test_entries_that_come_while_a_trigger_waits_are_taken_by_it(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Else each row waits for one trigger more than it has to."""
    ledger, pauses = Ledger(1, 1), []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        ledger.sizes += [1, 1]

    monkeypatch.setattr(ledger_source.time, "sleep", sleep)
    options = {"maxRowsPerTrigger": limit} if limit else {}
    reader = source(ledger, Clock(), **options)
    assert reader.latest_offset(offset(2), unlimited=False) == offset(3 if limit else 4)
    assert len(pauses) == 1
    assert reader.latest_offset(offset(3), unlimited=False) == offset(4)
    assert len(pauses) == 1, "something is there: no wait"
