"""A commit of the index that tells whether anything of it can appear later (rule S14)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import lmdb

from bookie_server.storage.index.base import NotCommittedError
from bookie_server.storage.index.lmdb_errors import found_no_space


def commit_now(environment: Any, transaction: Any, path: Path) -> None:
    """Commit; NotCommittedError if there was no space, and nothing of it can appear later.

    The root is written behind the pages and over an old one, so it takes no block: no space means
    that it was not begun. Where it was, which its number tells, nothing is known.
    """
    number = transaction.id()
    try:
        transaction.commit()
    except lmdb.Error as error:
        if not found_no_space(error, path):
            raise
        with environment.begin() as newest:  # fails as well if the root was not written
            if newest.id() >= number:
                raise
        raise NotCommittedError(errno.ENOSPC, f"index {path}: {error}") from error
