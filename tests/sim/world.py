"""The world of one schedule: bookies, network, ZooKeeper, clients, and their history."""

from __future__ import annotations

from collections import Counter
from typing import Any

from spark_ledger.errors import FencedError
from spark_ledger.lab.simulation.network import Network
from spark_ledger.types import BookieId
from tests.history.model import Event, History, Phase
from tests.sim.base import SimBase
from tests.sim.clients import (
    PASSWORD,
    Client,
    DeleteClient,
    ReaderClient,
    RecoverClient,
    WriterClient,
)
from tests.sim.collecting import Collections
from tests.sim.dropping import DropClient, DropReaderClient, Drops
from tests.sim.invariants import Invariants
from tests.sim.keepers import KeeperClient
from tests.sim.marks import Marks
from tests.sim.misbehaving import Misbehaviour
from tests.sim.node import BookieNode
from tests.sim.options import Options, StreamPlan
from tests.sim.overtaking import Overtaking
from tests.sim.racing import RaceClient
from tests.sim.racks import BEGIN_S, RackLoss
from tests.sim.repairing import CONFIG, RepairClient
from tests.sim.restoring import Owners
from tests.sim.sharing import SharingClient
from tests.sim.strangers import StrangerClient
from tests.sim.streams import AppendClient, Checkpoint, SinkClient, StreamReaderClient
from tests.sim.together import Pairs
from tests.sim.zookeeper import SimZookeeper

_NANOSECONDS = 1_000_000_000
_SINK_STARTS_MAX = 12


class World(SimBase):
    """Everything in a schedule. ``populate`` starts it."""

    def __init__(self, seed: int, options: Options) -> None:
        super().__init__(seed, options)
        self.history = History()
        self.nodes: dict[BookieId, BookieNode] = {}
        self.invariants = Invariants(self, self.nodes)
        if options.restores:
            self.invariants.owners = Owners()
        self.drops = Drops(self) if options.drops else None
        self.pairs: Pairs | None = None
        self.marks: Marks | None = None
        self.rack_loss: RackLoss | None = None
        if options.repairers:
            bookies = [BookieId(f"b{number}") for number in range(options.bookies)]
            self.marks = Marks(self, bookies, CONFIG.worker.open_grace_s)
        self.network = Network(self)
        self.zookeeper = SimZookeeper(
            self,
            self.random_for("zookeeper"),
            faults=options.metadata_faults,
            stale_reads=options.stale_reads,
            observe=self._observe,
        )
        self.zookeeper.looks = self.drops
        self.misbehaviour = Misbehaviour(self)
        self.collections: Collections | None = None
        self.clients: list[Client] = []
        self.ledger_ids: list[int] = []
        self.successors: set[str] = set()
        """Writers that started after ZooKeeper was restored."""
        self.after_command: set[int] = set()
        """Numbers of those that started after ``ledger cluster restored`` was accepted."""
        self.passwords: dict[int, bytes] = {}
        """Passwords of the ledgers that have one."""
        self.recovering: Counter[int] = Counter()
        self.draw = self.random_for("world")
        self._operations = 0
        self.overtaking: Overtaking | None = None

    # -- the beginning -----------------------------------------------------------------------------

    def populate(self) -> None:
        """Start bookies and writers; the other clients start when their ledger exists."""
        for number in range(self.options.bookies):
            bookie_id = BookieId(f"b{number}")
            self.nodes[bookie_id] = BookieNode(self, self.zookeeper, bookie_id, self.invariants)
        if self.options.rot == "everywhere":
            for node in self.nodes.values():
                node.weak = True
        elif self.options.rot:
            node = self.draw.choice(list(self.nodes.values()))
            node.weak = self.options.rot != "journal"
            node.may_refuse = not node.weak
        for node in self.nodes.values():
            node.start()
        if self.options.rack_loss:
            self.rack_loss = RackLoss(self)
            self.loop.later(BEGIN_S, None, self._begin_writers)
        else:
            self._begin_writers()
        if self.options.stream is not None:
            self._populate_stream(self.options.stream)
        if self.options.overtakes:
            self.overtaking = Overtaking(self)
        for number in range(self.options.keepers):
            KeeperClient.begin(self, f"keeper{number}")
        for number in range(self.options.repairers):
            RepairClient.begin(self, f"repairer{number}")
        if self.options.collects:
            self.collections = Collections(self)

    def _begin_writers(self) -> None:
        for number, plan in enumerate(self.options.ledgers):
            self.clients.append(WriterClient(self, f"writer{number}", plan, number))

    def _populate_stream(self, plan: StreamPlan) -> None:
        if self.options.together:
            self.pairs = Pairs(self, plan)
        for number in range(plan.sinks):
            checkpoint = Checkpoint(f"sink{number}", plan.transactions)
            self.start_sink(checkpoint, plan)
            for _ in range(plan.rivals):
                after_s = self.draw.uniform(0.0, 1.0)
                self.loop.later(after_s, None, self.start_sink, checkpoint, plan)
        if plan.appends:
            self.clients.append(AppendClient(self, "appender", plan))
        for number in range(plan.readers):
            if self.drops is None:
                self.clients.append(StreamReaderClient(self, f"stream-reader{number}", plan))
        if self.drops is not None:
            self.clients.append(DropClient(self, "dropper", plan))
            if self.options.races:
                self.clients.append(RaceClient(self, "holder", plan, names=False))
                self.clients.append(RaceClient(self, "late-driver", plan, names=True))
            for number in range(plan.readers + 1):
                self.clients.append(DropReaderClient(self, f"stream-reader{number}", plan))

    def _observe(self, path: str, data: bytes | None) -> None:
        """A metadata node has changed."""
        self.invariants.observe(path, data)
        if self.drops is not None:
            self.drops.observe(path, data)
        if self.marks is not None:
            self.marks.observe(path, data)
        if self.rack_loss is not None:
            self.rack_loss.observe(path, data)
        if self.pairs is not None:
            self.pairs.observe(path, data)

    def start_sink(self, checkpoint: Checkpoint, plan: StreamPlan) -> None:
        """Start one more driver of a sink."""
        if not self.healing and checkpoint.starts < _SINK_STARTS_MAX:
            name = f"{checkpoint.sink_id}-driver{checkpoint.starts}"
            checkpoint.starts += 1
            self.clients.append(SinkClient(self, name, plan, checkpoint))

    def sink_died(self, checkpoint: Checkpoint, plan: StreamPlan) -> None:
        """Start a sink again that has died."""
        self.loop.later(self.draw.uniform(0.0, 0.4), None, self.start_sink, checkpoint, plan)

    def created(self, number: int, ledger_id: int) -> None:
        """A ledger exists: start its other clients."""
        if ledger_id in self.ledger_ids:
            self.counts["ids given again"] += 1
            if number in self.after_command:
                text = f"ledger {ledger_id} is made again after `ledger cluster restored`"
                self.violate("restore", "id given again", text)
        else:
            self.ledger_ids.append(ledger_id)
        self.counts["ledgers"] += 1
        plans, draw = self.options.ledgers, self.draw
        plan = plans[number % len(plans)]
        self.passwords[ledger_id] = PASSWORD if plan.password else b""

        def come(name: str, kind: Any, *args: Any, after_s: float, **named: Any) -> None:
            def start() -> None:
                if not self.healing:
                    self.clients.append(kind(self, name, ledger_id, *args, **named))

            self.loop.later(after_s, None, start)

        follower = SharingClient if self.options.shared_tails else ReaderClient
        for index in range(plan.tailers):
            name = f"tailer{number}.{index}"
            come(name, follower, after_s=draw.uniform(0, 0.5), tails=True)
        for index in range(plan.readers):
            name = f"reader{number}.{index}"
            come(name, ReaderClient, after_s=draw.uniform(0, 2.0), tails=False)
        for index in range(plan.recoverers):
            after_s = plan.recover_after_s * draw.uniform(0.3, 1.2)
            come(f"recoverer{number}.{index}", RecoverClient, after_s=after_s)
        for index in range(plan.strangers):
            come(f"stranger{number}.{index}", StrangerClient, after_s=draw.uniform(0, 1.0))
        if self.collections is not None:
            self.collections.begin_deletion(number, ledger_id)
        if plan.deletes:
            come(f"deleter{number}", DeleteClient, after_s=draw.uniform(0.3, 3.0))

    def append_ended(self, name: str, error: BaseException | None) -> None:
        """A writer was told that an entry is confirmed, or that its append failed."""
        self.counts["entries acknowledged"] += error is None
        self.counts["adds refused by a fence"] += isinstance(error, FencedError)
        if self.rack_loss is not None:
            self.rack_loss.append_ended(name, error)

    def recover(self, ledger_id: int) -> None:
        """Start a recovery of a ledger now."""
        name = f"rescuer{len(self.clients)}"
        self.clients.append(RecoverClient(self, name, ledger_id))

    @property
    def is_idle(self) -> bool:
        """Whether every client has finished."""
        return all(client.is_done for client in self.clients)

    # -- history -----------------------------------------------------------------------------------

    def invoke(self, process: str, name: str, **fields: Any) -> int:
        """Record that an operation begins. Returns its number."""
        self._operations += 1
        self._record(process, self._operations, Phase.INVOKE, name, fields)
        return self._operations

    def end(self, process: str, operation: int, phase: Phase, name: str, **fields: Any) -> None:
        """Record that an operation ends."""
        self._record(process, operation, phase, name, fields)

    def _record(
        self, process: str, operation: int, phase: Phase, name: str, fields: dict[str, Any]
    ) -> None:
        if self.over:
            return
        time_ns = int(self.loop.now * _NANOSECONDS)
        event = Event(time_ns, process, operation, phase, name, **fields)
        self.history.record(event)
        where = f" {event.ledger_id}" if event.ledger_id >= 0 else f" {event.stream}"
        place = f" {event.entry_id}..{event.last_entry}" if event.entry_id >= 0 else ""
        note = f" ({event.error})" if event.error else ""
        self.say(f"{process} #{operation} {name}{where}{place}: {phase.value}{note}")
