"""The schema versions of a stream as this process knows them, and which one takes a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.schema import (
    Projection,
    canonical_schema,
    check_covers,
    merge_schema,
    mismatch,
)
from spark_ledger.stream.model import Segment, StreamConfig
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.types import Versioned

if TYPE_CHECKING:
    import pyarrow as pa

STALE_READ_RETRIES: Final = 40
STALE_READ_DELAY_S: Final = 0.05
"""Our metadata server may lag behind the one that another process wrote to. A version that an entry
names is looked for during two seconds before it counts as missing."""


class Fit(NamedTuple):
    """The schema version that takes batches of some schema, and the cast to it."""

    schema_version: int
    schema: pa.Schema
    projection: Projection
    is_new: bool = False
    """The stream may lack this version: the commit adds it (rule T19)."""


class _LastFit(NamedTuple):
    """What was asked for last, and the answer."""

    schema: pa.Schema
    merge: bool | pa.Schema
    base: pa.Schema
    fit: Fit

    def is_for(self, schema: pa.Schema, merge: bool | pa.Schema, base: pa.Schema) -> bool:
        return self.merge is merge and self.base is base and self.schema.equals(schema)


class SchemaRegistry:
    """The configuration of one stream. It is read again when it turns out to be outdated."""

    def __init__(self, nodes: StreamNodes, config: Versioned[StreamConfig]) -> None:
        self._nodes = nodes
        self._config = config
        self._reading = OneConnection(nodes.store)
        self._last: _LastFit | None = None

    @property
    def reading(self) -> OneConnection:
        """Over which the configuration was read."""
        return self._reading

    @property
    def versioned(self) -> Versioned[StreamConfig]:
        """The configuration with the version of its node."""
        return self._config

    @property
    def config(self) -> StreamConfig:
        """The configuration as it was last read."""
        return self._config.value

    async def of_now(self) -> Versioned[StreamConfig]:
        """The configuration, read again if it was read over another connection: what is decided
        from it is sent over this one (rule T2). Raises as ``refresh``."""
        if self._reading.has_ended:
            await self.refresh()
        return self._config

    async def refresh(self, *, latest: bool = False) -> StreamConfig:
        """Read the configuration again; ``latest``: none older than this call.

        Raises NoSuchStreamError if the stream was deleted, also if another stream has its name now
        (rule T7), and MetadataRestoredError if it has not the schemas that this process has used.
        """
        while True:
            reading, is_new = OneConnection(self._nodes.store), self._reading.has_ended
            # Over a new connection an older one would look restored.
            found = await self._nodes.config(latest=latest or is_new)
            if not reading.has_ended:
                break
        if found.value.deleted or found.value.stream_id != self.config.stream_id:
            raise self._nodes.no_such_stream()
        self._check_grown(found, is_new)
        self._config, self._reading = found, reading
        return found.value

    def _check_grown(self, found: Versioned[StreamConfig], is_new: bool) -> None:
        """See that schema versions still mean what they did (rule T8): a restored store may have
        given the number of one to another schema. ``is_new``: over a new connection."""
        ours, theirs = self.config.schemas, found.value.schemas
        if ours is theirs:
            return
        is_shorter = len(theirs) < len(ours)
        if any(not own.equals(other) for own, other in zip(ours, theirs, strict=False)) or (
            is_shorter and is_new
        ):
            raise MetadataRestoredError(
                f"stream {self.config.name!r} has not the columns that this process has seen, in "
                "the same order: ZooKeeper was restored from a backup. Run `ledger cluster "
                "restored`, and start this process anew to use the stream as it is now"
            )
        assert not is_shorter or found.version < self._config.version, (  # a server that lags
            "schema versions only grow (rule T8)"
        )

    async def schema(self, version: int) -> pa.Schema:
        """The schema of a version. Raises CorruptionError if the stream has no such version."""
        for _ in range(STALE_READ_RETRIES):
            if version < len(self.config.schemas):
                return self.config.schemas[version]
            await self.refresh()
            if version >= len(self.config.schemas):
                await asyncio.sleep(STALE_READ_DELAY_S)
        raise CorruptionError(
            f"stream {self.config.name!r}: an entry has schema version {version}, but the newest "
            f"is {self.config.schema_version}"
        )

    async def look_for(self, segments: Sequence[Segment]) -> None:
        """Read the newest configuration if this process does not know a version that another one
        has written rows in. Raises as ``refresh``, and ConfigurationError if they were written for
        another stream (rule T7)."""
        for segment in segments:
            if segment.stream_id not in ("", self.config.stream_id):
                await self.refresh(latest=True)  # the rows may be of now, and this handle old
                raise ConfigurationError(
                    f"rows of ledger {segment.ledger_id} were written for another stream, which "
                    "gives back their space, or for a deleted one of this name: write them anew"
                )
        known = (segment.schema_version for segment in segments if segment.new_schema is None)
        if max(known, default=0) >= len(self.config.schemas):
            await self.refresh(latest=True)

    def grown(self, config: Versioned[StreamConfig]) -> None:
        """Our commit has added schema versions: this is the configuration now (rule T19)."""
        assert len(config.value.schemas) > len(self.config.schemas), "that is what it did"
        self._config = config

    async def fit(
        self, schema: pa.Schema, *, merge: bool | pa.Schema, pending: Sequence[Fit] = ()
    ) -> Fit:
        """The version that takes batches of an Arrow schema. Nothing is written here.

        With ``merge`` columns that the stream lacks make a new version, which the commit adds, and
        columns that the data lack are null. ``merge`` as a schema says what the new columns are.
        ``pending`` are the new versions that the same micro-batch has needed before.

        Raises SchemaMismatchError that names the field, and as ``refresh``.
        """
        # Whoever commits the rows refuses those of another list (rule T8). This process, which has
        # it, would write the same again. Without the store it can write on.
        with suppress(MetadataUnavailableError):
            await self.of_now()
        last, base = self._last, self._base(pending)
        if last is not None and last.is_for(schema, merge, base):
            return last.fit
        offered = canonical_schema(schema)
        fit = self._find(schema, offered)
        if fit is None:
            await self.refresh()
            fit = self._find(schema, offered)
            base = self._base(pending)
        if fit is None and merge is not False:
            wanted = offered if merge is True else merge
            fit = self._merged(schema, offered, wanted, base, pending)
        if fit is None:
            reason = mismatch(self.config.schema, offered)
            raise SchemaMismatchError(f"stream {self.config.name!r}: {reason}")
        self._last = _LastFit(schema, merge, base, fit)
        return fit

    def _base(self, pending: Sequence[Fit]) -> pa.Schema:
        """The schema to which new columns are added."""
        return pending[-1].schema if pending else self.config.schema

    def _merged(
        self,
        schema: pa.Schema,
        offered: pa.Schema,
        wanted: pa.Schema,
        base: pa.Schema,
        pending: Sequence[Fit],
    ) -> Fit:
        """The fit with the columns of ``wanted``, and the number that its version will have if no
        other commit adds one first."""
        try:
            merged = merge_schema(base, wanted)
            check_covers(merged, offered)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(f"stream {self.config.name!r}: {error}") from error
        projection = Projection(schema, merged)
        if merged is not base:
            following = pending[-1].schema_version + 1 if pending else 0
            version = max(following, len(self.config.schemas))
            return Fit(version, merged, projection, is_new=True)
        if pending:
            return pending[-1]._replace(projection=projection)
        return Fit(self.config.schema_version, merged, projection)

    def _find(self, schema: pa.Schema, offered: pa.Schema) -> Fit | None:
        """The newest version with exactly these columns, or None. A writer that does not have a
        column added since goes on with the version before it."""
        for version in range(self.config.schema_version, -1, -1):
            stored = self.config.schemas[version]
            if mismatch(stored, offered) is None:
                return Fit(version, stored, Projection(schema, stored))
        return None

    async def merge(self, offered: pa.Schema) -> pa.Schema:
        """Add the columns of a canonical schema that the stream lacks, at once and without a
        commit; the newest schema then.

        The configuration is replaced in the version that was read, so of two processes that add
        columns one sees those of the other first (rule T8). Raises SchemaMismatchError if a column
        of both has different types.
        """
        while True:
            await self.of_now()
            merged = merge_schema(self.config.schema, offered)
            if merged is self.config.schema:
                return merged
            after = replace(self.config, schemas=(*self.config.schemas, merged))
            data = codec.encode_config(after)
            try:
                await self._nodes.replace_config(data, after.stream_id, self._config.version)
            except (ConflictError, NotFoundError, OutcomeUnknownError):
                await self.refresh()  # another process changed it, or we did and got no reply
                continue
            self._config = Versioned(after, self._config.version + 1)
            return merged
