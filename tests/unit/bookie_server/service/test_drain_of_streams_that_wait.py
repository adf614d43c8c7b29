"""A bookie that stops ends streams that wait for their turn too: their clients wait for nothing."""

from __future__ import annotations

import pytest

from spark_ledger.limits.bookie import (
    BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX,
    BOOKIE_APPEND_SHARED_BYTES,
)
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.service.test_append_session import Fixture, on_loop, settle

OK = int(BookieStatus.OK)


@pytest.mark.parametrize("has_read", [False, True])
@pytest.mark.parametrize("waits_for", ["its share", "the bookie"])
def test_drain_ends_a_stream_that_may_not_be_read(waits_for: str, has_read: bool) -> None:
    """Nothing of what others have in flight may become durable before the end: a disk stalls."""

    @on_loop
    async def drain(f: Fixture) -> None:
        if has_read:
            f.context.send((1, 0))
        else:
            await close_to(f)
        await settle()
        if has_read:
            await close_to(f)
            f.context.send((1, 1))  # is read: it was asked for before
            await settle()
        assert f.context.reads == 2 * has_read
        f.session.drain()
        await f.task
        assert f.results == [(1, 0, OK), (1, 1, OK)][: 2 * has_read]

    async def close_to(f: Fixture) -> None:
        if waits_for == "its share":
            f.shares.began(f.context.peer(), BOOKIE_APPEND_SHARED_BYTES)
        else:
            f.bookie.append_bytes_in_flight = BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX + 1

    drain()
