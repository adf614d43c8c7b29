"""How large the ledgers of a stream are that keeps a number of bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ledger.limits import GIB, KIB, MIB
from spark_ledger.stream import model
from spark_ledger.stream.model import Retention, StreamConfig
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.test_segment_writer import new_stream
from tests.unit.spark_ledger.stream.world import SCHEMA, run, table


def test_ledgers_are_a_share_of_what_retention_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "LEDGER_BYTES_LEAST", KIB)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        kept = Retention(size_bytes=model.LEDGERS_KEPT * 4 * KIB)
        stream = await new_stream(ledgers, segment_roll_bytes=64 * KIB, retention=kept)
        writer = stream.writer(compression="none")
        await writer.write(table(0, 600))
        segments = await writer.finish()
        assert len(segments) > 2
        for segment in segments[:-1]:
            assert sum(map(len, ledgers.ledgers[segment.ledger_id].payloads)) <= 4 * KIB
        await writer.close()

    run(scenario())
    config = StreamConfig("s", "id", (SCHEMA,), has_retention=True)
    for kept_bytes, most in ((None, GIB), (64 * GIB, GIB), (32 * MIB, MIB), (KIB, KIB)):
        limited = replace(config, retention=Retention(size_bytes=kept_bytes))
        assert limited.ledger_bytes_max == most
    assert replace(limited, segment_roll_bytes=MIB).ledger_bytes_max == KIB
    tiny = replace(config, segment_roll_bytes=2 * MIB, retention=Retention(size_bytes=GIB))
    assert tiny.ledger_bytes_max == 2 * MIB
