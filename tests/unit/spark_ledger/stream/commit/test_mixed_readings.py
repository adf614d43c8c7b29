"""Several streams of which one is read late: looked at again, as long as that may be the reason."""

from __future__ import annotations

import pytest

from spark_ledger.errors import ConflictError
from spark_ledger.limits.stream import MIXED_READINGS_MAX
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import SinkRecord
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.several import commit_to
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, another, loose, run


@pytest.mark.parametrize("late", ["a", "b"])
@pytest.mark.parametrize("readings", range(MIXED_READINGS_MAX + 1))
def test_transaction_that_one_server_does_not_know_yet_is_looked_for_a_few_times(
    late: str, readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each repetition changes nothing, and a stream that lacks the transaction for good is told."""
    read = StreamNodes.sink
    left = readings

    async def lagging(self: StreamNodes, sink_id: str) -> Versioned[SinkRecord] | None:
        nonlocal left
        if self.name == late and left:
            left -= 1
            return None
        return await read(self, sink_id)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        for name in "ab":
            await StreamCatalog(ledgers).create(name, SCHEMA)

        async def offer() -> list[tuple[int, bool]]:
            streams: list[Stream] = [await another(ledgers)[1].open(name) for name in "ab"]
            parts = [(each, [loose(n + 1)]) for n, each in enumerate(streams)]
            commits = await commit_to(parts, sink_id="q", transaction_id=7)
            return [(each.rows, each.applied) for each in commits]

        assert await offer() == [(1, True), (2, True)]
        monkeypatch.setattr(StreamNodes, "sink", lagging)
        if readings < MIXED_READINGS_MAX:
            assert await offer() == [(1, False), (2, False)]
        else:
            with pytest.raises(ConflictError, match="to 1 of these 2 streams"):
                await offer()
        assert left == 0
        for name in "ab":
            assert (await (await StreamCatalog(ledgers).open(name)).head()).next_commit == 1

    run(scenario())
