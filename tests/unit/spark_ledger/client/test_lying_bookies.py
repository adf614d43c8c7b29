"""One of three bookies sends readers what no bookie sends: right entries, no error, and no hang."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits import MIB
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import ReadChunk
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import SERVICE_NAME, encode_read_response
from tests.unit.spark_ledger.client.world import World, run

PAYLOADS = [b"payload %d" % number for number in range(10)]
BOOKIE = BookieId("b")

Lie = Callable[[ReadChunk], list[ReadChunk]]
"""What becomes of a chunk that an honest bookie sent."""


def with_run(**changes: Any) -> Lie:
    def lie(chunk: ReadChunk) -> list[ReadChunk]:
        run_ = chunk.run
        if run_ is None:
            return [chunk]
        fields: dict[str, Any] = {
            "ledger_id": run_.ledger_id,
            "first_entry": run_.first_entry,
            "entry_ids": run_.entry_ids,
            "sizes": run_.sizes,
            "frames": run_.frames,
        }
        return [chunk._replace(run=EntryRun(**{**fields, **changes}))]

    return lie


def damaged(chunk: ReadChunk) -> list[ReadChunk]:
    assert chunk.run is not None
    return with_run(frames=chunk.run.frames[:-1] + b"?")(chunk)


def left_out(chunk: ReadChunk) -> list[ReadChunk]:
    """True entries, and not all that were asked for."""
    assert chunk.run is not None
    return [] if chunk.run.first_entry in (0, 4) else [chunk]


def said(status: BookieStatus, entry_id: int = 0) -> Lie:
    return lambda _chunk: [ReadChunk(status, None, EntryId(entry_id), "as it likes")]


LIES: dict[str, Lie] = {
    "a wrong payload or digest": damaged,
    "entries of another ledger": with_run(ledger_id=LedgerId(99)),
    "other entries": with_run(first_entry=EntryId(5)),
    "some entries left out": left_out,
    "negative ids": with_run(first_entry=EntryId(-5)),
    "negative ids in a list": with_run(entry_ids=[-5], first_entry=EntryId(-5)),
    "ids beyond all": with_run(first_entry=EntryId(2**63 - 1)),
    "no entries": with_run(sizes=[], frames=b""),
    "sizes without frames": with_run(sizes=[40] * 1000),
    "empty frames": with_run(sizes=[0], frames=b""),
    "an id list that does not fit": with_run(entry_ids=[0, 1, 2]),
    "each entry twice": lambda chunk: [chunk, chunk],
    "no such entry": said(BookieStatus.NO_SUCH_ENTRY),
    "no such ledger": said(BookieStatus.NO_SUCH_LEDGER),
    "another entry is missing": said(BookieStatus.NO_SUCH_ENTRY, -(2**40)),
    "an end without entries": said(BookieStatus.OK, 2**40),
    "a refusal": said(BookieStatus.UNAUTHORIZED),
    "busy for ever": said(BookieStatus.TOO_MANY_REQUESTS),
    "a status that is new": said(BookieStatus.UNKNOWN_STATE),
    "nothing": lambda _chunk: [],
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 1)], ids=["copies", "stripes"])
def test_one_lying_bookie_is_read_around(lie: Lie, quorums: tuple[int, int, int]) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ensemble_size, write_quorum, ack_quorum = quorums
        async with await client.create_ledger(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
        ) as writer:
            for payload in PAYLOADS:
                await writer.append(payload)
        reader = await client.open_ledger(writer.ledger_id)
        transport = client._context.transport
        honest, asked, liar = transport.read, list[str](), [""]

        async def read(
            bookie_id: BookieId, *args: Any, **kwargs: Any
        ) -> AsyncGenerator[ReadChunk, None]:
            asked.append(bookie_id)
            async for chunk in honest(bookie_id, *args, **kwargs):
                for told in lie(chunk) if bookie_id == liar[0] else [chunk]:
                    yield told

        transport.read = read  # type: ignore[method-assign]
        for liar[0] in writer.metadata.last_fragment.bookies:
            for hint in range(3):
                found = [e.payload async for e in reader.read(0, 9, replica_hint=hint)]
                assert found == PAYLOADS
            assert len(asked) < 100, "a bookie that brings nothing is asked again and again"
            asked.clear()

    run(test)


@asynccontextmanager
async def answering(*answers: bytes, for_ever: bool = False) -> AsyncIterator[GrpcTransport]:
    """A transport to a bookie that answers reads with these messages."""

    async def read(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while True:
            for answer in answers:
                await context.write(answer)
            if not for_ever:
                return

    async def end(_request: bytes, _context: object) -> bytes:
        return answers[0]

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Read": grpc.unary_stream_rpc_method_handler(read),
        "ReadLastConfirmed": grpc.unary_unary_rpc_method_handler(end),
        "Describe": grpc.unary_unary_rpc_method_handler(end),
    }
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    try:
        yield transport
    finally:
        await transport.close()
        await server.stop(0.0)


async def chunks_of(transport: GrpcTransport) -> list[ReadChunk]:
    chunks = transport.read(BOOKIE, LedgerId(7), EntryId(0), EntryId(9), timeout_s=5)
    async with asyncio.timeout(20):
        return [chunk async for chunk in chunks]


def test_sizes_without_frames_cost_no_memory() -> None:
    """A message of 16 MB of them became lists of 16 million numbers."""
    sizes = pb.EntryRun(ledger_id=7, sizes=[1] * (15 * MIB)).SerializeToString()
    message = b"\x22" + _varint(len(sizes)) + sizes

    async def main() -> None:
        async with answering(message) as transport:
            tracemalloc.start()
            try:
                (chunk,) = await chunks_of(transport)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert chunk.status is BookieStatus.IO_ERROR
            assert "malformed" in chunk.message
            assert peak < 4 * len(message)

    asyncio.run(main())


@pytest.mark.parametrize("empty", [b"", b"\x22\x00"], ids=["nothing", "an empty run"])
def test_empty_chunks_without_end_are_an_end(empty: bytes) -> None:
    async def main() -> None:
        async with answering(empty, for_ever=True) as transport:
            (chunk,) = await chunks_of(transport)
            assert chunk.run is None

    asyncio.run(main())


def test_long_sentences_of_a_peer_are_cut_and_of_one_line() -> None:
    text = "line\n\x1b[2J" * (1 * MIB)

    async def main() -> None:
        told = pb.ReadResponse(status=pb.IO_ERROR, message=text).SerializeToString()
        async with answering(told) as transport:
            (chunk,) = await chunks_of(transport)
            assert len(chunk.message) <= 500 and chunk.message.isprintable()
        told = pb.ReadLastConfirmedResponse(status=pb.IO_ERROR, message=text).SerializeToString()
        async with answering(told) as transport:
            end = await transport.read_last_confirmed(BOOKIE, LedgerId(7), timeout_s=5)
            assert len(end.message) <= 500 and end.message.isprintable()
        told = pb.DescribeResponse(status=pb.IO_ERROR, message=text).SerializeToString()
        async with answering(told) as transport:
            with pytest.raises(BookieUnavailableError) as raised:
                await transport.describe(BOOKIE, timeout_s=5)
            assert len(str(raised.value)) <= 600 and str(raised.value).isprintable()

    asyncio.run(main())


def test_chunks_for_ever_end_with_the_first_that_is_not_wanted() -> None:
    """The reader stops a bookie that sends the same entries again and again."""
    message = encode_read_response([EntryRun(LedgerId(7), EntryId(0), None, [40], bytes(40))])

    async def main() -> None:
        async with answering(message, for_ever=True) as transport:
            chunks = transport.read(BOOKIE, LedgerId(7), EntryId(0), EntryId(9), timeout_s=5)
            async for chunk in chunks:
                assert chunk.run is not None and chunk.entry_id > NO_ENTRY
                break
            await chunks.aclose()

    asyncio.run(main())


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(digits) + bytes([value])
