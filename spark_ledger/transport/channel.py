"""One gRPC channel to one bookie: its options, its credentials, and grpc's failures as statuses.

Numbers that both sides share are in ``wire.options``. Nothing else in this package names a grpc
option or a grpc status code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from spark_ledger.limits.client import WRITER_BYTES_IN_FLIGHT_MAX
from spark_ledger.types import BookieStatus
from spark_ledger.wire.options import transfer_options


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """How connections to bookies behave. Times in seconds."""

    connect_timeout_s: float = 2.0
    """A bookie whose host answers nothing to a connection attempt is unavailable after this."""

    reconnect_interval_s: float = 0.05
    """A bookie that refused a connection is asked again at most this often, when it is needed."""

    keepalive_interval_s: float = 2.0
    """A silent connection is probed this often. A bookie permits one probe per half second."""

    keepalive_timeout_s: float = 3.0
    """A probe unanswered for this long means that the connection is dead (half-open, paused)."""

    keep_memory_bytes: int = 2 * WRITER_BYTES_IN_FLIGHT_MAX
    """Freed memory that the process keeps for the next messages (``wire.allocator``); 0 leaves
    the C library's allocator as it is."""


def channel_options(options: GrpcOptions) -> list[tuple[str, int]]:
    """All options of a client's channel."""
    return [
        *transfer_options(),
        ("grpc.keepalive_time_ms", _milliseconds(options.keepalive_interval_s)),
        ("grpc.keepalive_timeout_ms", _milliseconds(options.keepalive_timeout_s)),
        # The answer to a probe counts against this one (60 s by default), not the one above.
        ("grpc.http2.ping_timeout_ms", _milliseconds(options.keepalive_timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # The least backoff is also the time that one connection attempt gets.
        ("grpc.min_reconnect_backoff_ms", _milliseconds(options.connect_timeout_s)),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Connections are ours alone: a fresh channel must not inherit another one's backoff.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]


def open_channel(address: str, options: GrpcOptions) -> grpc.aio.Channel:
    """A channel to ``host:port``, connected on first use. Credentials are picked here only."""
    return grpc.aio.insecure_channel(address, options=channel_options(options))


def is_broken(channel: grpc.aio.Channel) -> bool:
    """The last connection attempt failed, and grpc waits before the next."""
    state = channel.get_state()
    return state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


_STATUSES: Final = {
    grpc.StatusCode.DEADLINE_EXCEEDED: BookieStatus.TIMEOUT,
    grpc.StatusCode.UNAUTHENTICATED: BookieStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: BookieStatus.UNAUTHORIZED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: BookieStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.INVALID_ARGUMENT: BookieStatus.BAD_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: BookieStatus.BAD_REQUEST,
    grpc.StatusCode.UNKNOWN: BookieStatus.IO_ERROR,
}


def failure_of(error: grpc.RpcError) -> tuple[BookieStatus, str]:
    """What a failed call means to the protocol, and a sentence about it.

    Codes that are not listed (UNAVAILABLE, CANCELLED, INTERNAL ...) come from connections that
    broke: the bookie may or may not have done what it was asked, and UNAVAILABLE says just that.
    """
    if not isinstance(error, grpc.aio.AioRpcError):
        return BookieStatus.UNAVAILABLE, str(error) or BookieStatus.UNAVAILABLE.name.lower()
    status = _STATUSES.get(error.code(), BookieStatus.UNAVAILABLE)
    return status, said(error.details() or status.name.lower())


def may_be_of_a_write(error: grpc.RpcError) -> bool:
    """Whether a call may have ended under a write. grpc.aio then sets a status of its own,
    INTERNAL, and the one that the peer sent is lost. A bookie sends none that is INTERNAL."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.INTERNAL


def said(message: str) -> str:
    """A sentence that a peer sent, fit for a log line and an error: short, and of one line."""
    if not message:
        return ""  # mostly: all is well
    short = message[:_PEER_SENTENCE_CHARS_MAX]
    return "".join([c if c.isprintable() else "?" for c in short])


_PEER_SENTENCE_CHARS_MAX: Final = 500
"""Ours have fewer. A message of 16 MiB would be copied into each error that quotes it."""


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
