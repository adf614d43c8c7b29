"""Reads the head of one stream, and refuses one that is older than what was seen of it."""

from __future__ import annotations

from spark_ledger.stream.commit.history import History
from spark_ledger.stream.model import Head
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.types import Versioned


class HeadReader:
    """Reads the head for a handle of a stream; its readers and its committer share one."""

    def __init__(self, nodes: StreamNodes, stream_id: str, history: History) -> None:
        self._nodes = nodes
        self._stream_id = stream_id
        self._history = history

    def saw(self, head: Head, over: OneConnection) -> None:
        """The stream has this head, as a transaction over this connection has told."""
        self._history.saw(head, over)

    async def read(self, *, latest: bool = False) -> Versioned[Head]:
        """The head; ``latest``: none older than this call.

        Raises NoSuchStreamError if the stream is gone, or another has its name, and
        MetadataRestoredError if the head went back, or has other commits than were seen: a reader
        that went on would pass over the commits that get these numbers, a writer would go on
        behind a hole (rule T5).
        """
        while True:
            over = OneConnection(self._nodes.store)
            head = await self._find(latest=latest)
            await self._history.check()
            if not over.has_ended:  # else it may be of before a restore
                self._history.saw(head.value, over)
                return head

    async def _find(self, *, latest: bool) -> Versioned[Head]:
        seen = self._history.commits_seen
        head = await self._nodes.head(latest=latest)
        if head.value.stream_id == self._stream_id and head.value.next_commit < seen:
            head = await self._nodes.head(latest=True)  # a server may only lag behind
        if head.value.stream_id != self._stream_id:
            raise self._nodes.no_such_stream()  # rule T7
        if head.value.next_commit < seen:
            found = head.value.next_commit
            raise self._history.lost(f"it has {found} commits, and this process has seen {seen}")
        return head
