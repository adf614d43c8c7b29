"""A configuration full of schema versions: what retention puts there has room of its own."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.reclaim import Reclaimed
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.retention.test_giving_back import closed_commits
from tests.unit.spark_ledger.stream.world import SCHEMA, numbers, run


def test_stream_full_of_schema_versions_gives_back_space_and_takes_limits_and_no_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await closed_commits(ledgers, 4)
        full = len((await ledgers.store.get("streams/s/config")).value)
        monkeypatch.setattr(codec, "LEDGER_METADATA_BYTES_MAX", full)
        await stream.retention.set_limits(Retention(age_s=1e9, size_bytes=10**12, rows=10**9))
        await stream.retention.truncate((2,))
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert await reclaimer.step(2) == Reclaimed(2, 2, is_done=True)
        assert await numbers(stream.read()) == [2, 3]
        wider = SCHEMA.append(pa.field("one_more", pa.int64()))
        with pytest.raises(ConfigurationError, match=r"its 2 schema versions.*use fewer columns"):
            await stream.merge_schema(wider)
        await stream.retention.set_limits(Retention())
        assert len((await ledgers.store.get("streams/s/config")).value) == full

    run(scenario())
