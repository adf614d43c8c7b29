"""ZooKeeper is restored from a backup: the fault, what it makes impossible, and what must hold.

A restored store knows a past state. Ledgers that it knows as closed are judged as all others are.
Ledgers that were open in the backup, came after it or were deleted since are *disturbed*: what was
acknowledged in them may be lost. The checks here hold for them all the same.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ledger.cli.restoring import accept_restored
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError
from spark_ledger.runs import EntryRun
from tests.history.final import FinalLedger
from tests.history.model import History, Operation, Phase
from tests.history.values import verify
from tests.history.violation import Violation
from tests.sim.clients import Client, WriterClient
from tests.sim.zookeeper import Backup, SimStore

if TYPE_CHECKING:
    from tests.sim.dropping import Drops
    from tests.sim.node import BookieNode
    from tests.sim.world import World

_OWNER: Final = re.compile(rb"((?:writer|successor)[0-9]+)/\d+/\d+/\d+/[0-9a-f]{8}")
_OPERATOR_ATTEMPTS: Final = 20


def owner_of(frame: bytes) -> str:
    """The writer whose value a frame holds; "" for a frame of nobody's."""
    match = _OWNER.search(frame)
    return match[1].decode() if match else ""


def owners_gone(world: World) -> list[str]:
    """The processes that live and have made ledgers, and whose owner node is not there."""
    peek = world.zookeeper.tree.peek
    return [
        client.name
        for client in world.clients
        for owner in (each.context.owner for each in client._connections if _is_open(each))
        if client.process.alive and owner._is_announced and peek(owner._path) is None
    ]


def _is_open(client: LedgerClient) -> bool:
    store = client.store
    return isinstance(store, SimStore) and not store._closed


def forget_ledgers(client: Client) -> None:
    """It has seen so many others that it remembers none but those that it has open."""
    for connection in client._connections:
        seen = connection.context.ledgers._seen
        seen._seen.clear()
        seen._bytes = 0


class Restorer:
    """Takes a backup, and has ZooKeeper come back with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw: random.Random = world.random_for("restore")
        self._forgetting: random.Random = world.random_for("forgotten ledgers")
        self._backup: Backup | None = None
        self._operator: Operator | None = None
        latest_s = self.draw.choice([0.02, 0.02, 0.5, 1.5])
        self._later(self.draw.uniform(0.0, latest_s), self._back_up)

    def _later(self, after_s: float, work: Callable[[], None]) -> None:
        self.world.loop.later(after_s, None, self._unless_healing, work)

    def _unless_healing(self, work: Callable[[], None]) -> None:
        if not self.world.healing:
            work()

    def _back_up(self) -> None:
        drops, pairs = self.world.drops, self.world.pairs
        is_missing = drops.head is None if drops else pairs is not None and not pairs.are_there
        if (drops or pairs) and (is_missing or self.draw.random() < 0.8):
            self._later(0.1, self._back_up)  # once there is a stream, and perhaps a while later
            return
        self._backup = self.world.zookeeper.tree.back_up()
        self.world.say("a backup of ZooKeeper is taken")
        after_s = self.draw.choice([0.1, 0.3, 1.0]) * self.draw.uniform(0.2, 1.5)
        self._later(after_s * (2.0 if drops or pairs else 1.0), self._go_down)

    def _go_down(self) -> None:
        self.world.zookeeper.restoring = True
        self.world.loop.later(self.draw.uniform(0.02, 0.6), None, self._restore)

    def _restore(self) -> None:
        """Come back with the backup, or as before when the schedule heals meanwhile."""
        world, zookeeper = self.world, self.world.zookeeper
        if world.healing:
            return
        assert self._backup is not None
        # With an ensemble, or after many changes, nobody can tell it by the number of a change.
        shows = self.draw.random() < 0.6
        last = world.options.sessions_last
        zookeeper.restore(self._backup, shows=shows, sessions_last=last)
        world.invariants.restored(self._backup.data())
        if world.drops is not None:
            world.drops.restored(self._backup.data(), len(world.history))
        if world.pairs is not None:
            world.pairs.restored(self._backup.data())
        if self._forgetting.random() < 0.5:  # readers remember: what they read is compared
            for client in world.clients:
                if isinstance(client, WriterClient):
                    forget_ledgers(client)
        command = self.draw.random() < 0.5 or world.options.copies
        world.fault("metadata restored", f"{'shows' if shows else 'does not show'}")
        if world.overtaking is not None:
            world.overtaking.restored()
        if command:
            self._operator = Operator(world)
        for number in range(self.draw.randint(1, 2) if world.options.ledgers else 0):
            after_s = self.draw.uniform(0.0, 0.8)
            self._later(after_s, functools.partial(self._write_again, number))

    def heal(self) -> None:
        """Whoever was to run the command may be dead: bookies that wait for it wait for ever."""
        accepted = self.world.counts["restores accepted"]
        if self._operator is not None and self._operator.is_done and not accepted:
            self._operator = Operator(self.world)

    def _write_again(self, number: int) -> None:
        """A client that starts after the restore makes a ledger; its id may be given again."""
        world = self.world
        plans = world.options.ledgers
        index = len(plans) + number
        writer = WriterClient(world, f"successor{number}", plans[index % len(plans)], index)
        world.successors.add(writer.name)
        if world.counts["restores accepted"]:
            world.after_command.add(index)
        world.clients.append(writer)


class Operator(Client):
    """Runs ``ledger cluster restored`` until it is accepted."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "operator")
        world.clients.append(self)
        self.start(self._run())

    async def _run(self) -> None:
        client = await self.connect()
        context = client._context
        for _ in range(_OPERATOR_ATTEMPTS):
            try:
                done = await accept_restored(context.store, context.transport, ())
            except LedgerError as error:
                self.world.say(f"operator: {type(error).__name__}: {error}")
                await asyncio.sleep(self.draw.uniform(0.1, 0.4))
            else:
                self.world.counts["restores accepted"] += 1
                self.world.say(f"operator: the next ledger id is {done.next_ledger_id}")
                return


class Owners:
    """Whose entries each bookie holds. Checks that no bookie mixes two ledgers of one id."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int, int], str] = {}

    def mixed(self, node: BookieNode, run: EntryRun, collected: int) -> str:
        """Note what a bookie has stored; what is wrong with it, or "".

        ``collected``: how often it had let go of the ledger of this id when it accepted the add.
        What it holds then is another ledger, if the id was given again.
        """
        for _, frame in run.split():
            owner = owner_of(bytes(frame))
            known = self._owners.setdefault((node.name, run.ledger_id, collected), owner)
            if known != owner:
                return f"{node.name} holds entries of {known} and {owner} in ledger {run.ledger_id}"
        return ""


def without(history: History, ledger_ids: frozenset[int]) -> History:
    """The history without the operations on these ledgers."""
    left_out = {event.operation for event in history.events if event.ledger_id in ledger_ids}
    return History(event for event in history.events if event.operation not in left_out)


def without_lost_commits(history: History, drops: Drops) -> History:
    """The history as a restored stream has it: a commit that was acknowledged before, and that the
    backup does not have, may be there or not."""
    lost = {
        operation.number
        for operation in history.operations("commit")
        if operation.began < drops.restored_at
        and operation.end is not None
        and operation.end.commit >= drops.kept
    }
    return History(
        replace(event, phase=Phase.UNKNOWN)
        if event.operation in lost and event.phase is Phase.OK
        else event
        for event in history.events
    )


def check_disturbed(
    world: World, disturbed: frozenset[int], final: dict[int, FinalLedger]
) -> Iterator[Violation]:
    """What must hold for ledgers that a restore has disturbed."""
    entries: dict[tuple[str, int, int], str] = {}
    owners: dict[tuple[str, int], str] = {}
    for operation in world.history.operations("read", "tail"):
        ledger_id = operation.ledger_id
        if ledger_id not in disturbed or not operation.ok:
            continue
        for entry_id, text in enumerate(operation.values, operation.first_entry):
            owner = text.partition("/")[0]
            whose = f"{operation.invoke.process} read entry {entry_id} of ledger {ledger_id}"
            if not verify(text) or text.split("/")[1] != str(ledger_id):
                yield _restore_violation("another ledger", f"{whose}: {text}", operation)
            elif owners.setdefault((operation.invoke.process, ledger_id), owner) != owner:
                yield _restore_violation("two ledgers", f"{whose}, of {owner}", operation)
            elif entries.setdefault((owner, ledger_id, entry_id), text) != text:
                yield _restore_violation("two contents", f"{whose}: {text}", operation)
    yield from _check_successors(world, disturbed, final)


def _check_successors(
    world: World, disturbed: frozenset[int], final: dict[int, FinalLedger]
) -> Iterator[Violation]:
    """A ledger that was made after the restore keeps what was acknowledged, whatever its id.

    Unless it was deleted: that there is a ledger of its id proves nothing. A client that stood
    still while it made one, before the restore, makes it when the id is free again.
    """
    deletions: dict[int, int] = {}
    for operation in world.history.operations("delete"):
        if operation.phase is not Phase.FAIL:
            last = deletions.get(operation.ledger_id, -1)
            deletions[operation.ledger_id] = max(last, operation.ended)
    for operation in world.history.operations("append"):
        ledger_id = operation.ledger_id
        if ledger_id not in disturbed or not operation.ok:
            continue
        if operation.invoke.process not in world.successors:
            continue
        assert operation.end is not None
        ledger, entry_id = final[ledger_id], operation.end.entry_id
        if ledger.unreadable or (ledger.deleted and world.invariants.of(ledger_id).deleted):
            continue  # bookies that hold the lost ledger of this id count as failed ones
        if deletions.get(ledger_id, -1) > operation.began:
            continue
        if ledger.values[entry_id : entry_id + 1] != operation.values:
            text = f"entry {entry_id} of ledger {ledger_id}, made after the restore, is lost"
            yield _restore_violation("new ledger", text, operation)


def _restore_violation(name: str, text: str, operation: Operation) -> Violation:
    return Violation("restore", name, text, (operation.number,))
