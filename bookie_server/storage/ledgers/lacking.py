"""What one ledger directory has lost to damage, and may not deny (rule S22).

A file, replaced as a whole: a line with the CRC32C of the rest, then JSON. It is durable before a
row of the index goes, and an entry leaves it only once the bookie holds what it should again. The
commit that takes the row out notes in the index that there is a list: one that is lost is missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import RLock
from typing import Final, NamedTuple, Protocol

import msgspec
from google_crc32c import value as crc32c_value

from bookie_server.storage.fs.vfs import FileSystem, read_file, write_file_durably
from bookie_server.storage.journal.files import REPLACE_BOOKIE
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import MIB
from spark_ledger.limits.storage import LACKING_MAX
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId

LACKING_NAME: Final = "lacking.json"
NO_LOG: Final = 0
_VERSION: Final = 1
_FILE_BYTES_MAX: Final = 32 * MIB


class Lack(NamedTuple):
    """Entries from ``first`` to ``last`` were in a block that is damaged, or some of them were.

    ``log_id``: the log that has the block; it stays until they are back. ``NO_LOG``: the index does
    not know where the blocks are, so that every log stays that has any of this ledger.
    """

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    log_id: int


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format_version: int
    lacks: list[Lack]


Range = tuple[EntryId, EntryId]


class TooMuchLackingError(OSError):
    """So much is damaged that the list has no room for more: the disk has to be replaced."""


class LackingLedgers:
    """The lists of all directories of a bookie; *any thread*."""

    def __init__(
        self, directories: Sequence[Lacking], copies_of: Callable[[Lack], list[Range]]
    ) -> None:
        """``copies_of``: see ``DirectoryScrub.copies_of``."""
        self._directories = tuple(directories)
        self.copies_of = copies_of

    def ledgers(self) -> list[LedgerId]:
        """The ledgers of which something is lacking, ascending."""
        return sorted(each for listed in self._directories for each in listed.ledgers())

    def of(self, ledger_id: LedgerId) -> tuple[Lack, ...]:
        """What is lacking of one ledger."""
        return self._directory_of(ledger_id).of(ledger_id)

    def refetched(
        self, lacks: Sequence[Lack], is_whole: Callable[[Lack], bool] = lambda _lack: True
    ) -> int:
        """Those of these stretches that ``is_whole`` says are here again, or not wanted here any
        more, leave the list; how many. Not the service thread: it waits for a flush.

        It is asked under the list's lock: no row that it counts is on its way out of the index.
        Raises what it raises, and OSError if the change cannot be written down; then they stay on
        the list.
        """
        gone = 0
        for ledger_id in {lack.ledger_id for lack in lacks}:
            directory = self._directory_of(ledger_id)
            with directory.lock:
                of_ledger = [lack for lack in lacks if lack.ledger_id == ledger_id]
                gone += directory.remove(filter(is_whole, of_ledger))
        return gone

    def _directory_of(self, ledger_id: LedgerId) -> Lacking:
        return self._directories[ledger_id % len(self._directories)]


class LacksNote(Protocol):
    """What is used of the index; see ``Index``."""

    def has_lacks(self) -> bool: ...
    def note_lacks(self, has_lacks: bool) -> None: ...


class Lacking:
    """The list of one directory; *any thread*."""

    def __init__(self, file_system: FileSystem, directory: Path, index: LacksNote) -> None:
        """``index``: that of the directory.

        Raises CorruptionError if the list is damaged, or if the index knows of one and it is not
        there; OSError if the disk fails.
        """
        self._index = index
        self._file_system = file_system
        self._path = directory / LACKING_NAME
        self.refetched = 0
        """How many left the list since the process began; whoever takes them off."""
        self._repaired: deque[int] = deque()
        """Logs of what has left it and that ``take_repaired`` was not asked about yet."""
        self.lock = RLock()
        """Held by whoever changes the list, and its file with it; by whoever takes damaged rows
        out of the index, from the note of them until they are gone; and by whoever takes stretches
        off, from the look at what is stored. Taken before the flush lock."""
        # Replaced whole under the lock; any thread reads it.
        self._by_ledger: dict[LedgerId, tuple[Lack, ...]] = _grouped(self._read())
        if bool(self._by_ledger) != index.has_lacks():  # a list of an older program, or a crash
            index.note_lacks(bool(self._by_ledger))

    def of(self, ledger_id: LedgerId) -> tuple[Lack, ...]:
        """What is lacking of one ledger."""
        return self._by_ledger.get(ledger_id, ())

    def ledgers(self) -> list[LedgerId]:
        """The ledgers of which something is lacking, ascending."""
        return sorted(self._by_ledger)

    def logs(self) -> set[int]:
        """The logs that have blocks of which copies are awaited."""
        return {lack.log_id for lacks in self._by_ledger.values() for lack in lacks}

    def anywhere(self) -> frozenset[LedgerId]:
        """The ledgers of which the index does not know in which logs the blocks are."""
        lacks = (lack for lacks in self._by_ledger.values() for lack in lacks)
        return frozenset(lack.ledger_id for lack in lacks if lack.log_id == NO_LOG)

    def take_repaired(self) -> set[int]:
        """The logs some of whose stretches have left the list since this was asked last; whoever
        compacts."""
        return {self._repaired.popleft() for _ in range(len(self._repaired))}

    @property
    def count(self) -> int:
        """How many stretches are lacking."""
        return sum(map(len, self._by_ledger.values()))

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        """The highest entry that may be lacking; NO_ENTRY if none is."""
        return max((lack.last for lack in self.of(ledger_id)), default=NO_ENTRY)

    def add(self, lacks: Iterable[Lack]) -> None:
        """List more, durably. Raises OSError; then the list is as it was."""
        more = [lack for lack in lacks if lack not in self.of(lack.ledger_id)]
        if more:
            self._change(lambda now: [*now, *more])

    def check_room(self) -> None:
        """Write the list as it is: whether the disk takes one. Raises OSError if it does not."""
        self._change(lambda now: now)

    def remove(self, lacks: Iterable[Lack]) -> int:
        """Take some off the list: the entries are here, or not wanted here; how many were on it.
        Raises as ``add``."""
        gone = {lack for lack in lacks if lack in self.of(lack.ledger_id)}
        if gone:
            self._change(lambda now: [lack for lack in now if lack not in gone])
            self.refetched += len(gone)
            self._repaired.extend({lack.log_id for lack in gone})
        return len(gone)

    def _change(self, change: Callable[[list[Lack]], list[Lack]]) -> None:
        with self.lock:
            before = [lack for lacks in self._by_ledger.values() for lack in lacks]
            after = change(before)
            if len(after) > max(LACKING_MAX, len(before)):
                raise TooMuchLackingError(
                    f"{self._path}: more than {LACKING_MAX} blocks are damaged: replace the disk"
                )
            body = msgspec.json.encode(_Content(_VERSION, after))
            data = f"{crc32c_value(body):08x}\n".encode() + body + b"\n"
            write_file_durably(self._file_system, self._path, data)
            self._by_ledger = _grouped(after)
            self._index.note_lacks(bool(after))  # before the commit that takes rows out

    def _read(self) -> list[Lack]:
        try:
            data = read_file(self._file_system, self._path, size_max=_FILE_BYTES_MAX)
        except FileNotFoundError:
            if self._index.has_lacks():
                raise CorruptionError(
                    f"{self._path} is missing, and what it lists would be denied: {REPLACE_BOOKIE}"
                ) from None
            return []
        checksum, _, body = data.partition(b"\n")
        body = body.removesuffix(b"\n")
        if checksum != f"{crc32c_value(body):08x}".encode():
            raise CorruptionError(f"{self._path} is damaged: {REPLACE_BOOKIE}")
        content = msgspec.json.decode(body, type=_Content)
        if content.format_version != _VERSION:
            raise ConfigurationError(
                f"{self._path} has format version {content.format_version}, this program reads "
                f"{_VERSION}: use the version that wrote it"
            )
        return content.lacks


def _grouped(lacks: Iterable[Lack]) -> dict[LedgerId, tuple[Lack, ...]]:
    found: dict[LedgerId, tuple[Lack, ...]] = {}
    for lack in sorted(lacks):
        found[lack.ledger_id] = (*found.get(lack.ledger_id, ()), lack)
    return found
