"""Gives a commit's segments their schema versions, and the stream those that it lacks. Pure.

Decided anew for each attempt, from the configuration that the commit's transaction replaces: so a
schema version is part of the commit that needs it, or does not exist (rule T19).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_ledger.errors import MetadataRestoredError, RewriteError, SchemaMismatchError
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
    RewriteError if the rows fit once they are written again, and as ``_refuse_other_schemas``.
    """
    _refuse_other_schemas(config, segments)
    schemas = config.schemas
    placed = []
    try:
        for segment in segments:
            if segment.new_schema is not None:
                schemas, version = _with_layout(schemas, segment.new_schema, config.name)
                segment = segment.with_version(version)
            elif segment.written_in is not None:
                segment = replace(segment, written_in=None)  # a commit is kept for long
            placed.append(segment)
        if also is not None:
            merged = merge_schema(schemas[-1], also)
            schemas = schemas if merged is schemas[-1] else (*schemas, merged)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"stream {config.name!r}: {error}") from error
    after = config if schemas is config.schemas else replace(config, schemas=schemas)
    return after, tuple(placed)


def _refuse_other_schemas(config: StreamConfig, segments: Sequence[Segment]) -> None:
    """See that the stream has the schemas that segments were written in (rule T8): who wrote them
    may be another process, and have ended before ZooKeeper was restored.

    Raises MetadataRestoredError if it has another schema of the version, or none.
    """
    for segment in segments:
        if segment.new_schema is not None:
            continue  # the stream gets it, whatever its version (rule T19)
        version, written_in = segment.schema_version, segment.written_in
        if version < len(config.schemas) and (
            written_in is None or config.schemas[version].equals(written_in)
        ):
            continue
        has = "others in their place" if version < len(config.schemas) else "these no more"
        raise MetadataRestoredError(
            f"stream {config.name!r}: rows were written in version {version} of its columns, and "
            f"it has {has}: ZooKeeper was restored from a backup; nothing was committed. Run "
            "`ledger cluster restored`, and write the rows again"
        )


def _with_layout(
    schemas: tuple[pa.Schema, ...], layout: pa.Schema, stream_name: str
) -> tuple[tuple[pa.Schema, ...], int]:
    """The schemas with the one that entries were written in, and its version.

    The newest schema is the last and has all columns. If another commit has added columns that
    the entries lack, theirs gets a version for them alone, and the newest one follows it.
    """
    newest = schemas[-1]
    merged = merge_schema(newest, layout)
    _refuse_other_columns(newest, layout, stream_name)
    for version in range(len(schemas) - 1, -1, -1):
        if schemas[version].equals(layout):
            return schemas, version
    version = len(schemas)
    extended = (*schemas, layout)
    return (extended if merged.equals(layout) else (*extended, merged)), version


def _refuse_other_columns(newest: pa.Schema, layout: pa.Schema, stream_name: str) -> None:
    """Raises RewriteError if a column that both have is not the same in both."""
    known = {field.name.lower(): field for field in newest}
    for field in layout:
        same = known.get(field.name.lower(), field)
        # Inside of a type: what may be null. In metadata: what the values are, and for whom.
        if not same.with_name(field.name).equals(field, check_metadata=True):
            raise RewriteError(
                f"stream {stream_name!r}: another writer added column {field.name!r} first, and it "
                "is not quite the same, such as in what may be null; nothing was committed: write "
                "the rows again"
            )
