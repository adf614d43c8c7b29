"""Whether directories are the ones that served last: what a start, and a running bookie, decide.

Pure. Every start of a bookie has a number and a random nonce, noted in each directory and in the
cluster's cookie (rule S13). The nonce begins with letters of the bookie's own. So an
older copy knows an older start, and a directory that was copied is another directory than the one
that the last start has noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieStart, DirectoryPlace

_RELOCATE = (
    "if this is the only copy that is left, and the newest, run `ledger bookie relocate --config "
    "FILE`; otherwise start the bookie where it was"
)


class KnownStart(NamedTuple):
    """What the cluster's cookie says of the last start."""

    start: BookieStart | None
    """None before the first start."""

    is_confirmed: bool
    """Whether every directory has noted it as its own. If not, the start was interrupted."""

    places: Sequence[DirectoryPlace] = ()
    accepts_newer: bool = False
    """The cluster was restored from a backup: a directory may know later starts."""

    made_as: str = ""
    """The letters of the bookie's format; empty: not known."""


class DirectoryStart(NamedTuple):
    """What one directory says of the last start, and which directory it is."""

    place: DirectoryPlace
    noted: DirectoryPlace | None
    """Which directory the last start has noted."""

    current: BookieStart | None
    pending: BookieStart | None
    """A start that has begun, and may not have reached the cluster."""

    def knows(self, known: KnownStart) -> bool:
        """The directory took part in the last start that the cluster knows of."""
        if self.current == known.start:
            return True
        return not known.is_confirmed and self.pending == known.start


class Standing(Enum):
    """What a running bookie is, by the cluster's cookie."""

    OURS = "ours"
    REPLACED = "replaced"
    CLUSTER_IS_OLDER = "cluster is older"


def check_starts(bookie_id: str, known: KnownStart, directories: Sequence[DirectoryStart]) -> None:
    """Check that every directory knows the last start (rule S13): that of the cluster, or, where
    the cluster accepts newer ones, all the same one.

    Raises ConfigurationError, which says what the directory is, what is newer, and what to do.
    """
    for directory in directories:
        if directory.knows(known):
            continue
        where, here, there = directory.place.path, directory.current, known.start
        if is_of_another(known, here):
            raise ConfigurationError(
                f"directory {where} is of another bookie than the one that the cluster knows as "
                f"{bookie_id}: of the two, one was formatted when the other had left. If ZooKeeper "
                "was restored from a backup that is older than this one's format, keep this one's "
                f"directories, run `ledger bookies decommission {bookie_id}`, and when that has "
                "ended `ledger bookie relocate --config FILE`; if it does not end, since ledgers "
                "have copies on such bookies only, restore a backup that is younger than their "
                "formats; otherwise format a new bookie"
            )
        if here is None:
            assert there is not None, "a directory without starts knows a cluster without"
            raise ConfigurationError(
                f"directory {where} knows no start of bookie {bookie_id}, and the cluster knows "
                f"start {there.counter}: it is an older copy, or was made anew; start the "
                "directories that served last, or format a new bookie under another name"
            )
        if there is None or here.counter > there.counter:
            if known.accepts_newer:
                continue
            raise ConfigurationError(
                f"directory {where} of bookie {bookie_id} knows start {here.counter}, and the "
                f"cluster only start {there.counter if there else 0}: ZooKeeper was restored from "
                "a backup that is older than this bookie's last start; run `ledger cluster "
                "restored`, then start again"
            )
        if here.counter == there.counter and known.accepts_newer:
            continue
        what = (
            f"is an older copy: it knows start {here.counter}, and the cluster start "
            f"{there.counter}. What was acknowledged since is missing in it"
            if here.counter < there.counter
            else f"is a copy: its start {here.counter} is not the one that the cluster knows"
        )
        raise ConfigurationError(
            f"directory {where} of bookie {bookie_id} {what}; start the directories that served "
            "last, or if they are lost, format a new bookie under another name"
        )
    _check_together(bookie_id, directories)


def _check_together(bookie_id: str, directories: Sequence[DirectoryStart]) -> None:
    """Check that no directory is older than another. Each start notes itself everywhere as pending
    before it is current anywhere, so that is a copy, whatever a restored cluster knows."""
    newest = max(directories, key=_current_counter)
    for directory in directories:
        if newest.current in (None, directory.current, directory.pending):
            continue
        number, newest_number = _current_counter(directory), _current_counter(newest)
        if directory.current is None:
            what = f"knows no start, and {newest.place.path} start {newest_number}: it is an older "
            what += "copy, or was made anew"
        elif number < newest_number:
            what = f"is an older copy: it knows start {number}, and {newest.place.path} start "
            what += f"{newest_number}. What was acknowledged since is missing in it"
        else:
            what = f"is a copy: its start {number} is not that of {newest.place.path}"
        raise ConfigurationError(
            f"directory {directory.place.path} of bookie {bookie_id} {what}; start the directories "
            "that served last, or if they are lost, format a new bookie under another name"
        )


def _current_counter(directory: DirectoryStart) -> int:
    return 0 if directory.current is None else directory.current.counter


def settled(
    known: KnownStart, directory: DirectoryStart, directories: Sequence[DirectoryStart]
) -> BookieStart | None:
    """The start that a directory goes on from: its current one, or a pending one that was
    interrupted and counts, as the cluster knows it or another directory has it as current.

    The cluster may have been restored since, so that it knows neither."""
    counts = [known.start, *(each.current for each in directories)]
    if directory.pending is None or directory.pending not in counts:
        return directory.current
    return directory.pending


def check_places(
    bookie_id: str,
    known: KnownStart,
    directories: Sequence[DirectoryStart],
    formatted: Sequence[str],
) -> None:
    """Check that every directory is the one that the last start has noted, not a copy of it.

    ``formatted``: the paths at format time, which count for a bookie that never started.
    Raises ConfigurationError, which says what the directory is and what to do.
    """
    assert len(formatted) == len(directories), "as many directories as were formatted"
    noted_there = known.places if len(known.places) == len(directories) else [None] * len(formatted)
    for directory, path, there in zip(directories, formatted, noted_there, strict=True):
        now = directory.place
        if directory.noted is None and now.path != path:
            raise ConfigurationError(
                f"directory {now.path} was made as {path} for bookie {bookie_id}: it was moved, or "
                f"is a copy; {_RELOCATE}"
            )
        for then in (directory.noted, None if known.accepts_newer else there):
            if then is None or _is_same(now, then):
                continue
            what = (
                f"was {then.path} when bookie {bookie_id} last started: it was moved, or is a copy"
                if now.path != then.path
                else f"is not the one in which bookie {bookie_id} last started: it was copied, or "
                "restored from a backup"
            )
            raise ConfigurationError(f"directory {now.path} {what}; {_RELOCATE}")


def is_of_another(known: KnownStart, own: BookieStart | None, made_as: str = "") -> bool:
    """Whether the cluster's cookie is of another bookie than the one that has started as ``own``:
    they had one name, one after the other (rule S13). ``made_as``: the letters of its format, if
    they are known.

    All starts of a bookie have its letters in front, and a cookie without a start has those of its
    format; starts of older programs have none, and do not tell."""
    there = known.made_as if known.start is None else _lineage(known.start)
    here = {letters for letters in (_lineage(own), made_as) if letters}
    return bool(here) and bool(there) and there not in here


def _lineage(start: BookieStart | None) -> str | None:
    letters, dash, _ = start.nonce.partition("-") if start is not None else ("", "", "")
    return letters if dash else None


def next_nonce(
    known: KnownStart, directories: Sequence[DirectoryStart], made_as: str, token: str
) -> str:
    """The letters of a new start, behind those of the first start that anybody has noted; of the
    first one these are ``made_as``, which the cluster has from the bookie's format. So they are the
    same again behind a start of an older program, which notes none."""
    return f"{letters_noted(directories) or _lineage(known.start) or made_as}-{token}"


def letters_noted(directories: Sequence[DirectoryStart]) -> str:
    """The letters of the first start that a directory has noted; empty if none has any."""
    starts = [directory.current for directory in directories]
    starts += [directory.pending for directory in directories]
    return next((letters for letters in map(_lineage, starts) if letters), "")


def next_counter(known: KnownStart, directories: Sequence[DirectoryStart]) -> int:
    """The number of a new start: above every one that anybody has noted."""
    starts = [known.start]
    for directory in directories:
        starts += [directory.current, directory.pending]
    return max((start.counter for start in starts if start is not None), default=0) + 1


def is_unresolved(known: KnownStart, directories: Sequence[DirectoryStart]) -> bool:
    """Whether a start was interrupted whose note in the cluster's cookie may still arrive."""
    return any(
        directory.pending is not None and directory.pending != known.start
        for directory in directories
    )


def standing(own: BookieStart | None, known: KnownStart | None, made_as: str = "") -> Standing:
    """What a bookie that serves since start ``own`` is. ``known``: None without a cookie.
    ``made_as``: the letters of its format, if they are known.

    A cookie that is older than the bookie says nothing of another process: a store that was
    restored, or a server that lags. A later start is another process. Another bookie of the name is
    one that a restored store has in place of this one, or that was formatted when this one had left
    (rule S13): it may have not started yet.
    """
    if known is not None and is_of_another(known, own, made_as):
        return Standing.REPLACED
    if known is not None and known.start == own:
        return Standing.OURS
    if known is None or known.start is None:
        return Standing.CLUSTER_IS_OLDER
    is_older = own is not None and known.start.counter < own.counter
    return Standing.CLUSTER_IS_OLDER if is_older else Standing.REPLACED


def _is_same(now: DirectoryPlace, then: DirectoryPlace) -> bool:
    """The same directory with the same cookie in it."""
    return (
        (now.path, now.inode, now.cookie_inode) == (then.path, then.inode, then.cookie_inode)
        and _is_same_birth(now.born_ns, then.born_ns)
        and _is_same_birth(now.cookie_born_ns, then.cookie_born_ns)
    )


def _is_same_birth(now_ns: int, then_ns: int) -> bool:
    """0: the file system does not tell."""
    return now_ns == then_ns or not now_ns or not then_ns
