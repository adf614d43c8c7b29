"""LedgerStore: ids and metadata of ledgers, changed only by compare-and-set.

A ledger's node is ``ledgers/00/0000/L0001``: the id in groups of four digits, so that no level
has more than ten thousand children. Its version is the token of the compare-and-set. A ledger with
an owner has nodes beside it as long as somebody has to look after it (``unsettled.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    LedgerTakenOverError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.metadata import METADATA_ATTEMPTS, METADATA_READS_IN_FLIGHT_MAX
from spark_ledger.metadata.base import (
    Create,
    Delete,
    MetadataStore,
    Operation,
    Put,
    Watch,
    parent_of,
)
from spark_ledger.metadata.codec import (
    decode_ledger,
    encode_ledger,
)
from spark_ledger.metadata.ledger_ids import LedgerIds
from spark_ledger.metadata.seen_ledgers import SeenLedgers
from spark_ledger.metadata.unsettled import OPEN_PATH, UNNAMED_PATH, id_path, ids_named
from spark_ledger.types import LedgerId, LedgerMetadata, LedgerState, Versioned

LEDGERS_PATH: Final = "ledgers"


def ledger_path(ledger_id: LedgerId) -> str:
    """The path of a ledger's metadata."""
    return id_path(LEDGERS_PATH, ledger_id)


def is_unreadable(error: LedgerError) -> bool:
    """Whether this ledger's node alone is in the way: it is damaged, or of a later format.

    Whoever looks at many ledgers goes on with the others. Metadata that were restored are not of
    one ledger only.
    """
    of_one = isinstance(error, CorruptionError | ConfigurationError)
    return of_one and not isinstance(error, MetadataRestoredError)


async def read_ledger(
    ledger_id: LedgerId, get: Callable[[str], Awaitable[Versioned[bytes]]]
) -> Versioned[LedgerMetadata]:
    """The metadata as ``get`` finds them, a method of the store, whatever was seen of them before:
    for those who remember nothing of ledgers, as bookies, and go on behind a restore.

    Raises NoSuchLedgerError, CorruptionError, and what the store raises.
    """
    path = ledger_path(ledger_id)
    try:
        node = await get(path)
    except NotFoundError as error:
        raise _no_such_ledger(ledger_id) from error
    return Versioned(decode_ledger(path, ledger_id, node.value), node.version)


class LedgerStore:
    """Ledgers in a metadata store. One per client, on its loop."""

    def __init__(self, store: MetadataStore, draw: random.Random | None = None) -> None:
        self._store = store
        self._seen = SeenLedgers(store)
        self._ids = LedgerIds(store, draw or random.Random())  # noqa: S311 - jitter

    def seen_bytes(self) -> int:
        """What is remembered of metadata that were seen, about."""
        return self._seen.size_bytes

    def keep(self, ledger: Versioned[LedgerMetadata]) -> AbstractContextManager[None]:
        """For whoever changes a ledger as long as it has it open: while this lasts its metadata
        cannot go back unnoticed (``SeenLedgers.keep``)."""
        return self._seen.keep(ledger)

    async def new_ledger_id(self) -> LedgerId:
        """An id that no other ledger has or had. Ids of one client ascend, with gaps."""
        return await self._ids.take()

    async def create(
        self, metadata: LedgerMetadata, *, until_named: bool = False
    ) -> Versioned[LedgerMetadata]:
        """Make a ledger known. Nothing may be sent to a bookie before this returned.

        It is listed as open in the same transaction, and with ``until_named`` as unnamed, until a
        transaction names it (rule K1). A missing creation token is added; after a lost reply it
        tells whether the node that is found is this ledger's (rule P6). Raises ConflictError if the
        id is in use, LedgerTakenOverError if a reply was lost and it was recovered meanwhile,
        OutcomeUnknownError if no attempt brought a reply, MetadataUnavailableError if none was
        sent, ConfigurationError if the metadata leave no room for later changes.
        """
        if not metadata.creation_token:
            metadata = metadata.with_changes(creation_token=uuid.uuid4().hex)
        assert metadata.owner or not until_named, "whose end is waited for, if nobody owns it?"
        operations = [Create(ledger_path(metadata.ledger_id), encode_ledger(metadata, is_new=True))]
        if metadata.owner:
            operations.append(Create(id_path(OPEN_PATH, metadata.ledger_id), b""))
        if until_named:
            unnamed = id_path(UNNAMED_PATH, metadata.ledger_id)
            operations.append(Create(unnamed, metadata.incarnation))
        unknown = f"ledger {metadata.ledger_id} may or may not have been created"
        for attempt in range(METADATA_ATTEMPTS):
            try:
                return await self._create_or_find(operations, metadata)
            except MetadataUnavailableError as error:
                if attempt == 0:
                    raise
                raise OutcomeUnknownError(f"{unknown}: {error}") from error  # the one before
            except OutcomeUnknownError as error:
                # Sending it again is safe: the token tells our own node from another's.
                if attempt == METADATA_ATTEMPTS - 1:
                    raise OutcomeUnknownError(f"{unknown}: {error}") from error
        raise AssertionError("the last attempt returns or raises")

    async def _create_or_find(
        self, operations: Sequence[Create], metadata: LedgerMetadata
    ) -> Versioned[LedgerMetadata]:
        try:
            await self._create_all(operations)
        except ConflictError:
            return await self._find_created(metadata)
        self._seen.note(Versioned(metadata, 0))
        return Versioned(metadata, 0)

    async def _find_created(self, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """The ledger of this id that is there, if it is ours."""
        ledger_id = metadata.ledger_id
        try:
            found = await self.read_newest(ledger_id)
        except NoSuchLedgerError:  # what is left of one that was deleted
            raise ConflictError(f"ledger {ledger_id} was deleted") from None
        if found.value.creation_token != metadata.creation_token:
            raise ConflictError(f"ledger {ledger_id} exists already") from None
        if found.value.state is not LedgerState.OPEN:  # after a reply was lost, or came late
            raise LedgerTakenOverError(
                f"ledger {ledger_id}: another client recovered it before its creator could write"
            ) from None
        return found

    async def _create_all(self, operations: Sequence[Create]) -> None:
        """Create the nodes in one transaction. Their parents are made when they are missing: that
        is every ten thousand ledgers, or when the keeper has taken an empty one away."""
        for _ in range(METADATA_ATTEMPTS):
            try:
                return await self._store.transaction(operations)
            except NotFoundError:
                for each in operations:
                    with contextlib.suppress(ConflictError):
                        await self._store.create(parent_of(each.path), b"")
        return await self._store.transaction(operations)

    async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """The metadata and their version.

        Raises NoSuchLedgerError, CorruptionError, MetadataRestoredError if they are older than what
        this client has seen.
        """
        found = await read_ledger(ledger_id, self._store.get)
        if self._seen.is_older(found):  # of a server that lags, perhaps
            found = await read_ledger(ledger_id, self._store.get_latest)
            self._seen.refuse_older(found)
        self._seen.note(found)
        return found

    async def read_newest(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """As ``read``, but a server that lags behind does not make a new ledger a missing one.

        A ledger that is found may have changed since.
        """
        try:
            return await self.read(ledger_id)
        except NoSuchLedgerError:
            return await self.read_latest(ledger_id)

    async def read_latest(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """As ``read``, and no older than this call, though the server that answers may lag."""
        found = await read_ledger(ledger_id, self._store.get_latest)
        if self._seen.is_older(found):  # than a change that this client made meanwhile, perhaps
            found = await read_ledger(ledger_id, self._store.get_latest)
            self._seen.refuse_older(found)
        self._seen.note(found)
        return found

    async def compare_and_set(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        closes: bool = True,
        also: Sequence[Operation] = (),
    ) -> int:
        """Replace the metadata if their version is ``version``; the new version (rule P6).

        ``closes``: if the ledger is closed now, this may be what closes it. ``also``: what happens
        in the same transaction, or nothing does.

        Raises ConflictError (read again, decide again), also for a part of ``also`` that is not
        possible, NoSuchLedgerError, OutcomeUnknownError (read again before repeating),
        ConfigurationError if the metadata became too large, MetadataRestoredError as ``read``.
        """
        ledger_id = metadata.ledger_id
        data = encode_ledger(metadata)
        if self._seen.is_doubtful(ledger_id):
            # In a store that went back, other metadata may have the version of those seen here. A
            # session that is lost from here on fails the write.
            await self.read(ledger_id)
        try:
            put = Put(ledger_path(ledger_id), data, version)
            if also:
                await self._store.transaction([put, *also])
                new_version = version + 1
            else:
                new_version = await self._replace(metadata, put, closes=closes)
        except ConflictError as error:
            raise ConflictError(
                f"ledger {ledger_id}: another client changed its metadata after version {version}"
            ) from error
        except NotFoundError as error:
            if also:
                raise ConflictError(f"ledger {ledger_id}: {error}") from error
            raise _no_such_ledger(ledger_id) from error
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(
                f"ledger {ledger_id}: its metadata may or may not have been changed: {error}"
            ) from error
        self._seen.note(Versioned(metadata, new_version))
        return new_version

    async def _replace(self, metadata: LedgerMetadata, put: Put, *, closes: bool) -> int:
        """Write the metadata; with the close the ledger is open no more. The new version."""
        if closes and metadata.owner and metadata.is_closed:
            is_open = Delete(id_path(OPEN_PATH, metadata.ledger_id))
            try:
                await self._store.transaction([put, is_open])
            except NotFoundError:
                pass  # closed before and reopened by a restore, or deleted: the put will tell
            else:
                return put.version + 1
        return await self._store.put(put.path, put.data, put.version)

    async def delete(self, ledger_id: LedgerId) -> None:
        """Delete a ledger's metadata. A missing one is fine.

        Raises OutcomeUnknownError if no attempt brought a reply, MetadataUnavailableError if none
        was sent.
        """
        for attempt in range(METADATA_ATTEMPTS):
            try:
                await self._store.delete(ledger_path(ledger_id))
                return
            except MetadataUnavailableError as error:
                if attempt == 0:
                    raise
                raise OutcomeUnknownError(
                    f"ledger {ledger_id} may or may not have been deleted: {error}"
                ) from error  # the attempt before
            except NotFoundError:
                return
            except OutcomeUnknownError:
                if attempt == METADATA_ATTEMPTS - 1:  # deleting twice is the same as once
                    raise

    async def list(self) -> list[LedgerId]:
        """Ids of all ledgers, ascending.

        Not a snapshot: a ledger made or deleted meanwhile may or may not be in it. An error in any
        part is raised, because a caller that deletes what is not listed must never see a part.
        """
        highs = await self._store.children(LEDGERS_PATH)
        middles = [
            f"{high}/{middle}"
            for high, names in zip(highs, await self._children(highs), strict=True)
            for middle in names
        ]
        ids: list[LedgerId] = []
        for prefix, names in zip(middles, await self._children(middles), strict=True):
            ids += ids_named(names, int(prefix.replace("/", "")))
        return sorted(ids)

    def watch(self, ledger_id: LedgerId, callback: Callable[[], None]) -> Watch:
        """Call back after the ledger's metadata changed, or may have."""
        return self._store.watch(ledger_path(ledger_id), callback)

    async def _children(self, below: Sequence[str]) -> Sequence[Sequence[str]]:
        found: list[Sequence[str]] = []
        for start in range(0, len(below), METADATA_READS_IN_FLIGHT_MAX):
            part = below[start : start + METADATA_READS_IN_FLIGHT_MAX]
            found += await asyncio.gather(
                *(self._store.children(f"{LEDGERS_PATH}/{name}") for name in part)
            )
        return found


def _no_such_ledger(ledger_id: LedgerId) -> NoSuchLedgerError:
    return NoSuchLedgerError(f"ledger {ledger_id} does not exist: never created, or deleted")
