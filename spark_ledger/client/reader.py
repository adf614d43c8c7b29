"""LedgerReader: the handle that reads a ledger up to its last add confirmed, and follows it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from spark_ledger.client.context import ClientContext
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.client.lane_reader import LaneReader
from spark_ledger.client.last_confirmed import (
    PollMemory,
    read_last_confirmed,
    read_newest_confirmed,
    wait_for_newer,
)
from spark_ledger.client.tail import Tail
from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    DigestMismatchError,
    MetadataUnavailableError,
    NoSuchEntryError,
    ReadBeyondConfirmedError,
)
from spark_ledger.protocol.ensemble import LaneRange, fragment_ranges, lane_ranges
from spark_ledger.types import (
    Entry,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    ReplicaHint,
    Versioned,
)
from spark_ledger.wire.frame import Digest


class LedgerReader:
    """Reads entries of a ledger. A reader fences nothing and changes nothing."""

    def __init__(
        self,
        context: ClientContext,
        ledger: Versioned[LedgerMetadata],
        *,
        access_key: bytes,
        digest: Digest,
        last_add_confirmed: EntryId,
    ) -> None:
        self._context = context
        self._ledger = ledger
        self._access_key = access_key
        self._poll_memory = PollMemory()
        self._digest = digest
        self._last_add_confirmed = last_add_confirmed

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._ledger.value.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this reader last read them."""
        return self._ledger.value

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that its end is final."""
        return self._ledger.value.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read; -1 for an empty ledger. It never goes back."""
        if self.is_closed:
            return self._ledger.value.last_entry_id
        return self._last_add_confirmed

    async def refresh(self) -> None:
        """Learn of new fragments, of the close, and of newly confirmed entries.

        Raises NoSuchLedgerError once the ledger is deleted, BookieUnavailableError,
        MetadataUnavailableError.
        """
        await self._refresh_metadata()
        ledger, newest = await read_newest_confirmed(
            self._context, self._ledger, self._access_key, self._digest
        )
        self.renew(ledger)
        self._last_add_confirmed = max(self._last_add_confirmed, newest)

    async def refresh_confirmed(self) -> None:
        """Learn of newly confirmed entries from the bookies that this reader knows: needs no
        metadata. Raises BookieUnavailableError."""
        if not self.is_closed:
            newest = await read_last_confirmed(
                self._context, self.metadata, self._access_key, self._digest
            )
            self._last_add_confirmed = max(self._last_add_confirmed, newest)

    async def _refresh_metadata(self) -> None:
        self.renew(await self._read_metadata())

    async def _read_metadata(self) -> Versioned[LedgerMetadata]:
        return await self._context.ledgers.read_latest(self.ledger_id)

    def renew(self, ledger: Versioned[LedgerMetadata]) -> None:
        """Take metadata of this ledger that were read, unless those at hand are newer."""
        if ledger.version >= self._ledger.version:
            self._ledger = ledger

    # -- reading -----------------------------------------------------------------------------------

    async def read(
        self, first: int, last: int, *, unconfirmed: bool = False, replica_hint: ReplicaHint = 0
    ) -> AsyncIterator[Entry]:
        """The entries from ``first`` to ``last``, both included. See ``read_batches``."""
        async with aclosing(
            self.read_batches(first, last, unconfirmed=unconfirmed, replica_hint=replica_hint)
        ) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def read_batches(
        self, first: int, last: int, *, unconfirmed: bool = False, replica_hint: ReplicaHint = 0
    ) -> AsyncGenerator[EntryBatch, None]:
        """The entries from ``first`` to ``last``, both included, in batches of about 4 MiB.

        A batch is a sequence of entries; its ``payloads()`` are an Arrow array, for which no object
        of an entry is made.

        ``unconfirmed`` skips the check against the last add confirmed: only for a caller who knows
        from elsewhere (a stream's commit) that the range was confirmed. ``replica_hint`` chooses
        which replica is asked first, by number or by name, so that readers share the load.

        Raises ReadBeyondConfirmedError before any bookie is asked, NoSuchEntryError if no replica
        holds an entry, BookieUnavailableError, DigestMismatchError. A hole is never skipped.
        """
        self.check_range(first, last, unconfirmed=unconfirmed)
        following = first
        while following <= last:
            known = self.metadata
            try:
                async with aclosing(self._read_known(following, last, replica_hint)) as batches:
                    async for batch in batches:
                        following = batch.last_entry + 1
                        yield batch
            except (NoSuchEntryError, BookieUnavailableError, DigestMismatchError):
                if not await self._learns_of_others(known):
                    raise

    async def _read_known(
        self, first: int, last: int, hint: ReplicaHint
    ) -> AsyncGenerator[EntryBatch, None]:
        """The entries from the bookies that the metadata at hand name."""
        for low, high, fragment in fragment_ranges(self.metadata, first, last):
            async with aclosing(self._read_fragment(fragment, low, high, hint)) as batches:
                async for batch in batches:
                    yield batch

    async def _learns_of_others(self, known: LedgerMetadata) -> bool:
        """Whether other bookies hold the entries than those that were asked.

        A bookie may tell of entries that stand in a fragment which is younger than the metadata
        at hand; the bookies of the older one then deny them, or are gone.
        """
        try:
            await self._refresh_metadata()
        except MetadataUnavailableError:
            return False
        return self.metadata.fragments != known.fragments

    def check_range(self, first: int, last: int, *, unconfirmed: bool) -> None:
        """Check that a range can be read.

        Raises ConfigurationError if it is no range, ReadBeyondConfirmedError if it goes beyond the
        last add confirmed.
        """
        if not (_is_entry_id(first) and _is_entry_id(last)) or last < first:
            raise ConfigurationError(
                f"ledger {self.ledger_id}: no range of entries goes from {first!r} to {last!r}"
            )
        if last > self.last_add_confirmed and not (unconfirmed and not self.is_closed):
            raise ReadBeyondConfirmedError(
                f"ledger {self.ledger_id}: entry {last} is above the last add confirmed "
                f"{self.last_add_confirmed}"
                + ("" if self.is_closed else "; refresh() or tail() the reader to see new entries")
            )

    def check_tail(self, start: int, idle_timeout: float | None) -> None:
        """Check what ``tail`` is given. Raises ConfigurationError if it cannot follow that."""
        if not _is_entry_id(start):
            raise ConfigurationError(
                f"ledger {self.ledger_id}: tail starts at an entry from 0 on, not {start!r}"
            )
        if idle_timeout is not None and not (
            isinstance(idle_timeout, int | float) and idle_timeout >= 0
        ):
            raise ConfigurationError(f"idle_timeout is seconds or None, not {idle_timeout!r}")

    def _read_lane(self, wanted: LaneRange, hint: ReplicaHint) -> AsyncGenerator[EntryBatch, None]:
        reader = LaneReader(
            self._context,
            self._ledger,
            self._digest,
            wanted,
            replica_hint=hint,
            access_key=self._access_key,
        )
        return reader.chunks()

    async def _read_fragment(
        self, fragment: Fragment, first: int, last: int, hint: ReplicaHint
    ) -> AsyncGenerator[EntryBatch, None]:
        wanted = lane_ranges(self.metadata, fragment, first, last)
        stride = wanted[0].lane.stride
        if stride == 1:
            only = self._read_lane(wanted[0], hint)
            async with aclosing(only):
                async for chunk in only:
                    yield chunk
            return
        # Striped: each lane brings every E-th entry; merge them in entry order.
        iterators = {each.lane.residue: self._read_lane(each, hint) for each in wanted}
        try:
            async for merged in _merge(iterators, first, last, stride):
                yield merged
        finally:
            for iterator in iterators.values():
                await iterator.aclose()

    # -- following ---------------------------------------------------------------------------------

    async def tail(
        self, start: int = 0, *, idle_timeout: float | None = None
    ) -> AsyncIterator[Entry]:
        """Entries from ``start`` on, as they are confirmed. See ``tail_batches``."""
        async with aclosing(self.tail_batches(start, idle_timeout=idle_timeout)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def tail_batches(
        self, start: int = 0, *, idle_timeout: float | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        """Entries from ``start`` on in batches, as they are confirmed.

        Ends when the ledger is closed and all is delivered, or after ``idle_timeout`` seconds
        without a new entry (None: never). While the metadata cannot be read, it goes on with the
        bookies that it knows. Raises NoSuchLedgerError once the ledger is deleted, and as
        ``read_batches`` does if an entry cannot be had and the metadata tell of no other bookies.
        """
        self.check_tail(start, idle_timeout)
        if self.is_closed:
            if start > self.last_add_confirmed:
                return
            batches = self.read_batches(start, self.last_add_confirmed)
        else:
            tail = Tail(
                self,
                self._context,
                key=(self.ledger_id, self.metadata.incarnation, self._access_key),
                read_metadata=self._read_metadata,
                wait_for_newer=self._wait_for_newer,
            )
            batches = tail.batches(start, idle_timeout)
        async with aclosing(batches):
            async for batch in batches:
                yield batch

    async def _wait_for_newer(self, wait_s: float) -> EntryId:
        """A newer last add confirmed, or the same one if there is none within the time."""
        return await wait_for_newer(
            self._context,
            self.metadata,
            self._access_key,
            self._digest,
            self.last_add_confirmed,
            wait_s,
            self._poll_memory,
        )

    def learn(self, confirmed: EntryId) -> None:
        """Entries up to here are confirmed, as another reader of this ledger has found out."""
        self._last_add_confirmed = max(self._last_add_confirmed, confirmed)


def _is_entry_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


async def _merge(
    iterators: dict[int, AsyncGenerator[EntryBatch, None]], first: int, last: int, stride: int
) -> AsyncIterator[EntryBatch]:
    """The lanes' entries in entry order; ``iterators`` by the entries' remainder."""
    merged: list[Entry] = []
    buffers: dict[int, list[Entry]] = {residue: [] for residue in iterators}
    for entry_id in range(first, last + 1):
        residue = entry_id % stride
        if not buffers[residue]:
            if merged:
                yield EntryBatch.of(merged)
                merged = []
            buffers[residue] = (await anext(iterators[residue]))[::-1]
        merged.append(buffers[residue].pop())
    yield EntryBatch.of(merged)
