"""Moving a bookie: an operator says that these directories are the bookie's, and every other copy
is not.

A start refuses directories that were moved, because it cannot tell them from a copy (rule S13).
"""

from __future__ import annotations

import contextlib
import secrets

from bookie_server.config import BookieConfig
from bookie_server.identity import Identity
from bookie_server.registration import check_cluster, local_cookie
from bookie_server.storage.cookie import Cookie, lock_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.errors import ConfigurationError, NotFoundError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import (
    BookieCookie,
    cookie_path,
    encode_cookie,
    leaving_path,
    left_path,
)
from spark_ledger.types import BookieId


async def relocate(config: BookieConfig, store: MetadataStore) -> str:
    """Note a start from the configured directories; a sentence that says so.

    They must be complete, unused, and know the last start that the cluster knows: what is older
    lacks acknowledged entries, and stays refused. The bookie must not be registered. A cookie that
    the cluster has lost is made again, also if an operator took the bookie out.

    Raises ConfigurationError, CorruptionError, or what the metadata store raises.
    """
    files, cookie = PosixFileSystem(), local_cookie(config)
    bookie_id = BookieId(cookie.bookie_id)
    directories = [config.journal_directory, *config.ledger_directories]
    locks = lock_directories(files, directories)
    try:
        await check_cluster(cookie, store)
        info = await BookieRegistry(store).get(bookie_id)
        if info is not None:
            raise ConfigurationError(
                f"bookie {bookie_id} is registered at {info.address}: stop it, or wait until the "
                "session of its dead process has ended, and repeat"
            )
        identity = Identity(cookie, directories, store, files, is_moved=True)
        if await _make_missing_cookie(cookie, await identity.letters(), store):
            with contextlib.suppress(
                NotFoundError
            ):  # its name's, of before: who has a cookie stays
                await store.delete(leaving_path(bookie_id))
        with contextlib.suppress(NotFoundError):  # it is a bookie of the cluster (rule R10)
            await store.delete(left_path(bookie_id))
        await identity.check()
        if not await identity.claim():
            raise ConfigurationError(
                f"a disk of bookie {bookie_id} is full, so the move cannot be noted: make room "
                "there, and repeat"
            )
    finally:
        for lock in locks:
            lock.release()
    counter = identity.start.counter if identity.start else 0
    names = ", ".join(map(str, directories))
    return f"bookie {bookie_id} is in {names} (start {counter}); every other copy is refused"


async def _make_missing_cookie(cookie: Cookie, letters: str, store: MetadataStore) -> bool:
    """ZooKeeper was restored from a backup that is older than the bookie, whose starts have these
    letters: with others it would be another bookie's (rule S13). Whether it was missing."""
    bookie_id = BookieId(cookie.bookie_id)
    try:
        await store.get_latest(cookie_path(bookie_id))
    except NotFoundError:
        made = BookieCookie(
            cookie.cluster_id,
            cookie.bookie_id,
            cookie.journal_directory,
            cookie.ledger_directories,
            letters or secrets.token_hex(8),
            accepts_newer=True,
        )
        await BookieRegistry(store).create_cookie(bookie_id, encode_cookie(made))
        return True
    return False
