"""DiskWatch: asks the disks of all directories how full they are, and says which take no adds.

The rules are ``core.disk_space``; this file asks, at a cadence and after so many bytes, and tells
journal and ledger storage to try again when there is room.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bookie_server.core.disk_space import (
    UNKNOWN,
    DirectoryState,
    WaterMarks,
    bookie_is_full,
    next_state,
)
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.limits import MIB
from spark_ledger.types import LedgerId

logger = logging.getLogger(__name__)


_LOOK_AGAIN_S: Final = 0.2
"""After space returned: by then a flush and a new journal file have worked, or have not."""


class DiskStates(NamedTuple):
    """The states of all directories at one moment. ``reason``: why the bookie as a whole takes no
    adds of writers; empty while it takes some."""

    journal: DirectoryState
    ledgers: tuple[DirectoryState, ...]
    reason: str

    @property
    def free_bytes(self) -> int:
        """Free space for entries: that of the fullest disk among the ledger directories; 0 if none
        has answered yet."""
        return min(state.space.free_bytes for state in self.ledgers)

    def by_name(self, names: tuple[str, ...]) -> dict[str, DirectoryState]:
        """Each directory's state, under its name; the journal's comes first."""
        return dict(zip(names, (self.journal, *self.ledgers), strict=True))

    def status(self, names: tuple[str, ...]) -> dict[str, dict[str, object]]:
        """The same for a status page: bytes, and why a directory is full ("" if it is not)."""
        return {
            name: {**state.space._asdict(), "full": state.reason}
            for name, state in self.by_name(names).items()
        }


def ask_disk(
    file_system: FileSystem,
    directory: Path,
    marks: WaterMarks,
    before: DirectoryState = UNKNOWN,
    refusal: str = "",
) -> DirectoryState:
    """What the disk of a directory says now (see ``next_state``).

    One that does not answer keeps the state that it had: it has other ways to fail.
    """
    try:
        space = file_system.space(directory)
    except OSError as error:
        logger.warning("free space of %s is unknown: %s", directory, error)
        return before
    return next_state(before, str(directory), space, marks, refusal)


class DiskWatch:
    """Knows which directories are full. ``check`` runs on a thread of its own once that is started,
    and on any thread that calls it: a lock lets one through at a time."""

    def __init__(
        self,
        file_system: FileSystem,
        directories: tuple[Path, ...],
        marks: WaterMarks,
        interval_s: float,
        *,
        journal: Journal,
        storage: LedgerStorage,
        on_changed: Callable[[], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """``directories``: the journal's, then the ledgers'. ``on_changed`` runs on the thread that
        checks, after a state has changed, ``on_fatal`` if its own thread ends by a bug of ours."""
        assert interval_s > 0, f"disks are looked at every {interval_s} s"
        # Any thread: never changed, or with locks of their own.
        self._file_system = file_system
        self._directories = directories
        self._marks = marks
        self._interval_s = interval_s
        self._journal = journal
        self._storage = storage
        self._on_changed = on_changed
        self._on_fatal = on_fatal
        # So much may be written between two looks: a part of the reserve.
        self._bytes_between = max(MIB, marks.reserve_bytes // 8)
        self._check_lock = threading.Lock()
        self._wanted = threading.Event()
        # Replaced whole under _check_lock; any thread reads.
        unknown = DiskStates(UNKNOWN, (UNKNOWN,) * (len(directories) - 1), "")
        self._states = self._ask(unknown, self._refusals())
        # Service thread only.
        self._bytes_since = 0
        # The thread that checks: what was full was tried again, with an outcome to be looked at.
        self._looks_again = False
        # Set once by whoever stops the thread.
        self._stopping = False
        # Whoever starts and stops: one thread, before and after all others.
        self._thread: threading.Thread | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The directories, the journal's first; any thread."""
        return tuple(map(str, self._directories))

    @property
    def states(self) -> DiskStates:
        """As they were at the last look; any thread."""
        return self._states

    def reason(self, ledger_id: LedgerId) -> str:
        """Why a ledger takes no adds of writers; empty while it does. Any thread."""
        states = self._states
        return states.journal.reason or states.ledgers[self._storage.number_of(ledger_id)].reason

    def wrote(self, byte_count: int) -> None:
        """So much more was taken in: look soon if that is much. Service thread."""
        self._bytes_since += byte_count
        if self._bytes_since >= self._bytes_between:
            self._bytes_since = 0
            self._wanted.set()

    def check(self) -> None:
        """Look now; any thread. What waits for space is tried again once there may be some."""
        with self._check_lock:
            is_prepared = self._journal.prepare()  # a roll may have used the prepared file up
            before = self._states
            refusals = self._refusals()
            now = self._ask(before, refusals)
            self._states = now
        self._storage.compactor.disks_are_full([state.above_marks for state in now.ledgers])
        # Above the marks, too: what is left there is for recoveries and fences, and a flush may
        # have given files back.
        if is_prepared or (refusals[0] and not now.journal.above_marks):
            self._journal.look_for_room()
        freed = any(
            was.above_marks and not state.above_marks
            for was, state in zip(
                (before.journal, *before.ledgers), (now.journal, *now.ledgers), strict=True
            )
        )
        self._looks_again = freed
        if freed or (refusals[0] and not now.journal.above_marks):
            self._storage.request_flush()  # it stores what could not be stored, and prepares files
        if _reasons(before) != _reasons(now):
            for state in (now.journal, *now.ledgers):
                if state.reason:
                    logger.warning("%s", state.reason)
            if not any(_reasons(now)):
                logger.warning("there is room on all disks again")
            self._on_changed()

    def _refusals(self) -> tuple[str, ...]:
        """Why the last attempts to store something found no space, by directory."""
        return (self._journal.space_refusal, *self._storage.space_refusals)

    def _ask(self, before: DiskStates, refusals: tuple[str, ...]) -> DiskStates:
        """The states now; ``refusals`` are the journal's first, as the directories are."""
        journal, *ledgers = (
            ask_disk(self._file_system, directory, self._marks, state, refusal)
            for directory, state, refusal in zip(
                self._directories, (before.journal, *before.ledgers), refusals, strict=True
            )
        )
        return DiskStates(journal, tuple(ledgers), bookie_is_full(journal, ledgers))

    def check_soon(self) -> None:
        """Have the thread look; any thread."""
        self._wanted.set()

    def start(self) -> None:
        """Look at the disks on a thread of its own from now on."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._run, name="disks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wanted.wait(_LOOK_AGAIN_S if self._looks_again else self._interval_s)
                self._wanted.clear()
                if not self._stopping:
                    self.check()
        finally:
            if not self._stopping:  # the traceback follows; a full disk would be seen by nobody
                self._on_fatal("the disk thread ended unexpectedly")


def _reasons(states: DiskStates) -> tuple[bool, ...]:
    """Which directories are full: a change of numbers alone is no news."""
    return (bool(states.journal.reason), *(bool(state.reason) for state in states.ledgers))
