"""MetadataStore: a small tree of versioned nodes. ZooKeeper in production, memory in simulation.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_ledger.types import Versioned


@dataclass(frozen=True, slots=True)
class Check:
    """Transaction part: the node must have this version."""

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


class Watch(Protocol):
    """A running watch."""

    def cancel(self) -> None:
        """Stop calling back. Idempotent."""


class MetadataStore(Protocol):
    """Versioned nodes with compare-and-set, transactions, watches and ephemeral nodes."""

    async def get(self, path: str) -> Versioned[bytes]:
        """The node's data and version."""

    async def children(self, path: str) -> list[str]:
        """Names of the children, sorted. A missing node has none."""

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = True
    ) -> None:
        """Create a node. An ephemeral node goes when this store's session ends."""

    async def put(self, path: str, data: bytes, version: int) -> int:
        """Set the node if its version is ``version``; the new version."""

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a node without children."""

    async def delete_tree(self, path: str) -> None:
        """Delete a node and all below it. A missing node is fine."""

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """All of the operations, or none."""

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call back, on the loop, after the node's data or children changed, or may have.

        The callback reads again what it needs. It is also called after a reconnect, because
        changes may have been missed, and once the node is created or deleted.
        """

    def on_session_lost(self, callback: Callable[[], None]) -> Watch:
        """Call back, on the loop, when the session was lost and a new one stands: ephemeral nodes
        are gone and must be created again."""

    async def close(self) -> None:
        """End the session; its ephemeral nodes go at once."""
