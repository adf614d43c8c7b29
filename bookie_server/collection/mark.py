"""The mark of a bookie: a random word in the metadata that its disk knows too (rule G4).

The bookie writes another one after it has taken new ledgers, and before each pass. Metadata that
hold the word that was written last hold everything from before it as well: also the creation of
each ledger that the bookie had by then. In metadata that were restored from a backup an older word
stands, or none.

A new word is noted on the disk beside the last one first, then written to the metadata, then noted
alone. So whatever a crash leaves, the word in the metadata is one that the disk knows. A word that
may be on its way is written again, and no other one, until it has arrived.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from bookie_server.collection.note import (
    ACCEPTED_MAX,
    MARK_NAME,
    NOTHING,
    Noted,
    read_note,
    write_note,
)
from bookie_server.core.collection import Cause, History, history
from bookie_server.storage.fs.vfs import FileSystem
from spark_ledger.errors import ConflictError, CorruptionError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.collection import (
    CollectionNode,
    PassReport,
    collection_path,
    read_collection,
)
from spark_ledger.metadata.json_nodes import encode_node, read_or_renew
from spark_ledger.types import BookieId, Versioned

T = TypeVar("T")
OnDisk = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a piece of disk work, and returns once it is done."""


class PassAbortedError(Exception):
    """This pass must not go on; says why. Nothing more is deleted."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


class HistoryMark:
    """One bookie's mark. Belongs to the loop of the metadata store."""

    def __init__(
        self,
        store: MetadataStore,
        bookie_id: BookieId,
        files: FileSystem,
        directory: Path,
        on_disk: OnDisk,
    ) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._files = files
        self._path = directory / MARK_NAME
        self._on_disk = on_disk
        self._noted: Noted | None = None
        """What the disk knows; None before it was read."""

    async def check(self) -> Versioned[CollectionNode] | None:
        """What the metadata say now, if their history is the one that this bookie knows.

        Raises PassAbortedError if it is not, OSError, and what the metadata store raises.
        """
        noted = await self._read()
        try:
            found = await read_collection(self._store, self._bookie_id)
        except CorruptionError as error:
            raise PassAbortedError(
                Cause.RESTORED,
                f"{error}. By it the bookie knows that ZooKeeper was not restored from a backup, "
                f"so nothing is collected. {self._way_out}, which writes it anew",
            ) from error
        if history(noted.marks, _mark_in(found)) is History.BROKEN:
            raise PassAbortedError(
                Cause.RESTORED,
                "ZooKeeper does not hold the last note of this bookie: it was restored from a "
                "backup, or is another one. Ledgers that it lacks may be lost there and not "
                f"deleted, so nothing is collected. {self._way_out}",
            )
        return found

    @property
    def _way_out(self) -> str:
        command = f"ledger bookies collect --bookie {self._bookie_id} --accept-restored"
        return f"When the metadata are as they shall be, run `{command}`"

    async def may_accept(self, order: str) -> bool:
        """Whether no history was accepted by this order yet. Raises PassAbortedError, OSError.

        Orders stay in the metadata, and come back with a backup.
        """
        return _word(order) not in (await self._read()).accepted

    async def renew(self, *, accept: str | None = None, kept_below: int | None = None) -> None:
        """Check, and write another mark. ``accept``: the order by which it is accepted whatever
        history the metadata have, also if the node of the mark is damaged; it ``may_accept``.
        ``kept_below``: from now on; None: as before.

        Raises as ``check``.
        """
        if accept is not None:
            nothing, path = CollectionNode(mark=""), collection_path(self._bookie_id)
            found = await read_or_renew(self._store, nothing, path)
        else:
            found = await self.check()
        noted = await self._read()
        stored, marks = _mark_in(found), noted.marks if accept is None else ()
        below = noted.kept_below if kept_below is None else kept_below
        words = noted.accepted if accept is None else (*noted.accepted, _word(accept))
        noted = msgspec.structs.replace(NOTHING, kept_below=below, accepted=words[-ACCEPTED_MAX:])
        # A write whose reply was lost may still arrive: then it has to be one that the disk knows,
        # so it is the same word that is written again.
        is_pending = len(marks) == 2 and stored == marks[0]
        mark = marks[1] if is_pending else secrets.token_hex(8)
        await self._note(msgspec.structs.replace(noted, marks=(stored, mark)))
        await self._put(found, mark, found.value.report if found is not None else None)
        await self._note(msgspec.structs.replace(noted, marks=(mark,)))

    async def kept_below(self) -> int:
        """Copies of ledgers below this id are not given back. Raises PassAbortedError, OSError."""
        return (await self._read()).kept_below

    async def publish(self, report: PassReport) -> None:
        """Leave the mark as it is, and say how a pass went. Raises what the store raises."""
        found = await read_collection(self._store, self._bookie_id)
        await self._put(found, _mark_in(found), report)

    async def _put(
        self, found: Versioned[CollectionNode] | None, mark: str, report: PassReport | None
    ) -> None:
        path, data = (
            collection_path(self._bookie_id),
            encode_node(CollectionNode(mark=mark, report=report)),
        )
        try:
            if found is None:
                await self._store.create(path, data)
            else:
                await self._store.put(path, data, found.version)
        except ConflictError as error:
            raise PassAbortedError(
                Cause.METADATA,
                f"the note of this bookie was changed by another process: {error}",
            ) from error

    # -- the disk ----------------------------------------------------------------------------------

    async def _read(self) -> Noted:
        if self._noted is None:
            self._noted = await on_disk(self._on_disk, self._read_file)
        return self._noted

    def _read_file(self) -> Noted:
        return read_note(self._files, self._path)

    async def _note(self, noted: Noted) -> None:
        number = (await self._read()).number + 1
        noted = msgspec.structs.replace(noted, number=number)
        self._noted = None  # until it is known what the disk has
        await on_disk(self._on_disk, lambda: write_note(self._files, self._path, noted))
        self._noted = noted


def _mark_in(found: Versioned[CollectionNode] | None) -> str:
    """The mark in the metadata; empty if there is none."""
    return "" if found is None else found.value.mark


def _word(order: str) -> str:
    """Of one length, whatever token somebody gave an order."""
    return hashlib.sha256(order.encode()).hexdigest()[:16]


async def on_disk(run: OnDisk, work: Callable[[], T]) -> T:
    """What a piece of disk work returns. Damage that it finds is the disk's, and ends the pass."""
    results: list[T] = []
    try:
        await run(lambda: results.append(work()))
    except CorruptionError as error:
        raise PassAbortedError(Cause.DISK, str(error)) from error
    return results[0]
