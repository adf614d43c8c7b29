"""Who this bookie is in its cluster: made once by format, checked at every start, announced while
it serves.

The directories hold cookies (``storage.cookie``); the metadata store holds one more per bookie.
A bookie serves only if all of them agree, so a disk from elsewhere, an empty disk under a known
name, or a bookie that was removed from the cluster never answers for data it does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from bookie_server.config import BookieConfig
from bookie_server.daemon_thread import in_daemon_thread
from bookie_server.leaving import WITHOUT_COOKIE, why_left
from bookie_server.storage.cookie import (
    COOKIE_NAME,
    Cookie,
    check_cookies,
    format_directories,
    unfinished_id,
)
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.errors import (
    BookieReplacedError,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    NotFoundError,
)
from spark_ledger.limits.bookie import BOOKIE_REFRESH_INTERVAL_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry, check_bookie_id
from spark_ledger.metadata.cluster import ensure_cluster, read_cluster
from spark_ledger.metadata.collection import collection_path, order_path
from spark_ledger.metadata.cookies import (
    BookieCookie,
    cookie_path,
    decode_cookie,
    encode_cookie,
    leaving_path,
    left_path,
)
from spark_ledger.tasks import cancel, wait_at_most
from spark_ledger.types import BookieId, BookieInfo, BookieState

logger = logging.getLogger(__name__)

REASON_CHARACTERS_MAX: Final = 300
"""A sentence with a path; a node of the metadata store has no room for a log."""

_FREE_SPACE_CHANGE: Final = 0.05
"""Free space is announced again when it has moved by this share; placement needs no more."""


def is_formatted(config: BookieConfig) -> bool:
    """A bookie was formatted: the journal directory is given its cookie last.

    Raises ConfigurationError if that cannot be seen, as in a directory of another user.
    """
    path = config.journal_directory / COOKIE_NAME
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    return True


def local_cookie(config: BookieConfig) -> Cookie:
    """The identity in the directories.

    Raises ConfigurationError if they hold no bookie or another one, CorruptionError if a cookie is
    damaged.
    """
    return check_cookies(
        PosixFileSystem(),
        config.journal_directory,
        config.ledger_directories,
        bookie_id=config.bookie_id,
    )


async def format_new(config: BookieConfig, store: MetadataStore) -> Cookie:
    """Make a new bookie: its name in the cluster, then its directories.

    When that fails nothing is left behind, and what is left by a format that was killed is taken
    for its beginning. Raises ConfigurationError if the name is taken, or who had it runs still, or
    a directory is not empty or cannot be made or looked into; otherwise what the metadata store
    raises.
    """
    files, ledger_directories = PosixFileSystem(), config.ledger_directories

    def begun() -> str:
        return "" if is_formatted(config) else unfinished_id(files, ledger_directories)

    begun_id = await in_daemon_thread(begun)
    begun_id = config.bookie_id or begun_id
    bookie_id = check_bookie_id(begun_id or f"bookie-{secrets.token_hex(8)}")
    cookie = BookieCookie(
        await ensure_cluster(store),
        bookie_id,
        str(config.journal_directory),
        tuple(map(str, ledger_directories)),
        secrets.token_hex(8),
        is_forming=True,
    )
    await _wait_until_vacant(bookie_id, config, store)
    is_new, version = await _take_name(cookie, store)
    try:
        await _check_vacant(bookie_id, store)  # whoever comes from now on meets this cookie
        # Of a bookie of this name, which has left: its mark would look like a restore (rule G4).
        for path_of in (leaving_path, collection_path, order_path):
            with contextlib.suppress(NotFoundError):
                await store.delete(path_of(bookie_id))
        formatted = await in_daemon_thread(
            partial(
                format_directories,
                files,
                config.journal_directory,
                ledger_directories,
                cluster_id=cookie.cluster_id,
                bookie_id=bookie_id,
            )
        )
    except (LedgerError, OSError) as error:
        if is_new:  # else it is that of a format whose directories may be complete
            with contextlib.suppress(LedgerError):  # what is left the next format takes over
                await store.delete(cookie_path(bookie_id), version)
        if isinstance(error, OSError):  # a restart meets it again
            raise ConfigurationError(f"the directories cannot be made: {error}") from error
        raise
    with contextlib.suppress(LedgerError):  # until there is another bookie, it keeps that one out
        await store.delete(left_path(bookie_id))
    with contextlib.suppress(LedgerError):  # the first start does it then
        await _end_forming(cookie, version, store)
    return formatted


async def _wait_until_vacant(
    bookie_id: BookieId, config: BookieConfig, store: MetadataStore
) -> None:
    """As a start does (rule S12), unless the name is taken by who has a cookie: the process of a
    bookie that has left may be dead. Raises ConfigurationError if it lives."""
    with contextlib.suppress(NotFoundError):
        await store.get_latest(cookie_path(bookie_id))
        return
    registry = BookieRegistry(store, session_timeout_s=config.session_timeout_s)
    with contextlib.suppress(BookieReplacedError):
        await registry.wait_until_vacant(bookie_id)
    await _check_vacant(bookie_id, store)


async def _check_vacant(bookie_id: BookieId, store: MetadataStore) -> None:
    """Check that nobody is registered under the name of a bookie that is to be made: one that was
    decommissioned, and runs, would be writable again, and then the new one, which has nothing, in
    its place (rule R10). Raises ConfigurationError."""
    info = await BookieRegistry(store).get(bookie_id)
    if info is not None:
        raise ConfigurationError(
            f"bookie id {bookie_id!r} is taken in this cluster, by who is registered at "
            f"{info.address}: choose another bookie_id, or if that bookie was decommissioned, stop "
            "it, and repeat"
        )


async def _take_name(cookie: BookieCookie, store: MetadataStore) -> tuple[bool, int]:
    """Make the name that of this format: whether nobody had it, and the version of the cookie.

    A format in the same directories that never ended has stored nothing under it.
    """
    bookie_id, data = BookieId(cookie.bookie_id), encode_cookie(cookie)
    try:
        await BookieRegistry(store).create_cookie(bookie_id, data)
    except ConflictError as error:
        node = await store.get_latest(cookie_path(bookie_id))
        known = decode_cookie(bookie_id, node.value)
        # Of a name without a bookie `ledger cluster restored` knows no more than of others.
        marked = msgspec.structs.replace(cookie, accepts_newer=known.accepts_newer)
        if known != msgspec.structs.replace(marked, incarnation=known.incarnation):
            raise ConfigurationError(
                f"bookie id {bookie_id!r} is taken in this cluster: choose another bookie_id, or "
                f"if that bookie's disks are lost, run `ledger bookies decommission {bookie_id}` "
                "first"
            ) from error
        data = encode_cookie(marked)
        return False, await store.put(cookie_path(bookie_id), data, node.version)
    return True, 0


async def _end_forming(
    cookie: BookieCookie, version: int, store: MetadataStore
) -> tuple[BookieCookie, int]:
    """Note that the format has ended: from now on empty directories are not this bookie's."""
    ended = msgspec.structs.replace(cookie, is_forming=False)
    return ended, await store.put(
        cookie_path(BookieId(cookie.bookie_id)), encode_cookie(ended), version
    )


async def check_cluster(cookie: Cookie, store: MetadataStore) -> None:
    """Check that the store is that of the directories' cluster. Raises ConfigurationError if not,
    otherwise what the metadata store raises."""
    try:
        cluster_id = await read_cluster(store)
    except NotFoundError as error:
        raise ConfigurationError(
            f"bookie {cookie.bookie_id} belongs to cluster {cookie.cluster_id}, and {error}"
        ) from error
    if cluster_id != cookie.cluster_id:
        raise ConfigurationError(
            f"bookie {cookie.bookie_id} belongs to cluster {cookie.cluster_id}, but `metadata` "
            f"names cluster {cluster_id}: correct it, or the directories"
        )


async def check_identity(cookie: Cookie, store: MetadataStore) -> tuple[BookieCookie, int]:
    """Compare the directories' identity with the cluster's; the cluster's cookie and its version.

    A format that was killed behind its directories ends here, before they serve. Raises
    ConfigurationError if they differ, otherwise what the metadata store raises.
    """
    await check_cluster(cookie, store)
    bookie_id = BookieId(cookie.bookie_id)
    try:
        node = await store.get_latest(cookie_path(bookie_id))
        known = decode_cookie(bookie_id, node.value)
    except NotFoundError as error:
        why = f"bookie {bookie_id} was removed from its cluster, or its format never finished: "
        raise ConfigurationError(
            await why_left(store, bookie_id) or why + WITHOUT_COOKIE
        ) from error
    except CorruptionError as error:
        raise ConfigurationError(str(error)) from error
    here = (cookie.journal_directory, *cookie.ledger_directories)
    there = (known.journal_directory, *known.ledger_directories)
    if here != there:
        raise ConfigurationError(
            f"bookie {bookie_id} was formatted in {', '.join(here)}, but the cluster knows it in "
            f"{', '.join(there)}: another bookie may have the same name"
        )
    if known.is_forming:
        return await _end_forming(known, node.version, store)
    return known, node.version


class Registration:
    """Keeps this bookie announced, with its state and its free space up to date.

    Everything here belongs to the service thread.
    """

    def __init__(
        self,
        registry: BookieRegistry,
        info: BookieInfo,
        *,
        state: Callable[[], BookieState],
        free_bytes: Callable[[], int],
        reason: Callable[[], str] = lambda: "",
    ) -> None:
        """``free_bytes`` is asked on the loop, so it asks no disk: one that hangs would stop it."""
        self._registry = registry
        self._info = info
        self._state = state
        self._free_bytes = free_bytes
        self._reason = reason
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Announce this bookie, and refresh that from now on.

        Raises BookieReplacedError if another process is registered and does not go, and what the
        metadata store raises.
        """
        self._info = self._now()
        try:
            await self._registry.register(self._info)
        except BookieReplacedError:
            # A process that had lost its session, and came back in this moment. This one has noted
            # its start already, so the other one has to go (rule S13).
            await self._registry.wait_until_vacant(self._info.bookie_id)
            await self._registry.register(self._info)
        self._task = asyncio.get_running_loop().create_task(self._refresh())

    def refresh_soon(self) -> None:
        """Announce what has changed at once, and not at the next interval."""
        self._wanted.set()

    def _now(self) -> BookieInfo:
        """What to announce."""
        return replace(
            self._info,
            state=self._state(),
            free_bytes=self._free_bytes(),
            reason=self._reason()[:REASON_CHARACTERS_MAX],
        )

    async def stop(self) -> None:
        """Withdraw. A store that cannot be reached is no error: the session ends by itself."""
        if self._task is None:
            return
        await cancel(self._task)
        try:
            await self._registry.deregister()
        except LedgerError as error:
            logger.warning("not withdrawn from the metadata store, its session will end: %s", error)

    async def _refresh(self) -> None:
        while True:
            await wait_at_most(self._wanted, BOOKIE_REFRESH_INTERVAL_S)
            self._wanted.clear()
            info = self._now()
            moved = abs(info.free_bytes - self._info.free_bytes) > (
                _FREE_SPACE_CHANGE * max(info.free_bytes, self._info.free_bytes)
            )
            # The numbers in a reason change all the time: it is news when it comes or goes.
            is_same = (info.state, bool(info.reason)) == (self._info.state, bool(self._info.reason))
            if is_same and not moved:
                continue
            try:
                await self._registry.register(info)
            except LedgerError as error:  # whatever it is: nobody else says what has changed
                logger.warning("the registration is not up to date: %s", error)
                continue
            if info.state is not self._info.state:
                logger.warning("this bookie is %s now", info.state.value)
            self._info = info
