"""The append stream over a scripted call: packing, order, accounting, and every way to break."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc.aio
import pytest

from spark_ledger.limits import MIB
from spark_ledger.limits.entries import (
    APPEND_MESSAGE_ADDS_MAX,
    APPEND_MESSAGE_BYTES_TARGET,
    FIRST_MESSAGE_BYTES_TARGET,
)
from spark_ledger.runs import EntryRun
from spark_ledger.transport.append_stream import (
    AppendCall,
    AppendStream,
    NewestMessages,
    StreamAppender,
)
from spark_ledger.transport.base import AddResult
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import AddCommand, ReceivedAdd, decode_append_request

BOOKIE = BookieId("b1")


class Call:
    """A grpc call that writes what it is given to a list, and reads what the test puts in."""

    def __init__(self) -> None:
        self.messages: list[list[ReceivedAdd]] = []
        self.sizes: list[int] = []
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.may_connect = asyncio.Event()
        self.may_connect.set()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.cancelled = False

    async def wait_for_connection(self) -> None:
        await self.may_connect.wait()

    async def write(self, message: bytes) -> None:
        self.messages.append(list(decode_append_request(message)))
        self.sizes.append(len(message))
        await self.may_write.wait()

    async def read(self) -> Any:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self) -> None:
        self.cancelled = True

    def answer(
        self,
        tag: int,
        last_entry: int,
        status: pb.Status = pb.OK,
        message: str = "",
        ledger_id: int = 1,
    ) -> None:
        result = pb.AddResult(
            tag=tag, ledger_id=ledger_id, last_entry=last_entry, status=status, message=message
        )
        self.answers.put_nowait(pb.AppendResponse(results=[result]).SerializeToString())


class Fixture:
    def __init__(self) -> None:
        self.call = Call()
        self.results: list[AddResult] = []
        self.newest_messages = NewestMessages()
        call = cast("AppendCall", self.call)
        self.stream = AppendStream(
            BOOKIE, lambda: call, self.newest_messages, connect_timeout_s=0.1
        )

    def open(self, ledger_id: int = 1) -> StreamAppender:
        return self.stream.open(
            LedgerId(ledger_id),
            access_key=b"key of %d" % ledger_id,
            recovery=ledger_id % 2 == 1,
            on_result=self.results.append,
        )


def on_loop(test: Callable[[Fixture], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            fixture = Fixture()
            async with asyncio.timeout(10):
                await test(fixture)
                await fixture.stream.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def make_run(first: int, size: int = 100, ledger_id: int = 1) -> EntryRun:
    return EntryRun(LedgerId(ledger_id), EntryId(first), None, [size], b"x" * size)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_same_adds_are_encoded_once() -> None:
    """Adds that differ in anything are encoded anew."""
    newest = NewestMessages()
    add = AddCommand(1, b"key", False, make_run(0))
    encoded = newest.encode([add])
    assert newest.encode([AddCommand(1, b"key", False, add.run)]) is encoded
    others = [
        [add._replace(tag=2)],
        [add._replace(access_key=b"")],
        [add._replace(recovery=True)],
        [add._replace(run=make_run(1))],
        [add, add._replace(run=make_run(1))],
    ]
    for adds in others:
        found = list(decode_append_request(newest.encode(adds)))
        assert [received[:4] for received in found] == [tuple(other) for other in adds]


def test_newest_messages_are_bounded() -> None:
    newest = NewestMessages()
    newest.encode([AddCommand(1, b"", False, make_run(0, 17 * MIB))])
    assert newest.size_bytes == 0, "one that is too large is not kept"
    small = [[AddCommand(1, b"", False, make_run(i))] for i in range(17)]
    encoded = [newest.encode(adds) for adds in small]
    assert newest.encode(small[16]) is encoded[16] and newest.encode(small[1]) is encoded[1]
    assert newest.encode(small[0]) is not encoded[0], "the oldest had to go"
    newest.encode([AddCommand(1, b"", False, make_run(17, 9 * MIB))])
    newest.encode([AddCommand(1, b"", False, make_run(18, 9 * MIB))])
    assert newest.size_bytes < 10 * MIB


@on_loop
async def test_a_message_is_not_kept_once_everything_is_answered(f: Fixture) -> None:
    appender = f.open()
    for entry in (0, 1):
        appender.send(make_run(entry))
        await settle()
    f.call.answer(appender.tag, 0)
    await settle()
    assert f.newest_messages.size_bytes > 0, "other bookies may be sent it yet"
    f.call.answer(appender.tag, 1)
    await settle()
    assert f.newest_messages.size_bytes == 0
    assert not f.newest_messages._messages


@on_loop
async def test_all_that_is_queued_goes_into_one_message(f: Fixture) -> None:
    first, second = f.open(1), f.open(2)
    first.send(make_run(0))
    second.send(make_run(0, ledger_id=2))
    first.send(make_run(1))
    await settle()
    (adds,) = f.call.messages
    assert [(add.tag, add.run.ledger_id, add.run.first_entry) for add in adds] == [
        (first.tag, 1, 0),
        (second.tag, 2, 0),
        (first.tag, 1, 1),
    ]
    assert [(add.access_key, add.recovery) for add in adds] == [
        (b"key of 1", True),
        (b"key of 2", False),
        (b"key of 1", True),
    ]


@on_loop
async def test_a_message_grows_while_the_one_before_is_written(f: Fixture) -> None:
    appender = f.open()
    f.call.may_write.clear()
    appender.send(make_run(0))
    await settle()
    for entry in range(1, 50):
        appender.send(make_run(entry))
        await asyncio.sleep(0)
    assert len(f.call.messages) == 1
    f.call.may_write.set()
    await settle()
    assert [len(adds) for adds in f.call.messages] == [1, 49]


@on_loop
async def test_a_message_stays_below_its_target_unless_one_run_is_larger(f: Fixture) -> None:
    appender = f.open()
    appender.send(make_run(0))
    await settle()
    f.call.answer(appender.tag, 0)
    await settle()
    sizes = [
        APPEND_MESSAGE_BYTES_TARGET // 2 + 1,
        APPEND_MESSAGE_BYTES_TARGET // 2 + 1,
        APPEND_MESSAGE_BYTES_TARGET // 2 - 1,
        9 * MIB,
        100,
        100,
    ]
    for entry, size in enumerate(sizes, 1):
        appender.send(make_run(entry, size))
    await settle()
    assert [[len(a.run.frames) for a in adds] for adds in f.call.messages[1:]] == [
        sizes[:1],
        sizes[1:3],
        sizes[3:4],
        sizes[4:],
    ]
    assert sorted(f.call.sizes)[-2] < APPEND_MESSAGE_BYTES_TARGET + 1000


@on_loop
async def test_messages_are_smaller_until_the_bookie_has_stored_something(f: Fixture) -> None:
    """It hears strangers at a rate, but for messages of up to a megabyte."""
    appender = f.open()
    size = FIRST_MESSAGE_BYTES_TARGET // 2
    for entry in range(4):
        appender.send(make_run(entry, size))
    await settle()
    assert [len(adds) for adds in f.call.messages] == [2, 2]
    f.call.answer(f.open(2).tag, -1, pb.TOO_MANY_REQUESTS, ledger_id=2)
    await settle()
    for entry in range(4, 8):
        appender.send(make_run(entry, size))
    await settle()
    assert [len(adds) for adds in f.call.messages[2:]] == [2, 2], "nothing was stored yet"
    f.call.answer(appender.tag, 0)
    await settle()
    for entry in range(8, 16):
        appender.send(make_run(entry, size))
    await settle()
    assert [len(adds) for adds in f.call.messages[4:]] == [8]


@on_loop
async def test_a_message_has_no_more_adds_than_a_bookie_takes(f: Fixture) -> None:
    """It refuses a message with more, and so it would each time that it is sent again."""
    appender = f.open()
    for entry in range(2 * APPEND_MESSAGE_ADDS_MAX + 1):
        appender.send(make_run(entry, 1))
    await settle()
    most = APPEND_MESSAGE_ADDS_MAX
    assert [len(adds) for adds in f.call.messages] == [most, most, 1]


@on_loop
async def test_bytes_in_flight_are_what_is_not_answered(f: Fixture) -> None:
    first, second = f.open(1), f.open(2)
    first.send(make_run(0, 100))
    first.send(make_run(1, 200))
    second.send(make_run(0, 400, 2))
    assert f.stream.bytes_in_flight == 700
    await settle()
    f.call.answer(first.tag, 0)
    await settle()
    assert f.stream.bytes_in_flight == 600
    second.close()
    assert f.stream.bytes_in_flight == 200
    f.call.answer(first.tag, 1)
    await settle()
    assert f.stream.bytes_in_flight == 0


@on_loop
async def test_a_closed_appender_sends_no_more_of_what_is_queued(f: Fixture) -> None:
    gone, stays = f.open(1), f.open(2)
    f.call.may_write.clear()
    stays.send(make_run(0, ledger_id=2))
    await settle()
    gone.send(make_run(0))
    stays.send(make_run(1, ledger_id=2))
    gone.close()
    f.call.may_write.set()
    await settle()
    assert [add.run.ledger_id for add in f.call.messages[1]] == [2]


@on_loop
async def test_queue_is_looked_through_once_for_all_appenders_that_end_together(
    f: Fixture,
) -> None:
    """Thousands of writers give up a bookie that takes nothing, and the loop stood still."""
    f.call.may_write.clear()
    f.open(1).send(make_run(0))
    await settle()
    ending = [f.open(ledger_id) for ledger_id in (2, 3, 4)]
    for appender in ending:
        appender.send(make_run(0, ledger_id=appender.ledger_id))
    queue = f.stream._queue
    for appender in ending:
        appender.close()
        assert f.stream._queue is queue
    await settle()
    assert not f.stream._queue, "nothing of it is kept, though the bookie takes nothing"
    f.call.may_write.set()
    f.open(5).send(make_run(0, ledger_id=5))
    await settle()
    assert [[add.run.ledger_id for add in adds] for adds in f.call.messages] == [[1], [5]]


@on_loop
async def test_late_answers_to_a_closed_appender_are_ignored(f: Fixture) -> None:
    appender = f.open()
    appender.send(make_run(0))
    await settle()
    appender.close()
    f.call.answer(appender.tag, 0)
    f.call.answer(12345, 0)
    await settle()
    assert f.results == [] and not f.stream.is_broken


@on_loop
async def test_appenders_that_ended_are_forgotten(f: Fixture) -> None:
    """A client that runs for months opens an appender for each fragment of each ledger."""
    closed, refused = f.open(1), f.open(2)
    for ledger_id, appender in ((1, closed), (2, refused)):
        appender.send(make_run(0, ledger_id=ledger_id))
    await settle()
    closed.close()
    f.call.answer(refused.tag, 0, pb.FENCED, "fenced")
    await settle()
    assert not f.stream._appenders


@on_loop
async def test_a_refusal_is_reported_once(f: Fixture) -> None:
    appender = f.open()
    appender.send(make_run(0))
    appender.send(make_run(1))
    await settle()
    f.call.answer(appender.tag, 0, pb.FENCED, "fenced")
    f.call.answer(appender.tag, 1)
    appender.send(make_run(2))
    await settle()
    assert f.results == [AddResult(BOOKIE, BookieStatus.FENCED, EntryId(0), "fenced")]
    assert len(f.call.messages) == 1


ENDED = asyncio.InvalidStateError("ended")
RESET = grpc.aio.AioRpcError(
    grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "reset"
)


@pytest.mark.parametrize(
    "end",
    [grpc.aio.EOF, ENDED, b"\xff\xff not protobuf", RESET],
    ids=["eof", "ended", "garbage", "reset"],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_end_of_the_call_fails_what_is_outstanding(end: object) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        f = Fixture()
        busy, idle = f.open(1), f.open(2)
        busy.send(make_run(4))
        await settle()
        f.call.answers.put_nowait(end)
        await settle()
        assert [(r.status, r.last_entry) for r in f.results] == [(BookieStatus.UNAVAILABLE, 4)]
        assert end is not RESET or f.results[0].message.endswith("unavailable: reset")
        assert f.stream.is_broken and f.call.cancelled
        idle.send(make_run(0, ledger_id=2))
        assert len(f.results) == 1
        await settle()
        assert len(f.results) == 2
        assert f.stream.bytes_in_flight == 0
        await f.stream.close()

    asyncio.run(main())


@on_loop
async def test_a_connection_that_is_not_made_in_time_fails(f: Fixture) -> None:
    f.call.may_connect.clear()
    f.open().send(make_run(0))
    while not f.results:
        await asyncio.sleep(0.01)
    assert f.results[0].status is BookieStatus.UNAVAILABLE
    assert "no connection within" in f.results[0].message


def test_an_error_in_a_callback_breaks_the_stream_and_is_reported() -> None:
    async def main() -> None:
        reported: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: reported.append(context))
        f = Fixture()

        def fail(_result: AddResult) -> None:
            raise ValueError("a bug")

        bad = f.stream.open(LedgerId(1), access_key=b"", recovery=False, on_result=fail)
        good = f.open(2)
        bad.send(make_run(0))
        good.send(make_run(0, ledger_id=2))
        await settle()
        f.call.answer(bad.tag, 0)
        await settle()
        assert [str(context["exception"]) for context in reported] == ["a bug"]
        assert [r.status for r in f.results] == [BookieStatus.UNAVAILABLE]
        bad.close()
        await f.stream.close()

    asyncio.run(main())


@on_loop
async def test_send_of_another_ledgers_run_is_an_assertion(f: Fixture) -> None:
    with pytest.raises(AssertionError, match="one ledger"):
        f.open(1).send(make_run(0, ledger_id=2))


@on_loop
async def test_sender_that_idles_is_woken_by_the_first_of_several_runs(f: Fixture) -> None:
    appender = f.open()
    other = f.open(ledger_id=2)
    for round_ in range(3):
        await settle()  # it has sent everything, and waits
        assert len(f.call.messages) == round_
        appender.send(make_run(2 * round_))
        appender.send(make_run(2 * round_ + 1))
        other.send(make_run(round_, ledger_id=2))
        await settle()
        assert len(f.call.messages) == round_ + 1, "all that came in one turn, in one message"
        assert len(f.call.messages[-1]) == 3
    assert f.results == []


@on_loop
async def test_acknowledgement_of_what_was_not_sent_fails_the_appender(f: Fixture) -> None:
    """Counted, it would be a copy that nobody has (rule P3)."""
    appender = f.open()
    appender.send(make_run(0))
    await settle()
    f.call.answer(appender.tag, 7)
    f.call.answer(appender.tag, 0)
    await settle()
    (result,) = f.results
    assert result.status is BookieStatus.IO_ERROR and "was not sent" in result.message


@on_loop
async def test_answer_for_another_ledger_fails_the_appender(f: Fixture) -> None:
    for ledger_id in (0, 9):
        appender = f.open()
        appender.send(make_run(0))
        await settle()
        f.call.answer(appender.tag, 0, ledger_id=ledger_id)
        await settle()
    assert [result.status for result in f.results] == [BookieStatus.IO_ERROR] * 2


@on_loop
async def test_stall_is_a_note_and_the_appender_goes_on(f: Fixture) -> None:
    appender = f.open()
    appender.send(make_run(0))
    await settle()
    f.call.answer(appender.tag, 0, pb.STALLED, "the disk hangs")
    f.call.answer(appender.tag, 0)
    await settle()
    assert [result.status for result in f.results] == [BookieStatus.STALLED, BookieStatus.OK]


@pytest.mark.parametrize("which", ["all", "sender", "receiver"])
def test_stream_whose_tasks_are_cancelled_is_broken(which: str) -> None:
    """As by an application that ends its loop: its writers are still to be closed over others."""

    @on_loop
    async def test(f: Fixture) -> None:
        appender = f.open()
        appender.send(make_run(4))
        await settle()
        tasks = {"all": slice(2), "sender": slice(1), "receiver": slice(1, 2)}[which]
        for task in f.stream._tasks[tasks]:
            task.cancel()
        await settle()
        assert f.stream.is_broken and f.call.cancelled
        assert [(r.status, r.last_entry) for r in f.results] == [(BookieStatus.UNAVAILABLE, 4)]

    test()
