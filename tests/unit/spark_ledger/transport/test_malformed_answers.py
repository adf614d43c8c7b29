"""Answers that are no messages: each call of the gRPC transport reports them, none raises."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits.bookie import BOOKIE_LEDGERS_PER_ANSWER, BOOKIE_RANGES_PER_PAGE
from spark_ledger.runs import EntryRun
from spark_ledger.transport.answers import ANSWER_BYTES_MAX, LIST_ANSWERS_MAX
from spark_ledger.transport.base import AddResult
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import SERVICE_NAME, status_from_wire

BOOKIE = BookieId("b")
LEDGER = LedgerId(7)


@asynccontextmanager
async def talking_nonsense(
    nonsense: bytes = b"\xff\xff\xff", *then: bytes | None
) -> AsyncIterator[GrpcTransport]:
    """A transport to a server that answers every call with these bytes, which are no message; where
    there may be several answers with those of ``then`` behind it, and breaks off where one is None.
    """

    async def stream(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(nonsense)
        for each in then:
            if each is None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            await context.write(each)

    async def single(_request: bytes, _context: object) -> bytes:
        return nonsense

    one: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(single)
    many: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(stream)
    both_ways: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(stream)
    handlers = {
        "Append": both_ways,
        "Read": many,
        "ListEntries": many,
        "ReadLastConfirmed": one,
        "WriteLastConfirmed": one,
        "Describe": one,
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    try:
        yield transport
    finally:
        await transport.close()
        await server.stop(0.0)


def test_read_answered_with_nonsense_is_an_io_error() -> None:
    async def main() -> None:
        async with talking_nonsense() as transport:
            chunks = transport.read(BOOKIE, LEDGER, EntryId(0), EntryId(9), timeout_s=5)
            (chunk,) = [chunk async for chunk in chunks]
            assert (chunk.status, chunk.entry_id) == (BookieStatus.IO_ERROR, 0)
            assert "read response of 3 bytes is malformed" in chunk.message

    asyncio.run(main())


def test_questions_answered_with_nonsense_are_io_errors() -> None:
    async def main() -> None:
        async with talking_nonsense() as transport:
            end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
            assert end.status is BookieStatus.IO_ERROR
            told = await transport.write_last_confirmed(BOOKIE, LEDGER, EntryId(0), timeout_s=5)
            assert told is BookieStatus.IO_ERROR
            listed = await transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
            assert listed == (BookieStatus.IO_ERROR, [], None)
            ledgers = await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=5)
            assert ledgers == (BookieStatus.IO_ERROR, [])
            with pytest.raises(BookieUnavailableError, match="answer is malformed"):
                await transport.describe(BOOKIE, timeout_s=5)

    asyncio.run(main())


def test_answers_that_are_too_long_are_not_decoded() -> None:
    """Of small parts each would stop the loop for seconds, and take half a gigabyte."""
    many = b"\x18\x00" * (ANSWER_BYTES_MAX // 2) + b"\x18\x00"

    async def main() -> None:
        async with talking_nonsense(many) as transport:
            end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
            assert end.status is BookieStatus.IO_ERROR and "too long" in end.message
            told = await transport.write_last_confirmed(BOOKIE, LEDGER, EntryId(0), timeout_s=5)
            assert told is BookieStatus.IO_ERROR
            listed = await transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
            assert listed == (BookieStatus.IO_ERROR, [], None)
            ledgers = await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=5)
            assert ledgers == (BookieStatus.IO_ERROR, [])
            with pytest.raises(BookieUnavailableError, match="too long"):
                await transport.describe(BOOKIE, timeout_s=5)

    asyncio.run(main())


@pytest.mark.parametrize("more", [0, 1])
def test_page_of_more_than_a_bookie_lists_at_once_is_nonsense(more: int) -> None:
    ranges = [pb.EntryRange(last_entry=2**62)] * (BOOKIE_RANGES_PER_PAGE + more)
    ids = range(2**62, 2**62 + BOOKIE_LEDGERS_PER_ANSWER + more)
    entries = pb.ListEntriesResponse(ranges=ranges)
    ledgers = pb.ListEntriesResponse(has_ledgers=True, ledger_ids=ids)
    status = BookieStatus.IO_ERROR if more else BookieStatus.OK

    async def main() -> None:
        async with talking_nonsense(entries.SerializeToString()) as transport:
            listed = await transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
            assert listed.status is status and bool(listed.ranges) is not bool(more)
        async with talking_nonsense(ledgers.SerializeToString()) as transport:
            found = await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=5)
            assert found == (status, [] if more else list(ids))

    asyncio.run(main())


@pytest.mark.parametrize("more", [0, 1])
def test_list_without_end_is_nonsense(more: int) -> None:
    """Its pages would fill the memory of whoever asks."""
    answer = pb.ListEntriesResponse(ranges=[pb.EntryRange(first_entry=0, last_entry=3)])
    listed_by_one = (BookieStatus.OK, [(0, 3)] * LIST_ANSWERS_MAX, None)

    async def main() -> None:
        answers = [answer.SerializeToString()] * (LIST_ANSWERS_MAX + more)
        async with talking_nonsense(*answers) as transport:
            listed = await transport.list_entries(BOOKIE, LEDGER, timeout_s=20)
            assert listed == ((BookieStatus.IO_ERROR, [], None) if more else listed_by_one)

    asyncio.run(main())


@pytest.mark.parametrize("ids", [(8, 8), (9, 8), (LEDGER - 1,)])
def test_ledgers_that_do_not_ascend_are_nonsense(ids: tuple[int, ...]) -> None:
    """Whoever asks for those behind the last one would ask for ever."""
    answer = pb.ListEntriesResponse(has_ledgers=True, ledger_ids=ids)

    async def main() -> None:
        async with talking_nonsense(answer.SerializeToString()) as transport:
            listed = await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=5)
            assert listed == (BookieStatus.IO_ERROR, [])

    asyncio.run(main())


@pytest.mark.parametrize("following", [-3, 4, 5])
def test_page_that_leads_back_is_nonsense(following: int) -> None:
    """Whoever asks for the next page would ask for ever."""
    answer = pb.ListEntriesResponse(next_entry=following)

    async def main() -> None:
        async with talking_nonsense(answer.SerializeToString()) as transport:
            listed = await transport.list_entries(BOOKIE, LEDGER, EntryId(5), timeout_s=5)
            assert listed == (BookieStatus.IO_ERROR, [], None)

    asyncio.run(main())


def test_bookie_of_a_former_version_lists_all_entries_at_once() -> None:
    """It begins with the first entry, whatever it is asked, and names no next page."""
    ranges = [pb.EntryRange(first_entry=n, last_entry=n + 3) for n in (0, 5, 10)]
    answer = pb.ListEntriesResponse(ranges=ranges)

    async def main() -> None:
        async with talking_nonsense(answer.SerializeToString()) as transport:
            listed = await transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
            assert listed == (BookieStatus.OK, [(0, 3), (5, 8), (10, 13)], None)
            listed = await transport.list_entries(BOOKIE, LEDGER, EntryId(6), timeout_s=5)
            assert listed == (BookieStatus.OK, [(6, 8), (10, 13)], None)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("end", "status"), [(b"\xff\xff", BookieStatus.IO_ERROR), (None, BookieStatus.UNAVAILABLE)]
)
def test_list_that_breaks_off_is_no_shorter_list(end: bytes | None, status: BookieStatus) -> None:
    """As that of a bookie of a former version, in several answers: what is left out of it would
    count as entries that the bookie does not hold."""
    answer = pb.ListEntriesResponse(ranges=[pb.EntryRange(first_entry=0, last_entry=3)])

    async def main() -> None:
        async with talking_nonsense(answer.SerializeToString(), end) as transport:
            listed = await transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
            assert listed == (status, [], None)

    asyncio.run(main())


def test_page_is_taken_with_its_borders_and_where_it_goes_on() -> None:
    """The last entry of one page may be the first that the next one is asked for."""
    ranges = [pb.EntryRange(first_entry=n, last_entry=n + 3) for n in (0, 5)]
    answer = pb.ListEntriesResponse(ranges=ranges, next_entry=9)

    async def main() -> None:
        async with talking_nonsense(answer.SerializeToString()) as transport:
            for first, held in ((3, [(3, 3), (5, 8)]), (4, [(5, 8)]), (8, [(8, 8)])):
                listed = await transport.list_entries(BOOKIE, LEDGER, EntryId(first), timeout_s=5)
                assert listed == (BookieStatus.OK, held, 9)

    asyncio.run(main())


@pytest.mark.parametrize("status", [pb.NO_SUCH_LEDGER, pb.TOO_MANY_REQUESTS])
def test_refusal_to_list_is_handed_on(status: pb.Status) -> None:
    """A ledger that is not there is no empty one."""
    answer = pb.ListEntriesResponse(status=status, has_ledgers=True, ledger_ids=[LEDGER])

    async def main() -> None:
        async with talking_nonsense(answer.SerializeToString()) as transport:
            listed = await transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
            assert listed == (status_from_wire(status), [], None)
            ledgers = await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=5)
            assert ledgers == (status_from_wire(status), [])

    asyncio.run(main())


def test_ledgers_are_listed_from_the_one_that_is_asked_for() -> None:
    answer = pb.ListEntriesResponse(has_ledgers=True, ledger_ids=[LEDGER, LEDGER + 1, LEDGER + 5])

    async def main() -> None:
        async with talking_nonsense(answer.SerializeToString()) as transport:
            listed = await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=5)
            assert listed == (BookieStatus.OK, [LEDGER, LEDGER + 1, LEDGER + 5])

    asyncio.run(main())


def test_end_of_a_ledger_arrives_as_it_was_said() -> None:
    answer = pb.ReadLastConfirmedResponse(
        status=pb.OK, last_add_confirmed=3, last_entry=8, fenced=True, message="so\nbe it"
    )

    async def main() -> None:
        async with talking_nonsense(answer.SerializeToString()) as transport:
            end = await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=5)
            assert end == (BookieStatus.OK, 3, 8, True, "so?be it")

    asyncio.run(main())


def test_bookie_of_a_former_version_cannot_list_ledgers() -> None:
    """It lists the entries of one ledger, or says that it has none of it."""

    async def main() -> None:
        for answer in (
            pb.ListEntriesResponse(ranges=[pb.EntryRange(first_entry=0, last_entry=1)]),
            pb.ListEntriesResponse(status=pb.NO_SUCH_LEDGER),
        ):
            async with talking_nonsense(answer.SerializeToString()) as transport:
                listed = await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=5)
                assert listed == (BookieStatus.BAD_REQUEST, [])

    asyncio.run(main())


def words(**others: Any) -> bytes:
    """What a bookie says about itself."""
    honest = {"bookie_id": BOOKIE, "version": "1", "state": "writable", "uptime_s": 3.5}
    return pb.DescribeResponse(**{**honest, **others}).SerializeToString()


def test_words_of_a_bookie_are_cleaned_for_a_terminal() -> None:
    answer = words(cluster_id="\x1b[2Jc", version="1\n2", state="\x07" * 600, scrubbed_at=2.0)

    async def main() -> None:
        async with talking_nonsense(answer) as transport:
            said = await transport.describe(BOOKIE, timeout_s=5)
            assert (said.bookie_id, said.cluster_id, said.version) == (BOOKIE, "?[2Jc", "1?2")
            assert said.state == "?" * 500
            assert (said.uptime_s, said.scrubbed_at) == (3.5, 2.0)

    asyncio.run(main())


@pytest.mark.parametrize("field", ["uptime_s", "scrubbed_at"])
@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan, -1.0, 1e300, 2.0**40])
def test_words_of_a_bookie_with_a_time_that_is_none_are_nonsense(
    field: str, seconds: float
) -> None:
    async def main() -> None:
        async with talking_nonsense(words(**{field: seconds})) as transport:
            with pytest.raises(BookieUnavailableError, match="s are no time"):
                await transport.describe(BOOKIE, timeout_s=5)

    asyncio.run(main())


def test_words_of_another_bookie_are_not_believed() -> None:
    async def main() -> None:
        async with talking_nonsense(words(bookie_id="b\n2")) as transport:
            with pytest.raises(
                BookieUnavailableError, match=r"bookie b: it says that it is 'b\?2'"
            ):
                await transport.describe(BOOKIE, timeout_s=5)

    asyncio.run(main())


def test_append_answered_with_nonsense_breaks_the_stream() -> None:
    async def main() -> None:
        async with talking_nonsense() as transport:
            results: list[AddResult] = []
            appender = transport.open_appender(
                BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
            )
            appender.send(EntryRun(LEDGER, EntryId(0), None, [40], bytes(40)))
            async with asyncio.timeout(20):
                while not results:
                    await asyncio.sleep(0.01)
            # A write that fails hides why its stream ended: which of the two comes first is open.
            broken = (BookieStatus.UNAVAILABLE, BookieStatus.TOO_MANY_REQUESTS)
            assert results[0].status in broken

    asyncio.run(main())
