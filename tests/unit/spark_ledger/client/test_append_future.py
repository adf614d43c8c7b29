"""The future of an append behaves as the standard one that is running: one contract, both run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from functools import partial
from typing import TypeAlias

import pytest

from spark_ledger.client import append_future
from spark_ledger.client.append_future import AppendFuture

Make: TypeAlias = Callable[[], "Future[int]"]


def _standard() -> Future[int]:
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    return future


@pytest.fixture(params=[_standard, AppendFuture], ids=["standard", "own"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture(params=[False, True], ids=["unwatched", "watched"])
def future(make: Make, request: pytest.FixtureRequest) -> Future[int]:
    """A future, and one that somebody has looked at before it is done."""
    made = make()
    if request.param:
        made.add_done_callback(lambda _: None)
    return made


def later(*works: Callable[[], object]) -> threading.Thread:
    """Do it on another thread, a moment from now: most often while the test waits."""
    timer = threading.Timer(0.005, lambda: [work() for work in works])
    timer.start()
    return timer


def test_result_is_told_and_stays(future: Future[int]) -> None:
    assert (future.done(), future.running(), future.cancelled()) == (False, True, False)
    future.set_result(7)
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert (future.result(), future.result(0), future.exception(), future.exception(0)) == (
        7,
        7,
        None,
        None,
    )


def test_exception_is_told_and_raised_each_time(future: Future[int]) -> None:
    error = ValueError("why")
    future.set_exception(error)
    assert future.done() and not future.running() and future.exception() is error
    for _ in range(2):
        with pytest.raises(ValueError, match="why"):
            future.result()


def test_future_is_told_once(future: Future[int]) -> None:
    future.set_result(1)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(2)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_exception(ValueError())
    assert future.result() == 1 and future.exception() is None


def test_cancel_changes_nothing(future: Future[int]) -> None:
    assert not future.cancel() and future.running() and not future.cancelled()
    future.set_result(1)
    assert not future.cancel() and future.result() == 1


def test_begun_future_is_not_begun_again(future: Future[int]) -> None:
    with pytest.raises(RuntimeError):
        future.set_running_or_notify_cancel()


def test_wait_for_result_ends_when_it_comes(future: Future[int]) -> None:
    thread = later(lambda: future.set_result(3))
    assert future.result(60) == 3
    thread.join()


def test_wait_for_exception_ends_when_it_comes(future: Future[int]) -> None:
    thread = later(lambda: future.set_exception(ValueError("late")))
    assert isinstance(future.exception(60), ValueError)
    thread.join()


def test_patience_ends_and_the_future_goes_on(future: Future[int]) -> None:
    for wait in (future.result, future.exception):
        with pytest.raises(TimeoutError):
            wait(0)
        with pytest.raises(TimeoutError):
            wait(0.001)
    future.set_result(5)
    assert future.result(0) == 5


def test_callbacks_run_in_order_and_once(future: Future[int]) -> None:
    told: list[object] = []
    future.add_done_callback(lambda done: told.append(("first", done.result())))
    future.add_done_callback(lambda done: told.append(("second", done is future)))
    assert not told
    future.set_result(4)
    future.add_done_callback(lambda done: told.append(("late", done.done())))
    assert told == [("first", 4), ("second", True), ("late", True)]


def test_callback_that_fails_is_logged_and_others_run(
    future: Future[int], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def fail(_done: object) -> None:
        raise ValueError("in a callback")

    future.add_done_callback(fail)
    future.add_done_callback(lambda done: told.append(done.result()))
    future.set_result(2)
    assert told == [2] and "exception calling callback" in caplog.text


def test_text_says_the_state(future: Future[int], make: Make) -> None:
    assert "state=running" in repr(future)
    future.set_result(1)
    assert "state=finished returned int" in repr(future)
    failed = make()
    failed.set_exception(ValueError())
    assert "state=finished raised ValueError" in repr(failed)


def test_wait_tells_done_from_not_done(make: Make) -> None:
    done, failed, pending = make(), make(), make()
    done.set_result(1)
    failed.set_exception(ValueError())
    futures = [done, failed, pending]
    assert concurrent.futures.wait(futures, 60, FIRST_COMPLETED).done == {done, failed}
    assert concurrent.futures.wait(futures, 60, FIRST_EXCEPTION).not_done == {pending}
    assert concurrent.futures.wait(futures, 0, ALL_COMPLETED).not_done == {pending}
    thread = later(lambda: pending.set_result(2))
    assert concurrent.futures.wait(futures, 60).not_done == set()
    thread.join()


def test_wait_for_the_first_error_ends_with_it(make: Make) -> None:
    futures = [make() for _ in range(3)]
    thread = later(
        partial(futures[0].set_result, 0), partial(futures[2].set_exception, ValueError())
    )
    found = concurrent.futures.wait(futures, 60, FIRST_EXCEPTION)
    thread.join()
    assert futures[2] in found.done and futures[1] in found.not_done


def test_wait_for_all_ends_with_the_last_however_the_threads_meet(make: Make) -> None:
    """Futures become done while ``wait`` looks at them: each counts once."""
    for _ in range(200):
        futures = [make() for _ in range(8)]
        thread = threading.Thread(target=lambda fs: [f.set_result(1) for f in fs], args=(futures,))
        thread.start()
        assert not concurrent.futures.wait(futures, 60).not_done
        thread.join()


def test_as_completed_gives_each_once(make: Make) -> None:
    futures = [make() for _ in range(4)]
    futures[1].set_result(1)
    completed = concurrent.futures.as_completed(futures, 60)
    assert next(completed) is futures[1]
    thread = later(*(partial(future.set_result, 0) for future in (*futures[2:], futures[0])))
    found = list(completed)
    thread.join()
    assert set(found) == {futures[0], *futures[2:]} and len(found) == 3
    with pytest.raises(TimeoutError):
        list(concurrent.futures.as_completed([make()], 0.001))


def test_loop_awaits_what_another_thread_tells(make: Make) -> None:
    async def test() -> None:
        futures = [make(), make(), make()]
        wrapped = [asyncio.wrap_future(future) for future in futures]
        error = ValueError("so")
        thread = later(partial(futures[0].set_result, 8), partial(futures[1].set_exception, error))
        assert await asyncio.wait_for(wrapped[0], 60) == 8
        with pytest.raises(ValueError, match="so"):
            await asyncio.wait_for(wrapped[1], 60)
        wrapped[2].cancel()
        await asyncio.sleep(0)
        assert futures[2].running(), "who leaves takes nothing back"
        futures[2].set_result(9)
        thread.join()
        assert await asyncio.wrap_future(futures[2]) == 9

    asyncio.run(test())


def test_control_c_ends_the_wait_and_not_the_future(future: Future[int]) -> None:
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    is_next = threading.Event()
    waits = (threading.Condition.wait.__code__, AppendFuture._wait.__code__)

    def interrupt() -> None:
        # Before the test waits it would end the whole run. A start of a thread waits there, too.
        is_next.wait()
        while sys._current_frames()[main].f_code not in waits:
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    thread = later(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            is_next.set()
            future.result(60)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    future.set_result(1)
    assert future.result(0) == 1


def test_error_of_a_waiter_is_freed_with_its_future(make: Make) -> None:
    future = make()
    gone = weakref.ref(future)
    future.set_exception(ValueError())
    with contextlib.suppress(ValueError):
        future.result()
    del future
    assert gone() is None


def test_who_gave_up_waiting_is_forgotten() -> None:
    future: AppendFuture[int] = AppendFuture()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            future.result(0)
    assert vars(future)["_asleep"] == []
    future.set_result(1)
    assert future.result(0) == 1


def test_future_that_nobody_waited_for_has_no_lock() -> None:
    future: AppendFuture[int] = AppendFuture()
    future.set_result(1)
    assert future.result() == 1 and future.done() and "_condition" not in vars(future)
    assert not hasattr(future, "anything_else")


def test_child_forked_while_a_future_is_told_can_use_futures() -> None:
    """The parent's other thread holds the lock at the fork; in the child nobody releases it."""
    is_held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with append_future._making:
            is_held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(60)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(10)
            future: AppendFuture[int] = AppendFuture()
            future.set_result(1)
            os._exit(0)
        finally:
            os._exit(1)
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
