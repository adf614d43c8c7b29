"""Reads the packs of a stream, and their indexes. Keeps what it has read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from spark_ledger.errors import MetadataUnavailableError, NotFoundError
from spark_ledger.limits.stream import PACKS_KNOWN_S
from spark_ledger.stream.ledgers import Ledgers
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.stream.packs.format import decode_index, decode_packs
from spark_ledger.stream.packs.model import Pack, PackIndex, Packs
from spark_ledger.types import EntryId, LedgerId, Versioned

INDEXES_KEPT: Final = 8
"""Indexes that a handle keeps: some 8 MB each for packs of 100,000 segments, mostly far less."""


async def read_packs(nodes: StreamNodes) -> Versioned[Packs]:
    """The packs of a stream, no older than this call: none of one that was never optimized."""
    try:
        node = await nodes.store.get_latest(nodes.packs_path)
    except NotFoundError:
        return Versioned(Packs(), -1)
    return Versioned(decode_packs(node.value, nodes.packs_path), node.version)


class PackStore:
    """The packs of one stream, as far as one handle knows them. Bound to one event loop.

    Nothing has to be new: rows that are in no pack which is known are in their former ledgers, and
    whoever finds one of those gone reads the packs again (rule T24). But former ledgers are there
    for days, and a pack is read faster: so reads look again whether there are more. Behind a new
    connection nothing is known: a restored store may have no such pack, and former ledgers in its
    place.
    """

    def __init__(self, ledgers: Ledgers, nodes: StreamNodes) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self._indexes: OrderedDict[LedgerId, PackIndex] = OrderedDict()
        self._known: Packs | None = None
        self._looked_s = 0.0
        """When a read last asked for the packs, by the loop's clock."""
        self._reading = OneConnection(nodes.store)

    @property
    def known(self) -> Packs | None:
        """The packs as they were last read, or written, over the connection of now."""
        if self._reading.has_ended:
            self._reading, self._known = OneConnection(self._nodes.store), None
            self._indexes.clear()  # ids of ledgers may have been given again too
        return self._known

    @known.setter
    def known(self, packs: Packs) -> None:
        self._known = packs

    async def read(self) -> Versioned[Packs]:
        """As ``read_packs``; readers of this handle know them from now on."""
        while True:
            reading = OneConnection(self._nodes.store)
            found = await read_packs(self._nodes)
            if not reading.has_ended:
                break
        if self.known != found.value:  # what was known on another connection is forgotten
            self.known = found.value
        return found

    async def look(self) -> None:
        """At the begin of a read: the packs, if what is known of them is a minute old."""
        now_s, is_known = asyncio.get_running_loop().time(), self.known is not None
        if is_known and now_s - self._looked_s < PACKS_KNOWN_S:
            return
        self._looked_s = now_s  # also if it fails: what is known is enough
        try:
            await self.read()
        except MetadataUnavailableError:
            if not is_known:
                raise

    async def index(self, pack: Pack, stream_id: str) -> PackIndex:
        """The index of a pack. Raises NotFoundError if it was dropped, CorruptionError."""
        index = self._indexes.get(pack.ledger_id)
        if index is None:
            reading = OneConnection(self._nodes.store)
            ledger = await self._ledgers.open_unconfirmed(pack.ledger_id)
            payload = b""
            last = EntryId(pack.entries)
            async for entries in ledger.read_batches(last, last, unconfirmed=True):
                payload = entries[0].payload
            where = f"stream {self._nodes.name!r}"
            index = decode_index(payload, pack, stream_id, where)
            if reading.has_ended:
                return index
            self._indexes[pack.ledger_id] = index
        self._indexes.move_to_end(pack.ledger_id)
        if len(self._indexes) > INDEXES_KEPT:
            self._indexes.popitem(last=False)
        return index
