"""The garbage collection of simulated bookies: the real one, in a hurry, over half lists and lost
sessions, beside restored metadata, with signs of deletions that are lost, false or repeated.

Checked at each deletion, with a view of all metadata: nothing that they name here goes (rules G1 to
G3 and G9), and nothing that a restore has lost, if the bookie had marked it before (rule G4).
Checked at the end, when all is quiet: no bookie holds a ledger that was deleted, or that is closed
and named elsewhere (rules G7 and G9).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from bookie_server.bookie import Bookie
from bookie_server.collection.collecting import CollectionConfig
from bookie_server.collection.collector import CollectorConfig, LedgerCollector
from bookie_server.collection.mark import HistoryMark
from bookie_server.core.collection import Cause
from bookie_server.giving_back import GivingBack
from bookie_server.reads import entry_page
from bookie_server.storage.index.base import HeldLedger
from spark_ledger.errors import CorruptionError, NotFoundError
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.deletions import DELETIONS_PATH
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.types import BookieId, EntryId, LedgerId, LedgerMetadata, Versioned
from tests.sim.clients import DeleteClient
from tests.sim.disk import LEDGERS
from tests.sim.keys import SimKeys

if TYPE_CHECKING:
    from spark_ledger.lab.simulation.loop import Process
    from tests.sim.node import BookieNode
    from tests.sim.world import World

_LOOK_S: Final = 0.05
_DELETED: Final = 0.4
"""Of the ledgers of a schedule that collects: most would otherwise be kept, and nothing happen."""
_HALF_LISTS: Final = 0.15
_BY_SIGNS: Final = 0.5
"""Of the schedules: there are no passes but those that a sign of a deletion starts (rule G10)."""
_FALSE_SIGNS: Final = 0.03
"""At each look at the world."""
_LOST_SIGNS: Final = 0.3
_QUIET_PASSES: Final = 8
"""Until one that nothing has ended: a bookie may be restarting."""


class Collections:
    """Sees to it that each run of each bookie collects. Belongs to the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw: random.Random = world.random_for("collecting")
        self.signs: random.Random = world.random_for("signs of deletions")
        self.interval_s = 1e6 if self.signs.random() < _BY_SIGNS else 0.3
        self.listed_at_least = self.draw.choice([1, 100])
        self.runs: dict[str, _Run] = {}
        self.covered: dict[BookieId, frozenset[LedgerId]] = {
            node: frozenset() for node in world.nodes
        }
        """Ledgers that a bookie has marked since it took them, with no restore between the two."""
        self.doubtful = dict(self.covered)
        """Ledgers that it took before it heard of a restore, and had not marked."""
        self.restores = dict.fromkeys(world.nodes, 0)
        """How many restores there were when it last wrote a mark."""
        world.loop.later(_LOOK_S, None, self._look)

    def begin_deletion(self, number: int, ledger_id: int) -> None:
        """Have a ledger deleted, perhaps, while others may be at work on it."""
        if self.draw.random() < _DELETED:
            after_s = self.draw.uniform(0.3, 2.5)
            name = f"collected-deleter{number}.{ledger_id}"
            self.world.loop.later(after_s, None, self._delete, name, ledger_id)

    async def settle(self) -> None:
        """All is quiet: one pass of each bookie that runs, and what must be gone by then."""
        for node in self.world.nodes.values():
            for _ in range(_QUIET_PASSES):
                run = self.runs.get(node.name)
                if run is None or run.process is not node.process or node.bookie is None:
                    await asyncio.sleep(0.5)
                    continue
                node.guarded(node.flush_now)
                if node.process is run.process and await run.finish():
                    break
                await asyncio.sleep(0.5)

    def _look(self) -> None:
        """Begin to collect in runs of bookies that are new."""
        for node in self.world.nodes.values():
            known = self.runs.get(node.name)
            if node.process is None or node.bookie is None:
                continue
            if known is None or known.process is not node.process:
                self.runs[node.name] = _Run(self, node, node.process, node.bookie)
        self._sign_falsely()
        if not self.world.over:
            self.world.loop.later(_LOOK_S, None, self._look)

    def _sign_falsely(self) -> None:
        """Now and then there is a sign, though nobody has deleted anything."""
        tree = self.world.zookeeper.tree
        if self.world.healing or self.signs.random() >= _FALSE_SIGNS:
            return
        try:
            tree.apply([Put(DELETIONS_PATH, b"", tree.get(DELETIONS_PATH).version)])
        except NotFoundError:
            return  # nobody has given one yet
        self.world.fault("false sign", "all bookies")

    def _delete(self, name: str, ledger_id: int) -> None:
        if not self.world.healing:
            self.world.clients.append(DeleteClient(self.world, name, ledger_id))


class _Run:
    """One run of one bookie; implements ``Holder``."""

    def __init__(
        self, all_of_them: Collections, node: BookieNode, process: Process, bookie: Bookie
    ) -> None:
        self._all = all_of_them
        self._world = all_of_them.world
        self._node = node
        self.process = process
        self._bookie = bookie
        self._store = self._world.zookeeper.stores[process.name]
        self._collector: LedgerCollector | None = None
        self._half()
        self._lose_signs()
        self._note_what_is_given_back()
        self._world.loop.spawn(process, self._start())

    async def finish(self) -> bool:
        """A pass to its end, and what must not be there then; False if it did not end well."""
        if self._collector is None:
            return False
        world, done = self._world, asyncio.get_running_loop().create_future()

        async def run() -> None:
            assert self._collector is not None
            await self._collector.stop()
            await self._collector.run_pass(whole=True)
            if self._left():  # another bookie gave the same ledger back meanwhile (rule G9)
                await self._collector.run_pass(whole=True)
            done.set_result(None)

        world.loop.spawn(self.process, run())
        try:
            async with asyncio.timeout(20):
                await done
        except TimeoutError:
            return False  # it died, and another run comes
        stats = self._collector.stats()
        if stats.cause is not None:
            was_restored = bool(world.faults["metadata restored"])
            if stats.cause is Cause.RESTORED and not was_restored:
                world.violate("collection", "restored", f"{self._node.name}: {stats.reason}")
            return stats.cause is Cause.RESTORED
        world.counts["passes that ended well"] += 1
        left = self._left()
        if left and not self._node.weak:
            text = f"{self._node.name} holds {left[0].ledger_id} in vain after a pass"
            world.violate("collection", "not collected", text)
        return True

    def _left(self) -> list[HeldLedger]:
        """What it holds, and no metadata want."""
        # A lost ledger whose id was given again is not in a list of ids: it waits for an order.
        any_of_the_id = bool(self._world.faults["metadata restored"])
        return [
            each
            for each in self._bookie.held_ledgers(-1, 1000)
            if not self._is_named(each, any_of_the_id=any_of_the_id) or self._is_elsewhere(each)
        ]

    # -- the bookie --------------------------------------------------------------------------------

    def held_ledgers(self, after: int, limit: int) -> Sequence[HeldLedger]:
        """See ``Holder``."""
        return self._bookie.held_ledgers(after, limit)

    def delete_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, named: bool = False, reused: bool = False
    ) -> int:
        """See ``Holder``. Checks that each may go, and takes back what was promised of it."""
        ids = list(ledger_ids)
        held = {each.ledger_id: each for each in self._bookie.held_ledgers(-1, 1000)}
        promises = self._node.promises
        before = {each: frozenset(promises.acknowledged.get(each, ())) for each in ids}
        for each in ids:
            if each in held:
                self._check(held[each])
            promises.collect(each)
        self._world.counts["ledgers collected"] += len(ids)
        self._world.say(f"{self._node.name} collects {', '.join(map(str, ids))}")
        try:
            return self._bookie.delete_ledgers(ids, named=named, reused=reused)
        except OSError:  # what it says that it holds then is so, and repair counts on it (rule R5)
            for each in ids:
                promises.left[each] = before[each] & self._stored(each)
            raise

    def _stored(self, ledger_id: LedgerId) -> frozenset[int]:
        """The entries that its storage has, whatever it says of them."""
        ids: set[int] = set()
        first: EntryId | None = EntryId(0)
        with contextlib.suppress(OSError, CorruptionError):
            while first is not None:
                page = entry_page(self._bookie._storage, ledger_id, first)
                if page is None:
                    break
                ids.update(each for low, high in page.ranges for each in range(low, high + 1))
                first = page.next_entry
        return frozenset(ids)

    @property
    def giving_back(self) -> GivingBack:
        """See ``Holder``."""
        return self._bookie.giving_back

    def _note_what_is_given_back(self) -> None:
        begin, world = self._bookie.giving_back.begin, self._world

        def noting(ledger_ids: Collection[LedgerId]) -> None:
            world.given_back.update(ledger_ids)
            begin(ledger_ids)

        self._bookie.giving_back.begin = noting  # type: ignore[method-assign]

    def next_ledger_id(self) -> int:
        """See ``Holder``."""
        return self._bookie.next_ledger_id()

    def _check(self, held: HeldLedger) -> None:
        world, name = self._world, self._node.bookie_id
        if world.zookeeper.restoring or self.process.name in world.zookeeper.returning:
            return  # it was deleted; that a backup knows it again the bookie cannot know yet
        # One that was deleted meanwhile may go as any other: a stop came between the steps.
        if held.ledger_id in self._bookie.giving_back and self._is_named(held):
            world.counts["copies given back"] += 1
            if not self._is_elsewhere(held):
                text = f"{name} gives back ledger {held.ledger_id}, which may name it"
                world.violate("collection", "live copy", text)
        elif self._is_named(held):
            text = f"{name} deletes ledger {held.ledger_id}, which the metadata name"
            world.violate("collection", "live ledger", text)
        elif (
            held.ledger_id in self._all.covered[name]
            and not world.invariants.of(held.ledger_id).deleted
        ):
            text = f"{name} deletes ledger {held.ledger_id}, which a restore has lost"
            world.violate("collection", "lost ledger", text)

    def _is_named(self, held: HeldLedger, *, any_of_the_id: bool = False) -> bool:
        found = self._metadata(held)
        if found is None:
            return False
        if any_of_the_id or not held.access_key_hash:
            return True
        return found.access_key_hash == held.access_key_hash

    def _is_elsewhere(self, held: HeldLedger) -> bool:
        found = self._metadata(held)
        if found is None or not held.access_key_hash:
            return False
        is_here = any(self._node.bookie_id in each.bookies for each in found.fragments)
        is_it = found.access_key_hash == held.access_key_hash
        return is_it and found.is_closed and not is_here

    def _metadata(self, held: HeldLedger) -> LedgerMetadata | None:
        path = ledger_path(held.ledger_id)
        try:
            node = self._world.zookeeper.tree.get(path)
        except NotFoundError:
            return None
        return decode_ledger(path, held.ledger_id, node.value)

    # -- the collector -----------------------------------------------------------------------------

    async def _start(self) -> None:
        keys = self._bookie._first_contacts._look_up.__self__  # type: ignore[attr-defined]
        assert isinstance(keys, SimKeys)
        self._collector = LedgerCollector(
            self,
            self._store,
            self._node.bookie_id,
            CollectorConfig(
                interval_s=self._all.interval_s,
                full_interval_s=0.15,
                mark_s=0.1,
                sign_pause_s=0.1,
                whole_interval_s=0.6,
                each=CollectionConfig(
                    pause_s=0.05,
                    page=2,
                    batch=2,
                    deletes_per_s=1000.0,
                    reads_per_s=10_000.0,
                    listed_at_least=self._all.listed_at_least,
                ),
            ),
            files=self._node.disk.attached,
            directory=LEDGERS[0],
            run_on_disk=self._on_disk,
            new_ledgers=lambda: keys.found,
            is_full=lambda: bool(self._node.disk.full),
            why_not=lambda: self._bookie.failure,
            draw=self._world.random_for(f"collector {self.process.name}"),
        )
        self._cover(self._collector._mark)
        self._collector.start()

    async def _on_disk(self, work: Callable[[], None]) -> None:
        """Disk work, in which the power may be cut, or of which a disk may be too damaged."""
        self._node.guarded(work)
        if not self.process.alive:
            await asyncio.Event().wait()  # it is dead: nothing of it goes on

    def _cover(self, mark: HistoryMark) -> None:
        """Note what each mark covers, if no restore came since the one before."""
        renew, name = mark.renew, self._node.bookie_id

        async def covering(*, accept: str | None = None, kept_below: int | None = None) -> None:
            before, taken = self._restored(), frozenset(self._node.promises.acknowledged)
            await renew(accept=accept, kept_below=kept_below)
            collections, now = self._all, self._restored()
            if before == now == collections.restores[name]:
                collections.covered[name] |= taken - collections.doubtful[name]
            else:  # also what it took since: a restore came, or not, while it was at this mark
                taken = frozenset(self._node.promises.acknowledged)
                collections.doubtful[name] |= taken - collections.covered[name]
            collections.restores[name] = now

        mark.renew = covering  # type: ignore[method-assign]

    def _restored(self) -> int:
        zookeeper = self._world.zookeeper
        if zookeeper.restoring or self.process.name in zookeeper.returning:
            return -1  # nobody can tell in which history it is
        return self._world.faults["metadata restored"]

    def _half(self) -> None:
        """Have this process be told of half of a node's ledgers, now and then."""
        whole, world = self._store.children, self._world

        async def children(path: str) -> list[str]:
            names = await whole(path)
            draw = self._all.draw
            if path.startswith("ledgers/") and not world.healing and draw.random() < _HALF_LISTS:
                world.fault("half a list", f"{self.process} {path}")
                return names[len(names) // 2 :] if draw.random() < 0.5 else names[::2]
            return names

        self._store.children = children  # type: ignore[method-assign]

    def _lose_signs(self) -> None:
        """Have this process not see a sign, now and then, or see an older one."""
        get, world, last = self._store.get, self._world, Versioned(b"", 0)

        async def losing(path: str) -> Versioned[bytes]:
            nonlocal last
            node = await get(path)
            if path != DELETIONS_PATH or world.healing:
                return node
            if node.version != last.version and self._all.signs.random() < _LOST_SIGNS:
                world.fault("sign lost", str(self.process))
                return last
            last = node
            return node

        self._store.get = losing  # type: ignore[method-assign]
