"""The part of the ledger client that streams use, as protocols; ``LedgerClient`` has them. And how
a ledger is written that takes entries once, and dropped where nothing names it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from spark_ledger.client.timer import Timer
from spark_ledger.errors import LedgerError
from spark_ledger.limits.stream import LIST_REMOVAL_S
from spark_ledger.metadata.base import MetadataStore, Operation
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.model import StreamConfig
from spark_ledger.types import (
    TAG_STREAM_ID,
    BookieInfo,
    Entry,
    EntryId,
    LedgerId,
    LedgerMetadata,
    Quorums,
    ReplicaHint,
)

logger = logging.getLogger(__name__)

TAG_STREAM_NAME: Final = "stream"
TAG_PURPOSE: Final = "purpose"
"""Custom metadata of every ledger that a stream makes, beside ``TAG_STREAM_ID``: they tell whose an
orphan is."""

PURPOSE_RAW: Final = "raw"
PURPOSE_SEGMENTS: Final = "segments"
PURPOSE_SEGMENT_LIST: Final = "segment-list"
PURPOSE_MANIFEST: Final = "manifest"
PURPOSE_PACK: Final = "pack"
_PURPOSES: Final = {PURPOSE_SEGMENTS, PURPOSE_SEGMENT_LIST, PURPOSE_MANIFEST, PURPOSE_PACK}


class OpenLedger(Protocol):
    """A ledger that this process writes."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def incarnation(self) -> bytes:
        """What tells it from another ledger of its id, which a restored store may give again."""

    @property
    def last_add_pushed(self) -> EntryId: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_left_open(self) -> bool:
        """Whether the ledger is open though its writer has ended, and nobody else took it over."""

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        """Push an entry; the future gives its id once it is confirmed. Ids are consecutive."""

    async def wait_for_room(self) -> None:
        """Wait while too many bytes are in flight."""

    async def close(self) -> None:
        """Close the ledger; appends still in flight have an unknown outcome."""


class LedgerRange(Protocol):
    """A ledger that this process reads."""

    @property
    def is_closed(self) -> bool: ...

    def read_batches(
        self, first: int, last: int, *, unconfirmed: bool = False, replica_hint: ReplicaHint = 0
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Entries first .. last in order, in lists of about four MiB."""


class LedgerNaming(Protocol):
    """See ``metadata.naming.Naming``."""

    def unsettled(self, ledger_ids: Iterable[LedgerId]) -> list[LedgerId]:
        """Those of the ledgers that are not known to be named, each once."""

    async def operations(
        self, ledger_ids: Sequence[LedgerId], whose: Collection[tuple[LedgerId, bytes]] = ()
    ) -> list[Operation]:
        """The parts of the transaction for these ledgers; it fails if one was deleted. Raises
        MetadataRestoredError if one is not of the incarnation that ``whose`` says."""

    def checks(self, ledger_ids: Iterable[LedgerId]) -> list[Operation]:
        """The parts of a transaction that fail with NotFoundError if one was deleted."""

    def deletes(self, ledger_ids: Iterable[LedgerId]) -> list[Operation]:
        """The parts of a transaction that delete ledgers; it fails if one was deleted before."""

    def named(self, ledger_ids: Iterable[LedgerId]) -> None:
        """A transaction with these parts has succeeded."""


class LedgerDeleting(Protocol):
    """See ``metadata.deletions.Deletions``."""

    async def delete(self, ledger_id: LedgerId, checks: Sequence[Operation] = ()) -> None:
        """Delete a ledger in one transaction with ``checks``, which is sent once. Raises what that
        raises, also if the ledger is gone."""

    async def delete_unnamed(self, ledger_id: LedgerId, incarnation: bytes) -> None:
        """Delete a ledger that was made ``until_named``, if nothing has named it. Another one that
        has its id stays. Raises what the store raises."""


class Ledgers(Protocol):
    """Creates, opens and deletes ledgers."""

    @property
    def store(self) -> MetadataStore: ...

    @property
    def naming(self) -> LedgerNaming:
        """What a transaction that names ledgers has to contain."""

    @property
    def deletions(self) -> LedgerDeleting:
        """Deletes ledgers."""

    def has_bookies_for(self, ensemble_size: int) -> bool:
        """Whether a new ledger of this size could be made now, for all that is known here."""

    def registered_bookies(self) -> Sequence[BookieInfo]:
        """The bookies that are registered, for all that is known here."""

    @property
    def timer(self) -> Timer:
        """Wakes whatever of this connection waits for a time."""

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        custom_metadata: Mapping[str, str] | None = None,
        until_named: bool = False,
    ) -> OpenLedger:
        """A new ledger, open for this process.

        One that is made ``until_named`` is deleted once its writer has gone for long, unless a
        transaction with the operations of ``naming`` has named it (rule K4).
        """

    async def open_unconfirmed(self, ledger_id: int) -> LedgerRange:
        """Open a ledger to read ranges that are known to be confirmed; asks no bookie (rule T9).
        Raises NoSuchLedgerError."""

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """What the metadata store has of a ledger. Raises NoSuchLedgerError."""

    def close_later(self, ledger_id: LedgerId) -> None:
        """Close a ledger whose ``OpenLedger.close`` has failed, when that becomes possible."""


@asynccontextmanager
async def written(ledgers: Ledgers, ledger: OpenLedger) -> AsyncGenerator[OpenLedger, None]:
    """Close a new ledger once its entries are written, or if that fails or its caller leaves.

    Its writer would stay for as long as the connection, also when the ledger is deleted; and while
    its owner lives nobody else closes it (rule K3), so it would stay open too.
    """
    try:
        yield ledger
        await ledger.close()
    except (Exception, asyncio.CancelledError):
        with suppress(LedgerError):
            await ledger.close()
        raise
    finally:
        if ledger.is_left_open:
            ledgers.close_later(ledger.ledger_id)


async def drop_unnamed(ledgers: Ledgers, made: Sequence[OpenLedger], whose: str) -> None:
    """Delete ledgers that this process has made ``until_named``, and that nothing will name. Best
    effort: what stays is deleted by a keeper once this process has ended (rule K4)."""
    delete = ledgers.deletions.delete_unnamed
    try:
        async with asyncio.timeout(LIST_REMOVAL_S):
            await run_all(delete(each.ledger_id, each.incarnation) for each in made)
    except (LedgerError, TimeoutError) as error:
        logger.info(
            "%s: ledgers %s, which nothing names, are left to a keeper: %s",
            whose,
            ", ".join(str(each.ledger_id) for each in made),
            str(error) or "no answer",
        )


async def named_as_made(ledgers: Ledgers, made: Sequence[OpenLedger]) -> list[Operation]:
    """The parts of the transaction that names these ledgers, and no others of their ids. Raises as
    ``LedgerNaming.operations``."""
    whose = {(each.ledger_id, each.incarnation) for each in made}
    return await ledgers.naming.operations([each.ledger_id for each in made], whose)


def purpose_of(metadata: LedgerMetadata) -> str:
    """What a ledger is for: ``raw`` if an application made it for itself.

    Applications of before have used any keys. No ledger of a stream was ever without a purpose.
    """
    tags = metadata.custom_metadata
    purpose = tags.get(TAG_PURPOSE, PURPOSE_RAW)
    is_ours = purpose in _PURPOSES and bool(tags.get(TAG_STREAM_ID) and tags.get(TAG_STREAM_NAME))
    return purpose if is_ours else PURPOSE_RAW


def stream_of(metadata: LedgerMetadata) -> str:
    """The name of the stream that a ledger was made for; empty if it is raw."""
    is_raw = purpose_of(metadata) == PURPOSE_RAW
    return "" if is_raw else metadata.custom_metadata[TAG_STREAM_NAME]


def ledger_tags(stream_name: str, stream_id: str, purpose: str) -> dict[str, str]:
    """The custom metadata of a stream's ledger."""
    return {TAG_STREAM_NAME: stream_name, TAG_STREAM_ID: stream_id, TAG_PURPOSE: purpose}


async def new_ledger(
    ledgers: Ledgers, config: StreamConfig, purpose: str, quorums: Quorums | None = None
) -> OpenLedger:
    """A ledger of a stream, with the stream's quorums unless others are given; a transaction has to
    name it (rule K4). Raises as ``Ledgers.create_ledger``."""
    quorums = quorums or config.quorums
    return await ledgers.create_ledger(
        ensemble_size=quorums.ensemble_size,
        write_quorum=quorums.write_quorum,
        ack_quorum=quorums.ack_quorum,
        custom_metadata=ledger_tags(config.name, config.stream_id, purpose),
        until_named=True,
    )
