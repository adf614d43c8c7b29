"""Arrow schemas as text for metadata nodes, long ones compressed. Pure."""

from __future__ import annotations

import base64
import zlib
from typing import Final

import pyarrow as pa

from spark_ledger.errors import CorruptionError
from spark_ledger.limits import KIB, MIB

SCHEMA_COMPRESSED_FROM_BYTES: Final = 4 * KIB
"""The size of a schema of about 60 columns. Smaller ones fit many times without compression."""
_COMPRESSED: Final = "zlib:"
_SCHEMA_BYTES_MAX: Final = 16 * MIB
"""What a reader decompresses at most, whatever the node says."""


def encode_schema(schema: pa.Schema) -> str:
    """An Arrow schema as text. A long one is compressed: its columns resemble each other."""
    data = schema.serialize().to_pybytes()
    if len(data) < SCHEMA_COMPRESSED_FROM_BYTES:
        return base64.b64encode(data).decode("ascii")
    return _COMPRESSED + base64.b64encode(zlib.compress(data)).decode("ascii")


def decode_schema(text: str, path: str) -> pa.Schema:
    """The Arrow schema in a text."""
    try:
        data = base64.b64decode(text.removeprefix(_COMPRESSED), validate=True)
        if text.startswith(_COMPRESSED):
            data = _unpacked(data)
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (ValueError, OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise CorruptionError(f"metadata node {path}: damaged Arrow schema: {error}") from error


def _unpacked(data: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(data, _SCHEMA_BYTES_MAX)
    if not unpacking.eof:
        raise ValueError("it is cut off, or too large")
    return unpacked
