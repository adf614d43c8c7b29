"""Where a stream's metadata nodes are, and how to read them. No decisions.

streams/<name>/id-<stream id>       empty; there as long as this stream is, and no other of its name
streams/<name>/config               what the stream is; its version guards every commit
streams/<name>/head                 how far it reaches; replaced by every commit
streams/<name>/sinks/<sink id>      newest transaction of a sink
streams/<name>/commits/<b>          summary of the bucket's first commits, or empty; see ``summary``
streams/<name>/commits/<b>/<n>      commit n, in bucket b = n // 1000; never changed
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote, unquote

from spark_ledger.errors import ConfigurationError, NoSuchStreamError, NotFoundError
from spark_ledger.metadata.base import Check, MetadataStore, Put
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.codec import SegmentListPointer
from spark_ledger.stream.model import (
    SINK_ID_CHARS_MAX,
    Commit,
    Head,
    SinkRecord,
    StreamConfig,
    check_stream_name,
)
from spark_ledger.types import Versioned

STREAMS_ROOT = "streams"
COMMITS_PER_BUCKET = 1000
"""Children of one node stay listable in one ZooKeeper answer."""

COMMITS_PER_SUMMARY_STEP = 25
"""A bucket's summary grows by so many commits at a time: a reader gets fewer than these singly,
and few enough commits wait for the summary to be written."""


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

    def identity_path(self, stream_id: str) -> str:
        """The node that only this stream has, not a later one of its name: versions of nodes
        begin at 0 again, so every transaction checks that it is there."""
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
        return f"{self.bucket_path(commit)}/{commit:010d}"

    async def config(self) -> Versioned[StreamConfig]:
        """The configuration, also of a stream that is being deleted."""
        try:
            node = await self.store.get(self.config_path)
        except NotFoundError as error:
            raise self.no_such_stream() from error
        return Versioned(codec.decode_config(node.value, self.config_path), node.version)

    async def replace_config(self, data: bytes, stream_id: str, version: int) -> None:
        """Set the configuration of one stream in one version, all or nothing.

        Raises ``ConflictError`` (another version), ``NotFoundError`` (not that stream any more),
        ``OutcomeUnknownError``.
        """
        check = Check(self.identity_path(stream_id), 0)
        await self.store.transaction([check, Put(self.config_path, data, version)])

    async def head(self) -> Versioned[Head]:
        """The head."""
        try:
            node = await self.store.get(self.head_path)
        except NotFoundError as error:
            raise self.no_such_stream() from error
        return Versioned(codec.decode_head(node.value, self.head_path), node.version)

    async def sink(self, sink_id: str) -> Versioned[SinkRecord] | None:
        """The record of a sink, or None when it never committed."""
        path = self.sink_path(sink_id)
        try:
            node = await self.store.get(path)
        except NotFoundError:
            return None
        return Versioned(codec.decode_sink(node.value, path), node.version)

    async def sinks(self) -> list[SinkRecord]:
        """The records of all sinks."""
        names = await self.store.children(self.sinks_path)
        found = await asyncio.gather(*(self.sink(unquote(name[2:])) for name in names))
        return [record.value for record in found if record is not None]

    async def commit(self, number: int) -> tuple[Commit, SegmentListPointer | None]:
        """A commit node. Raises ``NotFoundError`` when there is none."""
        path = self.commit_path(number)
        node = await self.store.get(path)
        return codec.decode_commit(node.value, number, path)

    def no_such_stream(self) -> NoSuchStreamError:
        """The error for a stream that does not exist (any more)."""
        return NoSuchStreamError(
            f"stream {self.name!r} does not exist; create it first, or check the name and the "
            "metadata URI"
        )


def check_transaction_id(transaction_id: int) -> int:
    """The id, if it may be a transaction's; otherwise ``ConfigurationError``."""
    if (
        not isinstance(transaction_id, int)
        or isinstance(transaction_id, bool)
        or not -(2**63) <= transaction_id < 2**63
    ):
        raise ConfigurationError(
            f"transaction id {transaction_id!r}: use a whole number of at most 64 bits"
        )
    return transaction_id


def check_sink_id(sink_id: str) -> str:
    """The id, if it may be a sink's; otherwise ``ConfigurationError``."""
    if not _is_text(sink_id) or not sink_id:
        raise ConfigurationError(
            f"sink id {sink_id!r}: use a text of 1 to {SINK_ID_CHARS_MAX} characters"
        )
    return sink_id


def check_run_id(run_id: str) -> str:
    """The id, if it may be a run's; otherwise ``ConfigurationError``. It may be empty."""
    if not _is_text(run_id):
        raise ConfigurationError(
            f"run id {run_id!r}: use a text of at most {SINK_ID_CHARS_MAX} characters, or leave it "
            "out"
        )
    return run_id


def _is_text(value: object) -> bool:
    """Whether a metadata node can hold it: anything else would make the node unreadable."""
    if not isinstance(value, str) or len(value) > SINK_ID_CHARS_MAX:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)  # no UTF-8 has surrogates
