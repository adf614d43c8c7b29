"""The stranger: kills, pauses, wipes and replaces bookies at random, and brings them back.

What it may do is what the promise covers. Bookies may be away for a while, two at a time. A disk is
wiped for good only while every confirmed entry has AQ copies or more, as ``ledger cluster status``
counts them, and all bookies answer that a ledger names: the promise is that AQ - 1 lost disks cost
nothing, and that the next one may follow once repair is through.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from spark_ledger.cli.safety import Standing, survey
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import BookieUnavailableError, LedgerError
from spark_ledger.local import LocalCluster
from spark_ledger.local.processes import log_tail
from spark_ledger.repair.decommission import decommission, drain, stay
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.types import BookieId

AWAY_MAX: Final = 2
"""Bookies that are away at once, of five: writers that lose a third one have to wait."""

RETURN_S: Final = 240.0
"""In which every bookie is back once the stranger leaves; copies have to be made before that."""

_PAUSE_S: Final = (0.5, 4.0)
_AWAY_S: Final = (0.2, 12.0)
"""Shorter and longer than the delay after which a bookie counts as lost."""

_WIPE_WAIT_S: Final = 60.0

_WORK: Final = WorkerConfig(open_grace_s=5.0, despite_losses=True)
_REFUSED: Final = 2
"""A bookie's exit code if its directories are not what it left."""


async def look(client: LedgerClient) -> Standing:
    """What bookies hold now."""
    return await survey(client.store, client.context.transport, lambda _: None)


def is_safe(found: Standing) -> bool:
    """Whether each confirmed entry has AQ copies or more, and every bookie that a ledger names
    answers: then one of them may go. An open ledger that has lost AQ members has no known end."""
    return not found.at_risk and not found.silent


class Stranger:
    """Does something to one bookie after the other, and says what."""

    def __init__(
        self, cluster: LocalCluster, client: LedgerClient, seed: int, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._chance = random.Random(f"{seed}/stranger")
        self._say = say
        self._began = time.monotonic()
        self._here = set(range(len(cluster.bookie_ids)))
        self._gone: set[int] = set()
        """Wiped for good."""
        self._returning: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set; then every bookie that is not gone for good is there again."""
        while not stop.is_set():
            await asyncio.sleep(self._chance.uniform(*_PAUSE_S))
            await self._act()
        if self._returning:
            _, late = await asyncio.wait(self._returning, timeout=RETURN_S)
            self.faults += [f"not back after {RETURN_S:g} s: {each!r}" for each in late]
        for index in sorted(self._here):
            if not self._cluster.is_bookie_running(index):
                log = log_tail(self._cluster.bookie_log(index))
                self.faults.append(f"bookie-{index} ended by itself: {log}")

    async def _act(self) -> None:
        index = self._chance.choice(sorted(self._here))
        what = self._chance.choice((*("kill", "pause", "stop") * 2, *("wipe",) * 4, "drain"))
        if what == "drain":
            await self._drain(index)
        elif what == "wipe":
            await self._wipe_once_safe(index)
        elif len(self._cluster.bookie_ids) - len(self._gone) - len(self._here) < AWAY_MAX:
            await self._take_away(what, index)

    def _tell(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.1f} s  {what}")

    def _later(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await work
            except (LedgerError, TimeoutError, AssertionError) as error:
                self.faults.append(f"{error!r}")

        task = asyncio.get_running_loop().create_task(run())
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _take_away(self, what: str, index: int) -> None:
        """For a while."""
        cluster = self._cluster
        away_s = self._chance.uniform(*_AWAY_S)
        leave, back = {
            "kill": (cluster.kill_bookie, cluster.start_bookie),
            "stop": (cluster.stop_bookie, cluster.start_bookie),
            "pause": (cluster.pause_bookie, cluster.resume_bookie),
        }[what]
        self._here.discard(index)
        self.done[what] += 1
        self._tell(f"{what} bookie-{index} for {away_s:.1f} s")

        async def return_it() -> None:
            await asyncio.sleep(away_s)
            await asyncio.to_thread(back, index)
            self._tell(f"bookie-{index} is back")
            self._here.add(index)

        await asyncio.to_thread(leave, index)
        self._later(return_it())

    async def _wipe_once_safe(self, index: int) -> None:
        """Wait for the others to be back and for repair, for a while: else load alone would decide
        how many disks are lost in a run."""
        deadline = time.monotonic() + _WIPE_WAIT_S
        while not is_safe(await look(self._client)):
            if time.monotonic() > deadline:
                self.done["wipe that was not safe"] += 1
                return
            await asyncio.sleep(_PAUSE_S[0])
        await self._wipe(index)

    async def _wipe(self, index: int) -> None:
        """Its disk is lost; another bookie takes its place, or one of the same name."""
        how = self._chance.choice(("replace", "format again", "lose the index"))
        self._here.discard(index)
        self.done[f"wipe, {how}"] += 1
        self._tell(f"wipe bookie-{index}, {how}")
        await asyncio.to_thread(self._cluster.kill_bookie, index)
        directory = self._cluster.bookie_directory(index)
        await asyncio.to_thread(shutil.rmtree, directory / "ledgers")
        if how != "lose the index":
            await asyncio.to_thread(shutil.rmtree, directory / "journal")
        await self._must_refuse(index)
        self._later(self._put_back(index) if how == "format again" else self._replace(index))

    async def _must_refuse(self, index: int) -> None:
        """A bookie that has lost something never comes back under its name by itself."""
        try:
            await asyncio.to_thread(self._cluster.start_bookie, index)
        except BookieUnavailableError as error:
            if f"exit code {_REFUSED}" not in str(error):
                self.faults.append(f"bookie-{index} without its disk: {error}")
        else:
            self.faults.append(f"bookie-{index} serves without its disk")

    async def _replace(self, index: int) -> None:
        self._gone.add(index)
        await asyncio.sleep(self._chance.uniform(0.0, 5.0))
        await self._add()

    async def _add(self) -> None:
        added = await asyncio.to_thread(self._cluster.add_bookie)
        self._tell(f"bookie-{added} is new")
        self._here.add(added)

    async def _put_back(self, index: int) -> None:
        directory, name = self._cluster.bookie_directory(index), BookieId(f"bookie-{index}")
        await self._add()  # five bookies have no other one for a ledger over all five
        await decommission(self._client, name, _WORK, told=lambda _: None)
        await asyncio.to_thread(shutil.rmtree, directory / "journal", ignore_errors=True)
        await asyncio.to_thread(self._cluster.start_bookie, index)
        self._tell(f"bookie-{index} is formatted again")
        self._here.add(index)

    async def _drain(self, index: int) -> None:
        """An operator begins to empty a bookie, and thinks better of it."""
        self.done["drain"] += 1
        self._tell(f"drain bookie-{index}")
        name = BookieId(f"bookie-{index}")
        try:
            async with asyncio.timeout(self._chance.uniform(1.0, 8.0)):
                await drain(self._client, name, _WORK, told=lambda _: None)
        except TimeoutError:
            pass
        except LedgerError as error:
            self._tell(f"drain ended: {error}")
        await stay(self._client, name)
