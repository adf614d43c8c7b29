"""The schema versions of a stream as this process knows them, and which one takes a batch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_ledger.errors import (
    ConflictError,
    CorruptionError,
    NotFoundError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.schema import Projection, canonical_schema, merge_schema, mismatch
from spark_ledger.stream.model import StreamConfig
from spark_ledger.stream.nodes import StreamNodes
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


class SchemaRegistry:
    """The configuration of one stream. It is read again when it turns out to be outdated."""

    def __init__(self, nodes: StreamNodes, config: Versioned[StreamConfig]) -> None:
        self._nodes = nodes
        self._config = config
        self._last: tuple[pa.Schema, bool, Fit] | None = None

    @property
    def versioned(self) -> Versioned[StreamConfig]:
        """The configuration with the version of its node."""
        return self._config

    @property
    def config(self) -> StreamConfig:
        """The configuration as it was last read."""
        return self._config.value

    async def refresh(self) -> StreamConfig:
        """Read the configuration again. Raises NoSuchStreamError if the stream was deleted, also
        if another stream has its name now (rule T7)."""
        found = await self._nodes.config()
        if found.value.deleted or found.value.stream_id != self.config.stream_id:
            raise self._nodes.no_such_stream()
        assert len(found.value.schemas) >= len(self.config.schemas) or (
            found.version < self._config.version  # from a metadata server that lags
        ), "schema versions only grow (rule T8)"
        self._config = found
        return found.value

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

    async def fit(self, schema: pa.Schema, *, merge: bool) -> Fit:
        """The version that takes batches of an Arrow schema; ``merge`` adds new columns first.

        Raises SchemaMismatchError that names the field.
        """
        if self._last is not None and self._last[1] == merge and self._last[0].equals(schema):
            return self._last[2]
        offered = canonical_schema(schema)
        fit = self._find(schema, offered)
        if fit is None:
            await self.refresh()
            fit = self._find(schema, offered)
        if fit is None and merge:
            stored = await self.merge(offered)
            fit = Fit(self.config.schemas.index(stored), stored, Projection(schema, stored))
        if fit is None:
            reason = mismatch(self.config.schema, offered)
            raise SchemaMismatchError(f"stream {self.config.name!r}: {reason}")
        self._last = (schema, merge, fit)
        return fit

    def _find(self, schema: pa.Schema, offered: pa.Schema) -> Fit | None:
        """The newest version with exactly these columns, or None. A writer that does not have a
        column added since goes on with the version before it."""
        for version in range(self.config.schema_version, -1, -1):
            stored = self.config.schemas[version]
            if mismatch(stored, offered) is None:
                return Fit(version, stored, Projection(schema, stored))
        return None

    async def merge(self, offered: pa.Schema) -> pa.Schema:
        """Add the columns of a canonical schema that the stream lacks; the newest schema then.

        The configuration is replaced in the version that was read, so of two processes that add
        columns one sees those of the other first (rule T8). Raises SchemaMismatchError if a column
        of both has different types.
        """
        while True:
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
