"""What a test leaves open: once it has passed, all that the product opened under it has ended.

A third of the bugs that no test found were something left open on some path: a task, a watch, a
share of a budget, a lock, an open ledger. No test asks for that, because each looks at something
else. So it is looked for after every test, from outside: at the loop before it ends, at
connections, services and stores when they are closed, and at what the process has.

``nothing_left_open`` in ``tests/conftest.py`` calls this. A test that leaves something open on
purpose says so: ``@pytest.mark.leaves_open("a part of what is reported", reason="why")``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import tempfile
import threading
from asyncio import runners
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

# Any: what is looked at is whatever is there, and asyncio's types hide most of it.

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("spark_ledger", "connector", "bookie_server")
_SOURCES = tuple(f"{_ROOT / package}{os.sep}" for package in _PACKAGES)
_TESTS = f"{_ROOT / 'tests'}{os.sep}"

_TURNS = 10
"""Of the loop, that what has just been told to end may take."""

_ENDS_S = 1.0
"""And what threads have a part in, on a busy machine. Where time is virtual there are none."""

_THREAD_ENDS_S = 5.0
"""A thread that was told to end may take so long. None is waited for if all have ended."""

_found: list[str] = []
"""What was seen in this test so far. Loops of several threads add to it."""

_made: list[tuple[Any, Callable[[Any], Iterable[str]]]] = []
"""Objects of this test, and what is left of each that should not be."""


class Before(NamedTuple):
    """What there was when a test began, for instance of the fixtures of its module."""

    threads: set[threading.Thread]
    files: set[str]
    tasks: set[asyncio.Task[Any]]


def begin() -> Before:
    """A test begins."""
    _look_at_new_kinds()
    _made.clear()
    loop = _portal_loop()
    tasks = set() if loop is None else set(_tasks(loop))
    return Before(set(threading.enumerate()), _descriptors(), tasks)


def end(before: Before, *, waits: bool = True) -> list[str]:
    """A test has ended; what it left open, each once. ``waits``: for threads that may yet end."""
    _look_at_portal(before)
    for thing, left in _made:
        _found.extend(left(thing))
    _found.extend(_threads(before, _THREAD_ENDS_S if waits else 0.0))
    _found.extend(_files(before))
    _found.extend(_repair_locks())
    found = late()
    _made.clear()
    return found


def forget() -> None:
    """A test has ended that nothing is asked about."""
    _found.clear()
    _made.clear()


def late() -> list[str]:
    """What showed only when the tests of a module were over, and what they left was collected."""
    found = list(dict.fromkeys(_found))
    _found.clear()
    return found


def unexcused(found: Iterable[str], marks: Iterable[pytest.Mark]) -> list[str]:
    """What no mark of the test allows."""
    allowed = [mark.args[0] for mark in marks]
    assert all(mark.kwargs.get("reason") for mark in marks), "leaves_open says why"
    return [each for each in found if not any(part in each for part in allowed)]


# -- loops -----------------------------------------------------------------------------------------


def _code(work: Any) -> CodeType | None:
    """The code of a coroutine or generator; None for those that are not Python's."""
    for name in ("cr_code", "ag_code", "gi_code"):
        code = getattr(work, name, None)
        if isinstance(code, CodeType):
            return code
    return None


def _is_ours(code: CodeType | None) -> bool:
    return code is not None and code.co_filename.startswith(_SOURCES)


def _tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """Those that are pending and not a test's own: what the product waits for in the library, as
    ``Event.wait``, is the product's."""
    return [
        task
        for task in asyncio.all_tasks(loop)
        if (code := _code(task.get_coro())) is not None
        and (_is_ours(code) or "asyncio" in Path(code.co_filename).parts)
    ]


def _generators(loop: Any) -> list[Any]:
    return [each for each in list(loop._asyncgens) if each.ag_frame and _is_ours(_code(each))]


def _timers(loop: Any) -> list[str]:
    """Those that are set, but for the ones that all of a connection share: whoever is done with
    an alarm takes it out, and the connection's close ends the timer."""
    found = []
    for handle in list(loop._scheduled):
        callback = handle._callback
        while isinstance(callback, partial):
            callback = callback.func
        module = getattr(callback, "__module__", None) or ""
        if handle._cancelled or module.partition(".")[0] not in _PACKAGES:
            continue
        if module not in _TIMERS_THAT_PASS:
            found.append(f"timer {callback.__qualname__}")
    return found


_TIMERS_THAT_PASS = {
    "spark_ledger.client.timer": "looked at when its connection is closed",
    "spark_ledger.transport.memory": "stands in for a network: a call that was left is not ended",
    "bookie_server.service.admin": "an end of a connection that has ended by itself",
    "bookie_server.service.append_gate": "a moment of a stream that has gone; nothing follows",
}


def _place(task: asyncio.Task[Any]) -> str:
    code = _code(task.get_coro())
    name = "?" if code is None else code.co_qualname
    stack = task.get_stack()
    where = f" at {Path(stack[-1].f_code.co_filename).name}:{stack[-1].f_lineno}" if stack else ""
    return f"task {name}{where}"


async def _settle(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    late = [task for task in tasks if not task.done()]
    has_real_time = type(asyncio.get_running_loop()).time is asyncio.BaseEventLoop.time
    if late and has_real_time:
        await asyncio.wait(late, timeout=_ENDS_S)


def look_at_loop(loop: asyncio.AbstractEventLoop) -> None:
    """A loop is about to be closed: note what is under way. Runners do it by themselves."""
    if _tasks(loop) or _generators(loop):
        loop.run_until_complete(_settle(_tasks(loop)))
    _found.extend(map(_place, _tasks(loop)))
    _found.extend(f"generator {each.ag_code.co_qualname}" for each in _generators(loop))
    _found.extend(_timers(loop))


def _portal_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of blocking callers, which stays."""
    from spark_ledger.client.portal import BlockingPortal

    portal = BlockingPortal._current
    is_there = portal is not None and portal._pid == os.getpid() and portal.is_running
    return portal.loop if portal is not None and is_there else None


def _look_at_portal(before: Before) -> None:
    loop = _portal_loop()
    if loop is None:
        return
    if (late := set(_tasks(loop)) - before.tasks) or _generators(loop):
        asyncio.run_coroutine_threadsafe(_settle(late), loop).result()
    _found.extend(map(_place, set(_tasks(loop)) - before.tasks))
    _found.extend(f"generator {each.ag_code.co_qualname}" for each in _generators(loop))


_GRPC_QUEUE = "PollerCompletionQueue._handle_events"
"""gRPC wakes each loop that it knows, also one that a test has closed a moment before."""


class _AsyncioLog(logging.Handler):
    """Errors that nobody looked at, tasks that were dropped, callbacks that raised."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        is_ours = f"defined at {_TESTS}" not in text and _GRPC_QUEUE not in text
        if record.levelno >= logging.ERROR and is_ours:
            _found.append(f"asyncio: {text}")


# -- the process -----------------------------------------------------------------------------------


def _threads(before: Before, ends_s: float) -> list[str]:
    """Threads that are still there, but for the portal's, and those that gRPC keeps."""
    late = [each for each in threading.enumerate() if each not in before.threads]
    found = []
    for thread in late:
        if thread.name == "spark-ledger" or thread.name.startswith("asyncio_"):
            continue
        target = getattr(thread, "_target", None)
        if (getattr(target, "__module__", None) or "").startswith("grpc."):
            continue
        thread.join(ends_s)
        if thread.is_alive():
            found.append(f"thread {thread.name}")
    return found


def _files(before: Before) -> list[str]:
    """Files that are still open. Sockets and pipes of ours are transports: Python warns of them."""
    if not _new_files(before):
        return []
    gc.collect()  # a file that is dropped is closed, if perhaps a moment later
    return [f"file {path}" for path in _new_files(before)]


def _new_files(before: Before) -> list[str]:
    after = _descriptors()
    if len(after) <= len(before.files):
        return []
    paths = []
    for name in after - before.files:
        with suppress(OSError):  # another thread has closed it
            paths.append(os.readlink(f"/proc/self/fd/{name}"))
    # Libraries keep files of theirs open, as fonts; a clone's environment may be there as well.
    environment = f"{sys.prefix}{os.sep}"
    of_tests = [path for path in paths if path.startswith(tempfile.gettempdir())]
    return [path for path in of_tests if not path.startswith(environment)]


def _descriptors() -> set[str]:
    """Those that are open, without the one that the listing takes: the lowest that is free."""
    free = os.dup(0)
    os.close(free)
    return set(os.listdir("/proc/self/fd")) - {str(free)}


def _repair_locks() -> list[str]:
    from spark_ledger.repair import locking

    return [f"repair lock of ledgers {sorted(held)}" for held in locking._HELD.values() if held]


# -- what is closed --------------------------------------------------------------------------------


def _client(client: Any) -> Iterable[str]:
    """A connection that was closed."""
    context = client.context
    if context.followed._ledgers:
        yield "client: a tail"
    if context.suspects._probes:
        yield "client: a probe"
    if context.timer._handle is not None:
        yield "client: its timer"
    used = dict(context.load)
    for writer, _ in _made:  # one that was not closed, and the connection has given up
        if getattr(writer, "_context", None) is context and writer._closing is None:
            for bookie_id in writer._counted:
                used[bookie_id] -= 1
    if any(used.values()):
        yield f"client: bookies that count as used: {used}"
    if getattr(context.transport, "_appenders", None):
        yield "client: an appender"
    if any(getattr(context.transport, "_calls", {}).values()):
        yield "client: a call"
    if getattr(context.transport, "_connections", None):
        yield "client: a channel"


def _ledgers_of_streams(client: Any) -> Iterable[str]:
    """Before a connection is closed: ledgers that a stream has opened are closed, but for those
    that a writer of segments takes rows into."""
    from spark_ledger.stream.segment_writer import SegmentWriter

    used = [each._ledger for each, _ in _made if isinstance(each, SegmentWriter)]
    for writer in client.context.writers:
        tags = writer.metadata.custom_metadata
        if "stream_id" in tags and writer._closing is None and writer not in used:
            yield f"open ledger of a stream: {tags.get('purpose')}"


def _watches(*lists: Iterable[Any]) -> Iterable[str]:
    """Before a store is closed: those who watched have cancelled. A stream that was not closed may
    watch its head."""
    for each in chain(*lists):
        callback = each._callback
        owner = getattr(callback, "__self__", None)
        module = callback.__module__ if owner is None else type(owner).__module__
        if not module.startswith(("tests.", "spark_ledger.stream.commit.head_watch")):
            yield f"watch {callback.__qualname__}"


def _watches_at_zookeeper(store: Any) -> Iterable[str]:
    watched = store._watches._watches.values()
    return _watches(*(each.subscriptions for each in watched), store._session._on_lost)


def _stream(stream: Any) -> Iterable[str]:
    """A stream that was closed, at the end of its test: who still waited may have gone on."""
    if stream._watch._watch is not None:
        yield f"watch of the head of stream {stream.name!r}, which was closed"
    if stream._append_writer is not None or stream._spare_writers:
        yield f"writer of stream {stream.name!r}, which was closed"


def _fake_writer(writer: Any) -> Iterable[str]:
    """A ledger that tests stand in for: those that take entries once are closed by their maker."""
    ledger = writer._ledger
    purpose = ledger.metadata.custom_metadata.get("purpose", "")
    if purpose not in ("", "segments") and not ledger.closed:
        yield f"open ledger of a stream: {purpose}"


def _handles_of_append_to(appended: Any) -> Iterable[str]:
    if appended._handles or appended._uses.total():
        yield "handle of append_to"


def _service(service: Any) -> Iterable[str]:
    """A bookie's service that has ended."""
    limits, answers = service._limits, service._answers
    if any(limits._running.values()) or limits._receiving or limits._of_connection:
        yield "service: a call that counts as running"
    if answers.bytes_held or answers._reading or answers._writing or answers._held:
        yield "service: room for answers"
    if service._sessions or service._metrics.append_streams:
        yield "service: an append stream"
    if service._polls or service._metrics.long_polls or _watchers(service._bookie):
        yield "service: a long poll"
    if service._connections.calls or any(
        each.running for each in service._connections._known.values()
    ):
        yield "service: a call of a connection"
    if service._shares._in_flight and not service._bookie.append_bytes_in_flight:
        yield "service: a share of the bytes in flight"


def _watchers(bookie: Any) -> bool:
    """Whether somebody waits for a ledger's end, at a bookie or at the one that tests script."""
    if hasattr(bookie, "_watchers"):
        return bool(bookie._watchers._callbacks)
    return any(getattr(each, "watches", ()) for each in getattr(bookie, "ledgers", {}).values())


def _taken(lock: Any, value: int, who: str) -> Iterable[str]:
    if lock.locked() if isinstance(lock, asyncio.Lock) else lock._value != value:
        yield f"{type(lock).__name__.lower()} of {who}"


# -- how it is seen --------------------------------------------------------------------------------

Look = Callable[[Any], Iterable[str]]


def _around(kind: Any, *, before: Look | None = None, after: Look | None = None) -> None:
    """Look at an object before and after it is closed by itself."""
    close: Callable[[Any], Awaitable[None]] = kind.close

    @wraps(close)
    async def looked_at(self: Any) -> None:
        if before is not None:
            _found.extend(before(self))
        await close(self)
        if after is not None:
            _found.extend(after(self))

    kind.close = looked_at


def _when_made(kind: Any, note: Callable[[Any, FrameType], None]) -> None:
    make: Callable[..., None] = kind.__init__

    @wraps(make)
    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        note(self, sys._getframe(1))

    kind.__init__ = made


def _note_lock(lock: Any, maker: FrameType) -> None:
    """Those that an object has. One that a call has ends with the call."""
    code = maker.f_code
    if code.co_name == "__init__" and _is_ours(code):
        left = partial(_taken, value=getattr(lock, "_value", 0), who=code.co_qualname)
        _made.append((lock, left))


def _note_fake_writer(writer: Any, _maker: FrameType) -> None:
    _made.append((writer, _fake_writer))


def _note_writer(writer: Any, _maker: FrameType) -> None:
    _made.append((writer, lambda _: ()))


def _at_the_end_of_the_test(left: Look) -> Look:
    def note(thing: Any) -> Iterable[str]:
        _made.append((thing, left))
        return ()

    return note


def _after_service(kind: Any) -> None:
    close: Callable[[Any], None] = kind.close

    @wraps(close)
    def closed(self: Any) -> None:
        close(self)
        _made.append((self, _service))

    kind.close = closed


_KINDS: dict[str, Callable[[Any], None]] = {
    "spark_ledger.client.ledger_client.LedgerClient": lambda kind: _around(
        kind, before=_ledgers_of_streams, after=_client
    ),
    "spark_ledger.metadata.memory.MemoryMetadataStore": lambda kind: _around(
        kind, before=lambda store: () if store._closed else _watches(store._watches, store._lost)
    ),
    "spark_ledger.metadata.zookeeper.store.ZooKeeperStore": lambda kind: _around(
        kind, before=_watches_at_zookeeper
    ),
    "spark_ledger.stream.several.AppendedStreams": lambda kind: _around(
        kind, after=_handles_of_append_to
    ),
    "spark_ledger.stream.stream.Stream": lambda kind: _around(
        kind, after=_at_the_end_of_the_test(_stream)
    ),
    "spark_ledger.client.writer.LedgerWriter": lambda kind: _when_made(kind, _note_writer),
    "spark_ledger.stream.segment_writer.SegmentWriter": lambda kind: _when_made(kind, _note_writer),
    "bookie_server.service.grpc_service.BookieService": _after_service,
    "tests.unit.spark_ledger.stream.fake_ledgers.FakeWriter": lambda kind: _when_made(
        kind, _note_fake_writer
    ),
}
"""What is looked at, and how. Each is changed once its module is there: none is loaded for this."""


def install() -> None:
    """Look from now on. Once for each process, before the first test."""
    cancel_all = runners._cancel_all_tasks  # type: ignore[attr-defined]

    def at_the_end(loop: asyncio.AbstractEventLoop) -> None:
        look_at_loop(loop)
        cancel_all(loop)

    runners._cancel_all_tasks = at_the_end  # type: ignore[attr-defined]
    logging.getLogger("asyncio").addHandler(_AsyncioLog())
    for kind in (asyncio.Lock, asyncio.Semaphore):
        _when_made(kind, _note_lock)


def _look_at_new_kinds() -> None:
    for path in list(_KINDS):
        module, _, name = path.rpartition(".")
        if module in sys.modules:
            _KINDS.pop(path)(getattr(sys.modules[module], name))
