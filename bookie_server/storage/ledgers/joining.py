"""Joining of small runs that become one block of an entry log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from bookie_server.storage.blocks import encode_run
from bookie_server.storage.ledgers.write_cache import CachedRun
from spark_ledger.limits import KIB
from spark_ledger.runs import EntryRun

_JOIN_BELOW_BYTES: Final = 64 * KIB
"""Runs below this are joined with their neighbours: fewer rows, fewer reads."""
_JOINED_BYTES_MAX: Final = 256 * KIB
"""Largest block that is made by joining; a point read has to read all of it."""


def joined(runs: Iterable[CachedRun]) -> Iterator[CachedRun]:
    """The runs in order; small ones become one, also over gaps.

    Where an ensemble is larger than its write quorum a bookie has only some of the entries, and
    each add would have a row of its own.
    """
    group: list[CachedRun] = []
    group_bytes = 0
    for cached in runs:
        size = cached.block.length
        small = size < _JOIN_BELOW_BYTES and cached.place is None
        if group and not (small and group_bytes + size <= _JOINED_BYTES_MAX):
            yield _join(group)
            group, group_bytes = [], 0
        if not small:
            yield cached
            continue
        group.append(cached)
        group_bytes += size
    if group:
        yield _join(group)


def _join(group: list[CachedRun]) -> CachedRun:
    if len(group) == 1:
        return group[0]
    first = group[0].run
    ids: list[int] = []
    sizes: list[int] = []
    for cached in group:
        ids.extend(cached.run.ids())
        sizes.extend(cached.run.sizes)
    frames = b"".join([cached.run.frames for cached in group])
    gaps = ids if ids[-1] - ids[0] >= len(ids) else None
    run = EntryRun(first.ledger_id, first.first_entry, gaps, sizes, frames)
    last_add_confirmed = max(cached.last_add_confirmed for cached in group)
    return CachedRun(run, last_add_confirmed, encode_run(run, last_add_confirmed))
