"""Messages of one connection stay in order."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from spark_ledger.lab.simulation.loop import Process, SimulatedLoop
from spark_ledger.lab.simulation.network import Direction, Network

LANES, MESSAGES = 50, 100


def test_messages_behind_a_late_one_stay_in_order() -> None:
    """They are due at exactly the same moment, which needs absolute times instead of sums."""
    seed = 5
    draw = random.Random(seed)
    loop = SimulatedLoop(draw, shuffle=False)  # type: ignore[abstract]
    world: Any = SimpleNamespace(
        loop=loop,
        options=SimpleNamespace(loss=0.0, delay="light"),
        random_for=lambda _name: draw,
        delay=lambda: draw.choice([0.001, 0.1, 1.5]),
        healing=False,
    )
    network = Network(world)
    target = Process("b0#1")
    sent: list[list[int]] = [[] for _ in range(LANES)]
    arrived: list[list[int]] = [[] for _ in range(LANES)]

    def send(number: int, direction: Direction) -> None:
        sent[number].append(len(sent[number]))
        network.send("writer", target, direction, arrived[number].append, sent[number][-1])

    for number in range(LANES):
        direction = Direction()
        for _ in range(MESSAGES):
            loop.at(draw.uniform(0.0, 1.4), None, send, number, direction)
    everything = LANES * MESSAGES
    assert loop.run(
        lambda: sum(map(len, arrived)) == everything, until_s=10.0, callbacks_max=3 * everything
    )
    assert arrived == sent, f"seed {seed}"
