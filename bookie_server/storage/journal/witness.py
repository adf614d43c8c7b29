"""What a batch of one log says of the others: up to where they were durable. Pure.

The last batch of a log that is damaged looks like a torn tail, unless something shows that it was
synced (rule S5). Within a log that is the next batch. Between logs it is this record: a batch is
begun only after the one before it was synced, in whichever log that is, so it names the last
batches of those logs that went on since the last time that it was said here.

body, once per log (big endian):

    0       4      the log: 0 is the journal, n + 1 the run log of ledger directory n
    4       8      sequence of its last durable batch
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from google_crc32c import value as crc32c_value

from bookie_server.storage.blocks import Block

_SEEN = struct.Struct(">IQ")
JOURNAL_LOG = 0
"""The number of the journal among the logs."""


def run_log_number(directory: int) -> int:
    """The number of a ledger directory's run log among the logs."""
    return directory + 1


def witness_body(sequences: Mapping[int, int]) -> Block:
    """Body of a WITNESS record: last durable sequences by log."""
    assert sequences, "a witness has seen something"
    body = b"".join(_SEEN.pack(log, sequence) for log, sequence in sorted(sequences.items()))
    return Block((body,), len(body), int(crc32c_value(body)))


def decode_witness(body: bytes) -> dict[int, int] | None:
    """Last durable sequences by log; None when the length is wrong."""
    if not body or len(body) % _SEEN.size:
        return None
    return dict(_SEEN.iter_unpack(body))
