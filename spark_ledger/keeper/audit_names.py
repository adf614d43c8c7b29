"""Reads what all streams name, for an audit: a step at a time, past errors (rule K9).

What a commit names never changes. So what was read stays true whatever happens meanwhile, to this
keeper or the next one, and only what came behind it has to be read again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    DataLossError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.keeper.nodes import (
    NAMES_PATH,
    AuditNames,
    NamedPage,
    StreamRead,
    named_page_path,
    read_audit_names,
    read_named_page,
)
from spark_ledger.keeper.unlisted import NamedIds
from spark_ledger.limits.keeper import AUDIT_ATTEMPTS, AUDIT_ATTEMPTS_LOST, AUDIT_SAVED_STREAMS
from spark_ledger.metadata.base import Check, Create, Delete, Put
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.model import Head
from spark_ledger.stream.nodes import STREAMS_ROOT, StreamNodes
from spark_ledger.stream.retention.names import names_of

logger = logging.getLogger(__name__)


class Step(Enum):
    """What a step says of the next one."""

    MORE = "more"
    PAUSE = "pause"
    """More, but not at once: what failed now would fail again."""
    DONE = "done"


class WholeStream(NamedTuple):
    """A stream that was read to its end."""

    name: str
    end: int
    """The commit behind the last one that was read."""


@dataclass(slots=True)
class _Place:
    """How far one stream is read."""

    name: str
    stream_id: str
    nodes: StreamNodes
    log: CommitLog
    head: Head
    """Read once: a stream that is written to meanwhile has an end all the same."""
    behind: int


@dataclass(slots=True)
class NamesRead:
    """What one audit has read so far."""

    begun_s: float
    named: NamedIds = field(default_factory=NamedIds)
    whole: dict[str, WholeStream] = field(default_factory=dict)
    """By stream id."""
    parts: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Streams that were read in part, by id: their names, and the commit behind."""
    unread: list[str] = field(default_factory=list)


class NamesReader:
    """Reads the names of all streams. Belongs to the loop of the client."""

    def __init__(self, client: LedgerClient, read: NamesRead) -> None:
        self._client = client
        self._store = client.store
        self.read = read
        self._left: deque[str] | None = None
        self._place: _Place | None = None
        self._failed: dict[str, int] = {}
        """How often in a row it failed to read on in a stream, by name."""

    async def step(self) -> Step:
        """Read the names in a thousand commits. After an error the same step is due again.

        Raises what the metadata store raises.
        """
        if self._left is None:
            self._left = deque(await self._store.children(STREAMS_ROOT))
        if not self._left:
            return Step.DONE
        name = self._left[0]
        try:
            is_whole = await self._read_on(name)
        except NoSuchStreamError:
            is_whole = True
        except (MetadataUnavailableError, MetadataRestoredError):
            raise
        except LedgerError as error:
            return self._failing(name, error)
        self._failed.pop(name, None)
        if is_whole:
            self._next_stream()
        return Step.MORE

    def _next_stream(self) -> None:
        assert self._left, "one was read"
        self._left.popleft()
        self._place = None

    def _failing(self, name: str, error: LedgerError) -> Step:
        """Try the others first, and then this one again; leave it if that has no end."""
        assert self._left, "one was read"
        failed = self._failed[name] = self._failed.get(name, 0) + 1
        lost = isinstance(error, DataLossError | CorruptionError)
        self._next_stream()
        if failed < (AUDIT_ATTEMPTS_LOST if lost else AUDIT_ATTEMPTS):
            self._left.append(name)
            logger.info("the audit reads stream %r again later: %s", name, error)
        else:
            self.read.unread.append(name)
            logger.warning("the audit leaves the ledgers of stream %r alone: %s", name, error)
        return Step.PAUSE

    async def _read_on(self, name: str) -> bool:
        """Read a part of a stream; whether that was the last one."""
        place = self._place or await self._open(name)
        if place is None:
            return True
        self._place = place
        async with aclosing(names_of(place.nodes, place.log, place.head, place.behind)) as parts:
            async for part in parts:
                self.read.named.add(part.ledgers)
                place.behind = part.behind
                self.read.parts[place.stream_id] = name, place.behind
                if place.behind < place.head.next_commit:
                    return False
        del self.read.parts[place.stream_id]
        self.read.whole[place.stream_id] = WholeStream(name, place.behind)
        return True

    async def _open(self, name: str) -> _Place | None:
        """Where to read on in a stream; None if there is nothing to read."""
        nodes = StreamNodes(self._store, name)
        config = (await nodes.config()).value
        if config.deleted or config.stream_id in self.read.whole:
            return None  # its deletion is finished, and then it is gone
        head = (await nodes.head(latest=True)).value
        if head.stream_id != config.stream_id:
            return None  # another one of the name by now: the next audit reads it
        log = CommitLog(self._client, nodes, config.stream_id)
        _, behind = self.read.parts.get(config.stream_id, ("", 0))
        return _Place(
            name, config.stream_id, nodes, log, head, behind=min(behind, head.next_commit)
        )


class SavedNames:
    """What an audit has read, in nodes: the keeper that takes over goes on from it.

    The pages are written first and only ever gain names; the node that says how far they go is
    written last, and names all of them. So whoever finds all pages that it names has no name less.
    """

    def __init__(self, client: LedgerClient, guard: Callable[[], Check]) -> None:
        self._store = client.store
        self._guard = guard

    async def load(self, begun_s: float) -> NamesRead:
        """What was read for the audit that began then; nothing of it if a part is missing."""
        read = NamesRead(begun_s)
        try:
            saved = await read_audit_names(self._store)
            is_whole = saved is not None and await self._has_pages(saved.value, read)
        except (CorruptionError, ConfigurationError) as error:
            logger.warning("the audit reads all streams again: %s", error)
            saved, is_whole = None, False
        if saved is None or not is_whole:
            # Who begins again writes pages with less in them: nobody may believe the old place.
            await self.forget()
            return NamesRead(begun_s)
        for each in saved.value.streams:
            if each.is_whole:
                read.whole[each.stream_id] = WholeStream(each.name, each.behind)
            else:
                read.parts[each.stream_id] = each.name, each.behind
        return read

    async def _has_pages(self, saved: AuditNames, read: NamesRead) -> bool:
        """Read all pages of names; False if one is missing, or is of another audit."""
        if saved.begun_s != read.begun_s:
            return False
        for number in saved.pages:
            page = await read_named_page(self._store, number)
            if page is None or page.value.begun_s != read.begun_s:
                return False
            if not read.named.unpack(number, page.value.ids):
                return False
        return True

    async def save(self, read: NamesRead) -> None:
        """Write down what was read since the last time. Raises ConflictError if another keeper
        does it too."""
        before = await self._before()
        for number in sorted(read.named.changed):
            await self._save_page(number, read)
            read.named.changed.discard(number)
        whole = [(i, name, behind, True) for i, (name, behind) in read.whole.items()]
        parts = [(i, name, behind, False) for i, (name, behind) in read.parts.items()]
        most = sorted(whole + parts, key=lambda each: -each[2])[:AUDIT_SAVED_STREAMS]
        node = AuditNames(
            begun_s=read.begun_s,
            streams=tuple(
                StreamRead(stream_id=i, name=name, behind=behind, is_whole=is_whole)
                for i, name, behind, is_whole in most
            ),
            pages=tuple(read.named.numbers()),
        )
        change = Put(NAMES_PATH, encode_node(node), before)
        await self._store.transaction([self._guard(), change])

    async def _before(self) -> int:
        """The version of the node that says how far the names go; it is made if it is missing."""
        with contextlib.suppress(NotFoundError):
            return (await self._store.get_latest(NAMES_PATH)).version
        with contextlib.suppress(ConflictError):
            await self._store.create(NAMES_PATH, encode_node(AuditNames()))
        return (await self._store.get_latest(NAMES_PATH)).version

    async def _save_page(self, number: int, read: NamesRead) -> None:
        data = encode_node(NamedPage(begun_s=read.begun_s, ids=read.named.packed(number)))
        path = named_page_path(number)
        try:
            before = (await self._store.get_latest(path)).version
        except NotFoundError:
            await self._store.transaction([self._guard(), Create(path, data)])
        else:
            await self._store.transaction([self._guard(), Put(path, data, before)])

    async def forget(self) -> None:
        """Remove all of it: first the place, then the pages that it stands on."""
        try:
            before = await self._store.get_latest(NAMES_PATH)
        except NotFoundError:
            return
        nothing = encode_node(AuditNames())
        if before.value != nothing:
            await self._store.transaction([self._guard(), Put(NAMES_PATH, nothing, before.version)])
        for name in await self._store.children(NAMES_PATH):
            with contextlib.suppress(NotFoundError):
                await self._store.transaction([self._guard(), Delete(f"{NAMES_PATH}/{name}")])
