"""What is held of a connection: what it sent, less what was handed out and what surrounds that."""

from __future__ import annotations

from bookie_server.service.guard.connections import Connections
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import BOOKIE_HELD_BYTES_MAX

PEER = "ipv4:127.0.0.1:40000"


def test_connections_that_are_gone_are_forgotten() -> None:
    """A client that comes again from the same port is another connection: what it leaves
    unfinished counts in full."""
    connections = Connections()
    for _call in range(10):
        with connections.call(PEER):
            pass
    connections.given(PEER, 64 * MIB)
    assert connections.held({PEER: 66 * MIB})[PEER] < 2 * MIB
    assert connections.held({PEER: 16 * MIB}) == {PEER: 16 * MIB}


def test_connection_of_a_writer_that_has_lived_for_days_holds_nothing() -> None:
    """gRPC sends 40 bytes around each message of a stream (measured)."""
    connections, received = Connections(), 500
    with connections.call(PEER):
        for _message in range(100_000):
            connections.given(PEER, 64)
            received += 64 + 40
        assert connections.held({PEER: received})[PEER] <= 0


def test_connection_that_sent_large_messages_may_not_hold_more_for_it() -> None:
    connections, received = Connections(), 500
    with connections.call(PEER):
        for _message in range(64):
            connections.given(PEER, MIB)
            received += MIB + 64 * 9
        half = 2 * BOOKIE_HELD_BYTES_MAX
        assert connections.held({PEER: received + half})[PEER] > BOOKIE_HELD_BYTES_MAX
