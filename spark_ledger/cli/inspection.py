"""Looks at a cluster without reading or fencing anything: metadata, and what bookies say they hold.

It asks every bookie of a ledger, also those that a reader would never ask, so it uses the metadata
store and the transport below the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    CorruptionError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.limits.metadata import METADATA_READS_IN_FLIGHT_MAX
from spark_ledger.metadata.connect import connected_store
from spark_ledger.types import (
    NO_ENTRY,
    BookieId,
    BookieInfo,
    BookieStatus,
    EntryId,
    LedgerId,
    LedgerMetadata,
    PlacementPolicy,
)

if TYPE_CHECKING:
    from spark_ledger.cli.restoring import Restored
    from spark_ledger.cli.safety import Standing
    from spark_ledger.cli.usage import Usage
    from spark_ledger.cli.verify import Verified
    from spark_ledger.metadata.base import MetadataStore
    from spark_ledger.metadata.codec import OwnerNode
    from spark_ledger.metadata.collection import PassReport
    from spark_ledger.stream.retention.handle import Extent
    from spark_ledger.transport.base import (
        BookieDescription,
        LastConfirmed,
        ListedEntries,
        Transport,
    )

ANSWER_TIMEOUT_S: Final = 3.0
"""A bookie that does not answer a question about itself for so long is shown as silent."""


class Holding(NamedTuple):
    """One bookie's part of a ledger. ``silent`` says why there is no answer; empty if there is.
    ``unbelieved``: what it says of the ledger's end, if that cannot be."""

    bookie_id: BookieId
    ranges: Sequence[tuple[EntryId, EntryId]]
    last_add_confirmed: EntryId
    fenced: bool
    silent: str = ""
    unbelieved: str = ""


@dataclass(frozen=True, slots=True)
class LedgerPicture:
    """A ledger's metadata with what all its bookies, of every fragment, say of it.

    ``last_add_confirmed`` is certain for a closed ledger; for an open one it is what a reader would
    believe (rule P5), and the writer may have confirmed more.
    """

    metadata: LedgerMetadata
    last_add_confirmed: EntryId
    holdings: tuple[Holding, ...]
    owner: OwnerNode | None = None
    """Who made the ledger, while that connection lives."""


class LedgerRow(NamedTuple):
    """A ledger of the list. ``owner_lives``: the connection that made it is there."""

    metadata: LedgerMetadata
    owner_lives: bool


class UnknownLedger(NamedTuple):
    """A ledger whose node is damaged or of a later format, and why."""

    ledger_id: LedgerId
    why: str


class BookieRow(NamedTuple):
    """A bookie of the cluster: registered, or only known by its cookie (``info`` is None)."""

    bookie_id: BookieId
    info: BookieInfo | None
    collected: PassReport | None = None
    """How the last pass of its garbage collection went; None before the first."""


@asynccontextmanager
async def _transport(store: MetadataStore) -> AsyncIterator[Transport]:
    from spark_ledger.metadata.bookies import BookieRegistry
    from spark_ledger.transport.grpc_aio import GrpcTransport

    addresses = {info.bookie_id: info.address for info in await BookieRegistry(store).list()}
    transport = GrpcTransport(addresses.get)
    try:
        yield transport
    finally:
        await transport.close()


def all_ledgers(uri: str, advance: Callable[[], None]) -> list[LedgerRow | UnknownLedger]:
    """Every ledger, by id. ``advance`` is called after each."""

    async def run() -> list[LedgerRow | UnknownLedger]:
        from spark_ledger.metadata.ledgers import LedgerStore
        from spark_ledger.metadata.owners import OWNERS_PATH

        async with connected_store(uri) as store:
            ledgers = LedgerStore(store)
            ledger_ids = await ledgers.list()
            reads = asyncio.Semaphore(METADATA_READS_IN_FLIGHT_MAX)

            async def one(ledger_id: LedgerId) -> LedgerMetadata | UnknownLedger | None:
                async with reads:
                    try:
                        return (await ledgers.read(ledger_id)).value
                    except NoSuchLedgerError:
                        return None  # deleted since it was listed
                    except (CorruptionError, ConfigurationError) as error:
                        return UnknownLedger(ledger_id, str(error))
                    finally:
                        advance()

            found = await asyncio.gather(*(one(ledger_id) for ledger_id in ledger_ids))
            owners = frozenset(await store.children(OWNERS_PATH))
            return [
                each if isinstance(each, UnknownLedger) else LedgerRow(each, each.owner in owners)
                for each in found
                if each is not None
            ]

    return asyncio.run(run())


def inspect_ledger(uri: str, ledger_id: int) -> LedgerPicture:
    """What is known of one ledger. Raises NoSuchLedgerError if it does not exist."""

    async def run() -> LedgerPicture:
        from spark_ledger.metadata.ledgers import LedgerStore
        from spark_ledger.metadata.owners import read_owner

        async with connected_store(uri) as store:
            metadata = (await LedgerStore(store).read(LedgerId(ledger_id))).value
            owner = await read_owner(store, metadata.owner) if metadata.owner else None
            names = dict.fromkeys(b for fragment in metadata.fragments for b in fragment.bookies)
            async with _transport(store) as transport:
                confirmed, holdings = await _holdings(transport, metadata, list(names))
        return LedgerPicture(metadata, confirmed, tuple(holdings), owner)

    return asyncio.run(run())


async def _holdings(
    transport: Transport, metadata: LedgerMetadata, names: Sequence[BookieId]
) -> tuple[EntryId, list[Holding]]:
    """The last entry that is confirmed, and what each bookie holds and says."""
    from spark_ledger.cli.ends import believed_end

    ledger_id, unbelieved = metadata.ledger_id, dict[BookieId, str]()
    ends = await asyncio.gather(
        *(
            transport.read_last_confirmed(each, ledger_id, timeout_s=ANSWER_TIMEOUT_S)
            for each in names
        )
    )
    said = dict(zip(names, ends, strict=True))
    confirmed = metadata.last_entry_id
    if not metadata.is_closed:
        of_last = {each: said[each] for each in metadata.last_fragment.bookies}
        confirmed = await believed_end(
            transport, metadata, of_last, ANSWER_TIMEOUT_S, unbelieved.setdefault
        )
    holdings = await asyncio.gather(
        *(_holding(transport, each, ledger_id, said[each], confirmed) for each in names)
    )
    holdings = [each._replace(unbelieved=unbelieved.get(each.bookie_id, "")) for each in holdings]
    return confirmed, holdings


async def _holding(
    transport: Transport,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    end: LastConfirmed,
    confirmed: EntryId,
) -> Holding:
    """All pages: a ledger that is drawn is looked at as a whole."""
    from spark_ledger.cli.listing import HeldEntries

    async def ask(first: EntryId) -> ListedEntries:
        return await transport.list_entries(bookie_id, ledger_id, first, timeout_s=ANSWER_TIMEOUT_S)

    faults: list[str] = []
    held = HeldEntries(ask, confirmed, faults.append)
    while held.known_until is not None:
        await held.fetch()
    if not held.is_said:
        why = faults[0] if faults else held.status.name.lower()
        return Holding(bookie_id, (), NO_ENTRY, False, silent=why)
    ranges = [(EntryId(first), EntryId(last)) for first, last in await held.take(None)]
    if end.status is not BookieStatus.OK:
        return Holding(bookie_id, ranges, NO_ENTRY, False)
    return Holding(bookie_id, ranges, end.last_add_confirmed, end.fenced)


def cluster_bookies(uri: str) -> list[BookieRow]:
    """Every bookie that belongs to the cluster, running or not, by id."""

    async def run() -> list[BookieRow]:
        from spark_ledger.metadata.bookies import BookieRegistry

        async with connected_store(uri) as store:
            registry = BookieRegistry(store)
            registered = {info.bookie_id: info for info in await registry.list()}
            names = sorted({*registered, *await registry.list_cookies()})
            reports = await asyncio.gather(*(_last_pass(store, name) for name in names))
            return [
                BookieRow(name, registered.get(name), report)
                for name, report in zip(names, reports, strict=True)
            ]

    return asyncio.run(run())


async def _last_pass(store: MetadataStore, bookie_id: BookieId) -> PassReport | None:
    from spark_ledger.metadata.collection import PassReport, read_collection

    try:
        found = await read_collection(store, bookie_id)
    except (CorruptionError, ConfigurationError) as error:  # the others are worth showing
        return PassReport(aborted=str(error))
    return None if found is None else found.value.report


def after_a_restore(uri: str, without: Collection[str]) -> Restored:
    """See ``restoring.accept_restored``."""

    async def run() -> Restored:
        from spark_ledger.cli.restoring import accept_restored

        async with connected_store(uri) as store, _transport(store) as transport:
            return await accept_restored(store, transport, without)

    return asyncio.run(run())


def placement_policy(uri: str, changes: Mapping[str, Any]) -> PlacementPolicy:
    """The cluster's placement policy, after ``changes`` to it."""

    async def run() -> PlacementPolicy:
        from spark_ledger.metadata.cluster import read_cluster_node, set_placement

        async with connected_store(uri) as store:
            policy = (await read_cluster_node(store)).value.policy
            if changes:
                policy = replace(policy, **changes)
                await set_placement(store, policy)
            return policy

    return asyncio.run(run())


def measure_usage(uri: str, advance: Callable[[int], None]) -> Usage:
    """See ``usage.measure``."""

    async def run() -> Usage:
        from spark_ledger.cli.usage import measure
        from spark_ledger.client.ledger_client import LedgerClient
        from spark_ledger.stream.catalog import StreamCatalog

        async with (
            connected_store(uri) as store,
            _transport(store) as transport,
            await LedgerClient.connect(uri) as client,
        ):

            async def extent_of(name: str) -> Extent:
                stream = await StreamCatalog(client).open(name)
                try:
                    return await stream.retention.extent()
                finally:
                    await stream.close()

            return await measure(store, transport, advance, extent_of)

    return asyncio.run(run())


def survey_cluster(uri: str, advance: Callable[[int], None]) -> Standing:
    """See ``safety.survey``."""

    async def run() -> Standing:
        from spark_ledger.cli.safety import survey

        async with connected_store(uri) as store, _transport(store) as transport:
            return await survey(store, transport, advance)

    return asyncio.run(run())


def verify_cluster(uri: str, advance: Callable[[int], None]) -> Verified:
    """See ``verify.verify``."""

    async def run() -> Verified:
        from spark_ledger.cli.verify import verify

        async with connected_store(uri) as store, _transport(store) as transport:
            return await verify(store, transport, advance)

    return asyncio.run(run())


def describe_bookie(uri: str, bookie_id: str) -> tuple[BookieInfo, BookieDescription]:
    """A bookie's registration and its own words.

    Raises NotFoundError if the cluster does not know it, BookieUnavailableError if it does not
    answer.
    """

    async def run() -> tuple[BookieInfo, BookieDescription]:
        from spark_ledger.metadata.bookies import BookieRegistry

        async with connected_store(uri) as store:
            registry = BookieRegistry(store)
            info = await registry.get(BookieId(bookie_id))
            if info is None:
                if bookie_id in await registry.list_cookies():
                    raise BookieUnavailableError(f"bookie {bookie_id} is not running")
                raise NotFoundError(f"bookie {bookie_id} is not part of this cluster")
            async with _transport(store) as transport:
                return info, await transport.describe(info.bookie_id, timeout_s=ANSWER_TIMEOUT_S)

    return asyncio.run(run())
