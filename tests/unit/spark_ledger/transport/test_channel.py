"""Options of a channel, and what grpc's failures and a peer's words become."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from spark_ledger.transport.channel import GrpcOptions, channel_options, failure_of, said
from spark_ledger.types import BookieStatus


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.UNAVAILABLE, BookieStatus.UNAVAILABLE),
        (grpc.StatusCode.CANCELLED, BookieStatus.UNAVAILABLE),
        (grpc.StatusCode.INTERNAL, BookieStatus.UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, BookieStatus.TIMEOUT),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, BookieStatus.TOO_MANY_REQUESTS),
        (grpc.StatusCode.INVALID_ARGUMENT, BookieStatus.BAD_REQUEST),
        (grpc.StatusCode.UNKNOWN, BookieStatus.IO_ERROR),
    ],
)
def test_failures_of_grpc_are_statuses(code: grpc.StatusCode, status: BookieStatus) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "why")
    assert failure_of(error) == (status, "why")
    assert not status.is_denial


def test_times_become_milliseconds() -> None:
    options = dict(channel_options(GrpcOptions(keepalive_interval_s=1.5, connect_timeout_s=2)))
    assert options["grpc.keepalive_time_ms"] == 1500
    assert options["grpc.min_reconnect_backoff_ms"] == 2000
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"] == 3000
    assert options["grpc.use_local_subchannel_pool"] == 1
    shortest = dict(channel_options(GrpcOptions(keepalive_interval_s=0.0001)))
    assert shortest["grpc.keepalive_time_ms"] == 1, "0 would be without end"


def test_connection_is_kept_alive_and_does_nothing_by_itself() -> None:
    """gRPC sends nothing a second time, and asks no proxy; a silent connection is probed while no
    call is on it, too, and a bookie that is back is found within a second."""
    options = dict(channel_options(GrpcOptions()))
    for name, value in (
        ("enable_retries", 0),
        ("enable_http_proxy", 0),
        ("keepalive_permit_without_calls", 1),
        ("http2.max_pings_without_data", 0),
        ("initial_reconnect_backoff_ms", 100),
        ("max_reconnect_backoff_ms", 1000),
    ):
        assert options[f"grpc.{name}"] == value, name


def test_sentence_of_a_peer_is_short_and_of_one_line() -> None:
    assert said("") == "" and said("why\nnot\x1b[2J") == "why?not?[2J"
    assert said("x" * 501) == "x" * 500
