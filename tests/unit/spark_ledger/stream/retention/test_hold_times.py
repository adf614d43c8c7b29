"""How long a hold lasts: to the millisecond."""

from __future__ import annotations

import pytest

from tests.unit.spark_ledger.stream.retention.test_truncation import stream_of
from tests.unit.spark_ledger.stream.world import run


@pytest.mark.parametrize("for_s", [0.25, 1.5, 60, 86400])
def test_hold_lasts_for_as_long_as_was_asked_for(for_s: float) -> None:
    async def scenario() -> None:
        _, stream = await stream_of(1)
        hold = await stream.retention.hold("slow", for_s=for_s)
        assert hold.expires_ms - hold.made_ms == for_s * 1000
        head = await stream.head()
        assert not hold.is_void(head, hold.expires_ms - 1) and hold.is_void(head, hold.expires_ms)

    run(scenario())
