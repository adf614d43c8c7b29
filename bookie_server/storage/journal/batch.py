"""The bytes of one journal batch: records, trailer, and zeros up to the next block.

A batch is what one sync makes durable, all of it or none (rule S1). Its records carry its sequence,
its trailer says how long it is and what came before it, so a torn batch is told from a whole one
without trusting the order in which a disk writes its sectors (rules S5 and S11). See ``records``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bookie_server.storage.blocks import Block
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.records import (
    BATCH_ALIGNMENT,
    RECORD_HEADER_BYTES,
    TRAILER_BYTES,
    Trailer,
    extend_chain,
    pack_header,
    pack_trailer,
    padding,
)

_ZEROS = bytes(BATCH_ALIGNMENT)


class PackedBatch(NamedTuple):
    """What is written at once, and the mark behind it: durable only once that is synced."""

    buffers: list[bytes]
    end: Mark


def records_bytes(bodies: Iterable[Block]) -> int:
    """Bytes of records with these bodies."""
    return sum(body.length + RECORD_HEADER_BYTES for body in bodies)


def pack_batch(records: Iterable[tuple[int, Block]], start: Mark, seed: int) -> PackedBatch:
    """The batch that follows ``start``, of records given as type and body."""
    assert start.offset % BATCH_ALIGNMENT == 0, f"a batch starts in mid-block: {start}"
    # Every record carries the sequence of its batch. One above the last durable one, it is what
    # later proves to a reader that the batch before was synced (rule S5).
    sequence = start.sequence + 1
    buffers: list[bytes] = []
    headers: list[bytes] = []
    for record_type, body in records:
        header = pack_header(record_type, body.length, sequence, body.crc, seed)
        headers.append(header)
        buffers.append(header)
        buffers.extend(body.buffers)
    size = sum(map(len, buffers))
    chain = extend_chain(start.chain, b"".join(headers))
    buffers.append(pack_trailer(Trailer(size, len(headers), chain), sequence, seed))
    # Up to the next block with zeros: the batch after this one starts in another sector, so
    # no torn write of it can reach bytes that were acknowledged.
    end = start.offset + size + TRAILER_BYTES
    buffers.append(_ZEROS[: padding(end)])
    end += padding(end)
    assert start.offset + sum(map(len, buffers)) == end, "the mark is where the bytes end"
    return PackedBatch(buffers, Mark(start.file_number, end, sequence, chain))
