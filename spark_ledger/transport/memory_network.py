"""What the memory transport is made of: bookie objects, messages, and the network between.

The messages of one appender arrive in order in each direction, as on a real connection; so a
message that the network holds back holds those behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId

Done = Callable[[BookieStatus, str], None]


class LocalBookie(Protocol):
    """What the transport asks of a bookie object; the server's own ``Bookie`` has this shape.

    ``read`` and ``end_of_ledger`` return objects with the fields of the server's answers.
    Callbacks come on the loop.
    """

    def add(
        self,
        run: EntryRun,
        *,
        access_key: bytes,
        recovery: bool,
        last_add_confirmed: EntryId,
        done: Done,
    ) -> None:
        """Store a run."""

    def fence(self, ledger_id: LedgerId, *, access_key: bytes, done: Done) -> None:
        """Fence durably."""

    def write_last_confirmed(
        self, ledger_id: LedgerId, last_add_confirmed: EntryId, *, access_key: bytes, done: Done
    ) -> None:
        """Note the LAC of an idle writer."""

    def end_of_ledger(self, ledger_id: LedgerId, *, access_key: bytes) -> Any:
        """status, last_add_confirmed, last_entry, fenced, message."""

    def watch_last_confirmed(
        self, ledger_id: LedgerId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back on growth of the LAC and on fence; the result cancels."""

    def read(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int,
        max_bytes: int,
    ) -> Any:
        """runs, status, entry_id, message."""

    def list_entries(self, ledger_id: LedgerId) -> list[tuple[EntryId, EntryId]] | None:
        """Ranges held; None for an unknown ledger."""


class Message(NamedTuple):
    """One message on its way, for a network to judge.

    ``kind`` is add, read, read_last_confirmed, write_last_confirmed, list_entries or describe;
    ``run`` is there for the request of an add, ``status`` for its answer.
    """

    kind: str
    is_request: bool
    bookie_id: BookieId
    ledger_id: LedgerId
    run: EntryRun | None = None
    status: BookieStatus | None = None


class Network(Protocol):
    """Carries messages. Called on the loop."""

    def deliver(self, message: Message, arrive: Callable[[], None]) -> None:
        """Arrange for ``arrive()`` to be called once: soon, later, or never (a lost message)."""


class DirectNetwork:
    """Delivers every message on the loop's next turn."""

    def deliver(self, message: Message, arrive: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(arrive)


class Lane:
    """Messages of one direction of one appender: they arrive in the order they were sent."""

    def __init__(self) -> None:
        self._waiting: deque[list[Callable[[], None] | None]] = deque()

    def pass_on(self, network: Network, message: Message, action: Callable[[], None]) -> None:
        slot: list[Callable[[], None] | None] = [None]  # filled when the network delivers
        self._waiting.append(slot)

        def arrive() -> None:
            slot[0] = action
            while self._waiting and (ready := self._waiting[0][0]) is not None:
                self._waiting.popleft()
                ready()

        network.deliver(message, arrive)
