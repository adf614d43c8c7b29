"""What a bookie's process does: it serves until a signal, or makes or moves a bookie and ends."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from bookie_server.config import BookieConfig
from bookie_server.exit_codes import EXIT_REFUSED, exit_code_of
from bookie_server.process_settings import set_up_process
from bookie_server.registration import format_new
from bookie_server.relocation import relocate
from bookie_server.server import BookieServer, Stopped
from bookie_server.storage.cookie import Cookie
from bookie_server.telling import say
from spark_ledger.errors import LedgerError
from spark_ledger.limits.metadata import METADATA_TIMEOUT_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.connect import open_store

T = TypeVar("T")

logger = logging.getLogger(__name__)


def run(
    config: BookieConfig,
    *,
    ready_file: Path | None = None,
    format_if_new: bool = False,
    at_end: Callable[[int], None] = lambda _exit_code: None,
) -> int:
    """Serve until a signal; the exit code. Must be called on the main thread.

    ``ready_file`` is made (JSON, see ``Ready``) once the bookie serves and is announced.
    ``format_if_new`` makes a new bookie when the directories hold none. ``at_end`` gets the exit
    code once all is done, but for waiting until threads have ended.
    """
    if not __debug__:
        say("a bookie does not run under python -O: its assertions protect data", sys.stderr)
        return EXIT_REFUSED
    set_up_process()
    server = BookieServer(config, ready_file=ready_file, format_if_new=format_if_new)

    async def serve() -> int:
        exit_code = await _exit_code(server)
        at_end(exit_code)
        return exit_code

    return asyncio.run(serve())


async def _exit_code(server: BookieServer) -> int:
    """Serve; what came of it."""
    try:
        return await server.run()
    except Stopped:
        return server.end_code
    except LedgerError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message says what to do
        return exit_code_of(error)


def format_bookie(config: BookieConfig) -> Cookie:
    """Make a new bookie in the configured directories and in the cluster, without serving.

    Raises ConfigurationError if there is one already, MetadataUnavailableError if the metadata
    store cannot be reached.
    """

    return asyncio.run(_with_store(config, format_new))


def relocate_bookie(config: BookieConfig) -> str:
    """See ``relocation``; raises the same, and MetadataUnavailableError."""
    return asyncio.run(_with_store(config, relocate))


async def _with_store(
    config: BookieConfig, work: Callable[[BookieConfig, MetadataStore], Awaitable[T]]
) -> T:
    store = await open_store(
        config.metadata, connect_timeout_s=min(config.metadata_wait_s, METADATA_TIMEOUT_S)
    )
    try:
        return await work(config, store)
    finally:
        await store.close()
