"""Who watches the health of a bookie hears that it stops before its last calls have ended."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2, health_pb2_grpc

from spark_ledger.wire.codec import SERVICE_NAME
from tests.unit.bookie_server.service.test_grpc_service import Fixture, on_loop

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@on_loop
async def test_bookie_that_stops_says_so_to_whoever_watches_its_health(f: Fixture) -> None:
    """A balancer sends nobody there any more, while what is under way ends."""
    health = health_pb2_grpc.HealthStub(f.channel)
    watches = [
        health.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", SERVICE_NAME)
    ]
    for watch in watches:
        assert (await watch.read()).status == SERVING
    stopping = asyncio.ensure_future(f.server.stop(5.0))
    for watch in watches:
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
    await stopping
