"""A decision that counts over one connection of the metadata store only. Knows not what it decides.

The store may have been restored from a backup between two connections, and have given versions, ids
and names again. So what was read over one of them is sent over no other (rule T2).
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_ledger.errors import ConflictError
from spark_ledger.metadata.base import MetadataStore, Operation


class OneConnection:
    """Made before the first reading of a decision. Belongs to the loop of the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._connection = store.connections

    @property
    def has_ended(self) -> bool:
        """Whether what was read counts no more: there is another connection."""
        return self._connection != self._store.connections

    def check(self) -> None:
        """To be called as a put or a transaction is sent, which the store sends over no connection
        that comes after. Raises ConflictError: what was read may be another by now."""
        if self.has_ended:
            raise ConflictError(
                "the connection to the metadata store broke meanwhile, so what was read over it "
                "counts no more and nothing was changed by it; try again"
            )

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """Send a transaction of the store. Raises what that raises, and as ``check``."""
        self.check()
        await self._store.transaction(operations)
