"""The right of one process to be its bookie: claimed at its start, watched, released at its stop.

Each start has a number, of which the directories and the cluster's cookie take note in four steps,
so that a crash between two of them leaves what the next start recognises, and a copy of the
directories is recognised as one (rule S13):

1. every directory: start n + 1 is pending
2. the cluster's cookie, by compare-and-set: start n + 1, not confirmed
3. every directory: start n + 1 is current
4. the cluster's cookie: confirmed; only then does the bookie serve

A start that finds another one pending writes the cookie once more before it begins: whatever the
interrupted start has sent and nobody has seen yet fails then, by the cookie's version.

A clean stop takes the same steps, so that a copy made while the bookie ran is older than it. When
the cluster was restored and accepts newer starts, the bookie that runs notes its own once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bookie_server.core.identity import (
    DirectoryStart,
    KnownStart,
    Standing,
    check_places,
    check_starts,
    is_of_another,
    is_unresolved,
    letters_noted,
    next_counter,
    next_nonce,
    settled,
    standing,
)
from bookie_server.leaving import why_left
from bookie_server.registration import check_identity
from bookie_server.storage.cookie import Cookie
from bookie_server.storage.fs.vfs import FileSystem, is_no_space
from bookie_server.storage.start_record import read_start, write_start
from spark_ledger.errors import (
    BookieReplacedError,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits.metadata import METADATA_ATTEMPTS, REGISTER_RETRY_DELAY_S
from spark_ledger.metadata.base import MetadataStore, Watch
from spark_ledger.metadata.cookies import BookieCookie, cookie_path, decode_cookie, encode_cookie
from spark_ledger.tasks import cancel
from spark_ledger.types import BookieId, BookieStart, DirectoryPlace, Versioned

OnDisk = Callable[[Callable[[], None]], Awaitable[None]]

logger = logging.getLogger(__name__)

_NO_START: Final = KnownStart(None, is_confirmed=True)


async def _at_once(work: Callable[[], None]) -> None:
    work()


class Identity:
    """One process's claim to a bookie. Belongs to the service thread."""

    def __init__(
        self,
        cookie: Cookie,
        directories: Sequence[Path],
        store: MetadataStore,
        files: FileSystem,
        *,
        on_disk: OnDisk = _at_once,
        is_moved: bool = False,
    ) -> None:
        """``directories``: the journal's, then the ledgers', as configured. ``on_disk`` runs a
        piece of disk work. ``is_moved``: the directories may be others than at the last start."""
        self._cookie = cookie
        self._bookie_id = BookieId(cookie.bookie_id)
        self._formatted = (cookie.journal_directory, *cookie.ledger_directories)
        self._directories = directories
        self._store = store
        self._files = files
        self._on_disk = on_disk
        self._is_moved = is_moved
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_claimed = False
        self.start: BookieStart | None = None
        """The start that was claimed; None on a full disk that never noted one."""
        self._incarnation = ""
        """In the cluster's cookie when the start was claimed."""
        self._noted: BookieCookie | None = None
        """The cluster's cookie as this start left it; None if it could not note itself."""
        self._accepted_restores = 0
        """How many the store had told of when an operator last ran ``ledger cluster restored``; 0
        if the cluster is older since."""

    @property
    def is_restore_accepted(self) -> bool:
        """An operator has accepted the last restore of which the store told."""
        return 0 < self._accepted_restores == self._store.restores

    async def letters(self) -> str:
        """Those in front of every start that the directories know; empty if they know none. Raises
        ConfigurationError if that cannot be read, CorruptionError."""
        return letters_noted(await self._read())

    async def check(self) -> None:
        """Check that these directories may serve, before anything in them is changed.

        Raises ConfigurationError if they are a copy, or if they or the cluster's cookie are older
        than the other; CorruptionError, or what the metadata store raises.
        """
        cookie, _ = await check_identity(self._cookie, self._store)
        self._check(_known(cookie), await self._read())

    async def claim(self) -> bool:
        """Take note of a new start, everywhere. This process holds the locks of the directories.

        False if a disk is full: then the bookie serves under the start that all have noted.
        Raises as ``check``, and BookieReplacedError if another process claims the bookie too.
        """
        cookie, version = await check_identity(self._cookie, self._store)
        known, directories = _known(cookie), await self._read()
        self._check(known, directories)
        if is_unresolved(known, directories):
            cookie, version = await self._shut_out(cookie, version)
            known = _known(cookie)
            self._check(known, directories)
        nonce = next_nonce(known, directories, cookie.incarnation, secrets.token_hex(8))
        new = BookieStart(next_counter(known, directories), nonce)
        self.start, self._incarnation = known.start, cookie.incarnation
        is_noted = await self._note_pending(known, directories, new)
        if is_noted:
            await self._take(cookie, version, directories, new)
        self.is_claimed = True
        return is_noted

    async def _take(
        self,
        cookie: BookieCookie,
        version: int,
        directories: Sequence[DirectoryStart],
        new: BookieStart,
    ) -> None:
        """Steps 2 to 4."""
        begun = msgspec.structs.replace(
            cookie,
            start=new,
            is_confirmed=False,
            places=tuple(directory.place for directory in directories),
            accepts_newer=False,
        )
        version = await self._put(begun, version, before=cookie.start)
        self.start, self._noted = new, begun
        if not await self._note_current(directories, new):
            return
        confirmed = msgspec.structs.replace(begun, is_confirmed=True)
        await self._put(confirmed, version, before=new)
        self._noted = confirmed
        logger.info("start %d of bookie %s", new.counter, self._bookie_id)

    async def release(self) -> None:
        """After a clean stop: take note of it like of a start, so that what was copied before is
        older. Raises nothing: without the note, the next start finds the one before."""
        await self.close()
        try:
            await self.claim()
        except (LedgerError, OSError) as error:
            logger.warning("the stop is not noted in the cluster's cookie: %s", error)

    def watch(self, on_replaced: Callable[[str], None]) -> None:
        """From now on call back, with a sentence, if another process claims this bookie."""
        changed = asyncio.Event()
        changed.set()
        self._watch = self._store.watch(cookie_path(self._bookie_id), changed.set)
        self._task = asyncio.get_running_loop().create_task(self._follow(changed, on_replaced))

    async def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()
        if self._task is not None:
            await cancel(self._task)

    async def why_left(self) -> str:
        """Why this bookie is none of its cluster any more; empty: it is one. Raises what the
        metadata store raises."""
        with contextlib.suppress(CorruptionError):  # what cannot be read tells of nobody else
            node = await self._look()
            if node is not None and self._is_of_another(known := _known(node.value)):
                return self._why_replaced(known)
        return await why_left(self._store, self._bookie_id, self._incarnation)

    # -- the directories ---------------------------------------------------------------------------

    async def _read(self) -> list[DirectoryStart]:
        found: list[DirectoryStart] = []

        def read() -> None:
            found.extend(read_start(self._files, directory) for directory in self._directories)

        try:
            await self._on_disk(read)
        except OSError as error:
            raise ConfigurationError(f"the start record cannot be read: {error}") from error
        return found

    def _check(self, known: KnownStart, directories: Sequence[DirectoryStart]) -> None:
        check_starts(self._bookie_id, known, directories)
        if not self._is_moved:
            check_places(self._bookie_id, known, directories, self._formatted)

    async def _note_pending(
        self, known: KnownStart, directories: Sequence[DirectoryStart], new: BookieStart
    ) -> bool:
        """Step 1. What an interrupted start has left pending becomes current in the same write:
        a directory never forgets the start that the cluster knows, or another directory."""
        for path, directory in zip(self._directories, directories, strict=True):
            current = settled(known, directory, directories)
            if not await self._write(path, directory.place, current=current, pending=new):
                return False
        return True

    async def _note_current(self, directories: Sequence[DirectoryStart], new: BookieStart) -> bool:
        """Step 3. Where it fails the start stays pending and is not confirmed, which will do."""
        for path, directory in zip(self._directories, directories, strict=True):
            if not await self._write(path, directory.place, current=new, pending=None):
                return False
        return True

    async def _write(
        self,
        directory: Path,
        place: DirectoryPlace,
        *,
        current: BookieStart | None,
        pending: BookieStart | None,
    ) -> bool:
        """Replace a directory's record; False if its disk is full."""

        def write() -> None:
            write_start(self._files, directory, place=place, current=current, pending=pending)

        try:
            await self._on_disk(write)
        except OSError as error:
            if not is_no_space(error):
                raise ConfigurationError(f"the start cannot be noted: {error}") from error
            logger.warning("the start is not noted in %s, whose disk is full", directory)
            return False
        return True

    # -- the cluster's cookie ----------------------------------------------------------------------

    async def _shut_out(self, cookie: BookieCookie, version: int) -> tuple[BookieCookie, int]:
        """The cookie as it is, at a version that no write of an interrupted start can replace.

        Such a write may be on its way although its process is dead. Were it to arrive once another
        start is pending, no directory would know the start that the cluster knows (rule S13).
        """
        path, data = cookie_path(self._bookie_id), encode_cookie(cookie)
        for _ in range(METADATA_ATTEMPTS):
            try:
                return cookie, await self._store.put(path, data, version)
            except (ConflictError, OutcomeUnknownError):
                node = await self._store.get_latest(path)
            if node.version != version:  # by ours, or by the late one: it is what counts now
                return decode_cookie(self._bookie_id, node.value), node.version
        raise OutcomeUnknownError(f"nobody can tell whether cookie {path!r} was written")

    async def _put(self, cookie: BookieCookie, version: int, *, before: BookieStart | None) -> int:
        """Replace a cookie that says ``before``; its new version."""
        path, data = cookie_path(self._bookie_id), encode_cookie(cookie)
        for _ in range(METADATA_ATTEMPTS):
            try:
                return await self._store.put(path, data, version)
            except (ConflictError, OutcomeUnknownError):
                node = await self._store.get_latest(path)
            if node.value == data:
                return node.version
            version = node.version
            if decode_cookie(self._bookie_id, node.value).start != before:
                raise BookieReplacedError(
                    f"another process has started as bookie {self._bookie_id!r} in this moment: "
                    "one of the two runs on a copy of the directories"
                )
        raise OutcomeUnknownError(f"nobody can tell whether cookie {path!r} was written")

    async def _follow(self, changed: asyncio.Event, on_replaced: Callable[[str], None]) -> None:
        was_older = False
        while True:
            await changed.wait()
            changed.clear()
            restores = self._store.restores  # before the look: what is read may be of one more
            try:
                node = await self._look()
                if self._store.restores != restores:  # found out meanwhile: of which is it?
                    changed.set()
                    continue
                known = _NO_START if node is None else _known(node.value)
                verdict = standing(self.start, known, self._incarnation)
                if node is not None and known.accepts_newer and verdict is not Standing.REPLACED:
                    if await self._note_again(node.version):
                        self._accepted_restores = restores
                    continue
                if node is not None and node.value.is_forming and verdict is not Standing.REPLACED:
                    await self._end_forming(node)
                    continue
            except (RetryableError, ConflictError, OutcomeUnknownError):
                await asyncio.sleep(REGISTER_RETRY_DELAY_S)
                changed.set()
                continue
            except LedgerError:
                logger.exception("the cluster's cookie of this bookie cannot be read")
                continue
            if verdict is Standing.REPLACED:
                on_replaced(self._why_replaced(known))
                return
            is_older = verdict is Standing.CLUSTER_IS_OLDER
            if is_older and not was_older:
                logger.error(
                    "the cluster's cookie of bookie %s is older than this process: ZooKeeper was "
                    "restored from a backup; run `ledger cluster restored`",
                    self._bookie_id,
                )
            was_older = is_older
            if is_older:
                self._accepted_restores = 0

    async def _end_forming(self, node: Versioned[BookieCookie]) -> None:
        """The cookie is of a backup from the middle of the format: with it a format in empty
        directories of the same paths would take the name over (rule S10)."""
        ended = msgspec.structs.replace(node.value, is_forming=False)
        path = cookie_path(self._bookie_id)
        await self._store.put(path, encode_cookie(ended), node.version)

    def _is_of_another(self, known: KnownStart) -> bool:
        return is_of_another(known, self.start, self._incarnation)

    def _why_replaced(self, known: KnownStart) -> str:
        there = known.start
        if self._is_of_another(known):
            return (
                f"the cluster knows another bookie as {self._bookie_id!r}: one of the two was "
                "formatted when the other had left, and ZooKeeper may have been restored since"
            )
        return (
            f"another process has started as bookie {self._bookie_id!r} (start "
            f"{there.counter if there else 0}, this is start "
            f"{self.start.counter if self.start else 0}): one of the two runs on a copy of the "
            "directories"
        )

    async def _look(self) -> Versioned[BookieCookie] | None:
        try:
            node = await self._store.get_latest(cookie_path(self._bookie_id))
        except NotFoundError:
            return None
        return Versioned(decode_cookie(self._bookie_id, node.value), node.version)

    async def _note_again(self, version: int) -> bool:
        """The cluster was restored, and would let any directories of this bookie start whose number
        is not below its own. Those that serve are these: it does not have to (rule S13).

        False if this start could not note itself: the cookie accepts others as before, and nobody
        can tell for which restore."""
        if self._noted is None:
            return False
        await self._store.put(cookie_path(self._bookie_id), encode_cookie(self._noted), version)
        logger.info(
            "start %d of bookie %s is noted again, after ZooKeeper was restored",
            0 if self.start is None else self.start.counter,
            self._bookie_id,
        )
        return True


def _known(cookie: BookieCookie) -> KnownStart:
    start, made_as = cookie.start, cookie.incarnation
    return KnownStart(start, cookie.is_confirmed, cookie.places, cookie.accepts_newer, made_as)
