"""The bookie process: starts storage, service and registration, and stops them in reverse order.

Start: configuration, identity, journal replay, wait for the predecessor's session to end, announce,
serve. Stop (SIGTERM, SIGINT): withdraw, finish what is in flight, flush, exit 0; a start is broken
off, as its disk may hang, and the next one takes it for a crash. A journal that fails to write or
sync, or a storage thread that ends, ends the process at once with exit code 3: nothing may be
acknowledged after that. A start whose disk fails ends with it, too: it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from bookie_server import addresses
from bookie_server.bookie import Bookie
from bookie_server.collection_task import ledger_collector
from bookie_server.config import BookieConfig
from bookie_server.daemon_thread import at_most, in_daemon_thread
from bookie_server.descriptors import Share, raise_limit, share_out
from bookie_server.exit_codes import EXIT_FATAL, EXIT_OK, EXIT_REFUSED, EXIT_REPLACED
from bookie_server.garbage import Collector
from bookie_server.held_ids import pass_over_held_ids
from bookie_server.identity import Identity
from bookie_server.keeper_process import keeper_beside
from bookie_server.leaving import LeavingWatch
from bookie_server.ledger_keys import MetadataKeys
from bookie_server.loop_watch import LoopWatch
from bookie_server.opening import open_bookie
from bookie_server.refetch import Refetch
from bookie_server.registration import Registration, format_new, is_formatted, local_cookie
from bookie_server.report import Report
from bookie_server.service import admin
from bookie_server.service.grpc_server import GrpcServer
from bookie_server.service.grpc_service import BookieService
from bookie_server.service.guard.memory import MemoryGuard
from bookie_server.service.metrics import ServiceMetrics
from bookie_server.stall_watch import StallWatch
from bookie_server.storage.cookie import Cookie
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.telling import Ready, tell_ready
from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    MetadataUnavailableError,
)
from spark_ledger.limits.bookie import (
    BOOKIE_CLOSE_TIMEOUT_S,
    BOOKIE_CONNECT_ATTEMPTS_S,
    BOOKIE_READS_END_S,
    BOOKIE_WITHDRAW_TIMEOUT_S,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.connect import open_store
from spark_ledger.tasks import cancel
from spark_ledger.types import BookieId, BookieInfo

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Stopped(Exception):
    """SIGTERM came before the bookie was serving."""


class BookieServer:
    """One run of a bookie, from start to exit code.

    The main thread runs the loop and is the service thread. All methods belong to it.
    """

    def __init__(
        self, config: BookieConfig, *, ready_file: Path | None, format_if_new: bool
    ) -> None:
        # Set before anything is served, then read by any thread.
        self._config = config
        self._ready_file = ready_file
        self._format_if_new = format_if_new
        self._bookie: Bookie
        self._report: Report
        self._cookie: Cookie
        self._identity: Identity  # of the service thread
        # Changed by the service thread; the pool reads them.
        self._metrics = ServiceMetrics()
        self._fatal = ""  # why the storage failed for good
        self._replaced = ""  # who else is this bookie
        self._left = ""  # why it is no bookie of the cluster any more
        # Service thread only.
        self._descriptors: Share
        self._service: BookieService
        self._stop: asyncio.Event
        self._announced: Registration | None = None

    async def run(self) -> int:
        """Start, serve, stop.

        Raises ConfigurationError, CorruptionError or another LedgerError if it cannot start.
        """
        self._stop = asyncio.Event()
        self._descriptors = share_out(raise_limit(), len(self._config.ledger_directories))
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._stop.set)
        async with AsyncExitStack() as closing:
            store = await self._identify(closing)
            self._metrics.metadata_restored = lambda: store.restored
            keys = MetadataKeys(store)
            self._bookie = await self._unless_stopped(self._open_bookie(keys))
            closing.enter_context(Collector(lambda: self._bookie.objects_held).running(loop))
            closing.enter_context(LoopWatch().running())
            closing.push_async_callback(self._close_bookie)
            closing.push_async_callback(self._release)
            registry = self._registry(store)
            await self._unless_stopped(registry.wait_until_vacant(BookieId(self._cookie.bookie_id)))
            await self._unless_stopped(self._identity.claim())
            self._identity.watch(self._on_replaced)
            stalls = StallWatch(lambda: self._bookie.stall, self._on_stall)
            parts = (self._config, self._cookie, self._bookie, stalls, self._metrics)
            self._report = Report(*parts, lambda: self._fatal)
            self._service = service = BookieService(
                self._bookie,
                BookieId(self._cookie.bookie_id),
                describe=self._report.description,
                metrics=self._metrics,
                disks=self._bookie.ledger_disks,
            )
            closing.push_async_callback(self._end_reads, service)
            stalls.start(service.reads.look)
            closing.callback(stalls.stop)
            connections = service.connections
            guard = MemoryGuard(
                self._config.memory_bytes,
                service.relieve,
                service.memory_is_short,
                calls=lambda: connections.calls,
            )
            connections.on_sign = guard.sign
            guard.start()
            closing.callback(guard.stop)
            server = GrpcServer(
                service, self._metrics, connections_max=self._descriptors.connections
            )
            address = addresses.bind(server, self._config)
            closing.push_async_callback(self._finish_calls, service, server)
            listener, admin_address = addresses.bind_admin(self._config)
            self._announced = registration = self._registration(registry, address, admin_address)
            closing.push_async_callback(self._withdraw, registration)
            await self._unless_stopped(registration.start())
            await server.serve()  # nothing is answered before others can see who answers
            self._tell_ready(address, admin_address)
            admin_server = await self._serve_admin(listener)
            if admin_server is not None:
                closing.push_async_callback(admin_server.stop)
            closing.push_async_callback(keeper_beside(self._config, store, self._metrics))
            leaving = LeavingWatch(store, BookieId(self._cookie.bookie_id), self._on_leaving)
            closing.push_async_callback(leaving.stop)
            self._collect(closing, store, keys)
            self._refetch(closing, store)
            await self._stop.wait()
            logger.info("stopping: %s", self._replaced or self._fatal or self._left or "asked to")
        return self.end_code

    @property
    def end_code(self) -> int:
        """The exit code once it was told to stop, also before it serves: while it waits for another
        process to go, its storage is open and may fail."""
        if self._replaced or self._left:
            return EXIT_REPLACED if self._replaced else EXIT_REFUSED
        return EXIT_FATAL if self._fatal else EXIT_OK

    # -- start -------------------------------------------------------------------------------------

    async def _identify(self, closing: AsyncExitStack) -> MetadataStore:
        """Find out who this bookie is; the connected metadata store."""
        cookie = await self._unless_stopped(in_daemon_thread(self._local_cookie))
        store = await self._connect()
        closing.push_async_callback(store.close)
        if cookie is None:
            cookie = await self._unless_stopped(format_new(self._config, store))
            logger.info("formatted bookie %s", cookie.bookie_id)
        self._cookie = cookie
        self._identity = Identity(
            self._cookie,
            [self._config.journal_directory, *self._config.ledger_directories],
            store,
            PosixFileSystem(),
            on_disk=in_daemon_thread,
        )
        await self._unless_stopped(self._identity.check())
        return store

    def _local_cookie(self) -> Cookie | None:
        """The identity in the directories; None if a bookie is to be made. Any thread."""
        is_new = self._format_if_new and not is_formatted(self._config)
        return None if is_new else local_cookie(self._config)

    async def _connect(self) -> MetadataStore:
        """The metadata store, tried for a bounded time. Raises MetadataUnavailableError."""
        deadline = time.monotonic() + self._config.metadata_wait_s
        for attempt_s in chain(BOOKIE_CONNECT_ATTEMPTS_S, repeat(BOOKIE_CONNECT_ATTEMPTS_S[-1])):
            left = deadline - time.monotonic()
            try:
                return await open_store(
                    self._config.metadata,
                    session_timeout_s=self._config.session_timeout_s,
                    connect_timeout_s=max(0.1, min(left, attempt_s)),
                )
            except MetadataUnavailableError as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise MetadataUnavailableError(
                        f"no metadata store within {self._config.metadata_wait_s:g} s: {error}"
                    ) from error
                logger.warning("waiting for the metadata store (%.0f s more): %s", left, error)
                await asyncio.sleep(min(0.2, left))
            if self._stop.is_set():
                raise Stopped
        raise AssertionError("the attempts have no end")

    async def _open_bookie(self, keys: MetadataKeys) -> Bookie:
        loop = asyncio.get_running_loop()
        started = time.monotonic()

        def post(action: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(action)

        storage = self._config.storage_config(
            BookieId(self._cookie.bookie_id), self._cookie.cluster_id
        )
        opens = partial(
            open_bookie,
            storage,
            post=post,
            on_fatal=self._on_fatal,
            on_state_changed=self._on_state_changed,
            keys=keys,
            open_logs_max=self._descriptors.open_logs,
        )
        bookie = await in_daemon_thread(opens)
        logger.info("storage opened in %.2f s", time.monotonic() - started)
        return bookie

    def _registry(self, store: MetadataStore) -> BookieRegistry:
        return BookieRegistry(
            store,
            on_replaced=self._on_replaced,
            session_timeout_s=self._config.session_timeout_s,
            at_contact=partial(self._at_contact, store),
            once_made=self._check_left,
        )

    async def _at_contact(self, store: MetadataStore) -> None:
        await pass_over_held_ids(store, self._bookie.next_ledger_id)
        await self._check_left()

    async def _check_left(self) -> None:
        self._left = await self._identity.why_left()
        if self._left:
            self._stop.set()
            raise ConfigurationError(self._left)

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """Wait for it. Raises Stopped if a signal comes first, otherwise what it raises."""
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Stopped
            return await task
        finally:
            await cancel(task, stopped)

    def _registration(
        self, registry: BookieRegistry, address: str, admin_address: str
    ) -> Registration:
        return Registration(
            registry,
            BookieInfo(
                BookieId(self._cookie.bookie_id),
                address,
                rack=self._config.rack,
                admin_address=admin_address,
            ),
            state=self._report.state,
            free_bytes=lambda: self._bookie.disks.states.free_bytes,
            reason=self._report.why_read_only,
        )

    def _tell_ready(self, address: str, admin_address: str) -> None:
        ready = Ready(self._cookie.bookie_id, address, admin_address, os.getpid())
        tell_ready(ready, self._ready_file)
        logger.info("bookie %s serves on %s", ready.bookie_id, address)

    def _refetch(self, closing: AsyncExitStack, store: MetadataStore) -> None:
        """Have repair bring back what is damaged here, until the stop begins."""
        refetch = Refetch(
            self._bookie,
            store,
            BookieId(self._cookie.bookie_id),
            is_accepted=lambda: self._identity.is_restore_accepted,
        )
        refetch.start()
        closing.push_async_callback(refetch.stop)

    def _collect(self, closing: AsyncExitStack, store: MetadataStore, keys: MetadataKeys) -> None:
        """Give back what deleted ledgers take, from now on until the stop begins."""
        if not self._config.collection.enabled:
            return
        bookie_id = BookieId(self._cookie.bookie_id)
        collector = ledger_collector(
            self._config, self._bookie, store, bookie_id, lambda: keys.found
        )
        self._metrics.collection = collector.stats
        collector.start()
        closing.push_async_callback(collector.stop)

    async def _serve_admin(self, listener: socket.socket | None) -> admin.AdminServer | None:
        if listener is None:
            return None
        server = admin.AdminServer(
            listener,
            status=self._report.status,
            metrics=self._report.exposition,
            is_healthy=lambda: not (self._fatal or self._replaced or self._bookie.failure),
        )
        await server.start()
        return server

    # -- while it serves ---------------------------------------------------------------------------

    def _on_fatal(self, message: str) -> None:
        """The journal failed or a storage thread ended; nothing is acknowledged from here on."""
        logger.critical("storage failed, this bookie stops: %s", message)
        self._fatal = message
        self._stop.set()

    def _on_replaced(self, reason: str) -> None:
        """Another process is this bookie now; nothing is answered from here on (rule S12)."""
        logger.critical("this bookie was replaced, and stops: %s", reason)
        self._replaced = reason
        self._stop.set()

    def _on_state_changed(self) -> None:
        """A disk became full or stalls, or not any more: what is registered follows at once."""
        if self._announced is not None:
            self._announced.refresh_soon()

    def _on_leaving(self, reason: str) -> None:
        """An operator takes this bookie out: writers go on with others; or not any more."""
        self._bookie.leaving = reason
        self._on_state_changed()

    def _on_stall(self, reason: str) -> None:
        self._service.disks_stall(reason)
        self._on_state_changed()

    # -- stop --------------------------------------------------------------------------------------

    async def _withdraw(self, registration: Registration) -> None:
        otherwise = "not withdrawn in time: the metadata session will end by itself"
        await at_most(BOOKIE_WITHDRAW_TIMEOUT_S, registration.stop(), otherwise)

    async def _finish_calls(self, service: BookieService, server: GrpcServer) -> None:
        """Answer what is in flight, unless the storage failed, or another process is this bookie:
        then there are no more answers."""
        silent = bool(self._fatal or self._replaced)
        if not silent:
            service.drain()
        await server.stop(0.0 if silent else self._config.drain_timeout_s)

    async def _end_reads(self, service: BookieService) -> None:
        """Wait for reads, so that no file is closed under them; their calls are over."""
        service.close()
        otherwise = "a disk does not answer a read: the stop goes on without it"
        await at_most(BOOKIE_READS_END_S, in_daemon_thread(service.wait_for_reads), otherwise)

    async def _release(self) -> None:
        """Note a clean stop, after the last answer and while the directories are locked."""
        if self._fatal or self._replaced or self._left or not self._identity.is_claimed:
            await self._identity.close()
            return
        otherwise = "the stop is not noted in time; the next start finds the one before"
        await at_most(BOOKIE_WITHDRAW_TIMEOUT_S, self._identity.release(), otherwise)

    async def _close_bookie(self) -> None:
        """Flush and close, in a thread that may be left behind when a disk does not answer."""
        kept = "the journal has everything acknowledged"
        try:
            async with asyncio.timeout(BOOKIE_CLOSE_TIMEOUT_S):
                await in_daemon_thread(self._bookie.close)
        except TimeoutError:
            logger.error("the storage did not close in time; %s", kept)  # noqa: TRY400 - no fault
        except (OSError, CorruptionError) as error:
            logger.error("the last flush failed, %s: %s", kept, error)  # noqa: TRY400 - it says where
