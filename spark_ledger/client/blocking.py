"""LedgerConnection: the same client for code without a loop (Spark workers, scripts, the CLI).

One background thread per process runs one asyncio loop, the *portal*. Handles pass work to it and
wait. A forked child makes its own portal and its own connections.

Who owns what: everything of the async client belongs to the loop's thread. A handle here keeps a
reference that never changes, passes coroutines to the loop, and reads single attributes from the
caller's thread, each of which is one value that the loop replaces. ``LedgerConnection._closed``
belongs to its callers. Callbacks of futures run on the loop's thread, so they must not wait for the
client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Self, TypeVar

from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.client.counters import ClientCounters
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.portal import BlockingPortal, Work
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import LedgerClosedError
from spark_ledger.types import BookieInfo, Entry, EntryId, LedgerId, LedgerMetadata, ReplicaHint

T = TypeVar("T")


class BlockingReader:
    """Reads a ledger up to its last add confirmed. Both fields never change."""

    def __init__(self, portal: BlockingPortal, reader: LedgerReader) -> None:
        self._portal = portal
        self._reader = reader

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this reader last read them."""
        return self._reader.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that its end is final."""
        return self._reader.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read; -1 for an empty ledger."""
        return self._reader.last_add_confirmed

    def refresh(self) -> None:
        """Learn of new fragments, of the close, and of newly confirmed entries."""
        self._portal.call(self._reader.refresh())

    def refresh_confirmed(self) -> None:
        """Learn of newly confirmed entries, without the metadata."""
        self._portal.call(self._reader.refresh_confirmed())

    def read(
        self, first: int, last: int, *, unconfirmed: bool = False, replica_hint: ReplicaHint = 0
    ) -> Iterator[Entry]:
        """The entries from ``first`` to ``last``, both included.

        Raises, in this call, ConfigurationError if it is no range, ReadBeyondConfirmedError if it
        ends above the last add confirmed; while iterating, NoSuchEntryError if no replica has an
        entry, DigestMismatchError if none has an undamaged one, BookieUnavailableError if none
        that may have it answers.
        """
        return _flatten(
            self.read_batches(first, last, unconfirmed=unconfirmed, replica_hint=replica_hint)
        )

    def read_batches(
        self, first: int, last: int, *, unconfirmed: bool = False, replica_hint: ReplicaHint = 0
    ) -> Iterator[EntryBatch]:
        """The same in batches of about 4 MiB, whose ``payloads()`` are Arrow arrays: no object of
        an entry is made unless it is asked for. Raises as ``read``."""
        self._reader.check_range(first, last, unconfirmed=unconfirmed)
        return self._portal.iterate(
            self._reader.read_batches(
                first, last, unconfirmed=unconfirmed, replica_hint=replica_hint
            )
        )

    def tail(self, start: int = 0, *, idle_timeout: float | None = None) -> Iterator[Entry]:
        """Entries from ``start`` on as they are confirmed, until the ledger is closed and read.

        ``idle_timeout`` ends it after so many seconds without a new entry.
        """
        self._reader.check_tail(start, idle_timeout)
        batches = self._reader.tail_batches(start, idle_timeout=idle_timeout)
        return _flatten(self._portal.iterate(batches))

    def close(self) -> None:
        """Nothing is held open; here so that a reader can stand in a ``with``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LedgerConnection:
    """A blocking connection to a cluster. Leaving ``with`` closes it."""

    def __init__(self, portal: BlockingPortal, client: LedgerClient) -> None:
        self._portal = portal
        self._client = client
        """Belongs to the loop."""
        self._closed = False
        """Set by whoever closes first. Two threads that both find it unset close twice, which does
        no harm; a call that comes in between fails with the transport's or the store's error."""

    @classmethod
    def connect(cls, uri: str, **options: object) -> Self:
        """Connect to the cluster whose metadata are at ``uri``. See ``LedgerClient.connect``."""
        portal = BlockingPortal.get()
        return cls(portal, portal.call(LedgerClient.connect(uri, **options)))

    @property
    def counters(self) -> ClientCounters:
        """What this connection has done so far: a copy."""
        return replace(self._client.counters)

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        password: bytes = b"",
        custom_metadata: Mapping[str, str] | None = None,
    ) -> BlockingWriter:
        """Create a ledger; its only writer. See ``LedgerClient.create_ledger``."""
        writer = self._call(
            self._client.create_ledger(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=password,
                custom_metadata=custom_metadata,
            )
        )
        return BlockingWriter(self._portal, writer)

    def open_ledger(
        self, ledger_id: int, *, recover: bool = False, password: bytes = b""
    ) -> BlockingReader:
        """Open a ledger for reading. See ``LedgerClient.open_ledger``."""
        reader = self._call(self._client.open_ledger(ledger_id, recover=recover, password=password))
        return BlockingReader(self._portal, reader)

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger. Idempotent."""
        self._call(self._client.delete_ledger(ledger_id))

    def list_ledgers(self) -> list[LedgerId]:
        """The ids of all ledgers, ascending."""
        return self._call(self._client.list_ledgers())

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata, without asking a bookie. Raises NoSuchLedgerError if it is gone."""
        return self._call(self._client.ledger_metadata(ledger_id))

    def registered_bookies(self) -> list[BookieInfo]:
        """The bookies that are registered, for all that is known here: asks nobody."""
        return self._client.registered_bookies()

    def list_bookies(self) -> list[BookieInfo]:
        """The bookies that are registered now."""
        return self._call(self._client.list_bookies())

    def close(self) -> None:
        """Close the connection. Writers that were not closed leave their ledgers open."""
        if not self._closed:
            self._closed = True
            self._portal.call(self._client.close())

    def _call(self, work: Work[T]) -> T:
        if self._closed:
            work.close()
            raise LedgerClosedError("this connection is closed: connect again")
        return self._portal.call(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _flatten(batches: Iterator[EntryBatch]) -> Iterator[Entry]:
    for batch in batches:
        yield from batch
