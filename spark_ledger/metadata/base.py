"""MetadataStore: a small tree of versioned nodes, and what all implementations of it share.

ZooKeeper implements it in production, memory in simulation.

Paths are relative to the store's root and look like ``ledgers/00/0000/L0001``. Versions start at
0 and grow by one with each set. Everything above (ledgers, bookies, streams) is written once, on
this interface.

Errors, the same from every implementation:

* ``NotFoundError``: the node, or its parent (``create`` without ``make_parents``), is missing
* ``ConflictError``: the node exists already, or its version is not the expected one
* ``MetadataUnavailableError``: the store could not be reached and nothing was changed
* ``OutcomeUnknownError``: the connection broke during a write; it may have happened
* ``UnauthorizedError``: the credentials do not allow it
* ``LedgerClosedError``: this process has closed the store; nothing was changed
* ``ConfigurationError``: what answers now is another store than before; nothing was changed
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from spark_ledger.errors import ConfigurationError, LedgerError
from spark_ledger.limits.entries import METADATA_REQUEST_BYTES_MAX
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.types import Versioned

T = TypeVar("T")

ANY_VERSION: Final = -1
"""Of a node that only has to exist."""


@dataclass(frozen=True, slots=True)
class Check:
    """Transaction part: the node must have this version (-1: it must exist)."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Transaction part: create the node; its parent must exist."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Transaction part: set the node, whose version must be this one."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Transaction part: delete the node, whose version must be this one (-1: any)."""

    path: str
    version: int = -1


Operation = Check | Create | Put | Delete


class StoreSize(NamedTuple):
    """How much a metadata store holds; None where it does not say."""

    nodes: int | None
    bytes: int | None


class Watch(Protocol):
    """A running watch."""

    def cancel(self) -> None:
        """Stop calling back. Idempotent."""


class MetadataStore(Protocol):
    """Versioned nodes with compare-and-set, transactions, watches and ephemeral nodes."""

    async def get(self, path: str) -> Versioned[bytes]:
        """The node's data and version."""

    async def get_latest(self, path: str) -> Versioned[bytes]:
        """The same, and no older than this call, though the server that answers may lag."""

    async def is_own(self, path: str) -> bool:
        """Whether the node is ephemeral and belongs to this store's session of now."""

    async def children(self, path: str) -> list[str]:
        """Names of the children, sorted. A missing node has none."""

    async def listing(self, path: str) -> Versioned[list[str]]:
        """The children, with a number that grows by one with each child that comes or goes.

        Whoever has seen the list before reads only what changed: if the numbers differ by more than
        the names do, a child was replaced by another of its name. A missing node has none, and -1.
        """

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = True
    ) -> None:
        """Create a node. An ephemeral node goes when this store's session ends."""

    async def put(self, path: str, data: bytes, version: int) -> int:
        """Set the node if its version is ``version``; the new version."""

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a node without children."""

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """All of the operations, or none."""

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call back, on the loop, after the node's data or children changed, or may have.

        The callback reads again what it needs. It is also called after a reconnect, because
        changes may have been missed, once the node is created or deleted, and a last time when the
        store is closed: whoever waits for a change learns of that by reading.
        """

    def on_session_lost(self, callback: Callable[[], None]) -> Watch:
        """Call back, on the loop, when the session was lost and a new one stands: ephemeral nodes
        are gone and must be created again."""

    @property
    def connections(self) -> int:
        """How many connections there were. Between two of them the store may have been restored
        from a backup, whatever else it shows: its servers cannot be restored while they serve."""

    @property
    def restored(self) -> str:
        """What to say if the store went back in time, to a backup; empty if it did not."""

    @property
    def restores(self) -> int:
        """How often it was seen to."""

    async def close(self) -> None:
        """End the session; its ephemeral nodes go at once."""


# -- for implementations ---------------------------------------------------------------------------


class SizedStore(MetadataStore, Protocol):
    """A metadata store that knows how large it is."""

    async def size(self) -> StoreSize:
        """How many nodes and bytes all of it has, as far as it says."""


class Subscription:
    """One registered callback; implements ``Watch``.

    ``notify`` may be called from any thread, all else belongs to the loop of whoever subscribed.
    Calls of ``notify`` that come while one is already scheduled are folded into it: a watch means
    "read again", so one call after the last change is enough.
    """

    def __init__(
        self, callback: Callable[[], None], on_cancel: Callable[[Subscription], None]
    ) -> None:
        self._callback = callback
        self._on_cancel = on_cancel
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        """Set by any thread, cleared on the loop. Two threads that both find it unset schedule two
        calls, which does no harm. It is cleared before the callback runs, so a notification that
        is folded into a call comes before that call reads."""
        self._cancelled = False
        """Set on the loop. A thread that does not see it yet schedules a call that does nothing."""

    def notify(self) -> None:
        """Have the callback run soon, on the loop of whoever registered it."""
        if self._scheduled or self._cancelled or self._loop.is_closed():
            return
        self._scheduled = True
        with contextlib.suppress(RuntimeError):  # the loop was closed since the line above
            self._loop.call_soon_threadsafe(self._run)

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._on_cancel(self)

    def close(self) -> None:
        """Have the callback run a last time. On the loop."""
        if not self._cancelled:
            self.cancel()
            self._loop.call_soon(self._callback)

    def _run(self) -> None:
        self._scheduled = False
        if not self._cancelled:
            self._callback()


def check_path(path: str) -> str:
    """The path itself, if it is relative and every level has a name ZooKeeper accepts.

    Paths hold names that users choose (streams, bookies). A bad one must not reach the store, where
    ``..`` or a slash would name another node. Raises ConfigurationError if a name is bad.
    """
    for name in path.split("/"):
        if not name or name in {".", ".."} or not name.isprintable():
            raise ConfigurationError(
                f"metadata path {path!r}: each level needs a printable name other than '.' and '..'"
            )
    return path


def check_size(path: str, size_bytes: int) -> None:
    """Refuse what ZooKeeper would answer by dropping the connection, without a reason.

    Raises ConfigurationError if it is too large.
    """
    if size_bytes > METADATA_REQUEST_BYTES_MAX:
        raise ConfigurationError(
            f"metadata node {path!r}: {size_bytes} bytes in one request, "
            f"at most {METADATA_REQUEST_BYTES_MAX} are possible"
        )


def check_operations(operations: Sequence[Operation]) -> None:
    """Check each part of a transaction, and the size of all of them together.

    Raises ConfigurationError if a path is bad or the transaction is too large.
    """
    size_bytes = 0
    for operation in operations:
        check_path(operation.path)
        if isinstance(operation, Create | Put):
            size_bytes += len(operation.data)
        if isinstance(operation, Put):
            assert operation.version >= 0, "a compare-and-set names the version it has read"
    if operations:
        check_size(operations[0].path, size_bytes)


async def again(work: Callable[[], Awaitable[T]], *errors: type[LedgerError]) -> T:
    """Do something that may be done twice, once more behind each of these errors. Raises the one of
    the last attempt."""
    for _ in range(METADATA_ATTEMPTS - 1):
        with contextlib.suppress(*errors):
            return await work()
    return await work()


def parent_of(path: str) -> str:
    """The path one level up; the root is the empty string."""
    return path.rpartition("/")[0]
