"""Owners: each connection that makes ledgers keeps one ephemeral node while it lives.

``owners/<id>`` is made before the connection's first ledger, and ends with its session: at once
when the connection is closed, after the session timeout when its process died. A ledger names its
owner (``LedgerMetadata.owner``), so one node says of thousands of ledgers whether their writer
lives.

After a lost session the node is made again under the same id. The ledgers name that id, and another
one would have to be written into each of them. Nothing is won by a new one: whoever took the owner
for dead has fenced its ledgers, and a fence stays (rule P12).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from typing import Final

from spark_ledger.errors import (
    ConflictError,
    LedgerClosedError,
    LedgerError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.metadata import METADATA_ATTEMPTS, OWNER_RETRY_DELAY_S
from spark_ledger.metadata.base import MetadataStore, Watch
from spark_ledger.metadata.codec import OwnerNode
from spark_ledger.metadata.json_nodes import decode_node, encode_node
from spark_ledger.tasks import cancel

OWNERS_PATH: Final = "owners"

logger = logging.getLogger(__name__)


def owner_path(owner: str) -> str:
    """The node of an owner."""
    return f"{OWNERS_PATH}/{owner}"


class Owner:
    """The owner of one connection's ledgers. Belongs to the loop of the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._node = OwnerNode(
            owner=secrets.token_hex(8), host=socket.gethostname(), pid=os.getpid()
        )
        self._path = owner_path(self._node.owner)
        self._is_announced = False
        self._lock = asyncio.Lock()
        self._watches: list[Watch] = []
        self._task: asyncio.Task[None] | None = None
        self._sessions_lost = 0
        self._signs = 0
        """Counts what says that the node may be gone."""

    async def announce(self) -> str:
        """The owner's id, once its node is there: no ledger may name an owner that never was.

        Raises MetadataUnavailableError, OutcomeUnknownError if no attempt brought a reply.
        """
        async with self._lock:
            if not self._is_announced:
                if not self._watches:
                    self._watches.append(self._store.on_session_lost(self._on_session_lost))
                unknown = 0
                while not self._is_announced:
                    made_on = self._sessions_lost, self._store.connections
                    try:
                        await self._make()
                    except OutcomeUnknownError:
                        unknown += 1
                        if unknown == METADATA_ATTEMPTS:
                            raise
                    else:  # one that was made before another session or connection may be none
                        now_on = self._sessions_lost, self._store.connections
                        self._is_announced = made_on == now_on
                # Behind the node, whose creation says nothing new.
                self._watches.append(self._store.watch(self._path, self._look_soon))
        return self._node.owner

    async def close(self) -> None:
        """Make the node no more; it goes with the session."""
        for watch in self._watches:
            watch.cancel()
        if self._task is not None:
            await cancel(self._task)

    async def _make(self) -> None:
        """Create the node. That of a session before this one stands in for it until it goes."""
        while True:
            try:
                await self._store.create(self._path, encode_node(self._node), ephemeral=True)
            except ConflictError:
                try:
                    if await self._store.is_own(self._path):
                        return
                except NotFoundError:
                    continue
                await asyncio.sleep(OWNER_RETRY_DELAY_S)
            else:
                return

    def _on_session_lost(self) -> None:
        self._sessions_lost += 1
        self._look_soon()

    def _look_soon(self) -> None:
        """Look once more whether the node is there, also if a look is under way."""
        self._signs += 1
        if self._is_announced and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._make_again())

    async def _make_again(self) -> None:
        """Make the node if it is not there, or is that of a session before."""
        seen = -1
        while seen != self._signs:
            signs = self._signs
            try:
                if not await self._is_there():
                    await self._make()
            except LedgerClosedError:
                return
            except LedgerError as error:
                logger.warning("the owner node of this process is not there yet: %s", error)
                await asyncio.sleep(OWNER_RETRY_DELAY_S)
            else:
                seen = signs

    async def _is_there(self) -> bool:
        try:
            return await self._store.is_own(self._path)
        except NotFoundError:
            return False


async def is_alive(store: MetadataStore, owner: str) -> bool:
    """Whether the owner's node is there now, though the server that answers may lag.

    Never decided from a list: one that is not whole would declare writers dead.
    """
    try:
        await store.get_latest(owner_path(owner))
    except NotFoundError:
        return False
    return True


async def read_owner(store: MetadataStore, owner: str) -> OwnerNode | None:
    """Who an owner is, or None if it has gone."""
    path = owner_path(owner)
    try:
        return decode_node(OwnerNode, path, (await store.get(path)).value)
    except NotFoundError:
        return None
