"""What is held of a connection: what it sent, less what was handed out and what surrounds that."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

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


@pytest.mark.parametrize("seed", range(20))
def test_longest_idle_is_whose_last_call_ended_first(seed: int) -> None:
    """However many calls it had before: one that calls all day is idle since its last one."""
    draw, now = random.Random(seed), [0.0]
    connections = Connections(lambda: now[0])
    peers = [f"peer {number}" for number in range(6)]
    running: dict[str, list[ExitStack]] = {peer: [] for peer in peers}
    idle_since: dict[str, float] = {}
    for _step in range(300):
        now[0] += draw.random()
        peer = draw.choice(peers)
        if running[peer] and draw.random() < 0.6:
            running[peer].pop().close()
            if not running[peer]:
                idle_since[peer] = now[0]
        elif draw.random() < 0.7:
            call = ExitStack()
            call.enter_context(connections.call(peer))
            running[peer].append(call)
        else:
            there = draw.sample(peers, 4)
            connections.keep(there)
            for gone in set(peers) - {*there, *(each for each in peers if running[each])}:
                idle_since.pop(gone, None)
        idle = [each for each in peers if not running[each]]
        for each in idle:
            idle_since.setdefault(each, now[0])  # seen for the first time
        wanted = [each for each in idle if now[0] - idle_since[each] >= 1.0]
        wanted.sort(key=idle_since.__getitem__)
        number = draw.randint(1, 6)
        found = connections.longest_idle(peers, number, 1.0)
        assert found == wanted[:number], f"seed {seed}"
        assert connections.calls == sum(map(len, running.values()))


def test_connection_of_a_running_call_is_known_though_it_is_not_listed() -> None:
    """As where a process has no descriptor left to list its files: what was handed out of what it
    sent would count as held, and an honest client be hung up on."""
    connections = Connections()
    with connections.call(PEER):
        connections.given(PEER, 64 * MIB)
        connections.keep([])
        assert connections.held({PEER: 64 * MIB})[PEER] <= 0
    connections.keep([PEER])
    assert connections.held({PEER: 64 * MIB})[PEER] <= 0
    for _message in range(1000):
        connections.given(PEER, 1)
    connections.keep([])
    assert len(connections) == 0
    assert connections.held({PEER: MIB}) == {PEER: MIB}, "the next one from that port is a new one"
