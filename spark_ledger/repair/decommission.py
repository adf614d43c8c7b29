"""Empties a bookie: its copies away, nothing that names it; and takes it out of the cluster.

It needs no keeper: it marks what names the bookie, and works at that beside other workers
(rule R10). It may be cut off anywhere, and begun again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.metadata.base import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    Operation,
    Put,
)
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import (
    LEFT_PATH,
    cookie_path,
    has_left,
    incarnation_in,
    leaving_path,
    left_path,
)
from spark_ledger.repair.auditor import Auditor, AuditorConfig
from spark_ledger.repair.kept import KeptCopies
from spark_ledger.repair.nodes import forget_without_cookie, leaving, ran_without_cookie
from spark_ledger.repair.worker import Worker, WorkerConfig
from spark_ledger.types import BookieId, Versioned

_PAUSE_S = 2.0
"""Between two looks at all ledgers: longer than clients take to see that a bookie is read-only."""

_LOOK_S = 10.0
"""Between two looks at what is left while copies are made: each reads the metadata of all."""

_HEARD_S = 5.0
"""A look that takes longer is told of so often, and breaks off if the bookie is let stay."""


class Left(NamedTuple):
    """A bookie that is out of the cluster."""

    runs: bool
    """It is registered still: it serves nobody, and has to be stopped."""


class Named(NamedTuple):
    """What still names a bookie that is being emptied."""

    ledgers: int
    size_bytes: int
    """About so many bytes of closed ledgers it has to hold."""
    kept: int = 0
    """Once none names it: those that may lack what it holds, behind a restored ZooKeeper."""
    is_silent: bool = False
    """It runs, or did a moment ago, and does not say what it holds; counted as one that is kept."""
    asked: int | None = None
    """So many of those that it holds were asked for by now, which goes on."""


async def drain(
    client: LedgerClient,
    bookie_id: BookieId,
    config: WorkerConfig,
    *,
    told: Callable[[Named], None],
) -> None:
    """Have a bookie take nothing new, and return once nothing names it, or lacks what it holds. It
    stays a bookie of the cluster, and read-only, until ``stay`` (rule R13).

    ``told`` hears what names it after each look at all ledgers, every few seconds, and how far a
    look is that takes longer. Raises NotFoundError if the cluster has no such bookie, ConflictError
    if it was let stay meanwhile, CorruptionError if the node of a ledger cannot be read, once
    nothing else names the bookie, and what the metadata store raises: begun again, it goes on where
    it was.
    """
    store, registry = client.store, BookieRegistry(client.store)
    known = await registry.list_cookies()
    is_known = bookie_id in known or bookie_id in await leaving(store)
    is_known = is_known or bookie_id in await ran_without_cookie(store)
    if not is_known and await registry.get(bookie_id) is None:
        raise NotFoundError(f"this cluster has no bookie {bookie_id}: see ledger bookies list")
    with contextlib.suppress(ConflictError):  # it was begun before
        await store.create(leaving_path(bookie_id), b"")
    auditor, worker = Auditor(client, AuditorConfig()), Worker(client, config)
    kept = KeptCopies(client, bookie_id)

    async def look_at_all() -> int:
        if not await _is_leaving(store, bookie_id):
            return 0
        named = await auditor.audit(frozenset([bookie_id]))
        left = 0 if named else await kept.count()
        told(Named(named, auditor.named_bytes, left, kept.is_silent))
        return named + left

    async def look() -> int:
        work = asyncio.create_task(look_at_all())
        try:
            while not (await asyncio.wait({work}, timeout=_HEARD_S))[0]:
                if not await _is_leaving(store, bookie_id):
                    return 0
                if kept.asked is not None:
                    told(Named(0, auditor.named_bytes, asked=kept.asked))
            return await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    looks_without = 0
    while looks_without < 2:
        named = await look()
        looks_without = 0 if named else looks_without + 1
        if named:
            await _work(worker, look)
        elif auditor.unreadable is not None:
            raise CorruptionError(
                f"all ledgers that can be read name bookie {bookie_id} no more. One that cannot "
                f"may still, so the bookie does not go: {auditor.unreadable}"
            )
        await asyncio.sleep(_PAUSE_S)


async def _work(worker: Worker, look: Callable[[], Awaitable[int]]) -> None:
    """One pass of a worker, with looks meanwhile at what is left; it ends once that is nothing,
    whatever else is marked."""
    work = asyncio.create_task(worker.run_pass())
    try:
        while not (await asyncio.wait({work}, timeout=_LOOK_S))[0]:
            if not await look():
                return
        await work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def decommission(
    client: LedgerClient,
    bookie_id: BookieId,
    config: WorkerConfig,
    *,
    told: Callable[[Named], None],
) -> Left:
    """Returns once nothing names the bookie and its cookie is gone. It may live, and not hear of
    it: it is not registered again.

    ``told`` and what is raised: as of ``drain``.
    """
    await drain(client, bookie_id, config, told=told)
    await _leave(client.store, bookie_id)
    runs = await BookieRegistry(client.store).get(bookie_id) is not None
    if not runs:
        # First: an auditor that looks in between would count it as gone.
        await forget_without_cookie(client.store, bookie_id)
        with contextlib.suppress(NotFoundError):
            await client.store.delete(leaving_path(bookie_id))
    return Left(runs)


async def _is_leaving(store: MetadataStore, bookie_id: BookieId) -> bool:
    """Whether a bookie has to leave still; False if it has, since another operator takes it out too
    and was faster. Raises ConflictError if it was let stay, or another one has its name: its
    writers may be back, so this would have no end."""
    if await _read(store, leaving_path(bookie_id)) is not None:
        return True
    if await has_left(store, bookie_id):
        return False
    raise ConflictError(
        f"bookie {bookie_id} does not leave: `ledger bookies decommission {bookie_id} --cancel` or "
        f"`drain {bookie_id} --undo` has let it stay meanwhile, or it was formatted again"
    )


async def _leave(store: MetadataStore, bookie_id: BookieId) -> None:
    """Note that a bookie has left, with which cookie, and take that away: unless it was let stay
    meanwhile, or another one has its name. Either all of this happens or nothing (rule R10)."""
    await _make_left(store)
    told, failed = b"", None
    for _ in range(METADATA_ATTEMPTS):
        if not await _is_leaving(store, bookie_id):
            return
        cookie = await _read(store, cookie_path(bookie_id))
        left = await _read(store, left_path(bookie_id))
        gone: list[Operation] = []
        if cookie is not None:
            told = incarnation_in(bookie_id, cookie.value).encode()
            gone.append(Delete(cookie_path(bookie_id), cookie.version))
        elif left is not None and await BookieRegistry(store).get(bookie_id) is None:
            told = left.value  # it was begun again: nobody else had the name since
        if left is None:
            gone.append(Create(left_path(bookie_id), told))
        elif left.value != told:
            gone.append(Put(left_path(bookie_id), told, left.version))
        try:
            await store.transaction([Check(leaving_path(bookie_id), ANY_VERSION), *gone])
        except (ConflictError, NotFoundError, OutcomeUnknownError) as error:
            failed = error
        else:
            return
    raise _never_clear(bookie_id, failed)


async def stay(client: LedgerClient, bookie_id: BookieId) -> bool:
    """Let a bookie stay that was to leave; whether it was. What was copied stays copied.

    Raises ConfigurationError if it has left, and what the metadata store raises.
    """
    store, was_leaving = client.store, False
    failed: LedgerError | None = None
    await _make_left(store)
    for _ in range(METADATA_ATTEMPTS):
        if await has_left(store, bookie_id):
            raise ConfigurationError(
                f"bookie {bookie_id} has left the cluster, and has no cookie any more: stop it, "
                "empty its directories and format it again"
            )
        leaving = await _read(store, leaving_path(bookie_id))
        left = await _read(store, left_path(bookie_id))  # of one that was cut off in its end
        # A decommission that ends in this moment takes the cookie, or notes that it has left.
        if await _read(store, cookie_path(bookie_id)) is not None:
            is_here: list[Operation] = [Check(cookie_path(bookie_id), ANY_VERSION)]
            is_here += [] if left is None else [Delete(left_path(bookie_id))]
        else:
            is_here = [Create(left_path(bookie_id), b""), Delete(left_path(bookie_id))]
        if leaving is None and left is None:
            return was_leaving
        gone = [] if leaving is None else [Delete(leaving_path(bookie_id))]
        try:
            await store.transaction([*is_here, *gone])
        except OutcomeUnknownError as error:
            failed, was_leaving = error, was_leaving or leaving is not None
        except (ConflictError, NotFoundError) as error:
            failed = error
        else:
            return was_leaving or leaving is not None
    raise _never_clear(bookie_id, failed)


def _never_clear(bookie_id: BookieId, failed: LedgerError | None) -> LedgerError:
    return OutcomeUnknownError(f"whether bookie {bookie_id} leaves is not clear: {failed}")


async def _make_left(store: MetadataStore) -> None:
    """A transaction makes no parents."""
    with contextlib.suppress(ConflictError):
        await store.create(LEFT_PATH, b"")


async def _read(store: MetadataStore, path: str) -> Versioned[bytes] | None:
    try:
        return await store.get_latest(path)
    except NotFoundError:
        return None
