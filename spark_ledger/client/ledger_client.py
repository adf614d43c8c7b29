"""LedgerClient: connects to a cluster; creates, opens, lists and deletes its ledgers."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Self

from spark_ledger.client.context import ClientContext
from spark_ledger.client.counters import ClientCounters
from spark_ledger.client.last_confirmed import read_newest_confirmed
from spark_ledger.client.left_open import LeftOpen
from spark_ledger.client.reader import LedgerReader
from spark_ledger.client.recovery import Recovery
from spark_ledger.client.timer import Timer
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.client.written_ledgers import WrittenLedgers
from spark_ledger.config import ClientConfig, build
from spark_ledger.errors import (
    ConfigurationError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import ensure_cluster_node
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.deletions import Deletions
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.naming import Naming
from spark_ledger.metadata.owners import Owner
from spark_ledger.protocol.ensemble import closed
from spark_ledger.tasks import in_thread
from spark_ledger.transport.base import Transport
from spark_ledger.transport.on_first_use import OnFirstUse
from spark_ledger.types import (
    INCARNATION_BYTES,
    NO_ENTRY,
    TAG_STREAM_ID,
    BookieInfo,
    DigestType,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from spark_ledger.wire.frame import Digest, access_key_hash, derive_keys, digest_for


class LedgerClient:
    """One connection to a cluster. All methods belong to the loop that made it."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._left_open = LeftOpen(self._recover)
        self._written = WrittenLedgers(context.store, context.ledgers, context.writers)

    @classmethod
    async def connect(cls, uri: str, **options: object) -> Self:
        """Connect to the cluster whose metadata are at ``uri`` (``zk://host:port,.../root``).

        ``options`` are the fields of ``config.ClientConfig``.

        Raises ConfigurationError if the URI is malformed or an option is unknown,
        MetadataUnavailableError if ZooKeeper does not answer, UnauthorizedError if it refuses the
        credentials.
        """
        config = build(ClientConfig, options)
        store = await open_store(
            uri,
            session_timeout_s=config.session_timeout_s,
            connect_timeout_s=config.metadata_timeout_s,
            operation_timeout_s=config.metadata_timeout_s,
        )
        try:
            return await cls.over(store, None, config)
        except BaseException:
            await store.close()
            raise

    @classmethod
    async def over(
        cls,
        store: MetadataStore,
        transport: Transport | None,
        config: ClientConfig | None = None,
        *,
        draw: random.Random | None = None,
    ) -> Self:
        """A client over a store and a transport (gRPC when None), both of which it then owns.

        ``draw`` is for whatever it does at random: choosing bookies, and when to try again.
        """
        draw = draw or random.Random()  # noqa: S311 - no secret comes from it
        cluster = await ensure_cluster_node(store)
        directory = BookieDirectory(BookieRegistry(store), draw)
        directory.policy = cluster.policy
        try:
            await directory.start()
            if transport is None:
                transport = OnFirstUse(lambda: _over_grpc(directory))
        except BaseException:  # as in a forked child, which can have no transport
            await directory.close()
            raise
        return cls(
            ClientContext(
                store=store,
                ledgers=LedgerStore(store, draw),
                naming=Naming(store),
                owner=Owner(store),
                directory=directory,
                transport=transport,
                config=config or ClientConfig(),
                random=draw,
            )
        )

    @property
    def store(self) -> MetadataStore:
        """The metadata store of this connection."""
        return self._context.store

    @property
    def context(self) -> ClientContext:
        """What the parts of this connection share: for those of this library beside the client."""
        return self._context

    @property
    def naming(self) -> Naming:
        """What a transaction that names ledgers has to contain."""
        return self._context.naming

    @property
    def deletions(self) -> Deletions:
        """Deletes ledgers in transactions."""
        return self._context.deletions

    @property
    def counters(self) -> ClientCounters:
        """What this connection has done so far."""
        return self._context.counters

    def has_bookies_for(self, ensemble_size: int) -> bool:
        """Whether so many bookies are registered as writable, as last seen."""
        return len(self._context.directory.writable()) >= ensemble_size

    @property
    def timer(self) -> Timer:
        """The one timer of this connection."""
        return self._context.timer

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        password: bytes = b"",
        custom_metadata: Mapping[str, str] | None = None,
        until_named: bool = False,
    ) -> LedgerWriter:
        """Create a ledger; its only writer.

        A ``password`` protects it: entries carry an HMAC, and appending, fencing and opening need
        it (rule P20). All ``custom_metadata`` of a ledger have some 127 KiB at most.
        ``until_named``: for streams, see ``stream.ledgers.Ledgers``; theirs is the key
        ``stream_id``.

        Raises ConfigurationError if an argument is wrong, NotEnoughBookiesError if fewer than
        ``ensemble_size`` bookies are writable, or a strict placement policy finds none in the right
        racks, MetadataUnavailableError, LedgerTakenOverError if another client has recovered it
        already, OutcomeUnknownError: if there is a ledger then, this connection closes it later.
        """
        quorums = Quorums(ensemble_size, write_quorum, ack_quorum)
        custom = _check_custom_metadata({} if custom_metadata is None else custom_metadata)
        # With the other two keys of streams an audit would delete it: no stream names it (K9).
        if TAG_STREAM_ID in custom and not until_named:
            raise ConfigurationError(
                f"custom_metadata {TAG_STREAM_ID!r}: ledgers of streams have this key; use another"
            )
        _check_password(password)
        bookies = await self._context.new_ensemble(quorums)
        if bookies is None:
            reason = self._context.why_no_ensemble(quorums)
            raise NotEnoughBookiesError(
                f"a ledger with ensemble_size {ensemble_size} {reason}, or lower ensemble_size"
            )
        owner = await self._context.owner.announce()
        connection = self._context.store.connections
        ledger_id = await self._context.ledgers.new_ledger_id()
        incarnation = secrets.token_bytes(INCARNATION_BYTES)
        access_key, digest_key = await _derive_keys(password, ledger_id, incarnation)
        digest_type = DigestType.HMAC_SHA256 if password else DigestType.CRC32C
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            quorums=quorums,
            fragments=(Fragment(EntryId(0), bookies),),
            digest_type=digest_type,
            access_key_hash=access_key_hash(access_key),
            creation_time_ms=time.time_ns() // 1_000_000,
            creation_token=secrets.token_hex(16),
            incarnation=incarnation,
            custom_metadata=custom,
            owner=owner,
        )
        try:
            created = await self._context.ledgers.create(metadata, until_named=until_named)
        except (OutcomeUnknownError, asyncio.CancelledError):
            self._left_open.add(ledger_id, lambda _: self._close_unwritten(metadata))
            raise
        digest = digest_for(digest_type, digest_key)
        writer = LedgerWriter(
            self._context,
            created,
            access_key=access_key,
            digest=digest,
            left_open=self._left_open,
        )
        self._written.began(connection)
        return writer

    async def open_ledger(
        self, ledger_id: int, *, recover: bool = False, password: bytes = b""
    ) -> LedgerReader:
        """Open a ledger for reading.

        With ``recover`` the ledger is fenced, recovered and closed first: its writer can add
        nothing more, and its end is final.

        Raises NoSuchLedgerError, UnauthorizedError if the password is wrong (nothing is fenced
        then), BookieUnavailableError while too few bookies answer, MetadataUnavailableError. With
        ``recover`` also RecoveryError while too few bookies answer or store, FencedError if another
        client changed the last fragment meanwhile, NoSuchEntryError or DigestMismatchError if the
        last entry cannot be read, OutcomeUnknownError if it may be closed and nobody can look.
        After any of these, opening the ledger again is safe.
        """
        _check_password(password)
        # A server that lags would name bookies of before, and they know nothing newer (rule P5).
        ledger = await self._context.ledgers.read_latest(check_ledger_id(ledger_id))
        access_key, digest = await _keys_of(ledger.value, password)
        if recover and not ledger.value.is_closed:
            ledger = await Recovery(
                self._context, ledger, access_key=access_key, digest=digest
            ).run()
        ledger, last_add_confirmed = await read_newest_confirmed(
            self._context, ledger, access_key, digest
        )
        return LedgerReader(
            self._context,
            ledger,
            access_key=access_key,
            digest=digest,
            last_add_confirmed=last_add_confirmed,
        )

    async def open_unconfirmed(self, ledger_id: int, *, password: bytes = b"") -> LedgerReader:
        """Open a ledger without asking any bookie for its last add confirmed.

        For a caller who reads ranges that are known to be confirmed (a stream's commits), with
        ``unconfirmed=True``.

        Raises NoSuchLedgerError, UnauthorizedError if the password is wrong.
        """
        # Whoever knows of a ledger may be ahead of the server that answers here.
        ledger = await self._context.ledgers.read_newest(check_ledger_id(ledger_id))
        access_key, digest = await _keys_of(ledger.value, password)
        return LedgerReader(
            self._context,
            ledger,
            access_key=access_key,
            digest=digest,
            last_add_confirmed=NO_ENTRY,
        )

    def close_later(self, ledger_id: LedgerId) -> None:
        """Close a ledger of this connection whose writer has ended and could not close it."""
        self._left_open.add(ledger_id)

    async def _recover(self, ledger_id: LedgerId) -> None:
        await self.open_ledger(ledger_id, recover=True)

    async def _close_unwritten(self, metadata: LedgerMetadata) -> None:
        """Close a ledger that may have been made, for a caller who was not told: no bookie has
        heard of it. One that another client has made under its id is left alone."""
        found = await self._context.ledgers.read_latest(metadata.ledger_id)
        is_ours = found.value.creation_token == metadata.creation_token
        if is_ours and found.value.state is LedgerState.OPEN:
            end = closed(found.value, last_entry=NO_ENTRY, length=0)
            await self._context.ledgers.compare_and_set(end, found.version)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger's metadata: nobody can open it any more. Idempotent."""
        await self._context.ledgers.delete(check_ledger_id(ledger_id))
        self._context.deletions.note()

    async def list_ledgers(self) -> list[LedgerId]:
        """The ids of all ledgers, ascending."""
        return await self._context.ledgers.list()

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata, without asking a bookie. Raises NoSuchLedgerError if it is gone."""
        return (await self._context.ledgers.read_newest(check_ledger_id(ledger_id))).value

    def registered_bookies(self) -> list[BookieInfo]:
        """The bookies that are registered, for all that this client knows."""
        return self._context.directory.all()

    async def list_bookies(self) -> list[BookieInfo]:
        """The bookies that are registered now."""
        await self._context.directory.refresh(all_again=True)
        return self._context.directory.all()

    async def close(self) -> None:
        """Close the connection. Writers that were not closed leave their ledgers open.

        What they have in flight fails with AddOutcomeUnknownError, what comes later with
        LedgerClosedError.
        """
        context = self._context
        # From the last one up. Whatever fails on the way, and whoever does not wait for it: the
        # session ends, or this process would count as the living owner of what it has left open.
        async with AsyncExitStack() as ending:
            ending.push_async_callback(context.store.close)
            ending.push_async_callback(context.deletions.close)
            ending.push_async_callback(context.owner.close)
            ending.push_async_callback(context.directory.close)
            ending.push_async_callback(context.transport.close)
            ending.push_async_callback(context.suspects.close)
            ending.callback(context.timer.close)
            ending.push_async_callback(self._abandon_writers)
            ending.push_async_callback(self._left_open.close)
            ending.push_async_callback(self._written.close)

    async def _abandon_writers(self) -> None:
        """Also those that came while others were closed."""
        async with AsyncExitStack() as ending:
            for writer in list(self._context.writers):
                ending.push_async_callback(writer.abandon)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def check_ledger_id(ledger_id: int) -> LedgerId:
    """The id as LedgerId. Raises ConfigurationError if it is no number from 0 on."""
    if not isinstance(ledger_id, int) or isinstance(ledger_id, bool) or ledger_id < 0:
        raise ConfigurationError(f"a ledger id is a number from 0 on, not {ledger_id!r}")
    return LedgerId(ledger_id)


def _check_password(password: bytes) -> None:
    if not isinstance(password, bytes):
        raise ConfigurationError(f"a password is bytes, not {type(password).__name__}")


def _check_custom_metadata(custom_metadata: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(custom_metadata, Mapping):
        kind = type(custom_metadata).__name__
        raise ConfigurationError(f"custom_metadata is a mapping of str to str, not {kind}")
    for key, value in custom_metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigurationError(f"custom_metadata {key!r}: keys and values are str")
        try:
            (key + value).encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"custom_metadata {key!r}: {error}") from error
    return dict(custom_metadata)


async def _derive_keys(
    password: bytes, ledger_id: LedgerId, incarnation: bytes
) -> tuple[bytes, bytes]:
    if not password:
        return derive_keys(password, ledger_id, incarnation)
    return await in_thread(derive_keys, password, ledger_id, incarnation)


async def _keys_of(metadata: LedgerMetadata, password: bytes) -> tuple[bytes, Digest]:
    """The access key and digest that a password gives (rule P20).

    Raises UnauthorizedError if it is not the ledger's password.
    """
    access_key, digest_key = await _derive_keys(password, metadata.ledger_id, metadata.incarnation)
    if access_key_hash(access_key) != metadata.access_key_hash:
        what = "wrong password" if metadata.has_password else "it has no password, one was given"
        raise UnauthorizedError(f"ledger {metadata.ledger_id}: {what}")
    return access_key, digest_for(metadata.digest_type, digest_key)


def _over_grpc(directory: BookieDirectory) -> Transport:
    # grpc is loaded here and not above: who asks no bookie shall not pay for it.
    from spark_ledger.transport.grpc_aio import GrpcTransport

    return GrpcTransport(directory.address)
