"""Runs one protocol machine: deliver events, perform commands in order, tick when time is due."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from spark_ledger.client.timer import Timer
from spark_ledger.errors import LedgerClosedError, LedgerError
from spark_ledger.limits.client import (
    LOOP_LATE_S,
    MACHINE_TICK_S,
    MACHINE_TICK_S_MAX,
    TIMER_STEP_S,
)
from spark_ledger.protocol.events import AddAcknowledged, Command, Event, LastConfirmedTold, Tick
from spark_ledger.tasks import cancel
from spark_ledger.types import LedgerId

T = TypeVar("T")

_ANSWERS: Final = (AddAcknowledged, LastConfirmedTold)


class Machine(Protocol):
    """What a machine loop needs of its machine."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one event; the commands to perform."""

    @property
    def next_deadline(self) -> float | None:
        """The earliest time at which a tick may change something, if no event comes before."""


class MachineLoop:
    """One serial context for one machine: no event is handled while another one is.

    ``perform`` carries out one command; it must not block. What takes time runs as a task of this
    loop (``spawn``) and comes back as an event. ``busy`` says whether ticks are needed, and the
    machine when (``next_deadline``). A bug of ours (an assertion of the machine), or the end of the
    connection, ends the loop and goes to ``crashed``, so that nobody waits for ever.
    """

    def __init__(
        self,
        machine: Machine,
        perform: Callable[[Command], None],
        *,
        timer: Timer,
        busy: Callable[[], bool],
        crashed: Callable[[BaseException], None],
        after: Callable[[], None] | None = None,
    ) -> None:
        self._machine = machine
        self._perform = perform
        self._busy = busy
        self._crashed = crashed
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self.answers_wanted = 1
        """From so many answers on that wait something may follow from them: they are taken in."""
        self.is_handling = False
        """Whether the machine is at work further up the stack: what is fed now waits its turn."""
        self._tick = timer.alarm(self._on_tick, self._on_closed)
        self._ticked_at = self._loop.time()
        """When the machine last looked at the clock."""
        self._excused: float | None = None
        """The deadline that was put off once, because the event loop stood still."""
        self._tasks: set[asyncio.Future[Any]] = set()
        self._stopped = False

    def start(self, commands: list[Command]) -> None:
        """Perform the machine's first commands."""
        self._run(commands)

    def feed(self, event: Event) -> None:
        """Give the machine an event; perform what follows from it."""
        self._events.append(event)
        if not self.is_handling and not self._stopped:
            self._run([])

    def feed_acknowledgement(self, event: Event) -> None:
        """As ``feed``, but not before ``answers_wanted`` of them wait, or anything else is fed, or
        an alarm rings: what nothing follows from is taken in with what something does."""
        events = self._events
        events.append(event)
        if len(events) >= self.answers_wanted:
            self.take_in()
        elif not self._tick.is_set:
            self._tick.set_by(self._loop.time() + MACHINE_TICK_S)

    def take_in(self) -> None:
        """Handle what waits."""
        if self._events and not self.is_handling and not self._stopped:
            self._run([])

    def _run(self, commands: list[Command]) -> None:
        self.is_handling = True
        events, machine, perform = self._events, self._machine, self._perform
        may_be_due_sooner = not events
        now = self._loop.time()  # once: all of them have come by now
        try:
            for command in commands:
                perform(command)
            while events:
                event = events.popleft()
                commands = machine.handle(event, now)
                for command in commands:
                    perform(command)
                # Most events are answers of bookies from which nothing follows: whoever answers is
                # silent for a shorter time, so all that is due is due as late as before, or later.
                if commands or type(event) not in _ANSWERS:
                    may_be_due_sooner = True
        except Exception as error:
            self._stopped = True
            self._crashed(error)
            raise
        finally:
            self.is_handling = False
        if self._after is not None:
            self._after()
        if may_be_due_sooner or not self._tick.is_set:
            self.keep_ticking(now)

    def keep_ticking(self, now: float) -> None:
        """Make sure that a tick comes when one is due, while the machine is busy."""
        if self._tick.is_set_by(now + MACHINE_TICK_S) or self._stopped or not self._busy():
            return  # no tick comes sooner: this runs after each event of each writer
        due = self._machine.next_deadline
        latest = now + MACHINE_TICK_S_MAX
        if due is not None and due < latest:
            latest = max(due, now + MACHINE_TICK_S)
        self._tick.set_by(latest)

    def _on_tick(self) -> None:
        self.take_in()
        if self._stopped or not self._busy():
            return
        now, due = self._loop.time(), self._machine.next_deadline
        if now - self._tick.was_due > LOOP_LATE_S and due != self._excused:
            # Nobody is silent whose answer was not looked at: let the loop take in what has come.
            self._excused = due
            self._tick.set_by(now + LOOP_LATE_S)
            return
        latest = self._ticked_at + MACHINE_TICK_S_MAX
        soon = now + TIMER_STEP_S  # an alarm may ring earlier than it was set for by less than that
        if (due is None or due > soon) and latest > soon:
            # What was due then is not any more: an entry that came since carries what an idle
            # writer would have told, and so it is with most of the entries of many ledgers.
            self._tick.set_by(latest if due is None else min(due, latest))
            return
        self._ticked_at = now
        self.feed(Tick())

    def _on_closed(self) -> None:
        """The connection is closed. What is asked of it fails, but a machine may wait for time
        alone, as one does that is to ask a busy bookie again."""
        if not self._stopped and self._busy():
            self._crash(LedgerClosedError("this connection is closed: connect again"))

    def answer(self, ask: Callable[[], Awaitable[Event]]) -> None:
        """Run something that takes time; its result is the next event.

        Asked in the task and not before: a coroutine of a task that is cancelled before its first
        step would never begin, and Python warns of that on standard error.
        """

        async def run() -> None:
            event = await ask()
            if not self._stopped:
                self.feed(event)

        self.spawn(run()).add_done_callback(self._on_answered)

    def _on_answered(self, task: asyncio.Task[None]) -> None:
        """Cancelled, but not by ``stop``: by an application that cancels all tasks of its loop. The
        answer will not come."""
        if task.cancelled():
            self._crash(LedgerClosedError("a task of this connection was cancelled"))

    def feed_answer(self, answer: Awaitable[T], event: Callable[[T], Event]) -> None:
        """As ``answer``, without a task where the answer is a future already."""
        future = asyncio.ensure_future(answer)
        self._tasks.add(future)
        future.add_done_callback(partial(self._feed_answered, event))

    def _feed_answered(self, event: Callable[[T], Event], future: asyncio.Future[T]) -> None:
        self._on_task_done(future)
        if not (self._stopped or future.cancelled()):
            self.feed(event(future.result()))

    # Any in a coroutine's type: what it is sent and yields is between it and the event loop.

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with this loop.

        An error that it did not make an event of ends the loop: without an answer the machine,
        and whoever waits for it, would wait for ever.
        """
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._crash(error)

    def _crash(self, error: BaseException) -> None:
        if not self._stopped:
            self._stopped = True
            self._crashed(error)

    async def stop(self) -> None:
        """No more ticks and events; tasks are cancelled and awaited."""
        self._stopped = True
        self._tick.cancel()
        await cancel(*self._tasks)


def crash_error(ledger_id: LedgerId, error: BaseException) -> LedgerError:
    """What a handle's caller is told when its machine loop has crashed: that this is our bug.

    An error of the tree says what happened itself, as when the connection is closed under a read.
    """
    if isinstance(error, LedgerError):
        return error
    broken = LedgerError(f"ledger {ledger_id}: internal error, please report it: {error!r}")
    broken.__cause__ = error
    return broken
