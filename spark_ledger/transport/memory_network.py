"""What the memory transport is made of: bookie objects, messages, and the network between.

The messages of one appender arrive in order in each direction, as on a real connection; so a
message that the network holds back holds those behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId

Done = Callable[[BookieStatus, str], None]


class ReadOutcome(Protocol):
    """A bookie's answer to a read: runs, and why they end before what was asked for, if not OK."""

    @property
    def runs(self) -> Sequence[EntryRun]: ...
    @property
    def status(self) -> BookieStatus: ...
    @property
    def entry_id(self) -> EntryId: ...
    @property
    def message(self) -> str: ...


class LedgerEnd(Protocol):
    """Where a ledger ends at a bookie."""

    @property
    def status(self) -> BookieStatus: ...
    @property
    def last_add_confirmed(self) -> EntryId: ...
    @property
    def last_entry(self) -> EntryId: ...
    @property
    def fenced(self) -> bool: ...
    @property
    def message(self) -> str: ...


class LocalBookie(Protocol):
    """What the transport asks of a bookie object; the server's own ``Bookie`` has this shape.

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

    def end_of_ledger(self, ledger_id: LedgerId, *, access_key: bytes) -> LedgerEnd:
        """LAC and last entry held. A key that is shown must be right."""

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
    ) -> ReadOutcome:
        """Entries ``first_entry, first_entry + stride, ...`` up to ``last_entry``."""

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


@dataclass(slots=True)
class _Delivery:
    """A message on its way, and what happens when it is its turn."""

    action: Callable[[], None]
    arrived: bool = False


class OrderedDelivery:
    """One direction of one appender's connection: messages arrive in the order they were sent.

    A network may deliver them in any order, or lose some. TCP would hold back what follows a lost
    segment; here too, what follows a lost message never arrives.
    """

    def __init__(self) -> None:
        self._sent: deque[_Delivery] = deque()

    def send(self, network: Network, message: Message, action: Callable[[], None]) -> None:
        """Send a message; ``action`` runs when it and all sent before it have arrived."""
        delivery = _Delivery(action)
        self._sent.append(delivery)

        def arrive() -> None:
            delivery.arrived = True
            while self._sent and self._sent[0].arrived:
                self._sent.popleft().action()

        network.deliver(message, arrive)
