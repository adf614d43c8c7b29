"""OnFirstUse: a transport that is made when a bookie is asked for the first time.

gRPC costs 60 ms of a processor and 11 MB to load. Most processes beside a Spark driver, which plan
and commit, speak to the metadata store alone, and a driver with ten queries has more than ten.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import TypeAlias, TypeVar

from spark_ledger.transport.base import (
    Appender,
    BookieDescription,
    LastConfirmed,
    ListedEntries,
    ReadChunk,
    Transport,
)
from spark_ledger.transport.claimed import check_usable, claim_process
from spark_ledger.types import BookieStatus, LedgerId

T = TypeVar("T")
_Call: TypeAlias = Coroutine[object, object, T]


class OnFirstUse:
    """See ``transport.base.Transport``. Belongs to the loop and the process that made it.

    Raises as ``claim_process`` when it is made, so that nobody finds out later.
    """

    def __init__(self, make: Callable[[], Transport]) -> None:
        self._process_id = claim_process()
        self._make = make
        self._made: Transport | None = None
        self._closed = False

    def _transport(self) -> Transport:
        if self._made is None:
            check_usable(self._process_id, closed=self._closed)
            self._made = self._make()
        return self._made

    @property
    def open_appender(self) -> Callable[..., Appender]:
        return self._transport().open_appender

    @property
    def read(self) -> Callable[..., AsyncGenerator[ReadChunk, None]]:
        return self._transport().read

    @property
    def read_last_confirmed(self) -> Callable[..., _Call[LastConfirmed]]:
        return self._transport().read_last_confirmed

    @property
    def write_last_confirmed(self) -> Callable[..., Awaitable[BookieStatus]]:
        return self._transport().write_last_confirmed

    @property
    def list_entries(self) -> Callable[..., _Call[ListedEntries]]:
        return self._transport().list_entries

    @property
    def list_ledgers(self) -> Callable[..., _Call[tuple[BookieStatus, list[LedgerId]]]]:
        return self._transport().list_ledgers

    @property
    def describe(self) -> Callable[..., _Call[BookieDescription]]:
        return self._transport().describe

    async def close(self) -> None:
        self._closed = True
        if self._made is not None:
            await self._made.close()
