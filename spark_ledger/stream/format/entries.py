"""Entries of a stream: record batches to payload bytes and back. Pure.

    offset  bytes  field
    0       4      magic and format: b"SLE1"
    4       2      flags, big endian as all numbers here; none is defined, all must be 0
    6       2      compression of the buffers: 0 none, 1 LZ4 frame, 2 ZSTD
    8       4      schema version
    12      4      rows
    16      n      Arrow IPC record batch message, without schema

The bytes behind the header are in Arrow's own encapsulated message format. The schema is in the
stream's configuration, once, and not in every entry (rule T8). Sixteen bytes keep Arrow's buffers
aligned.

Entries have a digest, so damage is found before it gets here. Still nothing here trusts a length:
a malicious writer must not make a reader crash or run out of memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.types as pat

from spark_ledger.errors import CorruptionError, EntryTooLargeError
from spark_ledger.limits import KIB, MIB
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.stream.format.arrow_types import concat_batches, map_type
from spark_ledger.stream.format.ipc_message import check_record_batch_message
from spark_ledger.stream.model import Compression
from spark_ledger.stream.statistics import EntryFacts

HEADER: Final = struct.Struct(">4sHHII")
HEADER_BYTES: Final = HEADER.size
MAGIC: Final = b"SLE1"
_END_OF_STREAM_BYTES: Final = 8
"""What Arrow writes at the end of an IPC stream. Before it an empty one has the schema message."""

_CODES: Final = {Compression.NONE: 0, Compression.LZ4: 1, Compression.ZSTD: 2}

DECODED_BYTES_MAX: Final = 256 * MIB
"""Arrow bytes of one entry after decompression, at most: a reader needs memory for them."""

_READ_BYTES_MAX: Final = DECODED_BYTES_MAX + 1 * MIB
"""What a reader takes. Writers took what Arrow calls the size of a batch for the bytes, and it
counts some of each column less: such rows were committed."""

_DECODED_BY_THREADS_BYTES_MIN: Final = 64 * KIB
"""From this size on Arrow may decompress columns at the same time."""

_NO_THREADS: Final = pa.ipc.IpcReadOptions(use_threads=False)

ENCODE_BYTES_AT_ONCE: Final = 8 * MIB
"""Arrow bytes a caller should hand over in one ``add`` (see ``in_pieces``)."""


class EncodedEntry(NamedTuple):
    """An entry ready to append."""

    payload: bytes
    rows: int
    facts: EntryFacts | None = None
    """What its segment's statistics are made from, of a stream that declares columns."""


class EntryHeader(NamedTuple):
    """What the first 16 bytes say."""

    schema_version: int
    rows: int
    compression: int


class EntryEncoder:
    """Turns batches of one schema version into entries of about ``entry_bytes`` Arrow bytes.

    ``add`` returns entries that are full, ``flush`` the rest. Large batches are cut and small ones
    joined; less than ``entry_bytes`` of them are held for that. Where to cut follows from the mean
    row size of a batch, and a slice that is still too large is halved, so no work is done per row.
    """

    def __init__(
        self,
        schema: pa.Schema,
        schema_version: int,
        *,
        compression: Compression,
        entry_bytes: int,
        describe: Callable[[pa.RecordBatch], EntryFacts] | None = None,
    ) -> None:
        self._describe = describe
        self.schema = schema
        self.schema_version = schema_version
        self._code = _CODES[compression]
        codec = None if compression is Compression.NONE else compression.value
        self._options = pa.ipc.IpcWriteOptions(compression=codec)
        self._prefix_bytes = self._schema_message_bytes()
        self._entry_bytes = entry_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._rows_done = 0
        """Rows in entries made so far: errors name the row that does not fit."""

    def _schema_message_bytes(self) -> int:
        sink = pa.BufferOutputStream()
        pa.ipc.RecordBatchStreamWriter(sink, self.schema, options=self._options).close()
        return int(sink.tell()) - _END_OF_STREAM_BYTES

    def add(self, batch: pa.RecordBatch) -> list[EncodedEntry]:
        """Take a batch of the schema; the entries that are full.

        Raises EntryTooLargeError that names the row.
        """
        assert batch.schema.equals(self.schema, check_metadata=False), "the caller has cast it"
        if batch.num_rows == 0:
            return []
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes < self._entry_bytes:
            return []
        return self._encode_held(keep_rest=True)

    def flush(self) -> list[EncodedEntry]:
        """The entries of all rows that are held. Raises as ``add``."""
        return self._encode_held(keep_rest=False) if self._held else []

    def _encode_held(self, *, keep_rest: bool) -> list[EncodedEntry]:
        held, self._held, self._held_bytes = self._held, [], 0
        slices = list(self._slices(held))
        last = slices[-1]
        if keep_rest and len(slices) > 1 and last.nbytes < self._entry_bytes // 2:
            self._held, self._held_bytes = [last], last.nbytes
            slices.pop()
        entries = self._write(slices, self._rows_done)
        for entry in entries:
            self._rows_done += entry.rows
        return entries

    def _slices(self, held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The held batches as slices of about ``entry_bytes``: small neighbours joined, large
        batches cut."""
        limit = self._entry_bytes + self._entry_bytes // 2
        small: list[pa.RecordBatch] = []
        small_bytes = 0
        for batch in held:
            rest, rest_bytes = batch, batch.nbytes
            if small and small_bytes + rest_bytes > limit:
                if small_bytes < self._entry_bytes // 2:  # fill up with the first rows of the next
                    room = self._entry_bytes - small_bytes
                    rows = max(1, room * rest.num_rows // rest_bytes)
                    small.append(rest.slice(0, rows))
                    rest = rest.slice(rows)
                    rest_bytes = rest.nbytes
                yield from self._halve(concat_batches(small))
                small, small_bytes = [], 0
            if rest_bytes > limit:
                yield from self._cut(rest, rest_bytes)
            elif rest.num_rows > 0:
                small.append(rest)
                small_bytes += rest_bytes
        if small:
            yield concat_batches(small) if len(small) > 1 else small[0]

    def _cut(self, batch: pa.RecordBatch, size_bytes: int) -> Iterator[pa.RecordBatch]:
        """A large batch in slices; one with uneven rows is halved until it fits or is one row."""
        pieces = -(-size_bytes // self._entry_bytes)
        step = max(1, -(-batch.num_rows // pieces))
        for offset in range(0, batch.num_rows, step):
            piece = batch.slice(offset, step)
            yield from self._halve(piece)

    def _halve(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if piece.nbytes <= 2 * self._entry_bytes or piece.num_rows == 1:
            yield piece
            return
        middle = piece.num_rows // 2
        yield from self._halve(piece.slice(0, middle))
        yield from self._halve(piece.slice(middle))

    def _write(self, slices: Iterable[pa.RecordBatch], first_row: int) -> list[EncodedEntry]:
        """Encode slices one after the other into one buffer, and cut it into entries."""
        sink = pa.BufferOutputStream()
        writer = pa.ipc.RecordBatchStreamWriter(sink, self.schema, options=self._options)
        bounds: list[tuple[int, int, pa.RecordBatch]] = []
        start = self._prefix_bytes  # the writer puts the schema before the first batch
        for piece in slices:
            writer.write_batch(piece)
            bounds.append((start, sink.tell(), piece))
            start = sink.tell()
        buffer = sink.getvalue()
        entries: list[EncodedEntry] = []
        for start, end, piece in bounds:
            message = buffer.slice(start, end - start)
            if not self._fits(message, piece):
                entries += self._split(piece, max(message.size, piece.nbytes), first_row)
            else:
                header = HEADER.pack(MAGIC, 0, self._code, self.schema_version, piece.num_rows)
                payload = b"".join((header, message))
                facts = None if self._describe is None else self._describe(piece)
                entries.append(EncodedEntry(payload, piece.num_rows, facts))
            first_row += piece.num_rows
        return entries

    def _fits(self, message: pa.Buffer, piece: pa.RecordBatch) -> bool:
        """Whether a message is small enough for an entry, and for whoever reads it."""
        if HEADER_BYTES + message.size > ENTRY_PAYLOAD_BYTES_MAX:
            return False
        # Arrow writes up to some 200 bytes more for a column than it counts here, so only a
        # reader's own look is exact. Of nearly all entries there is nothing to look at.
        if piece.nbytes <= DECODED_BYTES_MAX // 2:
            return True
        reason = check_record_batch_message(
            memoryview(message),
            rows=piece.num_rows,
            compression=self._code,
            decoded_bytes_max=DECODED_BYTES_MAX,
        )
        return reason is None

    def _split(self, piece: pa.RecordBatch, size_bytes: int, first_row: int) -> list[EncodedEntry]:
        """The entries of a slice that is too large for one, made from its two halves.

        Raises EntryTooLargeError if it is one row.
        """
        if piece.num_rows == 1:
            raise EntryTooLargeError(
                f"row {first_row} (counted from 0) takes about {size_bytes} bytes; an entry holds "
                f"at most {ENTRY_PAYLOAD_BYTES_MAX} ({DECODED_BYTES_MAX} before compression), and "
                "a row cannot be divided: store large values elsewhere, or split them"
            )
        middle = piece.num_rows // 2
        return self._write([piece.slice(0, middle), piece.slice(middle)], first_row)


def in_pieces(
    batch: pa.RecordBatch, size_bytes: int = ENCODE_BYTES_AT_ONCE
) -> Iterator[pa.RecordBatch]:
    """A batch in slices of about ``size_bytes``, not copied: encoding then needs little memory."""
    pieces = -(-batch.nbytes // size_bytes)
    step = max(1, -(-batch.num_rows // max(1, pieces)))
    for offset in range(0, batch.num_rows, step):
        yield batch.slice(offset, step)


def read_header(payload: bytes, where: str) -> EntryHeader:
    """The header of an entry; ``where`` names the entry in errors. Raises CorruptionError."""
    if len(payload) < HEADER_BYTES:
        raise CorruptionError(f"{where}: {len(payload)} bytes are too short for an entry")
    magic, flags, code, schema_version, rows = HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise CorruptionError(f"{where}: not an entry of a stream (begins with {magic!r})")
    if flags != 0 or code not in _CODES.values():
        raise CorruptionError(
            f"{where}: unknown flags {flags:#x} or compression {code}; "
            "a newer program wrote it, or it is damaged"
        )
    if rows == 0:
        raise CorruptionError(f"{where}: an entry without rows")
    return EntryHeader(schema_version, rows, code)


class EntryDecoder:
    """Turns entries of one schema version into batches.

    All lengths and offsets are verified (a tenth of a millisecond per MiB), so no use of the batch
    reads outside of it. Text may be any bytes, as in Spark, which does not check the strings it
    makes of files or of ``CAST(binary AS string)``; Parquet and Kafka keep such strings too.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._prefix = schema.serialize().to_pybytes()

    def decode(self, payload: bytes, where: str) -> pa.RecordBatch:
        """The batch in an entry; ``where`` names it in errors.

        Raises CorruptionError if anything in the entry is damaged.
        """
        header = read_header(payload, where)
        message = pa.py_buffer(payload).slice(HEADER_BYTES)
        reason = check_record_batch_message(
            memoryview(message),
            rows=header.rows,
            compression=header.compression,
            decoded_bytes_max=_READ_BYTES_MAX,
        )
        if reason:
            raise CorruptionError(f"{where}: {reason}")
        try:
            batch = self._read(message)
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid:  # then all but the encoding of text has to hold
                as_bytes = _text_as_bytes(self.schema)
                pa.ipc.read_record_batch(message, as_bytes).validate(full=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError, StopIteration) as error:
            raise CorruptionError(f"{where}: damaged Arrow data: {error}") from error
        if batch.num_rows != header.rows:
            raise CorruptionError(
                f"{where}: {batch.num_rows} rows, but the header says {header.rows}"
            )
        return batch

    def _read(self, message: pa.Buffer) -> pa.RecordBatch:
        """The batch of a message. Of a small one as a stream, whose reader can be told to start no
        threads: to hand its columns to others costs more than to decompress them."""
        if message.size >= _DECODED_BY_THREADS_BYTES_MIN:
            return pa.ipc.read_record_batch(message, self.schema)
        stream = pa.py_buffer(b"".join((self._prefix, message)))
        return pa.ipc.open_stream(stream, options=_NO_THREADS).read_next_batch()


def _text_as_bytes(schema: pa.Schema) -> pa.Schema:
    """The schema with binary in place of text, which has the same buffers."""
    return pa.schema([field.with_type(_type_as_bytes(field.type)) for field in schema])


def _type_as_bytes(type_: pa.DataType) -> pa.DataType:
    if pat.is_string(type_):
        return pa.binary()
    if pat.is_list(type_):
        element = type_.value_field
        return pa.list_(element.with_type(_type_as_bytes(element.type)))
    if pat.is_map(type_):
        key, value = type_.key_field, type_.item_field
        return map_type(
            key.with_type(_type_as_bytes(key.type)), value.with_type(_type_as_bytes(value.type))
        )
    if pat.is_struct(type_):
        return pa.struct([child.with_type(_type_as_bytes(child.type)) for child in type_])
    return type_
