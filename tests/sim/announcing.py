"""What a simulated bookie tells of itself, and how it looks at its disks meanwhile.

The server and its disk thread do this in a real bookie: the registration follows the state, and a
disk that was full is looked at until there is room on it.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

from spark_ledger.errors import LedgerError
from spark_ledger.types import DEFAULT_RACK, BookieId, BookieInfo, BookieState

if TYPE_CHECKING:
    from spark_ledger.lab.simulation.loop import Process
    from spark_ledger.metadata.bookies import BookieRegistry
    from tests.sim.node import BookieNode

LOOK_S: Final = 0.25
"""Between two looks at a disk that is full, or was a moment ago."""


RACKS: Final = 3


def rack_of(bookie_id: BookieId) -> str:
    """Where a bookie is, in a schedule that loses a rack."""
    return f"/r{int(bookie_id[1:]) % RACKS}"


class Announcement:
    """A bookie as others see it."""

    def __init__(self, node: BookieNode) -> None:
        self.changed = asyncio.Event()
        """Set when what is registered is not true any more."""
        self._node = node
        self._looking: Process | None = None  # the run that looks at its disk

    async def keep_registered(self, registry: BookieRegistry) -> None:
        """Register, and again whenever the state has changed."""
        node = self._node
        while True:
            self.changed.clear()
            try:
                await registry.register(self._info())
            except LedgerError as error:
                node.say(f"{node.name} cannot register yet: {type(error).__name__}")
                await asyncio.sleep(0.2)
            else:
                await self.changed.wait()

    def _info(self) -> BookieInfo:
        node = self._node
        reason = node.bookie.disks.states.reason if node.bookie is not None else ""
        state = BookieState.READ_ONLY if reason else BookieState.WRITABLE
        place = rack_of(node.bookie_id) if node.world.options.rack_loss else DEFAULT_RACK
        return BookieInfo(node.bookie_id, f"{node.name}:1", state, place, reason=reason)

    def start_failed(self, cause: OSError) -> None:
        """A full disk forbids no start."""
        node = self._node
        if cause.errno == errno.ENOSPC:
            node.world.violate("I13", "restart", f"{node.name} does not start: {cause}")

    def watch_disk(self) -> None:
        """Look at the disk from now on, until there is room on it."""
        node, process = self._node, self._node.process
        if process is None or node.bookie is None or self._looking is process:
            return
        if node.disk.full or node.bookie.disks.states.reason:  # the disk was full when it started
            self._looking = process
            node.world.loop.later(0.0, process, self._look, process)

    def _look(self, process: Process) -> None:
        node = self._node
        bookie = node.bookie
        if bookie is None or node.process is not process:
            return
        was_full = bool(bookie.disks.states.reason)
        node.guarded(bookie.disks.check)
        if was_full and not node.disk.full:
            node.guarded(node.flush_now)
            node.commit_soon()
        if node.bookie is not bookie:
            return  # a power cut in what it wrote
        if was_full and not bookie.disks.states.reason:
            node.world.counts["bookies with room again"] += 1
        if node.disk.full or bookie.disks.states.reason:
            node.world.loop.later(LOOK_S, process, self._look, process)
        else:
            self._looking = None
