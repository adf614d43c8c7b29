"""kazoo's handler for threads, with less work for each request.

kazoo's own makes a selector each time that it looks at a socket, five times for a request, and has
one more thread run what waits for an answer. Here sockets are polled, and what waits for an answer
is run by the thread that has read it: all of it only posts to a loop (``Session``), so it may not
block and does not.
"""

from __future__ import annotations

import logging
import math
import queue
import select
import socket
from collections.abc import Sequence

from kazoo.handlers.threading import SequentialThreadingHandler

logger = logging.getLogger(__name__)

_Sockets = Sequence[socket.socket]


class _RunAtOnce(queue.Queue[object]):
    """A queue of callables that runs each where it is put. Of the rest, the thread that kazoo has
    for it takes the mark that ends it."""

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        if not callable(item):
            super().put(item, block, timeout)
            return
        try:
            item()
        except Exception:  # a bug of ours must not end the thread of the connection
            logger.exception("what waited for an answer of ZooKeeper failed")


class PollingHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Of one client."""

    def __init__(self) -> None:
        super().__init__()
        self.completion_queue = _RunAtOnce()

    def select(
        self, readers: _Sockets, writers: _Sockets, _: _Sockets, timeout: float | None = None
    ) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
        """Those that are ready. As ``select.select``, for file descriptors of any number.

        Raises ValueError if one of them is closed, OSError.
        """
        poll = select.poll()
        known = {each.fileno(): each for each in (*readers, *writers)}
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        ready_to_read: list[socket.socket] = []
        ready_to_write: list[socket.socket] = []
        for number, _events in poll.poll(None if timeout is None else math.ceil(1e3 * timeout)):
            # One that hung up is ready for what it was asked for: the next call says why.
            is_reader = known[number] in readers
            (ready_to_read if is_reader else ready_to_write).append(known[number])
        return ready_to_read, ready_to_write, []
