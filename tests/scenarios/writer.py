"""The writer of a scenario: an application that adds entries and keeps its futures."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ledger.errors import LedgerError
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.protocol.events import (
    Append,
    Close,
    Command,
    ConfirmEntries,
    Done,
    Failed,
    FailEntries,
)
from tests.scenarios.clients import Client
from tests.scenarios.stores import Stored
from tests.scenarios.world import World, ranges_text


class Writer(Client):
    """Runs an ``AppendMachine``. ``outcomes`` is what the application was told of each entry."""

    machine: AppendMachine

    def __init__(
        self, world: World, name: str, *, password: str = "", limits: AppendLimits | None = None
    ) -> None:
        super().__init__(world, name, password=password)
        store = world.metadata
        self.machine = AppendMachine(store.value, store.version, now=world.now, limits=limits)
        self.outcomes: dict[int, LedgerError | None] = {}
        self.closed_with: Done | Failed | None = None
        self._frames: dict[int, Stored] = {}
        self.perform(self.machine.start())

    @property
    def takes_entries(self) -> bool:
        """Whether an application could add now."""
        return self.machine.error is None and self.closed_with is None and not self._closing

    _closing = False

    def add(self, count: int, size: int = 10) -> None:
        """Add entries, in one batch."""
        machine = self.machine
        first, length = machine.last_add_pushed + 1, machine.length
        for index in range(count):
            entry_id = first + index
            length += size
            stored = Stored(f"e{entry_id}", machine.last_add_confirmed, length)
            self._frames[entry_id] = self.world.written[entry_id] = stored
        self.take(Append([size] * count))

    def close(self) -> None:
        self._closing = True
        self.take(Close())

    def tick(self) -> None:
        """As in the client, nothing ticks while the machine says that it waits for nothing."""
        if not self.machine.is_idle:
            super().tick()

    def frames(self) -> Mapping[int, Stored]:
        return self._frames

    def pending(self) -> list[int]:
        """Entries of which the application was told nothing yet."""
        return [e for e in range(self.machine.last_add_pushed + 1) if e not in self.outcomes]

    def perform_one(self, command: Command) -> None:
        match command:
            case ConfirmEntries():
                self._confirm(command.last)
            case FailEntries():
                for entry_id in self.pending():
                    self.outcomes[entry_id] = command.error
                name = type(command.error).__name__
                self.world.say(f"{self.name} fails what is not confirmed: {name}")
            case Done() | Failed():
                assert self.closed_with is None, "a writer is closed once"
                self.closed_with = command
                how = "is closed"
                if isinstance(command, Failed):
                    how = f"cannot close: {type(command.error).__name__}"
                self.world.say(f"{self.name} {how}")
            case _:
                super().perform_one(command)

    def _confirm(self, last: int) -> None:
        newly = range(self.world.confirmed + 1, last + 1)
        assert newly, "confirming moves forward"
        for entry_id in newly:
            assert entry_id not in self.outcomes, f"entry {entry_id} was told before"
            self.outcomes[entry_id] = None
        self.world.confirmed = last
        self.world.say(f"{self.name} confirms {ranges_text(newly)}")

    def state(self) -> str:
        machine = self.machine
        failed = machine.failed_indexes
        bookies = " ".join(
            f"{bookie}(failed)" if bookie_index in failed else bookie
            for bookie_index, bookie in enumerate(machine.bookies)
        )
        room = "" if machine.has_room else ", producers wait"
        text = (
            f"{self.name}: {machine.phase.name.lower()}, last add pushed "
            f"{machine.last_add_pushed}, last add confirmed {machine.last_add_confirmed}, "
            f"bookies {bookies}{room}"
        )
        pending = self.pending()
        if pending:
            text += f"; waiting: {ranges_text(pending)}"
        failures: dict[str, list[int]] = {}
        for entry_id, error in self.outcomes.items():
            if error is not None:
                failures.setdefault(type(error).__name__, []).append(entry_id)
        for name, ids in failures.items():
            text += f"; failed: {ranges_text(ids)} ({name})"
        return text
