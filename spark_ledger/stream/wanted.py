"""What a read of a stream wants: its columns, and a filter of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_ledger.errors import ConfigurationError
from spark_ledger.stream.row_filter import RowFilter
from spark_ledger.stream.schema_registry import SchemaRegistry
from spark_ledger.stream.where import Where


async def columns_wanted(
    schemas: SchemaRegistry, schema: pa.Schema | None, columns: Sequence[str] | None
) -> pa.Schema:
    """The schema to read: as given, or these columns of the newest, or all of it."""
    if schema is not None and columns is not None:
        raise ConfigurationError("read: give schema or columns, not both")
    if (schema is not None and not len(schema)) or (columns is not None and not columns):
        raise ConfigurationError("read: name at least one column")
    config = schemas.config
    if columns is None:
        return config.schema if schema is None else schema
    if any(name not in config.schema.names for name in columns):
        config = await schemas.refresh()
    for name in columns:
        if name not in config.schema.names:
            raise ConfigurationError(
                f"stream {config.name!r} has no column {name!r}; "
                f"it has {', '.join(config.schema.names)}"
            )
    return pa.schema([config.schema.field(name) for name in columns])


def rows_wanted(schemas: SchemaRegistry, where: Where | None) -> RowFilter | None:
    """The filter of a read; None: all rows. Raises ConfigurationError as ``RowFilter``."""
    return None if where is None or where.is_all else RowFilter(where, schemas.config)
