"""Identity of a bookie's directories: a cookie in each, and a lock while in use (rule S10).

The cookie, ``bookie.json``, is written by ``format_directories`` and never changed. It holds the
bookie id, which is the configured name or made at random. The metadata store keeps a cookie of each
bookie id (``registration``) and refuses to format it twice, so a bookie that lost its disk comes
back under another id, and not as an empty bookie under a trusted one.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from bookie_server.storage.fs.vfs import (
    TEMPORARY_SUFFIX,
    FileSystem,
    Lock,
    read_file,
    write_file_durably,
)
from bookie_server.storage.index.base import Index
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import BookieId

COOKIE_NAME: Final = "bookie.json"
LOCK_NAME: Final = "lock"
INDEX_NAME: Final = "index"
JOURNAL_ROLE: Final = "journal"
FORMAT_VERSION: Final = 1
_COOKIE_BYTES_MAX: Final = 64 * KIB
_NOT_OURS: Final = frozenset({LOCK_NAME, "lost+found", COOKIE_NAME + TEMPORARY_SUFFIX})
"""Names that do not make a directory count as used."""


class Cookie(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is written into every directory: equal but for ``role``.

    ``role`` is "journal", or "ledgers-0", "ledgers-1", ... in the order of ``ledger_directories``.
    """

    format_version: int
    cluster_id: str
    bookie_id: str
    journal_directory: str
    ledger_directories: tuple[str, ...]
    role: str


def format_directories(
    file_system: FileSystem,
    journal_directory: Path,
    ledger_directories: Sequence[Path],
    *,
    cluster_id: str,
    bookie_id: BookieId | None = None,
) -> Cookie:
    """Make the directories of a new, empty bookie, and return its journal's cookie.

    ``bookie_id`` is made at random unless it is given. The journal's cookie is written last: where
    it is, all are. Raises ConfigurationError if a directory holds anything, but for the cookie of a
    format of this id that was killed, or is in use; OSError if the disk fails, and then no cookie
    is left.
    """
    roles = _roles(journal_directory, ledger_directories)
    for directory, role in roles.items():
        file_system.mkdir(directory)
        content = _content(file_system, directory)
        is_begun = content == [COOKIE_NAME] and role != JOURNAL_ROLE
        if content and not (
            is_begun and read_cookie(file_system, directory).bookie_id == bookie_id
        ):
            raise ConfigurationError(
                f"directory {directory} is not empty (it holds {content[0]}): "
                "choose another, or empty it if nothing in it is needed"
            )
    locks = lock_directories(file_system, list(roles))
    try:
        chosen = bookie_id or BookieId(f"bookie-{secrets.token_hex(8)}")
        for directory, role in reversed(roles.items()):
            cookie = Cookie(
                FORMAT_VERSION,
                cluster_id,
                chosen,
                str(journal_directory),
                tuple(map(str, ledger_directories)),
                role,
            )
            content_bytes = msgspec.json.format(msgspec.json.encode(cookie)) + b"\n"
            write_file_durably(file_system, directory / COOKIE_NAME, content_bytes)
            file_system.sync_directory(directory.parent)
    except OSError:
        # What was begun would be taken for a bookie, and no later format would go on with it.
        for directory in roles:
            for name in (COOKIE_NAME, COOKIE_NAME + TEMPORARY_SUFFIX):
                with suppress(OSError):
                    file_system.remove(directory / name)
        raise
    finally:
        for lock in locks:
            lock.release()
    return read_cookie(file_system, journal_directory)


def unfinished_id(file_system: FileSystem, ledger_directories: Sequence[Path]) -> str:
    """The id of a format that was killed before its end, from a directory that holds its cookie
    and nothing else; empty if there is none."""
    for directory in ledger_directories:
        with suppress(OSError, ConfigurationError, CorruptionError):
            if _content(file_system, directory) == [COOKIE_NAME]:
                return read_cookie(file_system, directory).bookie_id
    return ""


def _content(file_system: FileSystem, directory: Path) -> list[str]:
    return [name for name in file_system.list(directory) if name not in _NOT_OURS]


def read_cookie(file_system: FileSystem, directory: Path) -> Cookie:
    """The cookie of a directory.

    Raises ConfigurationError if there is none or it is of another version, CorruptionError if it
    cannot be understood.
    """
    path = directory / COOKIE_NAME
    try:
        data = read_file(file_system, path, size_max=_COOKIE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"directory {directory} has no {COOKIE_NAME}: it was never formatted, or the disk is "
            "not mounted; format a new bookie with `ledger bookie format`"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    try:
        cookie = msgspec.json.decode(data, type=Cookie)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"{path} is damaged: {error}") from error
    if cookie.format_version != FORMAT_VERSION:
        raise ConfigurationError(
            f"{path} has format version {cookie.format_version}, this program reads "
            f"{FORMAT_VERSION}: use the version that wrote it"
        )
    return cookie


def check_cookies(
    file_system: FileSystem,
    journal_directory: Path,
    ledger_directories: Sequence[Path],
    *,
    bookie_id: str = "",
    cluster_id: str = "",
) -> Cookie:
    """The journal's cookie, once all directories have shown that they are this bookie's.

    Empty ids are not compared with the configuration. Raises ConfigurationError, which names the
    first directory that is not this bookie's, CorruptionError if a cookie is damaged.
    """
    assert ledger_directories, "a bookie has a ledger directory"
    journal_cookie = read_cookie(file_system, journal_directory)
    wanted_id = bookie_id or journal_cookie.bookie_id
    wanted_cluster = cluster_id or journal_cookie.cluster_id
    count = len(journal_cookie.ledger_directories)
    if count != len(ledger_directories):
        raise ConfigurationError(
            f"this bookie was formatted with {count} ledger directories, the configuration names "
            f"{len(ledger_directories)}: ledgers are placed by their number, so it cannot change"
        )
    for directory, role in _roles(journal_directory, ledger_directories).items():
        cookie = read_cookie(file_system, directory)
        for what, found, wanted in (
            ("bookie", cookie.bookie_id, wanted_id),
            ("cluster", cookie.cluster_id, wanted_cluster),
            ("role", cookie.role, role),
        ):
            if found != wanted:
                raise ConfigurationError(
                    f"directory {directory} belongs to {what} {found}, not to {wanted}: "
                    "check the configured directories and what is mounted there"
                )
    return journal_cookie


def claim_index(index: Index, cookie: Cookie) -> None:
    """Have the index in the ledger directory with this cookie say whose it is: it may be on another
    disk, and be exchanged with that of another directory.

    Raises ConfigurationError if it is another's. One that an older program made does not say so: it
    is asked for its first ledger. Otherwise what the index raises.
    """
    index.claim(f"{cookie.role} of bookie {cookie.bookie_id} in cluster {cookie.cluster_id}")
    for held in index.held_ledgers(-1, 1):
        home = f"ledgers-{held.ledger_id % len(cookie.ledger_directories)}"
        if home != cookie.role:
            raise ConfigurationError(
                f"the index in directory {cookie.role} of bookie {cookie.bookie_id} is that of "
                f"{home}, where ledger {held.ledger_id} lives: check what is mounted there, and "
                "where links lead"
            )


def lock_directories(file_system: FileSystem, directories: Sequence[Path]) -> list[Lock]:
    """Lock all directories for this process.

    Raises ConfigurationError, which names a directory that is in use or cannot be used.
    """
    locks: list[Lock] = []
    try:
        for directory in directories:
            try:
                locks.append(file_system.lock(directory / LOCK_NAME))
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"directory {directory} is in use by another bookie process"
                ) from error
            except OSError as error:
                raise ConfigurationError(
                    f"directory {directory} cannot be used: {error}"
                ) from error
    except ConfigurationError:
        for lock in locks:
            lock.release()
        raise
    assert len(locks) == len(directories), "every directory is locked, or none"
    return locks


def _roles(journal_directory: Path, ledger_directories: Sequence[Path]) -> dict[Path, str]:
    roles = {journal_directory: JOURNAL_ROLE}
    for number, directory in enumerate(ledger_directories):
        roles[directory] = f"ledgers-{number}"
    if len(roles) != len(ledger_directories) + 1:
        raise ConfigurationError("journal and ledger directories must all be different")
    return roles
