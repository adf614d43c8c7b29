"""run_schedule: one seed gives one schedule and one outcome, always the same."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import logging
import random
import secrets
import sys
import time
import uuid
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from spark_ledger.client import found_entries, recovery
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError, NotFoundError
from spark_ledger.keeper import keeper, optimizing, streams
from spark_ledger.lab.simulation.loop import Deadlock, current_process
from spark_ledger.limits import MIB
from spark_ledger.metadata import deletions
from spark_ledger.stream import nodes
from spark_ledger.stream.commit import commit_nodes, committer, sealer
from spark_ledger.stream.manifest import tree
from spark_ledger.stream.retention import handle
from spark_ledger.types import LedgerId, Quorums
from spark_ledger.wire import frame
from tests.history.checkers import check_all
from tests.history.final import Final as FinalState
from tests.history.final import FinalLedger, FinalStream
from tests.history.violation import Violation
from tests.sim.base import Step
from tests.sim.clients import Client, read_all
from tests.sim.keepers import LastKeeper
from tests.sim.nemesis import Nemesis
from tests.sim.options import Options, options_of
from tests.sim.restoring import check_disturbed, owners_gone, without, without_lost_commits
from tests.sim.streams import AppendClient, judge_stream
from tests.sim.world import World

HEAL_S: Final = 240.0
"""Virtual seconds within which everything has to end once the faults have ended."""

_CALLBACKS_MAX: Final = 400_000
_EPOCH_NS: Final = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of what happened in a schedule."""

    steps: int = 0
    callbacks: int = 0
    virtual_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a schedule ended."""

    seed: int
    violations: tuple[Violation, ...]
    statistics: Statistics
    options: Options
    steps: list[Step]

    def trace(self, lines_max: int | None = None) -> list[str]:
        """The trace as text, or only its last lines."""
        steps = self.steps if lines_max is None else self.steps[-lines_max:]
        return [_line(step) for step in steps]

    def trace_hash(self) -> str:
        """A hash of the whole trace."""
        return hashlib.sha256("".join(map(_line, self.steps)).encode()).hexdigest()


def _line(step: Step) -> str:
    return f"{step[0]:9.4f} {step[1]}"


def run_schedule(seed: int, options: dict[str, Any] | None = None) -> Outcome:
    """Run one schedule. ``options`` replace some of those that the seed draws."""
    world = World(seed, options_of(options, seed))
    with quiet(), _adjusted(world.options), _determined(world):
        _Run(world).run()
    return Outcome(
        seed,
        tuple(world.violations),
        Statistics(
            len(world.steps),
            world.loop.callbacks,
            round(world.loop.now, 3),
            dict(sorted(world.faults.items())),
            dict(sorted(world.counts.items())),
        ),
        world.options,
        world.steps,
    )


_HEARS_S: Final = 2.0
"""Within so long all that works with a connection has met its end."""

_ATTEMPTS: Final = 4
"""How often the judge tries to recover and to read a ledger."""


class _Run:
    """The two phases, and the judgement."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.final: dict[int, FinalLedger] = {}
        self.stream: FinalStream | None = None
        self._last = Client(world, "judge")

    def run(self) -> None:
        """Run and judge. Violations are collected in the world."""
        world = self.world
        try:
            world.populate()
            nemesis = Nemesis(world)
            world.loop.run(
                lambda: world.is_idle and world.loop.now > 0.5,
                until_s=world.options.phase_s,
                callbacks_max=_CALLBACKS_MAX,
            )
            nemesis.heal()
            self._end_all()
            self._give_back_all()
            self._collect_all()
            self._read_all()
            self._look_for_owners()
            self._judge()
            self._close_all()
        except Deadlock as error:
            world.violate("I13", "deadlock", f"{error}: {self._who_waits()}")
        finally:
            world.over = True
            world.loop.close()

    def _end_all(self) -> None:
        """Check I13: every operation ends."""
        world = self.world
        done = world.loop.run(
            lambda: world.is_idle,
            until_s=world.loop.now + HEAL_S,
            callbacks_max=world.loop.callbacks + _CALLBACKS_MAX,
        )
        if not done and not world.is_beyond_tolerance:
            world.violate("I13", "hangs", f"after healing: {self._who_waits()} not done")

    def _give_back_all(self) -> None:
        """Have a last keeper give back what was dropped of the stream (rule T18)."""
        world = self.world
        if world.options.stream is None or world.drops is None:
            return
        for client in world.clients:
            if not isinstance(client, AppendClient):  # those go on living, and own what they opened
                client.crash()
        last = LastKeeper(world, "keeper-at-last", world.options.stream)
        done = world.loop.run(
            lambda: last.is_done,
            until_s=world.loop.now + HEAL_S,
            callbacks_max=world.loop.callbacks + _CALLBACKS_MAX,
        )
        if not done:
            world.violate("I13", "hangs", "the last keeper does not end")

    def _collect_all(self) -> None:
        """Have each bookie collect its garbage to the end, if they collect at all."""
        world = self.world
        if world.collections is None:
            return
        settling = world.loop.spawn(None, world.collections.settle())
        done = world.loop.run(
            settling.done,
            until_s=world.loop.now + HEAL_S,
            callbacks_max=world.loop.callbacks + _CALLBACKS_MAX,
        )
        if not done:
            world.violate("I13", "hangs", "the last garbage collection does not end")

    def _read_all(self) -> None:
        """Check I13: a client that took no part can recover and read every ledger."""
        world = self.world
        last = self._last
        last.start(self._recover_all(last))
        done = world.loop.run(
            lambda: last.is_done,
            until_s=world.loop.now + HEAL_S,
            callbacks_max=world.loop.callbacks + _CALLBACKS_MAX,
        )
        if not done:
            world.violate("I13", "hangs", "the last recovery does not end")

    def _look_for_owners(self) -> None:
        """Check that whoever lives counts as alive: keepers end the ledgers of all others (K2)."""
        world = self.world
        if not owners_gone(world):
            return
        with suppress(Deadlock):  # nobody is about to make them
            world.loop.run(
                lambda: not owners_gone(world),
                until_s=world.loop.now + HEAL_S,
                callbacks_max=world.loop.callbacks + _CALLBACKS_MAX,
            )
        for name in owners_gone(world):
            world.violate("I13", "owner gone", f"{name} lives, and its owner node is not there")

    async def _recover_all(self, judge: Client) -> None:
        client = await judge.connect()
        for ledger_id in self.world.ledger_ids:
            self.final[ledger_id] = await self._recover(judge, client, ledger_id)
        if self.world.overtaking is not None:
            await self.world.overtaking.judge(client)
        if self.world.options.stream is None:
            return
        if self.world.pairs is not None:
            self.world.pairs.check()
            await self.world.pairs.judge(client)
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(1.0)  # as below: a bookie may be restarting
            self.stream = await judge_stream(client)
            if not self.stream.unreadable:
                break

    async def _recover(self, judge: Client, client: LedgerClient, ledger_id: int) -> FinalLedger:
        world, error = self.world, ""
        quorums = Quorums(2, 2, 2)
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(1.0)  # a bookie whose disk has just failed restarts meanwhile
            try:
                reader = await judge.attempt(
                    "recover", judge.open(client, ledger_id, recover=True), ledger_id=ledger_id
                )
                values = await read_all(judge, reader)
            except NotFoundError:
                return FinalLedger(ledger_id, quorums, deleted=True)
            except LedgerError as reason:
                error = f"{type(reason).__name__}: {reason}"
                continue
            if values is None:
                error = "it cannot be read"
                continue
            metadata = reader.metadata
            replicas = {
                node.name: {
                    entry_id: f"{hash_of(frame)}"
                    for entry_id, frame in node.promises.held(LedgerId(ledger_id)).items()
                }
                for node in world.nodes.values()
                if node.process is not None and not node.weak
            }
            return FinalLedger(
                ledger_id,
                metadata.quorums,
                metadata.fragments,
                end=metadata.last_entry_id,
                values=values,
                replicas=replicas,
            )
        return FinalLedger(
            ledger_id, quorums, unreadable=error, beyond_tolerance=world.is_beyond_tolerance
        )

    def _judge(self) -> None:
        world = self.world
        disturbed = world.invariants.disturbed
        for violation in check_disturbed(world, disturbed, self.final):
            world.violate(violation.invariant, violation.name, violation.text)
        judged = {number: each for number, each in self.final.items() if number not in disturbed}
        for ledger in judged.values():
            if ledger.unreadable and not ledger.beyond_tolerance:
                text = f"ledger {ledger.ledger_id} after healing: {ledger.unreadable}"
                world.violate("I13", "unreadable", text)
        history = without(world.history, disturbed) if disturbed else world.history
        if world.drops is not None:
            history = without_lost_commits(history, world.drops)
        things: list[FinalLedger | FinalStream] = [*judged.values()]
        is_collected = world.drops is not None and world.drops.is_collected
        may_be_lost = world.is_beyond_tolerance or is_collected
        if self.stream and not (self.stream.unreadable and may_be_lost):
            things.append(self.stream)
        for violation in check_all(history, FinalState.of(*things), exact=True):
            if violation.name == "unreadable" and may_be_lost:
                continue  # more copies were damaged than the promises allow, or were collected
            if violation.name == "stale" and world.options.is_liar_one_of_several:
                continue  # a liar and one that is down may be the AQ that have the end
            world.violate(violation.invariant, violation.name, violation.text)

    def _close_all(self) -> None:
        """Check that nothing of a connection goes on behind its close, whatever it has met."""
        world = self.world
        clients = [each for each in [*world.clients, self._last] if each.process.alive]
        closed = [each for each in clients if each.is_done]
        for client in closed:
            client.start(client.close())
        with suppress(Deadlock):  # nothing at all is left to be done
            world.loop.run(
                lambda: all(client.is_done for client in closed),
                until_s=world.loop.now + HEAL_S,
                callbacks_max=world.loop.callbacks + _CALLBACKS_MAX,
            )
        if not all(client.is_done for client in closed):
            world.violate("I13", "hangs", f"closing does not end: {self._who_waits()} not done")
        with suppress(Deadlock):  # a stream's sealing may be about to hear of it
            world.loop.run(
                lambda: not any(world.loop.tasks_of(client.process) for client in closed),
                until_s=world.loop.now + _HEARS_S,
                callbacks_max=world.loop.callbacks + _CALLBACKS_MAX,
            )
        for client in closed:
            left = [str(task.get_coro()) for task in world.loop.tasks_of(client.process)]
            if left:
                world.violate("I13", "leaves", f"{client.name} is closed, and at work: {left}")

    def _who_waits(self) -> str:
        return ", ".join(client.name for client in self.world.clients if not client.is_done)


def hash_of(frame: bytes) -> str:
    """A short name for a frame."""
    return f"{zlib.crc32(frame):08x}/{len(frame)}"


_runs = itertools.count()
_RUNS_BETWEEN_COLLECTIONS: Final = 32
_RUNS_BEFORE_FREEZING: Final = (1, 32)


def _collect_garbage(*, first: bool) -> None:
    """Collect garbage only between schedules: finalizers run callbacks, which would change a
    trace."""
    if first:
        gc.disable()
        return
    run = next(_runs)
    if run % _RUNS_BETWEEN_COLLECTIONS == 0:
        gc.collect()
    if run in _RUNS_BEFORE_FREEZING:
        gc.freeze()  # what is imported by now is never garbage


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log. Switching it off and on costs as much as thirty callbacks, so whoever runs
    many schedules does it once around all of them."""
    before = logging.root.manager.disable
    if before >= logging.CRITICAL:
        yield
        return
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _adjusted(options: Options) -> Iterator[None]:
    """Make some sizes of the product smaller for a schedule, and key derivation quick."""
    bucket = options.stream.bucket if options.stream is not None else nodes.COMMITS_PER_BUCKET
    values: dict[str, Any] = {"_SCRYPT_COST": 2}
    if bucket < nodes.COMMITS_PER_BUCKET:
        values |= {
            "COMMITS_PER_BUCKET": bucket,
            "COMMITS_PER_LEAF": bucket // 3,
            "FAN_OUT": 2,
            "COMMITS_KEPT_AS_NODES": 1,
            "SEAL_EVERY": bucket // 3,
        }
    if options.chunk_bytes < MIB:  # a recovery waits for room as one of large fragments does
        values |= {
            "RECOVERY_BYTES_MAX": options.chunk_bytes,
            "RECOVERY_READ_BYTES_MAX": options.chunk_bytes,
        }
    if options.packs:
        values["OPTIMIZED_ENTRIES_MIN"] = 2
    if options.drops or options.audits or options.packs:
        values |= {"STREAM_SWEEP_PASSES": 2, "HURRIED_BYTES_MIN": 0}
    if options.collects:
        values["DELETION_SIGN_PAUSE_S"] = 0.1
    if options.audits:
        values["LEDGERS_NAMED_BY_COMMIT_MAX"] = 1
    places = [
        (module, name)
        for module in (
            *(commit_nodes, committer, deletions, found_entries, frame, keeper, nodes),
            *(optimizing, recovery, sealer, streams, tree),
        )
        for name in values
        if hasattr(module, name)
    ]
    before = [getattr(*place) for place in places]
    for module, name in places:
        setattr(module, name, values[name])
    try:
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


@contextmanager
def _determined(world: World) -> Iterator[None]:
    """Replace every other source of randomness and time while a schedule runs."""
    draw = world.random_for("identifiers")
    saved = (
        uuid.uuid4,
        secrets.token_hex,
        secrets.randbits,
        time.time_ns,
        sys.unraisablehook,
    )

    def wall_ns() -> int:
        process = current_process()
        offset_s = process.wall_offset_s if process is not None else 0.0
        return max(0, _EPOCH_NS + int((world.loop.now + offset_s) * 1e9))  # as Linux has it

    uuid.uuid4 = lambda: uuid.UUID(int=draw.getrandbits(128), version=4)
    secrets.token_hex = lambda nbytes=None: f"{draw.getrandbits(8 * (nbytes or 16)):x}"
    secrets.randbits = draw.getrandbits  # type: ignore[assignment]
    time.time_ns = wall_ns
    sys.unraisablehook = lambda unraisable: None
    jitter = world.random_for("jitter of retention")
    setattr(handle, "random", SimpleNamespace(Random=lambda: jitter))  # noqa: B010 - a module
    _collect_garbage(first=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about tasks that ended with the world
            yield
            _collect_garbage(first=False)
    finally:
        gc.enable()
        (uuid.uuid4, secrets.token_hex, secrets.randbits, time.time_ns) = saved[:4]
        sys.unraisablehook = saved[4]
        setattr(handle, "random", random)  # noqa: B010 - a module
