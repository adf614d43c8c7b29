"""Nemesis: injects the faults of a plan, each track in a thread, and heals them."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable

from tests.chaos import disk
from tests.chaos.faults import Fault
from tests.chaos.relay import DOWN, UP
from tests.chaos.stage import CLIENTS, ZOOKEEPER_OF_BOOKIES, Stage, link
from tests.history.liveness import Window

BEHIND_S = 0.8
"""Entries that one bookie misses while the others confirm them. For this its writer waits longer
before it gives the bookie up."""


class Nemesis:
    """Runs a plan in threads of its own. ``windows`` says when each fault really happened."""

    def __init__(self, stage: Stage, plan: list[Fault]) -> None:
        self._stage = stage
        self._plan = plan
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._locks: dict[str, threading.Lock] = {}
        self.windows: list[tuple[Fault, Window]] = []
        self.errors: list[str] = []
        """What could not be done, for example a bookie that did not start again."""

    def start(self) -> None:
        """Begin; the plan's times count from now."""
        began = time.monotonic()
        for track in sorted({fault.track for fault in self._plan}):
            faults = [fault for fault in self._plan if fault.track == track]
            thread = threading.Thread(
                target=self._run, args=(faults, began), name=f"nemesis {track}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Inject no more faults, and heal those in progress."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, faults: list[Fault], began: float) -> None:
        for fault in faults:
            if self._stop.wait(max(0.0, began + fault.start_s - time.monotonic())):
                return
            # On a slow machine faults last longer than planned: wait until the targets are free.
            with contextlib.ExitStack() as held:
                for lock in self._locks_of(fault):
                    held.enter_context(lock)
                if not self._stop.is_set():
                    self._do(fault)

    def _do(self, fault: Fault) -> None:
        first_ns = time.monotonic_ns()
        try:
            heal = self._inject(fault)
            self._stop.wait(fault.seconds)
            heal()
        except Exception as error:  # noqa: BLE001 - told in the report as a violation
            self.errors.append(f"{fault.kind}: {error}")
        self.windows.append((fault, Window(fault.kind, first_ns, time.monotonic_ns())))

    def _locks_of(self, fault: Fault) -> list[threading.Lock]:
        """All faults lock in one order, so that no two wait for each other."""
        match fault.target:
            case "bookie" | "all":
                names = [f"bookie {bookie}" for bookie in sorted(fault.bookies)]
            case "disk":
                names = [f"disk {bookie}" for bookie in sorted(fault.bookies)]
            case "client":
                names = [f"client {client}" for client in sorted(fault.clients)]
            case other:
                names = [other]
        return [self._locks.setdefault(name, threading.Lock()) for name in names]

    def _inject(self, fault: Fault) -> Callable[[], None]:
        """Inject a fault. Returns what heals it."""
        if fault.target == "client":
            return self._client_fault(fault)
        if fault.target == "zookeeper":
            return self._zookeeper_fault(fault)
        if fault.target == "clock":
            stage = self._stage
            stage.set_clocks(fault.bookies, fault.clients, fault.amount)
            return lambda: stage.set_clocks(fault.bookies, fault.clients, 0.0)
        if fault.target == "disk":
            return self._disk_fault(fault)
        process = self._process_fault(fault)
        return self._link_fault(fault) if process is None else process

    def _disk_fault(self, fault: Fault) -> Callable[[], None]:
        part = ("journal", "ledgers")[round(fault.amount) % 2]
        state = {"full-disk": "full", "slow-disk": "slow"}.get(fault.kind)
        directories = [self._stage.cluster.bookie_directory(bookie) for bookie in fault.bookies]
        for directory in directories:
            disk.fall_sick(directory, state or fault.kind.removeprefix("disk-"), part)

        def heal() -> None:
            for directory in directories:
                disk.get_well(directory)

        return heal

    # -- processes ---------------------------------------------------------------------------------

    def _process_fault(self, fault: Fault) -> Callable[[], None] | None:
        cluster, stage, hit = self._stage.cluster, self._stage, fault.bookies
        match fault.kind:
            case "kill-bookie" | "power-cut":
                stage.down.update(hit)
                stage.cut_power(hit)
                return lambda: self._start_bookies(hit)
            case "restart-bookie":
                stage.down.update(hit)
                for bookie in hit:
                    cluster.stop_bookie(bookie)
                return lambda: self._start_bookies(hit)
            case "older-copy":
                (bookie,) = hit
                stage.down.add(bookie)
                copy = stage.copy_directories(bookie)
                return lambda: stage.try_copy(bookie, copy)
            case "pause-bookie" | "pause-two-bookies":
                for bookie in hit:
                    cluster.pause_bookie(bookie)
                return lambda: self._resume_bookies(hit)
        return None

    def _resume_bookies(self, bookies: tuple[int, ...]) -> None:
        for bookie in bookies:
            self._stage.cluster.resume_bookie(bookie)

    def _start_bookies(self, bookies: tuple[int, ...]) -> None:
        self._stage.start_bookies(bookies)

    def _client_fault(self, fault: Fault) -> Callable[[], None]:
        stage, (client, *_) = self._stage, fault.clients
        match fault.kind:
            case "kill-client":
                stage.kill_client(client)
                return lambda: stage.restart_client(client)
            case "expire-session":
                stage.signal_client(client, signal.SIGUSR2)
                return lambda: None
        missed = [link(client, bookie) for bookie in fault.bookies]
        if fault.kind == "recover-behind":
            stage.relays.hold(missed, (UP,))
            self._stop.wait(BEHIND_S)
        stage.signal_client(client, signal.SIGSTOP)
        if fault.kind != "pause-client":
            for other in range(CLIENTS):
                if other != client:
                    stage.signal_client(other, signal.SIGUSR1)

        def heal() -> None:
            stage.signal_client(client, signal.SIGCONT)
            if fault.kind == "recover-behind":
                stage.relays.heal(missed)

        return heal

    def _zookeeper_fault(self, fault: Fault) -> Callable[[], None]:
        cluster, relays = self._stage.cluster, self._stage.relays
        match fault.kind:
            case "kill-zookeeper":
                cluster.kill_zookeeper()
                return cluster.start_zookeeper
            case "pause-zookeeper":
                cluster.pause_zookeeper()
                return cluster.resume_zookeeper
            case "client-without-zookeeper":
                names = [f"c{client}>zookeeper" for client in fault.clients]
            case _:
                names = [ZOOKEEPER_OF_BOOKIES]
        if fault.amount % 2 < 1:
            relays.cut(names)
        else:
            relays.hold(names)
        return lambda: relays.heal(names)

    # -- links -------------------------------------------------------------------------------------

    def _link_fault(self, fault: Fault) -> Callable[[], None]:
        relays = self._stage.relays
        names = [link(client, bookie) for client in fault.clients for bookie in fault.bookies]
        match fault.kind:
            case "cut-bookie":
                relays.cut(names)
            case "hold-bookie":
                relays.hold(names)
            case "hold-requests":
                relays.hold(names, (UP,))
            case "hold-replies":
                relays.hold(names, (DOWN,))
            case "drop-bookie":
                relays.drop(names)
            case "drop-replies":
                relays.drop(names, (DOWN,))
            case "delay":
                relays.slow(names, delay_s=fault.amount)
            case "throttle":
                relays.slow(names, bytes_per_s=fault.amount)
            case "split-view":
                # Each client misses another bookie: together they see all of them, but no two the
                # same.
                names = [
                    link(client, fault.bookies[place % len(fault.bookies)])
                    for place, client in enumerate(fault.clients)
                ]
                relays.hold(names)
            case "swizzle":
                return self._swizzle(fault)
            case other:
                raise AssertionError(f"no fault is called {other!r}")
        return lambda: relays.heal(names)

    def _swizzle(self, fault: Fault) -> Callable[[], None]:
        """Stop the links of some bookies one by one, and let them go on in another order."""
        relays = self._stage.relays
        half = fault.bookies[: max(2, len(fault.bookies) // 2)]
        for bookie in half:
            relays.hold([link(client, bookie) for client in fault.clients])
            self._stop.wait(0.2)

        def heal() -> None:
            for bookie in reversed(half):
                relays.heal([link(client, bookie) for client in fault.clients])
                self._stop.wait(0.2)

        return heal
