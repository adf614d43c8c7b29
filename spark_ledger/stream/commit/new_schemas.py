"""Gives a commit's segments their schema versions, and the stream those that it lacks. Pure.

Decided anew for each attempt, from the configuration that the commit's transaction replaces: so a
schema version is part of the commit that needs it, or does not exist (rule T19).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_ledger.errors import RewriteError, SchemaMismatchError
from spark_ledger.stream.format.schema import merge_schema
from spark_ledger.stream.model import Segment, StreamConfig

if TYPE_CHECKING:
    import pyarrow as pa


def with_new_schemas(
    config: StreamConfig, segments: Sequence[Segment], also: pa.Schema | None
) -> tuple[StreamConfig, tuple[Segment, ...]]:
    """The configuration with the schemas of the segments, and the segments with its versions.

    ``also`` has columns that the newest schema gets, whether segments have them or not. The same
    configuration is returned if nothing is new.

    Raises SchemaMismatchError if the stream has a column of the name and another type by now,
    RewriteError if the rows fit once they are written again.
    """
    schemas = config.schemas
    placed = []
    try:
        for segment in segments:
            if segment.new_schema is not None:
                schemas, version = _with_layout(schemas, segment.new_schema, config.name)
                segment = segment.with_version(version)
            placed.append(segment)
        if also is not None:
            merged = merge_schema(schemas[-1], also)
            schemas = schemas if merged is schemas[-1] else (*schemas, merged)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"stream {config.name!r}: {error}") from error
    after = config if schemas is config.schemas else replace(config, schemas=schemas)
    return after, tuple(placed)


def _with_layout(
    schemas: tuple[pa.Schema, ...], layout: pa.Schema, stream_name: str
) -> tuple[tuple[pa.Schema, ...], int]:
    """The schemas with the one that entries were written in, and its version.

    The newest schema is the last and has all columns. If another commit has added columns that
    the entries lack, theirs gets a version for them alone, and the newest one follows it.
    """
    for version in range(len(schemas) - 1, -1, -1):
        if schemas[version].equals(layout):
            return schemas, version
    newest = schemas[-1]
    merged = merge_schema(newest, layout)
    for field in layout:
        index = newest.get_field_index(field.name)
        if index >= 0 and not newest.field(index).equals(field):
            raise RewriteError(  # inside of a type: what may be null
                f"stream {stream_name!r}: another writer added column {field.name!r} first, and "
                "lets other parts of it be null; nothing was committed: write the rows again"
            )
    version = len(schemas)
    extended = (*schemas, layout)
    return (extended if merged.equals(layout) else (*extended, merged)), version
