"""LMDB's errors as those of every index: OSError and CorruptionError."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from spark_ledger.errors import CorruptionError


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn LMDB's errors into OSError and CorruptionError that name the directory."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise OSError(errno.ENOSPC, f"index {path}: {error} (see index_map_bytes)") from error
    except lmdb.DiskError as error:  # ENOSPC: nothing was committed, the old pages are in use
        raise OSError(errno.ENOSPC, f"index {path}: {error}") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
        raise CorruptionError(f"index {path} is damaged: {error}") from error
    except lmdb.Error as error:
        raise OSError(errno.EIO, f"index {path}: {error}") from error
