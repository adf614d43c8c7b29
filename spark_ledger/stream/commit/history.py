"""Whether a stream still has the commits that a handle has seen of it. Knows no head.

ZooKeeper can be restored from a backup between two connections. Then the numbers of commits that it
has forgotten are given to others. Commits come one behind the other and never change (rules T2 and
T5), so if the last one that was seen is there, all before it are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchStreamError,
    NotFoundError,
    RetryableError,
)
from spark_ledger.stream.commit.commit_nodes import CommitNodes
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.codec import SegmentListPointer
from spark_ledger.stream.ledgers import Ledgers
from spark_ledger.stream.manifest.store import ManifestStore
from spark_ledger.stream.model import Commit, Head
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.types import EntryId, LedgerId


class _Seen(NamedTuple):
    """The last commit that was seen: what the head behind it tells, and the commit itself too."""

    number: int
    time_ms: int
    totals: tuple[int, int, int]
    """Segments, rows and bytes up to its end."""
    place: tuple[LedgerId, EntryId] | None = None
    """Where its first row is, or its segment list. None: only the head was seen, or it has none."""

    def is_same(self, found: Commit, pointer: SegmentListPointer | None) -> bool:
        """Whether it is this commit. One whose list is elsewhere does not tell its own totals."""
        return (
            self.time_ms == found.time_ms
            and (pointer is not None or self.totals == _totals(found))
            and (self.place is None or self.place == _place(found, pointer))
        )


def _totals(commit: Commit) -> tuple[int, int, int]:
    rows, size_bytes = commit.rows_before + commit.rows, commit.bytes_before + commit.size_bytes
    return commit.end_segment, rows, size_bytes


def _place(commit: Commit, pointer: SegmentListPointer | None) -> tuple[LedgerId, EntryId] | None:
    if pointer is not None:
        return pointer.ledger_id, EntryId(0)
    if not commit.segments:
        return None
    return commit.segments[0].ledger_id, commit.segments[0].first_entry


class History:
    """What a handle has seen of its stream. Bound to one event loop.

    As long as no head was seen, as in a task that is told which commits to read, nothing can be
    compared: then what was read of commits is forgotten behind each new connection.
    """

    def __init__(
        self, ledgers: Ledgers, nodes: StreamNodes, stream_id: str, forget: Callable[[], None]
    ) -> None:
        """``forget`` is called before an error is raised: what was read is not there any more."""
        self._ledgers = ledgers
        self._nodes = nodes
        self._stream_id = stream_id
        self._forget = forget
        self._seen: _Seen | None = None
        self._over: OneConnection | None = None
        """That over which it was seen, or found again; None: there was nothing to compare yet."""
        self._is_in_doubt = False
        """Whether a check could not tell: the bookies are away that have the commit."""
        self._one_at_a_time = asyncio.Lock()

    @property
    def commits_seen(self) -> int:
        """How many commits the stream had when it was last seen."""
        return 0 if self._seen is None else self._seen.number + 1

    def saw(self, head: Head, over: OneConnection) -> None:
        """The stream has this head, as was read or written over this connection.

        While nobody can tell whether it is the stream that was seen before, nothing is taken of it:
        what was seen before is compared once it can be.
        """
        if not self._is_in_doubt and head.next_commit > self.commits_seen:
            totals = head.next_segment, head.rows, head.size_bytes
            self._seen = _Seen(head.next_commit - 1, head.time_ms, totals)
            self._over = over

    def knows(self, commit: Commit, pointer: SegmentListPointer | None) -> None:
        """The stream has this commit: more of it is known than its head tells."""
        seen = self._seen
        if seen is None or self._is_in_doubt:
            return
        if seen.place is None and commit.number == seen.number:
            self._seen = seen._replace(place=_place(commit, pointer))

    async def check(self) -> None:
        """See whether the last commit that was seen is there still, if the store has another
        connection since: one metadata read. Without a new connection it reads nothing.

        A commit that was truncated meanwhile, or cannot be read, tells nothing: then the stream is
        believed. So it is while the bookies are away that have the commit: each call looks again
        until they tell. Raises MetadataRestoredError if another commit has the number, or none has,
        and NoSuchStreamError.
        """
        if self._is_compared():
            return
        async with self._one_at_a_time:
            while not self._is_compared():
                seen, over = self._seen, OneConnection(self._nodes.store)
                if seen is None and self._over is not None:
                    self._forget()  # nothing tells whether that is there still
                is_there = seen is None or await self._is_there(seen)
                self._is_in_doubt = is_there is None
                if is_there is None:
                    return
                if seen is not None and not is_there:
                    raise self.lost(
                        f"commit {seen.number} is not the one that this process has seen"
                    )
                if seen is self._seen:  # else more was seen meanwhile
                    self._over = over

    def _is_compared(self) -> bool:
        return self._over is not None and not self._over.has_ended

    def lost(self, what: str) -> MetadataRestoredError:
        """The error for a stream that went back with ZooKeeper."""
        self._forget()
        return MetadataRestoredError(
            f"stream {self._nodes.name!r}: {what}: ZooKeeper was restored from a backup. Run "
            "`ledger cluster restored`, and start this process anew to use the stream as it is now"
        )

    async def _is_there(self, seen: _Seen) -> bool | None:
        """None if nobody can tell yet."""
        node: bytes | None
        try:
            node = await self._stored(seen.number)
        except (NoSuchStreamError, MetadataUnavailableError):
            raise
        except RetryableError:
            return None
        except NotFoundError:
            node = None
        except CorruptionError:  # truncated, or damaged: who reads it is told
            return True
        if node is not None:
            path = self._nodes.commit_path(seen.number)
            try:
                found = codec.decode_commit(node, seen.number, path)
            except (CorruptionError, ConfigurationError):
                return True
            if seen.is_same(*found):
                return True
        if (await self._nodes.head(latest=True)).value.stream_id != self._stream_id:
            raise self._nodes.no_such_stream()  # rule T7
        return False

    async def _stored(self, number: int) -> bytes:
        """The node of a commit, past all that was kept. Raises as ``CommitNodes.get``."""
        store, path = self._nodes.store, self._nodes.commit_path(number)
        for read in (store.get, store.get_latest):  # a server may only lag behind
            try:
                return (await read(path)).value
            except NotFoundError:
                continue
        manifests = ManifestStore(self._ledgers, self._nodes, self._stream_id)
        return await CommitNodes(self._nodes, manifests, self._stream_id).get(number)
