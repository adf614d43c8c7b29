"""The live view of the registered bookies that a client chooses ensembles and addresses from.

Every client follows the whole list, so what one change costs is counted in clients. A change is a
bookie that comes, goes or changes its state: each client lists the names again and reads the
registrations that are new to it, at a random moment of its own. Nobody reads all of them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping

from spark_ledger.errors import LedgerError, MetadataUnavailableError
from spark_ledger.limits.metadata import (
    DIRECTORY_JITTER_S,
    DIRECTORY_REFRESH_S,
    DIRECTORY_REFRESHES_OF_ALL,
    METADATA_READS_IN_FLIGHT_MAX,
)
from spark_ledger.metadata.base import Watch
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.tasks import cancel
from spark_ledger.types import DEFAULT_RACK, BookieId, BookieInfo, BookieState, PlacementPolicy

logger = logging.getLogger(__name__)


class _Listed:
    """The registrations of one state as last read."""

    def __init__(self) -> None:
        self.infos: dict[BookieId, BookieInfo | None] = {}
        """None: it was gone when it was read, or could not be read; it is tried at each change."""
        self._changes = -1
        """The number that the store had counted when the names were read."""
        self._read_before = BookieId("")
        """The last one that was read again because of its age."""

    async def read(self, registry: BookieRegistry, state: BookieState, *, again: float) -> None:
        """Read the names and what is new, and a share ``again`` of what is known, in turn."""
        found = await registry.names(state)
        names = found.value
        differ = len(self.infos.keys() ^ set(names))
        # More changes than differences: one of these names has another registration now.
        is_same = self._changes >= 0 and found.version - self._changes == differ
        wanted = [name for name in names if not is_same or self.infos.get(name) is None]
        wanted += self._oldest([name for name in names if name not in wanted], again)
        infos = {name: self.infos.get(name) for name in names}
        for start in range(0, len(wanted), METADATA_READS_IN_FLIGHT_MAX):
            part = wanted[start : start + METADATA_READS_IN_FLIGHT_MAX]
            read = await asyncio.gather(*(registry.read_listed(state, name) for name in part))
            infos.update(zip(part, read, strict=True))
        self.infos, self._changes = infos, found.version

    def _oldest(self, names: list[BookieId], share: float) -> list[BookieId]:
        count = round(len(names) * share + 0.5) if share else 0
        following = [name for name in names if name > self._read_before]
        chosen = (following + names)[: min(count, len(names))]
        if chosen:
            self._read_before = chosen[-1]
        return chosen


class BookieDirectory:
    """The registered bookies as last seen, kept fresh by watches and a slow periodic read.

    Clients choose ensembles and find addresses with it, without waiting for ZooKeeper. ``draw``
    spreads the reads of many clients after one change.
    """

    def __init__(self, registry: BookieRegistry, draw: random.Random | None = None) -> None:
        self._registry = registry
        self._draw = draw or random.Random()  # noqa: S311 - jitter
        self._listed = {state: _Listed() for state in (BookieState.WRITABLE, BookieState.READ_ONLY)}
        """In this order: a bookie that is just changing its state counts as read-only."""
        self._bookies: Mapping[BookieId, BookieInfo] = {}
        self._addresses: dict[BookieId, str] = {}
        self._racks: dict[BookieId, str] = {}
        self.policy = PlacementPolicy()
        """The cluster's placement policy as last seen."""
        self._watch: Watch | None = None
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._failure: MetadataUnavailableError | None = None

    async def start(self) -> None:
        """Read once and follow from then on. Raises MetadataUnavailableError if that read fails."""
        assert self._task is None, "started once"
        self._watch = self._registry.watch(self._changed.set)
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stop following. What was seen stays readable."""
        if self._watch is not None:
            self._watch.cancel()
        if self._task is not None:
            await cancel(self._task)

    def address(self, bookie_id: BookieId) -> str | None:
        """Where a bookie answers, or last did: one that is no longer registered may still serve,
        and says who it is when it is asked."""
        return self._addresses.get(bookie_id)

    def rack(self, bookie_id: BookieId) -> str:
        """Where a bookie is, or was when it was registered last."""
        return self._racks.get(bookie_id, DEFAULT_RACK)

    def get(self, bookie_id: BookieId) -> BookieInfo | None:
        """A registered bookie."""
        return self._bookies.get(bookie_id)

    def all(self) -> list[BookieInfo]:
        """Registered bookies, by id."""
        return list(self._bookies.values())

    def writable(self) -> list[BookieInfo]:
        """Registered bookies that take new entries, by id."""
        return [info for info in self._bookies.values() if info.state is BookieState.WRITABLE]

    async def refresh(self, *, all_again: bool = False) -> None:
        """Read now what has changed, for instance before giving up for want of bookies.

        ``all_again`` reads every registration: their free space changes without a notice.

        Raises MetadataUnavailableError if the store does not answer. A call that waited for a read
        that failed does not read again, so it takes no longer than one metadata operation.
        """
        await self._refresh(1.0 if all_again else 0.0)

    async def _refresh(self, again: float) -> None:
        failures = self._failures
        async with self._lock:  # an older answer must not replace a newer one
            if self._failures != failures:
                raise MetadataUnavailableError(
                    f"the list of bookies cannot be read: {self._failure}"
                )
            self._changed.clear()  # before the read: a change during it must lead to another
            found: dict[BookieId, BookieInfo] = {}
            try:
                for state, listed in self._listed.items():
                    await listed.read(self._registry, state, again=again)
                    found.update((b, info) for b, info in listed.infos.items() if info is not None)
            except MetadataUnavailableError as error:
                self._failures, self._failure = self._failures + 1, error
                raise
            if again:
                self.policy = await self._registry.placement(self.policy)
            self._bookies = {bookie_id: found[bookie_id] for bookie_id in sorted(found)}
        self._addresses.update((info.bookie_id, info.address) for info in found.values())
        self._racks.update((info.bookie_id, info.rack) for info in found.values())

    async def _follow(self) -> None:
        while True:
            again = 1 / DIRECTORY_REFRESHES_OF_ALL
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DIRECTORY_REFRESH_S * self._draw.uniform(0.8, 1.2)):
                    await self._changed.wait()
                    again = 0.0
            if not again:
                await asyncio.sleep(self._draw.uniform(0.0, DIRECTORY_JITTER_S))
            try:
                await self._refresh(again)
            except MetadataUnavailableError as error:
                # An old view is safe: it only makes bad proposals. The reconnect sets the event.
                logger.warning("the list of bookies may be out of date: %s", error)
            except LedgerError:
                logger.exception("the list of bookies cannot be read; keeping the last one")
                await asyncio.sleep(DIRECTORY_REFRESH_S)
