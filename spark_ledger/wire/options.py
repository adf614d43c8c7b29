"""Sizes that clients and bookies give to gRPC, as its (option, number) pairs."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import MIB
from spark_ledger.limits.entries import MESSAGE_BYTES_MAX

_HTTP2_FRAME_BYTES: Final = 1 * MIB
"""One DATA frame for one message of the usual size, instead of 64 frames of 16 KiB."""

_HTTP2_WINDOW_BYTES: Final = 8 * MIB
"""Bytes a peer may send ahead of the reader: enough for a busy loop not to stall the sender."""


def transfer_options(*, lookahead_bytes: int = _HTTP2_WINDOW_BYTES) -> list[tuple[str, int]]:
    """Options about message and frame sizes, for both sides of a connection. A peer may send
    ``lookahead_bytes`` of a call before they are read."""
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.http2.max_frame_size", _HTTP2_FRAME_BYTES),
        ("grpc.http2.lookahead_bytes", lookahead_bytes),
        ("grpc.http2.write_buffer_size", _HTTP2_FRAME_BYTES),
        # The window is fixed, so there is nothing to probe for.
        ("grpc.http2.bdp_probe", 0),
    ]
