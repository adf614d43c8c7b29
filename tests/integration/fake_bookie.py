"""A bookie that lies, behind a real gRPC server, and a cluster of them over metadata in memory.

``bookie.lie`` says how it lies, and may be changed at any time; "" is an honest bookie. The
metadata are honest: what is tested is what clients make of wrong answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

import grpc

from bookie_server.service.context import CallContext
from bookie_server.service.grpc_server import GrpcServer
from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.bookie_api import Done, LedgerEnd, ReadOutcome
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.config import ClientConfig
from spark_ledger.limits import MIB
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, BookieId, BookieInfo, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from tests.contracts.scripted_bookie import ScriptedBookie

ABSURD: Final = EntryId(2**62)
"""A last add confirmed that no ledger reaches."""

STATUS_LIES: Final = {
    "refuses-password": BookieStatus.UNAUTHORIZED,
    "holds-other-bytes": BookieStatus.ENTRY_CONFLICT,
    "is-stalled": BookieStatus.STALLED,
    "is-full": BookieStatus.READ_ONLY,
    "has-errors": BookieStatus.IO_ERROR,
    "speaks-of-a-fence": BookieStatus.FENCED,
    "is-another-bookie": BookieStatus.WRONG_BOOKIE,
    "knows-no-request": BookieStatus.BAD_REQUEST,
    "says-what-nobody-knows": BookieStatus.UNKNOWN_STATE,
}
"""Lies that are an answer to every add, fence and read."""

ADD_LIES: Final = (
    "acknowledges-nothing",
    "acknowledges-and-forgets",
    "acknowledges-what-was-not-sent",
    "acknowledges-another-ledger",
    "acknowledges-twice",
    "acknowledges-backwards",
    "acknowledges-in-noise",
    "acknowledges-without-end",
)
"""Lies about adds. "acknowledges-and-forgets" counts as a copy that is lost afterwards."""

READ_LIES: Final = (
    "changes-a-byte",
    "serves-another-entry",
    "denies-entries",
    "reads-in-noise",
    "sizes-without-frames",
    "never-answers",
    "goes-on-with-wrong-chunks",
)
"""Lies about reads."""

CONFIRM_LIES: Final = ("speaks-of-millions-of-ledgers",)
"""Lies to an idle writer that tells what was confirmed."""

LIST_LIES: Final = ("lists-millions-of-ranges", "lists-without-end")
"""Lies about what is held."""

LAC_LIES: Final = ("confirms-too-much", "confirms-nothing")
"""Lies about the last add confirmed."""

_NOISE: Final = b"\xff\xfe\xfd" * 40

_LONG_BYTES: Final = 16 * MIB
"""Of an answer of small parts: nearly the most that gRPC takes."""


class _Lying(ScriptedBookie):
    """What a bookie says when its words can be decoded."""

    lie = ""
    also = ""
    busy = 0
    """So many of the next adds and fences are answered with "busy"."""
    busy_reads = 0
    """The same for reads."""

    def add(
        self,
        run: EntryRun,
        *,
        access_key: bytes,
        recovery: bool,
        last_add_confirmed: EntryId,
        done: Done,
    ) -> None:
        if self.lie == "acknowledges-nothing":
            return
        if self.lie == "acknowledges-and-forgets":
            done(BookieStatus.OK, "")
            return
        super().add(
            run,
            access_key=access_key,
            recovery=recovery,
            last_add_confirmed=last_add_confirmed,
            done=done,
        )

    def _refusal(self, ledger_id: LedgerId, access_key: bytes) -> tuple[BookieStatus, str] | None:
        status = STATUS_LIES.get(self.lie)
        if self.busy:
            self.busy, status = self.busy - 1, BookieStatus.TOO_MANY_REQUESTS
        return super()._refusal(ledger_id, access_key) if status is None else (status, "a lie")

    def end_of_ledger(self, ledger_id: LedgerId, *, access_key: bytes) -> LedgerEnd:
        end = super().end_of_ledger(ledger_id, access_key=access_key)
        if "confirms-too-much" in (self.lie, self.also):
            return LedgerEnd(BookieStatus.OK, ABSURD, ABSURD, end.fenced, "")
        if "confirms-nothing" in (self.lie, self.also):
            return LedgerEnd(BookieStatus.OK, NO_ENTRY, NO_ENTRY, end.fenced, "")
        return end

    def read(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int,
        max_bytes: int,
    ) -> ReadOutcome:
        status = STATUS_LIES.get(self.lie)
        if self.busy_reads:
            self.busy_reads, status = self.busy_reads - 1, BookieStatus.TOO_MANY_REQUESTS
        if self.lie == "denies-entries":
            status = BookieStatus.NO_SUCH_ENTRY
        if status is not None:
            return ReadOutcome([], status, first_entry, "a lie")
        found = super().read(ledger_id, first_entry, last_entry, stride=stride, max_bytes=max_bytes)
        if self.lie == "changes-a-byte":
            return found._replace(runs=[_changed(run) for run in found.runs])
        if self.lie == "serves-another-entry":
            return found._replace(runs=[_moved(run) for run in found.runs])
        return found


def _changed(run: EntryRun) -> EntryRun:
    frames = bytearray(run.frames)
    frames[-1] ^= 1
    return EntryRun(run.ledger_id, run.first_entry, run.entry_ids, run.sizes, bytes(frames))


def _moved(run: EntryRun) -> EntryRun:
    first = EntryId(run.first_entry + 1)
    return EntryRun(run.ledger_id, first, run.entry_ids, run.sizes, run.frames)


class _LyingContext:
    """A call whose answers are changed on their way out."""

    def __init__(self, bookie: _Lying, context: CallContext) -> None:
        self._bookie, self._context = bookie, context
        self._last = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        lie = self._bookie.lie
        if lie == "never-answers":
            await asyncio.sleep(3600)
        if isinstance(message, pb.ListEntriesResponse):
            await self._list(lie, message)
            return
        if isinstance(message, pb.AppendResponse):
            message = self._acknowledgement(lie, message)
        elif lie == "reads-in-noise":
            message = _NOISE
        elif lie == "sizes-without-frames":
            message = _sizes_without_frames()
        elif lie == "goes-on-with-wrong-chunks":
            run = pb.EntryRun(ledger_id=7, first_entry=0, sizes=[40], frames=bytes(40))
            message = pb.ReadResponse(run=run).SerializeToString()
            while True:  # each before anybody calls it silent
                await self._context.write(message)
                await asyncio.sleep(0.2)
        await self._context.write(message)

    async def _list(self, lie: str, message: Any) -> None:
        page = pb.ListEntriesResponse(ranges=[pb.EntryRange(last_entry=1)] * 10_000)
        if lie == "lists-millions-of-ranges":
            message = b"\x1a\x02\x10\x01" * (_LONG_BYTES // 4)
        while lie == "lists-without-end":
            await self._context.write(page)
        await self._context.write(message)

    def _acknowledgement(self, lie: str, message: pb.AppendResponse) -> Any:
        if lie == "acknowledges-in-noise":
            return _NOISE
        if lie == "acknowledges-without-end":
            return b"\x0a\x00" * (_LONG_BYTES // 2)
        for result in list(message.results):
            if lie == "acknowledges-what-was-not-sent":
                result.last_entry += 1000
            elif lie == "acknowledges-another-ledger":
                result.ledger_id += 1
            elif lie == "acknowledges-twice":
                message.results.append(result)
            elif lie == "acknowledges-backwards":
                self._last, result.last_entry = result.last_entry, max(self._last - 1, 0)
        return message


@cache
def _sizes_without_frames() -> bytes:
    run = pb.EntryRun(ledger_id=7, first_entry=0, sizes=[100] * 2_000_000)
    return pb.ReadResponse(run=run).SerializeToString()


def _encoded(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


class _LyingService(BookieService):
    """The real service, but for what its calls send."""

    def __init__(self, lying: _Lying, bookie_id: BookieId) -> None:
        description = Description("cluster", "1", "writable", 0, 0, 0, 0, 1.0)
        super().__init__(lying, bookie_id, describe=lambda: description, metrics=ServiceMetrics())
        self._lying = lying

    def handlers(self) -> grpc.GenericRpcHandler:
        honest = super().handlers()
        lying = self._lying

        def answered(message: Any) -> bytes:
            if lying.lie in CONFIRM_LIES and isinstance(message, pb.WriteLastConfirmedResponse):
                size = bytes(
                    n & 127 | 128 for n in (_LONG_BYTES, _LONG_BYTES >> 7, _LONG_BYTES >> 14)
                )
                return b"\x1a" + size + bytes([_LONG_BYTES >> 21]) + bytes(_LONG_BYTES)
            return _encoded(message)

        class Handlers(grpc.GenericRpcHandler):
            def service(self, details: grpc.HandlerCallDetails) -> Any:
                handler: Any = honest.service(details)
                if handler is None:
                    return handler
                if not handler.response_streaming:
                    return handler._replace(response_serializer=answered)
                inner = handler.stream_stream or handler.unary_stream

                async def call(request: Any, context: CallContext) -> None:
                    await inner(request, _LyingContext(lying, context))

                kind = "stream_stream" if handler.stream_stream else "unary_stream"
                return handler._replace(**{kind: call, "response_serializer": _encoded})

        return Handlers()


class FakeBookie:
    """One bookie on a port of loopback."""

    def __init__(self, bookie_id: BookieId) -> None:
        self.bookie_id = bookie_id
        self.honest = _Lying()
        self._service = _LyingService(self.honest, bookie_id)
        self._server = GrpcServer(self._service, ServiceMetrics())
        self.port = 0

    @property
    def lie(self) -> str:
        """How it lies now; "" if it does not."""
        return self.honest.lie

    @lie.setter
    def lie(self, lie: str) -> None:
        self.tell(lie)

    def tell(self, lie: str, also: str = "") -> None:
        """Lie so from now on, and about the last add confirmed as well if ``also`` says so."""
        known = {"", *STATUS_LIES, *ADD_LIES, *READ_LIES, *LAC_LIES, *CONFIRM_LIES, *LIST_LIES}
        assert lie in known, f"nobody lies like that: {lie}"
        assert also in {"", *LAC_LIES}, f"nobody lies like that beside another lie: {also}"
        self.honest.lie, self.honest.also = lie, also

    async def start(self) -> None:
        self.port = await self._server.start("127.0.0.1", 0)

    async def stop(self) -> None:
        await self._server.stop(0.0)
        self._service.close()


class FakeCluster:
    """Bookies b0, b1, ... that may lie, and clients of them over gRPC."""

    def __init__(self, bookies: int) -> None:
        self.tree = MemoryTree()
        self.bookies = [FakeBookie(BookieId(f"b{index}")) for index in range(bookies)]
        self._registries: list[BookieRegistry] = []
        self._clients: list[LedgerClient] = []

    async def start(self) -> None:
        for bookie in self.bookies:
            await bookie.start()
            registry = BookieRegistry(MemoryMetadataStore(self.tree))
            self._registries.append(registry)
            await registry.register(BookieInfo(bookie.bookie_id, f"127.0.0.1:{bookie.port}"))

    async def client(self, **options: Any) -> LedgerClient:
        """A client to which a silent bookie costs little time. Reads have more: a machine may be
        busy."""
        config = ClientConfig(**{"add_timeout_s": 1.0, "read_timeout_s": 5.0, **options})
        client = await LedgerClient.over(MemoryMetadataStore(self.tree), None, config)
        self._clients.append(client)
        return client

    def __getitem__(self, bookie_id: str) -> FakeBookie:
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for registry in self._registries:
            await registry.deregister()
        for bookie in self.bookies:
            await bookie.stop()


@asynccontextmanager
async def fake_cluster(bookies: int = 4) -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster(bookies)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()


def run(test: Callable[[FakeCluster], Awaitable[None]], *, bookies: int = 4) -> None:
    """Run an async test against fresh bookies. A hang fails after 40 seconds."""

    async def main() -> None:
        async with fake_cluster(bookies) as cluster:
            await asyncio.wait_for(test(cluster), 40)

    asyncio.run(main())
