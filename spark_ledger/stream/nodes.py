"""Where a stream's metadata nodes are, and how to read them. No decisions.

streams/<name>/id-<stream id>       empty; exists as long as this very stream does (rule T7)
streams/<name>/config               what the stream is; every commit checks its version (rule T2)
streams/<name>/head                 how far it reaches; replaced by every commit
streams/<name>/sinks/<sink id>      newest transaction of a sink (rule T3)
streams/<name>/manifests            root of the manifests, which hold the sealed commits (rule T11)
streams/<name>/holds                who needs rows that retention would drop (rule T16)
streams/<name>/packs                where rows of small commits are as well (rule T23)
streams/<name>/commits/<b>          parent of a thousand commits, as long as one is not sealed
streams/<name>/commits/<b>/<n>      commit n, in bucket b = n // 1000; never changed (rule T5)
"""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import quote, unquote

from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.limits.metadata import METADATA_READS_IN_FLIGHT_MAX
from spark_ledger.metadata.base import Check, MetadataStore, Put
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import (
    Head,
    SinkRecord,
    StreamConfig,
    check_stream_name,
)
from spark_ledger.types import Versioned

logger = logging.getLogger(__name__)

STREAMS_ROOT: Final = "streams"
COMMITS_PER_BUCKET: Final = 1000
"""The children of one node fit into one answer of ZooKeeper."""


def bucket_of(commit: int) -> int:
    """The bucket of a commit."""
    return commit // COMMITS_PER_BUCKET


class StreamNodes:
    """The nodes of one stream in a metadata store."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self.store = store
        self.name = check_stream_name(name)
        self.root = f"{STREAMS_ROOT}/{name}"
        self.config_path = f"{self.root}/config"
        self.head_path = f"{self.root}/head"
        self.sinks_path = f"{self.root}/sinks"
        self.commits_path = f"{self.root}/commits"
        self.manifests_path = f"{self.root}/manifests"
        self.holds_path = f"{self.root}/holds"
        self.packs_path = f"{self.root}/packs"
        self._decoded: tuple[bytes, StreamConfig] | None = None
        """The configuration that was read last, and what it says. It is read for each micro-batch,
        and hardly ever changes; who compares schemas knows one that they have seen."""

    def identity_path(self, stream_id: str) -> str:
        """The node that this stream has and no later one of its name (rule T7).

        Every transaction checks that it exists. Versions would not tell the streams apart: those
        of a new stream's nodes begin at 0 again.
        """
        return f"{self.root}/id-{stream_id}"

    def sink_path(self, sink_id: str) -> str:
        """The node of a sink; ids may hold any character, paths may not."""
        return f"{self.sinks_path}/s-{quote(sink_id, safe='')}"

    def bucket_path(self, commit: int) -> str:
        """The parent of a commit's node."""
        return self.bucket_path_of(bucket_of(commit))

    def bucket_path_of(self, bucket: int) -> str:
        """The node of a bucket."""
        return f"{self.commits_path}/{bucket:07d}"

    def commit_path(self, commit: int) -> str:
        """The node of a commit."""
        return f"{self.commits_path}/{bucket_of(commit):07d}/{commit:010d}"

    async def config(self, *, latest: bool = False) -> Versioned[StreamConfig]:
        """The configuration, also of a stream that is being deleted; ``latest``: no older than this
        call. Raises NoSuchStreamError."""
        read = self.store.get_latest if latest else self.store.get
        try:
            node = await read(self.config_path)
        except NotFoundError as error:
            raise self.no_such_stream() from error
        known = self._decoded
        if known is None or known[0] != node.value:
            known = node.value, codec.decode_config(node.value, self.config_path)
            self._decoded = known
        return Versioned(known[1], node.version)

    async def replace_config(self, data: bytes, stream_id: str, version: int) -> None:
        """Replace the configuration if it has this version and is that of this stream.

        Raises ConflictError if it has another version, NotFoundError if the stream is gone,
        OutcomeUnknownError if the reply was lost.
        """
        check = Check(self.identity_path(stream_id), 0)
        await self.store.transaction([check, Put(self.config_path, data, version)])

    async def head(self, *, latest: bool = False) -> Versioned[Head]:
        """The head; ``latest``: no older than this call. Raises NoSuchStreamError."""
        read = self.store.get_latest if latest else self.store.get
        try:
            node = await read(self.head_path)
        except NotFoundError as error:
            raise self.no_such_stream() from error
        return Versioned(codec.decode_head(node.value, self.head_path), node.version)

    async def sink(self, sink_id: str) -> Versioned[SinkRecord] | None:
        """The record of a sink, or None if it never committed."""
        path = self.sink_path(sink_id)
        try:
            node = await self.store.get(path)
        except NotFoundError:
            return None
        return Versioned(codec.decode_sink(node.value, path), node.version)

    async def sinks(self) -> list[SinkRecord]:
        """The records of all sinks. One that cannot be read is left out: that sink is told."""
        names = await self.store.children(self.sinks_path)
        found: list[SinkRecord | None] = []
        for start in range(0, len(names), METADATA_READS_IN_FLIGHT_MAX):
            part = names[start : start + METADATA_READS_IN_FLIGHT_MAX]
            found += await run_all(self._readable_sink(unquote(name[2:])) for name in part)
        return [record for record in found if record is not None]

    async def _readable_sink(self, sink_id: str) -> SinkRecord | None:
        try:
            record = await self.sink(sink_id)
        except (CorruptionError, ConfigurationError) as error:  # damaged, or of a later format
            logger.warning("stream %r: the record of sink %r: %s", self.name, sink_id, error)
            return None
        return None if record is None else record.value

    def no_such_stream(self) -> NoSuchStreamError:
        """The error for a stream that does not exist (any more)."""
        return NoSuchStreamError(
            f"stream {self.name!r} does not exist; create it first, or check the name and the "
            "metadata URI"
        )
