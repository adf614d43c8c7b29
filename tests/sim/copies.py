"""A bookie's arrival in the simulated world, and copies of its disk that try to take its place.

Where a schedule has copies, a start is the real one: it checks the disk, waits for the session of
its predecessor, notes itself and registers, and only then it serves. Elsewhere a bookie serves at
once and registers meanwhile, as it did before there were copies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bookie_server.identity import Identity
from bookie_server.storage.cookie import read_cookie
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.start_record import read_start
from spark_ledger.errors import ConfigurationError, CorruptionError, LedgerError
from spark_ledger.lab.simulation.loop import Process
from spark_ledger.metadata.base import Create
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import CLUSTER_PATH
from spark_ledger.metadata.codec import ClusterNode
from spark_ledger.metadata.cookies import BookieCookie, cookie_path, decode_cookie, encode_cookie
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.types import BookieInfo
from tests.sim.disk import JOURNAL, LEDGERS

if TYPE_CHECKING:
    from tests.sim.node import BookieNode
    from tests.sim.world import World
    from tests.sim.zookeeper import SimZookeeper

DIRECTORIES = (JOURNAL, *LEDGERS)
SESSION_TIMEOUT_S = 1.0


class Arrival:
    """How the runs of one bookie become known."""

    def __init__(self, node: BookieNode, zookeeper: SimZookeeper) -> None:
        self.node = node
        self.starting: Process | None = None
        """A run that does not serve yet."""
        self.original: MemoryFileSystem | None = None
        """What the disk holds while a copy is in its place."""
        self.rivals: list[Process] = []
        self._zookeeper = zookeeper
        self._rivals = 0
        options = node.world.options
        if options.copies or options.restores or options.repairers:
            self._found()

    # -- a schedule without copies -----------------------------------------------------------------

    def register(self, process: Process) -> None:
        """Register a bookie that serves."""
        self._keep_registered(process, BookieRegistry(self._zookeeper.stores[process.name]))

    def _keep_registered(self, process: Process, registry: BookieRegistry) -> None:
        node = self.node
        node.world.loop.spawn(process, node.announcement.keep_registered(registry))

    # -- a schedule with copies --------------------------------------------------------------------

    def _found(self) -> None:
        """Make the cluster's cookie of the bookie, as its format did."""
        tree, node = self._zookeeper.tree, self.node
        nodes = {CLUSTER_PATH: encode_node(ClusterNode(cluster_id="sim"))}
        names = tuple(map(str, DIRECTORIES))
        cookie = BookieCookie("sim", node.bookie_id, names[0], names[1:], "made")
        nodes[cookie_path(node.bookie_id)] = encode_cookie(cookie)
        for path, data in nodes.items():
            if path.rpartition("/")[2] not in tree.children(path.rpartition("/")[0]):
                tree.make_parents(path)
                tree.apply([Create(path, data)])

    def begin(self, process: Process, files: FileSystem) -> None:
        """Begin a start; it ends by serving, or by ending the process."""
        self.starting = process
        self.node.world.loop.spawn(process, self._arrive(process, files))

    async def _arrive(self, process: Process, files: FileSystem) -> None:
        node = self.node
        try:
            self._zookeeper.connect(process)
            identity = self._identity(process, files)
            await identity.check()
            bookie = node.open(process, files)
            if bookie is None:
                self._end(process)
                return
            registry = await self._take_place(process, identity)
            identity.watch(partial(self._replaced, process))
        except (ConfigurationError, CorruptionError) as error:
            self._refused(process, error)
        except LedgerError as error:
            node.say(f"{node.name} cannot start: {error}")
            self._end(process)
            node.restart_later()
        else:
            self.starting = None
            if self.original is not None:
                node.world.say(f"{node.name} has accepted a copy of its disk")
                self.original = None
            node.serve(process, bookie)
            self._keep_registered(process, registry)

    def _identity(self, process: Process, files: FileSystem) -> Identity:
        return Identity(
            read_cookie(files, JOURNAL),
            DIRECTORIES,
            self._zookeeper.stores[process.name],
            files,
            on_disk=partial(self._on_disk, process),
        )

    async def _take_place(self, process: Process, identity: Identity) -> BookieRegistry:
        registry = BookieRegistry(
            self._zookeeper.stores[process.name],
            on_replaced=partial(self._replaced, process),
            session_timeout_s=SESSION_TIMEOUT_S,
        )
        await registry.wait_until_vacant(self.node.bookie_id)
        await identity.claim()
        await registry.register(self._info())
        return registry

    async def _on_disk(self, process: Process, work: Callable[[], None]) -> None:
        """Disk work, in which the power may be cut."""
        self.node.guarded(work)
        if not process.alive:
            await asyncio.Event().wait()  # it is dead: nothing of it goes on

    def _info(self) -> BookieInfo:
        return BookieInfo(self.node.bookie_id, f"{self.node.name}:1")

    def _refused(self, process: Process, error: LedgerError) -> None:
        node = self.node
        self._end(process)
        if self.original is None and (
            self.world_was_restored or node.world.faults["metadata away"]
        ):
            node.say(f"{node.name} waits for its cluster's metadata: {error}")
            node.restart_later()
            return
        if self.original is None:
            node.start_failed(error)
            return
        node.say(f"{node.name} refuses a copy: {error}")
        node.world.counts["copies refused"] += 1
        node.disk.files, self.original = self.original, None
        node.restart_later()

    @property
    def world_was_restored(self) -> bool:
        """Whether the cluster may know fewer starts than this bookie."""
        return bool(self.node.world.faults["metadata restored"])

    def _end(self, process: Process) -> None:
        """A start has failed: the process exits."""
        node = self.node
        self.starting = None
        node.world.loop.bury(process)
        node.disk.crash("process")
        self._zookeeper.died(process, 0.0)

    def _replaced(self, process: Process, reason: str) -> None:
        if process.alive:
            self.node.world.violate("I11", "replaced", f"{self.node.name} is told: {reason}")

    # -- rivals ------------------------------------------------------------------------------------

    def start_rival(self, files: MemoryFileSystem, kind: str) -> None:
        """Start another process on a copy of the disk, on a machine of its own."""
        node = self.node
        self._rivals += 1
        process = Process(f"{node.name}~{self._rivals}")
        self.rivals.append(process)

        async def arrive() -> None:
            store = self._zookeeper.connect(process)
            identity = Identity(read_cookie(files, JOURNAL), DIRECTORIES, store, files)
            try:
                await identity.check()
                await self._take_place(process, identity)
            except LedgerError as error:
                node.say(f"{process} is refused: {error}")
                node.world.counts["copies refused"] += 1
                self.end_rival(process)
            else:
                node.world.violate(
                    "I11", "copy", f"{process}, on {kind}, has taken the place of {node.name}"
                )

        node.world.loop.spawn(process, arrive())

    def end_rival(self, process: Process) -> None:
        if process in self.rivals:
            self.rivals.remove(process)
            self.node.world.loop.bury(process)
            self._zookeeper.died(process, 0.0)

    def end_rivals(self) -> None:
        """The machines of all copies stop."""
        for process in list(self.rivals):
            self.end_rival(process)


class Copier:
    """Copies disks, and starts bookies on the copies."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw: random.Random = world.random_for("copies")
        self._copies: dict[str, list[MemoryFileSystem]] = {}

    def strike(self) -> None:
        """Copy a disk, or let a copy try to serve."""
        node = self.draw.choice(list(self.world.nodes.values()))
        copies = self._copies.setdefault(node.name, [])
        what = self.draw.choice(["copy", "beside", "clone", "in place"])
        knows = self.world.zookeeper.tree.peek(cookie_path(node.bookie_id)) is not None
        if node.arrival.original is not None or not knows:
            return
        if what == "copy" or not copies:
            if read_start(node.disk.files, JOURNAL).noted is None:
                return  # a copy of what never served may become the bookie (rule S13)
            copies.append(node.disk.files.crash_clone(None))
            del copies[:-4]
            self.world.fault("disk copied", node.name)
            return
        if what == "clone":
            # A clone takes the place of an original whose session is lost; nobody can tell them.
            options = self.world.options
            loses = options.restores or options.empties or "expire" in options.faults
            if node.process is not None and not loses:
                self.world.fault("clone beside the original", node.name)
                node.arrival.start_rival(node.disk.files.crash_clone(None), "a clone")
            return
        copy = self._as_somebody_puts_it(node, self.draw.choice(copies))
        if what == "beside":
            self.world.fault("copy beside the original", node.name)
            node.arrival.start_rival(copy, "a copy")
        elif not node.disk.cut_in:
            self.world.fault("copy in place of the original", node.name)
            node.crash(self.draw.choice(["process", "power", "lottery"]))
            node.arrival.original, node.disk.files = node.disk.files, copy
            node.start()

    def _as_somebody_puts_it(self, node: BookieNode, copy: MemoryFileSystem) -> MemoryFileSystem:
        """File by file, or the whole disk with its inodes.

        Nobody could tell the whole disk from the original while the cluster knows no later start,
        or once it is restored from a backup that does not, and told to accept newer starts (rule
        S13).
        """
        world = self.world
        data = node.arrival._zookeeper.tree.get(cookie_path(node.bookie_id)).value
        cookie = decode_cookie(node.bookie_id, data)
        start = read_start(copy, JOURNAL)
        latest = max((each.counter for each in (start.current, start.pending) if each), default=0)
        is_older = cookie.start is not None and latest < cookie.start.counter
        will_be_restored = world.options.restores and not world.faults["metadata restored"]
        if not is_older or will_be_restored or self.draw.random() < 0.5:
            return copy.copy()
        return copy.crash_clone(None)
