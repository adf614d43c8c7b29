"""What appenders are told when their append stream ends, by the way in which it ended."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from spark_ledger.transport.append_stream import AppendCall
from spark_ledger.transport.base import AddResult
from spark_ledger.types import BookieStatus, EntryId
from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.spark_ledger.transport.test_append_stream import (
    BOOKIE,
    ENDED,
    RESET,
    Fixture,
    make_run,
    on_loop,
    settle,
)


@pytest.mark.parametrize("where", ["open", "connect", "write", "second write"])
@pytest.mark.parametrize(
    ("error", "why"),
    [(ENDED, "ended"), (RESET, "reset")],
    ids=["ended", "reset"],
)
def test_call_that_ends_under_the_sender_fails_what_is_outstanding(
    error: Exception, why: str, where: str
) -> None:
    """And is no bug of ours, which the application's loop is told of."""
    errors: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
        f = Fixture()

        async def fails(*_message: object) -> None:
            if error is ENDED:
                f.call.answers.put_nowait(grpc.aio.EOF)
            raise error

        def opens() -> AppendCall:
            raise error

        if where == "open":
            f.stream._open_call = opens
        elif where == "connect":
            f.call.wait_for_connection = fails  # type: ignore[method-assign]
        elif where == "write":
            f.call.write = fails  # type: ignore[method-assign, assignment]
        appender = f.open()
        appender.send(make_run(4))
        await settle()
        if where == "second write":
            assert f.results == []
            f.call.write = fails  # type: ignore[method-assign, assignment]
            appender.send(make_run(5))
            await settle()
        assert [(r.status, r.last_entry) for r in f.results] == [(BookieStatus.UNAVAILABLE, 4)]
        assert f.results[0].message.startswith(f"bookie {BOOKIE} is unavailable: ")
        assert why in f.results[0].message
        assert f.stream.is_broken and f.stream.bytes_in_flight == 0
        await f.stream.close()

    asyncio.run(main())
    assert errors == []


FULL = grpc.aio.AioRpcError(
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "many streams"
)


@pytest.mark.parametrize("where", ["connect", "read", "between two writes"])
def test_bookie_without_room_for_the_stream_is_busy(where: str) -> None:
    """Nothing was decided: its writers wait, and it is not replaced (rule P11). So do those that
    find out later, when they have something to send."""

    @on_loop
    async def run(f: Fixture) -> None:
        async def full(*_message: object) -> None:
            raise FULL

        async def ended(*_message: object) -> None:
            f.call.answers.put_nowait(FULL)
            raise ENDED

        if where == "connect":
            f.call.wait_for_connection = full  # type: ignore[method-assign]
        appender, idle, refused = f.open(1), f.open(2), f.open(3)
        refused.send(make_run(0, ledger_id=3))
        await settle()
        if where != "connect":
            f.call.answer(refused.tag, 0, pb.FENCED, "fenced", ledger_id=3)
            await settle()
        if where == "between two writes":
            f.call.write = ended  # type: ignore[method-assign, assignment]
        appender.send(make_run(4))
        if where == "read":
            f.call.answers.put_nowait(FULL)
        await settle()
        assert f.results[-1] == AddResult(
            BOOKIE,
            BookieStatus.TOO_MANY_REQUESTS,
            EntryId(4),
            f"bookie {BOOKIE} is busy: many streams",
        )
        assert f.stream.is_broken and f.stream.bytes_in_flight == 0
        idle.send(make_run(7, ledger_id=2))
        await settle()
        assert f.results[-1][1:3] == (BookieStatus.TOO_MANY_REQUESTS, 7)

    run()


FAILED = grpc.aio.AioRpcError(
    grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "a write failed"
)


@pytest.mark.parametrize("where", ["write", "read"])
@pytest.mark.parametrize("stored", [False, True], ids=["nothing stored", "something stored"])
def test_stream_that_ends_under_its_first_write_is_opened_again(stored: bool, where: str) -> None:
    """grpc.aio reports the failed write, which hides a refusal. Either task hears of it first, and
    the next open says what is wrong (rule P11)."""

    @on_loop
    async def run(f: Fixture) -> None:
        async def fails(*_message: object) -> None:
            raise FAILED

        appender = f.open()
        if stored:
            appender.send(make_run(0))
            await settle()
            f.call.answer(appender.tag, 0)
            await settle()
        if where == "write":
            f.call.write = fails  # type: ignore[method-assign, assignment]
        appender.send(make_run(1))
        if where == "read":
            f.call.answers.put_nowait(FAILED)
        await settle()
        expected = BookieStatus.UNAVAILABLE if stored else BookieStatus.TOO_MANY_REQUESTS
        assert f.results[-1][1:3] == (expected, 1)
        assert f.stream.is_broken and f.stream.bytes_in_flight == 0

    run()


@on_loop
async def test_bookie_that_ends_a_stream_of_which_it_stored_something_is_unavailable(
    f: Fixture,
) -> None:
    appender = f.open()
    appender.send(make_run(0))
    await settle()
    f.call.answer(appender.tag, 0)
    appender.send(make_run(1))
    f.call.answers.put_nowait(FULL)
    await settle()
    assert [result.status for result in f.results] == [BookieStatus.OK, BookieStatus.UNAVAILABLE]
