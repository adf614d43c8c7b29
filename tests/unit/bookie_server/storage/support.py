"""A bookie without threads over any file system, and runs to feed it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from bookie_server.core.copies import CopyGrant
from bookie_server.core.transitions import KnownLedger
from bookie_server.first_contact import Answer as KeyAnswer
from bookie_server.first_contact import CopyAnswer, LedgerKeys, not_in_the_metadata
from bookie_server.opening import open_bookie
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.index.memory_index import MemoryIndex
from spark_ledger.limits import KIB, MIB
from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import access_key_hash
from tests.listed import Kept, listed

ROOT = Path("/bookie")
JOURNAL = ROOT / "journal"
LEDGERS = (ROOT / "ledgers-0", ROOT / "ledgers-1")
BOOKIE_ID = BookieId("bookie-under-test")

Answer = tuple[BookieStatus, str]


def small_config(**changes: object) -> StorageConfig:
    """Sizes so small that rolls and flushes happen all the time."""
    settings: dict[str, object] = {
        "journal_file_bytes": 64 * KIB,
        "journal_batch_bytes_max": 16 * KIB,
        "write_cache_bytes": 2 * MIB,  # only a test flushes
        "entry_log_bytes": 16 * KIB,
        "block_cache_bytes": 4 * KIB,
    }
    settings |= {"journal_directory": JOURNAL, "ledger_directories": LEDGERS} | changes
    return StorageConfig(bookie_id=BOOKIE_ID, **settings)  # type: ignore[arg-type]


def formatted() -> MemoryFileSystem:
    """A file system with the directories of a new bookie."""
    files = MemoryFileSystem()
    format_directories(files, JOURNAL, LEDGERS, cluster_id="test", bookie_id=BOOKIE_ID)
    return files


def frame(ledger_id: int, entry_id: int, size: int = 40) -> bytes:
    """The one frame this entry has everywhere in these tests."""
    text = b"<%d/%d>" % (ledger_id, entry_id)
    return (text * (size // len(text) + 1))[:size]


def make_run(ledger_id: int, ids: Sequence[int], size: int = 40) -> EntryRun:
    """A run of these entries, ascending."""
    frames = b"".join(frame(ledger_id, entry_id, size) for entry_id in ids)
    consecutive = ids[-1] - ids[0] == len(ids) - 1
    return EntryRun(
        LedgerId(ledger_id),
        EntryId(ids[0]),
        None if consecutive else list(ids),
        [size] * len(ids),
        frames,
    )


class KnownKeys:
    """Stands for the metadata: each ledger has the key that ``learn`` was told first; others have
    none, unless they are ``missing``. Those that are not ``closed`` are open."""

    def __init__(self) -> None:
        self.hashes: dict[LedgerId, bytes] = {}
        self.missing: set[int] = set()
        self.closed: set[int] = set()
        self.grants: dict[int, CopyGrant] = {}

    def learn(self, ledger_id: int, key: bytes) -> None:
        """A ledger was made with this key, unless it has been made before."""
        self.hashes.setdefault(LedgerId(ledger_id), access_key_hash(key))

    def look_up(self, ledger_id: LedgerId, answer: KeyAnswer) -> None:
        """See ``first_contact.LedgerKeys``; answers at once."""
        if ledger_id in self.missing:
            answer(not_in_the_metadata(ledger_id))
        else:
            is_closed = ledger_id in self.closed
            answer(KnownLedger(self.hashes.get(ledger_id, b""), is_closed))

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        """Nobody holds a ledger's repair lock, unless ``grants`` say so."""
        none = CopyGrant(b"", self.hashes.get(ledger_id, b""), EntryId(-1))
        answer(self.grants.get(ledger_id, none))


class LacksNoted:
    """Stands for the index beside a list of what is lacking."""

    def __init__(self) -> None:
        self.noted = False

    def has_lacks(self) -> bool:
        """See ``Index``."""
        return self.noted

    def note_lacks(self, has_lacks: bool) -> None:
        """See ``Index``; committed at once."""
        self.noted = has_lacks


class Machine:
    """A bookie without threads. Its posts wait in a queue until ``settle`` runs them, or, when it
    is ``eager``, run at once, as on a service thread that is quicker than the others."""

    def __init__(
        self,
        files: FileSystem,
        config: StorageConfig | None = None,
        open_index: Callable[[Path], MemoryIndex] | None = None,
        *,
        eager: bool = False,
        keys: LedgerKeys | None = None,
    ) -> None:
        self.keys = KnownKeys()
        self.posted: deque[Callable[[], None]] = deque()
        self.fatal: list[str] = []
        self.bookie = open_bookie(
            config or small_config(),
            post=(lambda call: call()) if eager else self.posted.append,
            on_fatal=self.fatal.append,
            keys=keys or self.keys,
            file_system=files,
            open_index=open_index or (lambda path: MemoryIndex(files, path)),
            threads=False,
        )

    def settle(self) -> None:
        """Commit and complete everything that is queued."""
        while self.bookie.commit_pending() or self.posted:
            while self.posted:
                self.posted.popleft()()

    def start_add(
        self,
        ledger_id: int,
        ids: Sequence[int],
        *,
        key: bytes = b"",
        recovery: bool = False,
        lac: int = -1,
        size: int = 40,
    ) -> list[Answer]:
        """Send an add; the list gets its answer."""
        answers: list[Answer] = []
        self.keys.learn(ledger_id, key)
        self.bookie.add(
            make_run(ledger_id, ids, size),
            access_key=key,
            recovery=recovery,
            last_add_confirmed=EntryId(lac),
            done=lambda status, message: answers.append((status, message)),
        )
        return answers

    def add(
        self,
        ledger_id: int,
        ids: Sequence[int],
        *,
        key: bytes = b"",
        recovery: bool = False,
        lac: int = -1,
        size: int = 40,
    ) -> BookieStatus:
        """Add and wait."""
        answers = self.start_add(ledger_id, ids, key=key, recovery=recovery, lac=lac, size=size)
        self.settle()
        (answer,) = answers
        return answer[0]

    def start_fence(self, ledger_id: int, *, key: bytes = b"") -> list[Answer]:
        """Send a fence; the list gets its answer."""
        answers: list[Answer] = []
        self.keys.learn(ledger_id, key)
        self.bookie.fence(
            LedgerId(ledger_id),
            access_key=key,
            done=lambda status, message: answers.append((status, message)),
        )
        return answers

    def fence(self, ledger_id: int, *, key: bytes = b"") -> BookieStatus:
        """Fence and wait."""
        answers = self.start_fence(ledger_id, key=key)
        self.settle()
        (answer,) = answers
        return answer[0]

    def flush(self) -> None:
        """One checkpoint, and what waited for it."""
        self.bookie.flush()
        self.settle()

    def held(self, ledger_id: int) -> dict[int, bytes]:
        """All entries of a ledger with their frames, by list and read."""
        found: dict[int, bytes] = {}
        for first, last in listed(Kept(self.bookie), LedgerId(ledger_id)) or []:
            outcome = self.bookie.read(
                LedgerId(ledger_id), first, last, stride=1, max_bytes=1 << 30
            )
            assert outcome.status is BookieStatus.OK, outcome
            for run in outcome.runs:
                found.update((entry_id, bytes(part)) for entry_id, part in run.split())
        return found

    def lac(self, ledger_id: int) -> int:
        """Last add confirmed."""
        end = self.bookie.end_of_ledger(LedgerId(ledger_id), access_key=b"")
        return end.last_add_confirmed if end.status is BookieStatus.OK else NO_ENTRY

    def is_fenced(self, ledger_id: int) -> bool:
        """Whether the ledger is fenced."""
        return self.bookie.end_of_ledger(LedgerId(ledger_id), access_key=b"").fenced

    def close(self) -> None:
        """Close in order."""
        self.bookie.close()
        while self.posted:
            self.posted.popleft()()


def expected(ledger_id: int, ids: Sequence[int], size: int = 40) -> dict[int, bytes]:
    """What ``held`` returns for these entries."""
    return {entry_id: frame(ledger_id, entry_id, size) for entry_id in ids}
