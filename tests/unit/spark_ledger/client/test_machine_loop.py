"""The loop around a machine: one event after the other, and no end that nobody hears of."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.client.machine_loop import MachineLoop, crash_error
from spark_ledger.client.timer import Timer
from spark_ledger.errors import LedgerClosedError
from spark_ledger.limits.client import LOOP_LATE_S, MACHINE_TICK_S, MACHINE_TICK_S_MAX
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    Append,
    Close,
    CloseAppender,
    Command,
    Event,
    LastConfirmedTold,
    Tick,
)
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.protocol.ledgers import ledger
from tests.unit.virtual_time import run_in_virtual_time, stand_still


class Machine:
    """Answers each event with one command, and keeps what it was given."""

    next_deadline: float | None = None

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.depth = 0
        self.commands: list[Command] = [CloseAppender(0)]

    def handle(self, event: Event, now: float) -> list[Command]:
        self.depth += 1
        assert self.depth == 1, "no event is handled while another is"
        self.events.append(event)
        self.depth -= 1
        return self.commands


class Fixture:
    def __init__(self) -> None:
        self.machine = Machine()
        self.crashes: list[BaseException] = []
        self.performed = 0
        self.passes = 0
        self.is_busy = False
        self.on_perform: Callable[[], None] = lambda: None
        self.loop = MachineLoop(
            self.machine,
            self._perform,
            timer=Timer(),
            busy=lambda: self.is_busy,
            crashed=self.crashes.append,
            after=self._count_pass,
        )

    def _count_pass(self) -> None:
        self.passes += 1

    def _perform(self, _command: Command) -> None:
        before = len(self.machine.events)
        self.performed += 1
        self.on_perform()
        assert len(self.machine.events) == before, "what is fed meanwhile waits its turn"


def on_loop(test: Callable[[Fixture], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        errors: list[object] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
            fixture = Fixture()
            async with asyncio.timeout(10):
                await test(fixture)
                await fixture.loop.stop()

        asyncio.run(main())
        assert errors == []

    run.__name__ = test.__name__
    return run


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@on_loop
async def test_event_fed_by_a_command_waits_its_turn(f: Fixture) -> None:
    def feed_once() -> None:
        f.on_perform = lambda: None
        f.loop.feed(Close())

    f.on_perform = feed_once
    f.loop.feed(Tick())
    assert f.machine.events == [Tick(), Close()] and f.performed == 2


def acknowledged(index: int, last: int = 7) -> AddAcknowledged:
    return AddAcknowledged(index, BookieId("b"), EntryId(last))


@on_loop
async def test_acknowledgements_wait_until_something_may_follow_from_them(f: Fixture) -> None:
    f.loop.answers_wanted = 2
    f.loop.feed_acknowledgement(acknowledged(0))
    await settle()
    assert f.machine.events == [] and f.passes == 0
    f.loop.feed_acknowledgement(acknowledged(1))
    assert f.machine.events == [acknowledged(0), acknowledged(1)] and f.passes == 1


@on_loop
async def test_acknowledgement_that_waits_comes_before_what_is_fed_then(f: Fixture) -> None:
    failed = AddFailed(0, BookieId("b"), BookieStatus.UNAVAILABLE)
    f.loop.answers_wanted = 3
    f.loop.feed_acknowledgement(acknowledged(0))
    f.loop.feed_acknowledgement(acknowledged(0, 9))
    f.loop.feed(failed)
    assert f.machine.events == [acknowledged(0), acknowledged(0, 9), failed] and f.passes == 1


def test_acknowledgement_that_nothing_follows_from_is_taken_in_soon() -> None:
    async def main() -> None:
        f = Fixture()
        f.loop.answers_wanted = 2
        for count in (1, 2):
            f.loop.feed_acknowledgement(acknowledged(0))
            await asyncio.sleep(2 * MACHINE_TICK_S)
            assert f.machine.events == [acknowledged(0)] * count
        await f.loop.stop()

    run_in_virtual_time(main())


@on_loop
async def test_acknowledgements_are_not_taken_in_once_the_loop_was_stopped(f: Fixture) -> None:
    f.loop.answers_wanted = 2
    f.loop.feed_acknowledgement(acknowledged(0))
    await f.loop.stop()
    f.loop.feed_acknowledgement(acknowledged(1))
    f.loop.take_in()
    assert f.machine.events == []


@on_loop
async def test_crash_of_a_task_is_told_and_ends_the_loop(f: Fixture) -> None:
    async def crash() -> None:
        raise ValueError("a bug")

    f.loop.spawn(crash())
    await settle()
    assert [str(error) for error in f.crashes] == ["a bug"]
    f.loop.feed(Tick())
    assert f.machine.events == []


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_answer_that_is_cancelled_from_outside_ends_the_loop(
    is_stopped: bool, has_begun: bool
) -> None:
    """As by an application that cancels all tasks to end: the answer will not come."""

    @on_loop
    async def test(f: Fixture) -> None:
        async def ask() -> Event:
            await asyncio.sleep(3600)
            return Tick()

        f.loop.answer(ask)
        if has_begun:
            await settle()
        if is_stopped:
            await f.loop.stop()
        else:
            for task in f.loop._tasks:
                task.cancel()
        await settle()
        assert [type(error) for error in f.crashes] == [LedgerClosedError] * (not is_stopped)
        f.loop.feed(Tick())
        assert f.machine.events == []

    test()


@on_loop
async def test_task_that_is_cancelled_is_no_crash(f: Fixture) -> None:
    task = f.loop.spawn(asyncio.sleep(3600))
    await settle()
    task.cancel()
    await settle()
    assert f.crashes == []
    f.loop.feed(Tick())
    assert f.machine.events == [Tick()]


@on_loop
async def test_answer_that_comes_after_the_end_is_not_taken(f: Fixture) -> None:
    """A request that cannot be cancelled, as one whose reply has just arrived."""
    go_on = asyncio.Event()

    async def stubborn() -> Event:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                go_on.set()
        return Tick()

    f.loop.answer(stubborn)
    await settle()
    await f.loop.stop()
    assert f.machine.events == []


@on_loop
async def test_stop_ends_every_task_before_it_returns(f: Fixture) -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    for number in range(3):
        f.loop.spawn(work(number))
    await settle()
    await f.loop.stop()
    assert sorted(ended) == [0, 1, 2]


def test_loop_that_has_stopped_is_kept_by_no_timer() -> None:
    """A writer that is closed and dropped frees its memory now, and not when it was to tick."""

    async def test() -> None:
        f = Fixture()
        f.is_busy = True
        f.machine.next_deadline = asyncio.get_running_loop().time() + MACHINE_TICK_S_MAX
        f.loop.feed(Append([1]))
        timer, machine = f.loop._tick._timer, weakref.ref(f.machine)
        await f.loop.stop()
        del f
        gc.collect()
        assert machine() is None and timer is not None

    run_in_virtual_time(test())


@on_loop
async def test_deadline_that_an_event_brings_nearer_is_kept(f: Fixture) -> None:
    """A tick that is due sooner or later does not do for one that is due now."""
    f.is_busy = True
    f.loop.feed(Close())
    loop = asyncio.get_running_loop()
    f.machine.next_deadline = due = loop.time() + 0.03
    f.loop.feed(Close())
    while not isinstance(f.machine.events[-1], Tick):  # events without fields are equal
        await asyncio.sleep(0.005)
    assert loop.time() - due < 1.0


@on_loop
async def test_machine_is_not_asked_for_its_deadline_when_a_tick_comes_anyway(f: Fixture) -> None:
    """Asked after each event, it would cost a writer as much as the event itself."""
    asked = 0

    def busy() -> bool:
        nonlocal asked
        asked += 1
        return True

    f.loop._busy = busy
    f.machine.next_deadline = asyncio.get_running_loop().time()
    for _number in range(50):
        f.loop.feed(Close())
    assert asked <= 25, "a tick is on its way"


@pytest.mark.parametrize(
    ("error", "is_ours"), [(ValueError("a bug"), True), (LedgerClosedError("closed"), False)]
)
def test_only_a_bug_is_told_as_an_internal_error(error: Exception, is_ours: bool) -> None:
    told = crash_error(LedgerId(7), error)
    assert ("internal error" in str(told)) is is_ours
    assert told is error or told.__cause__ is error


def test_tick_of_a_loop_that_is_always_late_comes_all_the_same() -> None:
    """Being late excuses a bookie once, not for as long as the application keeps the loop busy."""

    async def main() -> None:
        f = Fixture()
        f.is_busy, f.machine.next_deadline = True, 5.0
        f.loop.keep_ticking(asyncio.get_running_loop().time())
        while asyncio.get_running_loop().time() < 5.0 + 4 * LOOP_LATE_S:
            stand_still(2 * LOOP_LATE_S)
            await asyncio.sleep(0)
        assert Tick() in f.machine.events
        await f.loop.stop()

    run_in_virtual_time(main())


def test_machine_whose_deadline_has_moved_is_ticked_at_the_new_one() -> None:
    async def main() -> None:
        f = Fixture()
        f.is_busy, f.machine.next_deadline = True, 1.0
        f.loop.keep_ticking(asyncio.get_running_loop().time())
        f.machine.next_deadline = 2.0  # as by an entry that was added meanwhile
        await asyncio.sleep(1.9)
        assert f.machine.events == []
        await asyncio.sleep(0.2)
        assert Tick() in f.machine.events
        await f.loop.stop()

    run_in_virtual_time(main())


@pytest.mark.parametrize("due", [None, 1000.0])
def test_machine_that_names_no_deadline_or_a_late_one_is_ticked_all_the_same(
    due: float | None,
) -> None:
    """What it forgot to name is late, and not lost."""

    async def main() -> None:
        f, looks = Fixture(), 0

        def busy() -> bool:
            nonlocal looks
            looks += 1
            assert looks < 100, "it looks at the clock again and again"
            return True

        f.loop._busy, f.machine.next_deadline = busy, due
        f.loop.keep_ticking(asyncio.get_running_loop().time())
        await asyncio.sleep(2.5 * MACHINE_TICK_S_MAX)
        assert f.machine.events == [Tick(), Tick()]
        await f.loop.stop()

    run_in_virtual_time(main())


@on_loop
async def test_answer_from_which_nothing_follows_asks_for_no_deadline(f: Fixture) -> None:
    """Of three bookies' answers one confirms. An answer that brings a command may also bring
    something that is due sooner."""
    asked = 0

    def busy() -> bool:
        nonlocal asked
        asked += 1
        return True

    answer = AddAcknowledged(0, BookieId("b0"), EntryId(0))
    f.loop._busy = busy
    f.loop.feed(answer)
    assert asked == 1
    f.machine.commands = []
    for _number in range(9):
        f.loop.feed(answer)
    assert asked == 1
    f.machine.commands = [CloseAppender(0)]
    f.loop.feed(answer)
    assert asked == 2
    f.machine.commands = []
    f.loop.feed(Close())
    assert asked == 3


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (5, 3, 2)])
def test_answer_from_which_nothing_follows_brings_no_deadline_nearer(
    quorums: tuple[int, int, int],
) -> None:
    """What the loop relies on when it does not ask for the deadline after one."""
    rng = random.Random(1)
    bookies = [BookieId(f"b{index}") for index in range(quorums[0])]
    seen = 0
    for _round in range(100):
        machine = AppendMachine(
            ledger(quorums, (0, " ".join(bookies))),
            0,
            now=0.0,
            limits=AppendLimits(add_timeout_s=5.0, bytes_in_flight_max=500),
        )
        machine.start()
        now = 0.0
        for _step in range(30):
            now += rng.random()
            index, last = rng.randrange(quorums[0]), EntryId(machine.last_add_pushed)
            before = machine.next_deadline
            if rng.random() < 0.3:
                machine.handle(Append([100]), now)
            elif rng.random() < 0.1:
                machine.handle(AddFailed(index, bookies[index], BookieStatus.STALLED), now)
            elif not machine.handle(
                rng.choice(
                    (
                        AddAcknowledged(index, bookies[index], last),
                        LastConfirmedTold(bookies[index], last, rng.choice(list(BookieStatus))),
                    )
                ),
                now,
            ):
                seen += 1
                after = machine.next_deadline
                assert after is None or (before is not None and after >= before)
    assert seen > 100


@on_loop
async def test_answer_that_fails_ends_the_loop_and_one_that_is_cancelled_does_not(
    f: Fixture,
) -> None:
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[int] = loop.create_future()
    good: asyncio.Future[int] = loop.create_future()
    bad: asyncio.Future[int] = loop.create_future()
    for future in (gone, good, bad):
        f.loop.feed_answer(future, lambda last: AddAcknowledged(0, BookieId("b0"), EntryId(last)))
    gone.cancel()
    good.set_result(7)
    await settle()
    assert f.machine.events == [AddAcknowledged(0, BookieId("b0"), EntryId(7))]
    assert f.crashes == []
    bad.set_exception(ValueError("a bug"))
    await settle()
    assert [str(error) for error in f.crashes] == ["a bug"]
    late: asyncio.Future[int] = loop.create_future()
    f.loop.feed_answer(late, lambda last: AddAcknowledged(0, BookieId("b0"), EntryId(last)))
    await f.loop.stop()
    assert late.cancelled() and len(f.machine.events) == 1


@pytest.mark.parametrize("where", ["machine", "command", "command of the start"])
def test_crash_of_the_machine_or_of_a_command_ends_the_loop(where: str) -> None:
    """A machine that met a bug may be in the middle of a step: what it decides then is not safe."""

    async def main() -> None:
        f = Fixture()
        f.is_busy = True

        def crash(*_args: object) -> list[Command]:
            raise ValueError("a bug")

        if where == "machine":
            f.machine.handle = crash  # type: ignore[method-assign, assignment]
        else:
            f.on_perform = crash  # type: ignore[assignment]
        with pytest.raises(ValueError, match="a bug"):
            if where == "command of the start":
                f.loop.start([CloseAppender(0)])
            else:
                f.loop.feed(Tick())
        assert [str(error) for error in f.crashes] == ["a bug"]
        f.machine.handle = Machine.handle.__get__(f.machine)  # type: ignore[method-assign]
        f.on_perform = lambda: None
        fed = len(f.machine.events)
        f.loop.feed(Tick())
        f.loop.feed_acknowledgement(acknowledged(0))
        await asyncio.sleep(3 * MACHINE_TICK_S_MAX)
        assert len(f.machine.events) == fed and len(f.crashes) == 1
        assert not f.loop.is_handling
        await f.loop.stop()

    run_in_virtual_time(main())
