"""What a simulated bookie tells of itself, and how it looks at its disks meanwhile.

The server and its disk thread do this in a real bookie: the registration follows the state, and a
disk that was full is looked at until there is room on it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from spark_ledger.errors import LedgerError
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.types import BookieInfo, BookieState

if TYPE_CHECKING:
    from tests.sim.loop import Process
    from tests.sim.node import BookieNode
    from tests.sim.zookeeper import SimZookeeper

LOOK_S: Final = 0.25
"""Between two looks at a disk that is full, or was a moment ago."""


class Announcement:
    """One run of a bookie, as others see it."""

    def __init__(self, node: BookieNode, process: Process) -> None:
        self._node = node
        self._process = process
        self._changed = asyncio.Event()
        self._looks = False

    def start(self, zookeeper: SimZookeeper) -> None:
        """Register, and look at the disk if that is full already."""
        registry = BookieRegistry(zookeeper.stores[self._process.name])
        self._node.world.loop.spawn(self._process, self._register(registry))
        self.watch_disk()

    def changed(self) -> None:
        """A disk became full, or has room again."""
        self._changed.set()

    async def _register(self, registry: BookieRegistry) -> None:
        node = self._node
        while True:
            self._changed.clear()
            try:
                await registry.register(self._info())
            except LedgerError as error:
                node.say(f"{node.name} cannot register yet: {type(error).__name__}")
                await asyncio.sleep(0.2)
            else:
                await self._changed.wait()

    def _info(self) -> BookieInfo:
        node = self._node
        reason = node.bookie.disks.reason if node.bookie is not None else ""
        state = BookieState.READ_ONLY if reason else BookieState.WRITABLE
        return BookieInfo(node.bookie_id, f"{node.name}:1", state, reason=reason)

    def watch_disk(self) -> None:
        """Look at the disk from now on, until there is room on it."""
        if not self._looks and self._node.disk.full:
            self._looks = True
            self._node.world.loop.later(0.0, self._process, self._look)

    def _look(self) -> None:
        node = self._node
        bookie = node.bookie
        if bookie is None or node.process is not self._process:
            return
        was_full = bool(bookie.disks.reason)
        node.guarded(bookie.check_disks)
        if was_full and not node.disk.full:
            node.guarded(node.flush_now)
            node.commit_soon()
        if node.bookie is not bookie:
            return  # a power cut in what it wrote
        if was_full and not bookie.disks.reason:
            node.world.counts["bookies with room again"] += 1
        if node.disk.full or bookie.disks.reason:
            node.world.loop.later(LOOK_S, self._process, self._look)
        else:
            self._looks = False
