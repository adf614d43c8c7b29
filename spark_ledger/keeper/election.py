"""Election: one keeper at a time, and a number that outdates the ones before (rule K5)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket

from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.keeper.nodes import ELECTED_PATH, EPOCH_PATH, Elected
from spark_ledger.limits.keeper import ELECTION_RETRY_S
from spark_ledger.metadata.base import Check, MetadataStore
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.tasks import wait_at_most

logger = logging.getLogger(__name__)


class Election:
    """One candidate. Belongs to the loop of the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._me = Elected(host=socket.gethostname(), pid=os.getpid())
        self._epoch = -1
        self._pass = OneConnection(store)
        """That of the pass; before the first one, of now."""

    @property
    def me(self) -> Elected:
        """Who this candidate is."""
        return self._me

    @property
    def check(self) -> Check:
        """The part of a transaction that fails once another keeper was elected. To be asked for as
        the transaction is sent.

        Raises MetadataUnavailableError if the connection is not that of the pass any more: what was
        read on it may be of before a restore (rule K6).
        """
        assert self._epoch >= 0, "elected"
        if self._pass.has_ended:
            raise MetadataUnavailableError(
                "the connection to the metadata store broke within a pass of the keeper, which "
                "changes nothing more; the next pass reads anew"
            )
        return Check(EPOCH_PATH, self._epoch)

    def is_on_new_connection(self) -> bool:
        """Whether a pass that begins now is on another connection than the one before."""
        before, self._pass = self._pass, OneConnection(self._store)
        return before.has_ended

    async def win(self, *, wait: bool = True) -> bool:
        """Be elected; with ``wait``, once nobody else is. Outages of the store are waited out.

        Raises ConfigurationError or another LedgerError that time does not mend.
        """
        changed = asyncio.Event()
        watch = self._store.watch(ELECTED_PATH, changed.set)
        try:
            while not await self._try():
                if not wait:
                    return False
                await wait_at_most(changed, ELECTION_RETRY_S)
                changed.clear()
        finally:
            watch.cancel()
        logger.info("elected as the keeper of this cluster, epoch %d", self._epoch)
        return True

    async def is_won(self) -> bool:
        """Whether this is still the one that was elected, and the epoch is its own: a candidate
        that was cut off within its election may have raised it. Raises what the store raises."""
        try:
            return (
                await self._store.is_own(ELECTED_PATH)
                and (await self._store.get(EPOCH_PATH)).version == self._epoch
            )
        except NotFoundError:
            return False

    async def _has_place(self) -> bool:
        """Whether nobody else is elected as long as this session lasts."""
        with contextlib.suppress(NotFoundError):
            return await self._store.is_own(ELECTED_PATH)
        return False

    async def resign(self) -> None:
        """Let another one be elected at once."""
        with contextlib.suppress(LedgerError):
            if await self._has_place():
                await self._store.delete(ELECTED_PATH)

    async def _try(self) -> bool:
        try:
            try:
                await self._store.create(ELECTED_PATH, encode_node(self._me), ephemeral=True)
            except ConflictError:
                if not await self._has_place():
                    return False
            self._epoch = await self._next_epoch()
        except (RetryableError, OutcomeUnknownError, ConflictError, NotFoundError) as error:
            logger.info("not elected yet: %s", error)
            return False
        return True

    async def _next_epoch(self) -> int:
        # New with each write: two that write equal bytes over one version may both succeed.
        token = secrets.token_hex(8).encode()
        try:
            before = await self._store.get_latest(EPOCH_PATH)
        except NotFoundError:
            await self._store.create(EPOCH_PATH, token)
            return 0
        return await self._store.put(EPOCH_PATH, token, before.version)
