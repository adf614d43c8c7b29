"""The simulated network between clients and servers.

Messages of one connection stay in order, as with TCP; connections are independent. A link is one
direction between two machines; it may lose, hold back or delay messages, or be cut.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from spark_ledger.lab.simulation.loop import Process, SimulatedLoop


class LinkOptions(Protocol):
    """What a seed draws of the network."""

    @property
    def loss(self) -> float:
        """How probable it is that a connection breaks at one message."""

    @property
    def duplicates(self) -> float:
        """How probable it is that a request is sent twice."""

    @property
    def corruption(self) -> float:
        """How probable it is that an answer arrives with another byte in it."""

    @property
    def delay(self) -> str:
        """``links``: each link is slow now and then."""


class NetworkWorld(Protocol):
    """What the network needs: time, randomness, and whom to tell of a fault."""

    @property
    def loop(self) -> SimulatedLoop:
        """The event loop of all processes."""

    @property
    def options(self) -> LinkOptions:
        """What the seed drew."""

    @property
    def healing(self) -> bool:
        """No new faults."""

    def random_for(self, name: str, /) -> random.Random:
        """A generator for one purpose."""

    def delay(self) -> float:
        """Seconds that one message takes."""

    def fault(self, kind: str, detail: str, /) -> None:
        """Record that a fault was injected."""


class Direction:
    """One direction of one connection."""

    __slots__ = ("broken", "last_arrival")

    def __init__(self) -> None:
        self.last_arrival = 0.0
        self.broken = False
        """A message was lost, so TCP delivers none of those behind it."""


class Link:
    """One direction between two machines."""

    __slots__ = ("cut", "held", "holds", "slow_until", "slowness")

    def __init__(self) -> None:
        self.cut = 0
        self.holds = False
        self.held: list[tuple[Process, Direction, Callable[..., None], tuple[Any, ...]]] = []
        self.slowness = 1.0
        self.slow_until = 0.0


class Network:
    """All links."""

    def __init__(self, world: NetworkWorld) -> None:
        self.world = world
        self.draw: random.Random = world.random_for("network")
        self.links: dict[tuple[str, str], Link] = {}

    def link(self, source: str, target: str) -> Link:
        """The link in one direction."""
        link = self.links.get((source, target))
        if link is None:
            link = self.links[source, target] = Link()
        return link

    def send(
        self,
        source: str,
        target: Process,
        direction: Direction,
        deliver: Callable[..., None],
        *args: Any,
    ) -> None:
        """Send one message. If the target process has died, nobody receives it."""
        world, options, draw = self.world, self.world.options, self.draw
        link = self.link(source, target.name.partition("#")[0])
        if direction.broken:
            return
        if link.cut:
            if link.holds:
                link.held.append((target, direction, deliver, args))
            else:
                direction.broken = True
            return
        if options.loss and not world.healing and draw.random() < options.loss:
            world.fault("message lost", f"{source} -> {target}")
            direction.broken = True
            return
        delay_s = world.delay()
        if options.delay == "links" and not world.healing:
            delay_s *= self._slowness(link)
        self._pass_on(target, direction, delay_s, deliver, *args)

    def _pass_on(
        self,
        target: Process,
        direction: Direction,
        delay_s: float,
        deliver: Callable[..., None],
        *args: Any,
    ) -> None:
        """Deliver a message, but not before those that were sent before it."""
        loop = self.world.loop
        direction.last_arrival = max(direction.last_arrival, loop.now + delay_s)
        loop.at(
            direction.last_arrival, target, deliver, *args
        )  # an absolute time: a sum of differences would be rounded

    def repeats(self) -> bool:
        """Whether this request is sent twice on the way."""
        options = self.world.options
        return (
            options.duplicates > 0
            and not self.world.healing
            and self.draw.random() < options.duplicates
        )

    def cut(self, source: str, target: str, *, holds: bool) -> None:
        """Let nothing pass in this direction until ``mend``, which delivers what was held if
        ``holds``."""
        link = self.link(source, target)
        link.cut += 1
        link.holds = holds

    def mend(self, source: str, target: str) -> None:
        """End one cut."""
        link = self.link(source, target)
        link.cut = max(0, link.cut - 1)
        if not link.cut:
            held, link.held = link.held, []
            for process, direction, deliver, args in held:
                self._pass_on(process, direction, self.world.delay(), deliver, *args)

    def mend_all(self) -> None:
        """End every cut."""
        for (source, target), link in self.links.items():
            if link.cut:
                link.cut = 1
                self.mend(source, target)

    def _slowness(self, link: Link) -> float:
        if link.slow_until <= self.world.loop.now:
            link.slow_until = self.world.loop.now + self.draw.uniform(0.1, 1.0)
            link.slowness = self.draw.choice([1.0, 1.0, 1.0, 10.0, 60.0])
        return link.slowness
