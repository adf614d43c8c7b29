"""Makes a Spark type anew with other leaves, or other metadata of its columns. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import types as spark


def rebuilt(
    schema: spark.StructType,
    *,
    leaf: Callable[[spark.DataType], spark.DataType] = lambda data_type: data_type,
    metadata: Callable[[dict[str, object]], dict[str, object]] = lambda noted: noted,
) -> spark.StructType:
    """The schema with ``leaf`` of each type that holds no others, and ``metadata`` of each column,
    also inside of lists, maps and structs."""

    def of(data_type: spark.DataType) -> spark.DataType:
        if isinstance(data_type, spark.ArrayType):
            return spark.ArrayType(of(data_type.elementType), data_type.containsNull)
        if isinstance(data_type, spark.MapType):
            key, value = of(data_type.keyType), of(data_type.valueType)
            return spark.MapType(key, value, data_type.valueContainsNull)
        if isinstance(data_type, spark.StructType):
            return rebuilt(data_type, leaf=leaf, metadata=metadata)
        return leaf(data_type)

    return spark.StructType(
        [
            spark.StructField(each.name, of(each.dataType), each.nullable, metadata(each.metadata))
            for each in schema.fields
        ]
    )
