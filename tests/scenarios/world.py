"""The world of a scenario: bookies, the metadata store, time, and the messages between them.

Nothing happens by itself. Every request and every answer is a ``Message`` that waits until
somebody delivers, loses or repeats it: a script one by one, the random test in any order. Messages
of one channel keep their order; channels know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from spark_ledger.types import BookieId, LedgerMetadata
from tests.scenarios.stores import MetadataStore, ModelBookie, Stored

METADATA = "metadata"
REGISTRY = "registry"


@dataclass(eq=False)
class Message:
    """Something under way. ``deliver`` or ``lose`` is called once it has left the queue."""

    source: str
    target: str
    channel: str
    text: str
    deliver: Callable[[], None]
    lose: Callable[[], None]
    repeatable: bool = False
    """Whether the network may bring it twice."""


class Actor(Protocol):
    """A client of the ledger."""

    name: str

    def tick(self) -> None:
        """Time passed."""

    def state(self) -> str:
        """What it is at, in one line of plain words."""


@dataclass
class World:
    """All that scenarios share. ``lines`` collects what happened, for people to read."""

    bookies: dict[BookieId, ModelBookie]
    metadata: MetadataStore
    now: float = 0.0
    messages: list[Message] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    actors: dict[str, Actor] = field(default_factory=dict)
    registered: list[BookieId] = field(default_factory=list)
    written: dict[int, Stored] = field(default_factory=dict)
    """What the writer issued under each entry id."""
    confirmed: int = -1
    """The highest entry that the writer's application was told is confirmed."""
    faults: list[str] = field(default_factory=list)
    """Broken promises that show only at the moment they are broken."""
    checks: list[Callable[[], None]] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def send(self, message: Message) -> None:
        """Put a message under way."""
        self.messages.append(message)
        if message.text:
            note = "  (held)" if self.is_held(message) else ""
            self.say(f"{message.source} -> {message.target}: {message.text}{note}")

    def is_held(self, message: Message) -> bool:
        """Whether a script keeps the message from arriving."""
        way = {
            message.target,
            f"{message.source} replies",
            f"{message.source} {message.target}",
        }
        return not way.isdisjoint(self.held)

    def heads(self) -> list[Message]:
        """Messages that may arrive now: not held, and first in their channel."""
        seen: set[str] = set()
        heads = []
        for message in self.messages:
            if message.channel not in seen and not self.is_held(message):
                heads.append(message)
            seen.add(message.channel)
        return heads

    def deliver(self, message: Message) -> None:
        """The message arrives."""
        self.messages.remove(message)
        message.deliver()
        self._check()

    def repeat(self, message: Message) -> None:
        """The message arrives, and will arrive once more."""
        assert message.repeatable
        message.deliver()
        self._check()

    def lose(self, message: Message) -> None:
        """The message never arrives; who waits for it learns that there is no answer."""
        self.messages.remove(message)
        self.say(f"lost: {message.source} -> {message.target}: {message.text}")
        message.lose()
        self._check()

    def _check(self) -> None:
        for check in self.checks:
            check()

    def settle(self) -> None:
        """Deliver, oldest first, until nothing moves that is not held."""
        for _ in range(10_000):
            heads = self.heads()
            if not heads:
                return
            self.deliver(heads[0])
        raise AssertionError("the world does not come to rest")

    def kill(self, name: BookieId) -> None:
        """The bookie's process dies. Requests and answers under way are lost with it."""
        self.bookies[name].up = False
        if name in self.registered:
            self.registered.remove(name)
        self.lose_all(m for m in self.messages if name in (m.source, m.target))

    def restart(self, name: BookieId) -> None:
        """The bookie comes back on the same disk."""
        self.bookies[name].up = True
        if name not in self.registered:
            self.registered.append(name)

    def lose_all(self, messages: Iterable[Message]) -> None:
        for message in list(messages):
            if message in self.messages:
                self.messages.remove(message)
                message.lose()

    def advance(self, seconds: float) -> None:
        """Let time pass, and every client notice."""
        self.now += seconds
        for actor in list(self.actors.values()):
            actor.tick()

    def writable(self) -> list[BookieId]:
        return [name for name in self.registered if not self.bookies[name].read_only]


def fragments_text(metadata: LedgerMetadata) -> str:
    """``from 0 on b0 b1 b2, from 4 on b0 b3 b2``."""
    return ", ".join(
        f"from {fragment.first_entry} on {' '.join(fragment.bookies)}"
        for fragment in metadata.fragments
    )


def metadata_text(metadata: LedgerMetadata) -> str:
    """The whole of it in one line."""
    state = metadata.state.value.replace("_", " ")
    if metadata.is_closed:
        state = f"closed at {metadata.last_entry_id}, {metadata.length} bytes"
    return f"{state}; entries {fragments_text(metadata)}"


def ranges_text(entry_ids: Iterable[int]) -> str:
    """``0..4, 7``; "nothing" for none."""
    ranges: list[list[int]] = []
    for entry_id in sorted(entry_ids):
        if ranges and ranges[-1][1] == entry_id - 1:
            ranges[-1][1] = entry_id
        else:
            ranges.append([entry_id, entry_id])
    if not ranges:
        return "nothing"
    return ", ".join(f"{a}" if a == b else f"{a}..{b}" for a, b in ranges)
