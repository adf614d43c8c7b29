"""An audit reads the names of a stream to its end, though reading fails now and then."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.keeper import audit_names
from spark_ledger.keeper.audit_names import NamesRead, NamesReader
from spark_ledger.stream.retention import names
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.world import new_stream, rows

COMMITS = 12


@pytest.mark.parametrize("works_each", [2, 3])
def test_stream_that_fails_now_and_then_is_read_to_its_end(
    works_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only failures in a row count: a long stream meets some whatever happens."""
    monkeypatch.setattr(names, "COMMITS_PER_BUCKET", 1)
    monkeypatch.setattr(audit_names, "AUDIT_ATTEMPTS", 3)
    real, calls = names.names_of, 0

    async def away() -> AsyncGenerator[object, None]:
        raise BookieUnavailableError("its bookies are away")
        yield

    def now_and_then(*given: Any) -> AsyncGenerator[object, None]:
        nonlocal calls
        calls += 1
        return away() if calls % works_each else real(*given)

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        for number in range(COMMITS):
            await stream.append(rows(number))
        reader = NamesReader(client, NamesRead(0.0))
        monkeypatch.setattr(audit_names, "names_of", now_and_then)
        while await reader.step() is not audit_names.Step.DONE:
            pass
        assert calls >= COMMITS * works_each
        assert reader.read.unread == []
        assert reader.read.whole[stream.config.stream_id] == ("s", COMMITS)

    run(test)
