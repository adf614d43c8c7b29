"""Reads the head of one stream, and refuses one that is older than what was seen of it."""

from __future__ import annotations

from spark_ledger.errors import MetadataRestoredError
from spark_ledger.stream.model import Head
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.types import Versioned


class HeadReader:
    """What a handle of a stream has seen of its head; its readers and its committer share one."""

    def __init__(self, nodes: StreamNodes, stream_id: str) -> None:
        self._nodes = nodes
        self._stream_id = stream_id
        self._commits_seen = 0

    def saw(self, next_commit: int) -> None:
        """The stream has that many commits, as a transaction has told."""
        self._commits_seen = max(self._commits_seen, next_commit)

    async def read(self) -> Versioned[Head]:
        """The head. Raises NoSuchStreamError if the stream is gone, or another has its name, and
        MetadataRestoredError if the head went back: a reader that went on would pass over the
        commits that get these numbers now, a writer would go on behind a hole (rule T5)."""
        seen = self._commits_seen
        head = await self._nodes.head()
        if head.value.stream_id == self._stream_id and head.value.next_commit < seen:
            head = await self._nodes.head(latest=True)  # a server may only lag behind
        if head.value.stream_id != self._stream_id:
            raise self._nodes.no_such_stream()  # rule T7
        if head.value.next_commit < seen:
            raise MetadataRestoredError(
                f"stream {self._nodes.name!r} has {head.value.next_commit} commits, and this "
                f"process has seen {seen}: ZooKeeper was restored from a backup. Run `ledger "
                "cluster restored`, and start this process anew to use the stream as it is now"
            )
        self.saw(head.value.next_commit)
        return head
