"""Follows a stream's head: reads it once per change, however many wait for it."""

from __future__ import annotations

import asyncio

from spark_ledger.metadata.base import Watch
from spark_ledger.stream.commit.head_reader import HeadReader
from spark_ledger.stream.commit.history import History
from spark_ledger.stream.model import Head
from spark_ledger.stream.nodes import StreamNodes


class HeadWatch:
    """The head of one stream. It starts to watch when somebody waits for the first time.

    Before that every ``current`` is one metadata read; from then on only a change costs one.
    """

    def __init__(self, nodes: StreamNodes, stream_id: str, history: History) -> None:
        self._nodes = nodes
        self.heads = HeadReader(nodes, stream_id, history)
        """Shared with the stream's committer: what one has seen, the other knows."""
        self._watch: Watch | None = None
        self._changed = asyncio.Event()
        self._head: Head | None = None
        self._waiting = 0
        self._is_closed = False

    async def current(self) -> Head:
        """The head. Raises as ``HeadReader.read``."""
        if self._watch is not None and self._head is not None:
            return self._head
        return await self.read()

    async def wait(self, *, after_segment: int, timeout_s: float | None) -> Head:
        """The head once ``next_segment`` is above ``after_segment``, or as it is at the timeout.

        A timeout of None waits for ever. Raises NoSuchStreamError if the stream is deleted.
        """
        self._waiting += 1
        try:
            return await self._wait(after_segment, timeout_s)
        finally:
            self._waiting -= 1
            if self._is_closed and not self._waiting:
                self._stop()

    async def _wait(self, after_segment: int, timeout_s: float | None) -> Head:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            self._start()  # also after a ``close`` in between, which would leave this one deaf
            changed = self._changed
            head = await self.current()
            if head.next_segment > after_segment:
                return head
            remaining_s = None if deadline is None else deadline - loop.time()
            if remaining_s is not None and remaining_s <= 0:
                return head
            try:
                async with asyncio.timeout(remaining_s):
                    await changed.wait()
            except TimeoutError:
                return head

    def close(self) -> None:
        """Stop watching. Idempotent; a ``wait`` of later, or one that goes on, watches as long as
        it lasts."""
        self._is_closed = True
        self._stop()
        self.invalidate()

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _start(self) -> None:
        if self._watch is None:
            self.invalidate()  # also for who has read before, and has no answer yet
            self._watch = self._nodes.store.watch(self._nodes.head_path, self.invalidate)

    def invalidate(self) -> None:
        """The head has changed, or may have: the next ``current`` reads it."""
        self._head = None
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self, *, latest: bool = False) -> Head:
        """Read the head from the store; ``latest``: none older than this call. Raises as
        ``HeadReader.read``."""
        before = self._changed
        head = (await self.heads.read(latest=latest)).value
        if before is self._changed:
            self._head = head  # otherwise it changed meanwhile, and this may be the old one
        return head
