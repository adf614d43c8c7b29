"""What is held of a connection: what it sent, less what was handed out and what surrounds that."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.sockets import Received
from spark_ledger.limits import KIB, MIB
from spark_ledger.limits.bookie import BOOKIE_HELD_BYTES_MAX, BOOKIE_UNMEASURED_BYTES_MAX

PEER = "ipv4:127.0.0.1:40000"


def held(connections: Connections, received: int, socket: int = 1) -> int:
    """What is held of it when so much has come over the connection with this number."""
    granted = connections.granted([PEER])
    return connections.held({PEER: Received(received, frozenset({socket}))}, granted)[PEER]


def test_connection_that_comes_from_the_port_of_another_counts_in_full() -> None:
    """What was handed out of the one that had the name before, and its calls, are not its own:
    hostile clients that are ended come again until they have such a name."""
    connections = Connections()
    for _call in range(10_000):
        with connections.call(PEER):
            connections.given(PEER, 10 * KIB)
    assert held(connections, 100 * MIB) <= MIB
    with connections.call(PEER):
        assert held(connections, 16 * MIB, socket=2) > 15 * MIB
    assert held(connections, 17 * MIB, socket=2) > 16 * MIB


def test_client_under_an_old_name_holds_nothing_of_what_its_ended_calls_sent() -> None:
    """A stream of 100 MiB may end before anybody looks at its connection."""
    connections = Connections()
    with connections.call(PEER):
        connections.given(PEER, 5 * MIB)
        assert held(connections, 5 * MIB) <= 0
    for _call in range(2):
        with connections.call(PEER):
            connections.given(PEER, 100 * MIB)
    with connections.call(PEER):
        for _look in range(3):
            assert held(connections, 200 * MIB, socket=2) <= 0


def test_connection_that_is_idle_for_days_holds_nothing() -> None:
    """Ours send a ping every two seconds, also without a call: 8.5 bytes a second (measured)."""
    now = [0.0]
    connections, received = Connections(lambda: now[0]), 40_000
    with connections.call(PEER):
        for _message in range(1_000):
            connections.given(PEER, 40)
            received += 40 + 40
        for day in range(20):
            now[0] += 86_400.0
            received += int(86_400 * 8.5)
            assert held(connections, received) <= 40_000, f"day {day}"


def test_calls_of_a_connection_hide_nothing_that_comes_behind_them() -> None:
    """Each call is granted far more than it takes: eight thousand hid a half of 15 MiB."""
    connections, received = Connections(), 0
    for _call in range(8_000):
        with connections.call(PEER):
            received += 60
        if PEER in connections.unmeasured:  # it is looked at then
            assert held(connections, received) <= 0
    assert PEER not in connections.unmeasured
    with connections.call(PEER):
        seen = held(connections, received + 15 * MIB)
    assert 15 * MIB - BOOKIE_UNMEASURED_BYTES_MAX - 4_096 <= seen <= 15 * MIB


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_held_than_there_is_however_often_and_late_the_kernel_is_asked(
    seed: int,
) -> None:
    """It answers in a thread: messages arrive and are handed out while it is asked."""
    draw = random.Random(seed)
    connections, received, true, seen = Connections(), 0, 0, 0
    with connections.call(PEER):
        received += 400
        for _step in range(500):
            granted = connections.granted([PEER])
            found = Received(received, frozenset({1})) if draw.random() < 0.5 else None
            for _message in range(draw.randrange(4)):
                size = draw.choice((0, 100, 70_000, 3 * MIB))
                received += size + size // 16_384 * 9 + draw.randint(20, 40)
                true += size
                if draw.random() < 0.8:  # it is whole, and so are those before it
                    connections.given(PEER, true)
                    true = 0
            if found is None:
                found = Received(received, frozenset({1}))
            now = connections.held({PEER: found}, granted)[PEER]
            around = true // 16_384 * 9 + 4 * 40
            assert now <= true + around, f"seed {seed}"
            seen = max(seen, now)
    assert seen > MIB


def test_connection_of_a_writer_that_has_lived_for_days_holds_nothing() -> None:
    """gRPC sends 40 bytes around each message of a stream (measured)."""
    connections, received = Connections(), 500
    with connections.call(PEER):
        for _message in range(100_000):
            connections.given(PEER, 64)
            received += 64 + 40
        assert held(connections, received) <= 0


def test_connection_that_sent_large_messages_may_not_hold_more_for_it() -> None:
    connections, received = Connections(), 500
    with connections.call(PEER):
        for _message in range(64):
            connections.given(PEER, MIB)
            received += MIB + 64 * 9
        half = 2 * BOOKIE_HELD_BYTES_MAX
        assert held(connections, received + half) > BOOKIE_HELD_BYTES_MAX


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
        assert held(connections, 64 * MIB) <= 0
    connections.keep([PEER])
    assert held(connections, 64 * MIB) <= 0
    for _message in range(1000):
        connections.given(PEER, 1)
    connections.keep([])
    assert len(connections) == 0
    assert held(connections, MIB) == MIB, "the next one from that port is a new one"
