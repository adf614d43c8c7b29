"""The nemesis: injects one fault after the other, of the kinds that the schedule allows, and ends
them. README.md lists the faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations

from bookie_server.storage.index.base import IndexRow
from tests.sim.clients import Client, WriterClient
from tests.sim.copies import Copier
from tests.sim.emptying import Emptier
from tests.sim.node import BookieNode
from tests.sim.restoring import Restorer
from tests.sim.world import World


class Nemesis:
    """Decides which fault strikes next, and when it ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw: random.Random = world.random_for("nemesis")
        self._kinds: dict[str, Callable[[], str]] = {
            "crash": self._crash,
            "crash_in_io": self._crash_in_io,
            "crash_all": self._crash_all,
            "pause_bookie": self._pause_bookie,
            "slow_disk": self._slow_disk,
            "disk_full": self._disk_full,
            "disk_error": self._disk_error,
            "cut": self._cut,
            "cut_one_way": self._cut_one_way,
            "clog": self._clog,
            "reset": self._reset,
            "zookeeper_down": self._zookeeper_down,
            "expire": self._expire,
            "pause_client": self._pause_client,
            "crash_client": self._crash_client,
            "failover": self._failover,
            "clock_jump": self._clock_jump,
        }
        self._copier = Copier(world)
        self._restorer = Restorer(world) if world.options.restores else None
        self._emptier = Emptier(world) if world.options.empties else None
        self._next()

    def _next(self) -> None:
        gap_s = self.world.options.fault_gap_s * self.draw.expovariate(1.0)
        self.world.loop.later(gap_s, None, self._strike)

    def _strike(self) -> None:
        world = self.world
        if world.healing:
            return
        self._next()
        if world.options.rot and self.draw.random() < 0.2:
            self._rot()
        if world.options.copies and self._copier.draw.random() < 0.4:
            self._copier.strike()
        if world.options.faults:
            kind = self.draw.choice(world.options.faults)
            detail = self._kinds[kind]()
            if detail:
                world.fault(kind.replace("_", " "), detail)

    def heal(self) -> None:
        """Begin the second phase: end every fault, except that a lost disk stays lost."""
        world = self.world
        world.healing = True
        world.say("== healing ==")
        world.zookeeper.down = world.zookeeper.restoring = False
        world.zookeeper.faults = 0.0
        world.zookeeper.cut_off.clear()
        world.network.mend_all()
        for node in world.nodes.values():
            node.arrival.end_rivals()
            node.slow = 1.0
            world.misbehaviour.go_on(node)
            node.ledgers_go_on()
            node.disk.full = frozenset()
            node.disk.error_in = node.disk.cut_in = 0
            node.resume()
            node.start()
        for client in world.clients:
            if client.process.alive and client.process.paused:
                world.loop.resume(client.process)
        if self._restorer is not None:
            self._restorer.heal()
        if self._emptier is not None:
            self._emptier.heal()

    # -- choosing ----------------------------------------------------------------------------------

    def _running(self) -> list[BookieNode]:
        return [node for node in self.world.nodes.values() if node.process is not None]

    def _clients(self) -> list[Client]:
        return [client for client in self.world.clients if not client.is_done]

    def _time_s(self) -> float:
        return self.world.options.fault_s * self.draw.uniform(0.2, 3.0)

    def _mend(self, work: Callable[..., None], *args: object) -> None:
        self.world.loop.later(self._time_s(), None, work, *args)

    # -- bookies -----------------------------------------------------------------------------------

    def _crash_kind(self) -> str:
        return self.draw.choice(["process", "power", "lottery", "lottery"])

    def _crash(self) -> str:
        running = self._running()
        if not running:
            return ""
        node = self.draw.choice(running)
        kind = self._crash_kind()
        node.crash(kind)
        self._mend(node.start)
        return f"{node.name}, {kind}"

    def _crash_all(self) -> str:
        if self.draw.random() < 0.5:
            return ""
        running, kind = self._running(), self._crash_kind()
        for node in running:
            node.crash(kind)
            self._mend(node.start)
        return kind if running else ""

    def _crash_in_io(self) -> str:
        running = self._running()
        if not running:
            return ""
        node = self.draw.choice(running)
        node.disk.cut_in = self.draw.choice([1, 2, 3, 5, 8, 13])
        if self.draw.random() < 0.3:
            node.crash(self._crash_kind())
            node.disk.cut_in = self.draw.choice([1, 2, 3, 5, 8, 13])
            self._mend(node.start)
        return f"{node.name}, operation {node.disk.cut_in}"

    def _pause_bookie(self) -> str:
        running = self._running()
        if not running:
            return ""
        node = self.draw.choice(running)
        node.pause()
        self._mend(node.resume)
        return node.name

    def _slow_disk(self) -> str:
        node = self.draw.choice(list(self.world.nodes.values()))
        node.slow = self.draw.choice([20.0, 200.0])

        def fast() -> None:
            node.slow = 1.0

        self._mend(fast)
        return f"{node.name} x{node.slow:.0f}"

    def _disk_full(self) -> str:
        node = self.draw.choice(list(self.world.nodes.values()))
        # Of a source of its own, so that other faults stay as they are drawn.
        which = self.world.random_for(f"full disk {self.world.loop.now} {node.name}").choice(
            [("ledgers",), ("journal",), ("journal", "ledgers")]
        )
        node.disk.full = frozenset(which)
        node.announcement.watch_disk()

        def free() -> None:
            node.disk.full = frozenset()

        self._mend(free)
        return f"{node.name}, {' and '.join(which)}"

    def _disk_error(self) -> str:
        running = self._running()
        if not running:
            return ""
        node = self.draw.choice(running)
        node.disk.error_in = self.draw.choice([1, 2, 3, 5, 8])
        return f"{node.name}, operation {node.disk.error_in}"

    def _rot(self) -> None:
        """Damage the disk of the one untrusted bookie; or of any, which then must be detected."""
        nodes = self.world.nodes.values()
        node = self.draw.choice([node for node in nodes if node.weak or node.may_refuse])
        if self.world.options.rot == "journal" and self.world.options.loses_newest:
            if node.process is not None:
                node.crash(self.draw.choice(["process", "power"]))
                self._mend(node.start)
                where = node.disk.lose_newest_journal_file()
                self.world.fault("newest journal file lost", f"{node.name} {where}")
            return
        if self.world.options.rot == "journal":
            where = node.rot_journal()
            if where:
                self.world.fault("journal bit flipped", f"{node.name} {where}")
            return
        if self.world.options.rot == "gone":
            if node.process is not None and self.draw.random() < 0.3:
                node.crash("power")
                node.broken = "its disk is gone"
                self.world.fault("disk gone", node.name)
            return
        blocks = node.blocks()
        how = self.draw.choice(["bit flipped", "bit flipped", "block lost", "block misdirected"])
        if how == "bit flipped":
            where = node.disk.flip()
        elif len(blocks) < 2:
            return
        elif how == "block lost":
            where = node.disk.lose_block(self.draw.choice(blocks).location)
        else:
            # The most dangerous are the same entries of another ledger, with the same size.
            pairs = [*permutations(blocks, 2)]
            alike = [pair for pair in pairs if len({_shape(block) for block in pair}) == 1]
            block, place = self.draw.choice(alike or pairs)
            where = node.disk.misdirect_block(block.location, place.location)
        if where:
            self.world.fault(how, f"{node.name} {where}")

    # -- network -----------------------------------------------------------------------------------

    def _pair(self) -> tuple[str, str] | None:
        clients = self._clients()
        if not clients:
            return None
        node = self.draw.choice(list(self.world.nodes.values()))
        return self.draw.choice(clients).name, node.name

    def _cut(self) -> str:
        pair = self._pair()
        if pair is None:
            return ""
        holds = self.draw.random() < 0.5
        for source, target in (pair, pair[::-1]):
            self.world.network.cut(source, target, holds=holds)
            self._mend(self.world.network.mend, source, target)
        return f"{pair[0]} - {pair[1]}{', held back' if holds else ''}"

    def _cut_one_way(self) -> str:
        pair = self._pair()
        if pair is None:
            return ""
        source, target = pair if self.draw.random() < 0.5 else pair[::-1]
        self.world.network.cut(source, target, holds=self.draw.random() < 0.5)
        self._mend(self.world.network.mend, source, target)
        return f"{source} -> {target}"

    def _clog(self) -> str:
        """Stop a client's links one by one, and let them go on in another order."""
        clients = self._clients()
        if not clients:
            return ""
        client, network = self.draw.choice(clients), self.world.network
        names = [node.name for node in self.world.nodes.values()]
        self.draw.shuffle(names)
        for name in names[: self.draw.randint(1, len(names))]:
            after_s = self._time_s() / 2

            def close(name: str = name) -> None:
                if not self.world.healing:
                    network.cut(name, client.name, holds=True)
                    self._mend(network.mend, name, client.name)

            self.world.loop.later(after_s, None, close)
        return client.name

    def _reset(self) -> str:
        running = [node for node in self._running() if node.connections]
        if not running:
            return ""
        node = self.draw.choice(running)
        connection = self.draw.choice(node.connections)
        process = connection.transport.process
        self.world.loop.later(0.0, process, connection.break_off)
        return f"{process} - {node.name}"

    # -- ZooKeeper ---------------------------------------------------------------------------------

    def _zookeeper_down(self) -> str:
        zookeeper = self.world.zookeeper
        if self.draw.random() < 0.4:
            zookeeper.down = True

            def up() -> None:
                zookeeper.down = False

            self._mend(up)
            return "for everybody"
        stores = sorted(zookeeper.stores)
        if not stores:
            return ""
        name = self.draw.choice(stores)
        zookeeper.cut_off.add(name)
        self._mend(zookeeper.cut_off.discard, name)
        return f"for {name}"

    def _expire(self) -> str:
        zookeeper = self.world.zookeeper
        stores = sorted(name for name, store in zookeeper.stores.items() if store.process.alive)
        if not stores:
            return ""
        name = self.draw.choice(stores)
        zookeeper.expire(name)
        return f"the session of {name}"

    # -- clients -----------------------------------------------------------------------------------

    def _pause_client(self) -> str:
        clients = [client for client in self._clients() if not client.process.paused]
        if not clients:
            return ""
        client = self.draw.choice(clients)
        client.process.paused = True
        self.world.loop.later(self._time_s() * 2, None, self._resume, client)
        return client.name

    def _failover(self) -> str:
        """Recover a ledger whose writer is believed to be dead."""
        writers = [
            client
            for client in self._clients()
            if isinstance(client, WriterClient) and client.writer is not None
        ]
        if not writers:
            return ""
        victim = self.draw.choice(writers)
        assert victim.writer is not None
        what = self.draw.choice(["paused", "dead", "cut off", "well"])
        if what == "paused":
            victim.process.paused = True
            self.world.loop.later(self._time_s() * 2, None, self._resume, victim)
        elif what == "dead":
            victim.crash()
        elif what == "cut off":
            for node in self.world.nodes.values():
                if self.draw.random() < 0.6:
                    self.world.network.cut(victim.name, node.name, holds=True)
                    self._mend(self.world.network.mend, victim.name, node.name)
        self.world.recover(victim.writer.ledger_id)
        return f"{victim.name} is {what}"

    def _clock_jump(self) -> str:
        """Set a client's wall clock, by an hour or by ten years."""
        clients = self._clients()
        if not clients:
            return ""
        client = self.draw.choice(clients)
        client.process.wall_offset_s += self.draw.choice([-3.15e8, -3600.0, 3600.0, 3.15e8])
        return f"{client.name} by years or an hour"

    def _resume(self, client: Client) -> None:
        if client.process.paused:
            self.world.loop.resume(client.process)

    def _crash_client(self) -> str:
        clients = self._clients()
        if not clients or self.draw.random() < 0.5:
            return ""
        client = self.draw.choice(clients)
        client.crash()
        return client.name


def _shape(row: IndexRow) -> tuple[int, int, int]:
    return row.first_entry, row.last_entry, row.location.length
