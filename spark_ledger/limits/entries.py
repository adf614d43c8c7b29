"""Sizes of entries, ledgers and messages: what clients, bookies and ZooKeeper have to agree on."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import KIB, MIB

# -- ledgers and entries ---------------------------------------------------------------------------

ENTRY_PAYLOAD_BYTES_MAX: Final = 16 * MIB
"""One entry. Larger ones would hold a journal batch, and every entry behind it, for too long."""

ENTRY_FRAME_OVERHEAD_BYTES_MAX: Final = 32 + 16
"""Header and the longest digest (``wire.frame``)."""

ENSEMBLE_SIZE_MAX: Final = 15
"""Each bookie more costs the writer one stream; beyond this, stripe over several ledgers."""

FRAGMENTS_MAX: Final = 10_000
"""An ensemble that changes this often is a sick cluster; metadata stay readable in one node."""

LEDGER_METADATA_BYTES_MAX: Final = 256 * KIB
"""A quarter of ZooKeeper's own ``jute.maxbuffer``, so that a transaction holds several nodes."""

LEDGER_METADATA_NEW_BYTES_MAX: Final = LEDGER_METADATA_BYTES_MAX // 2
"""Of a new ledger, custom metadata and all: the rest is for the fragments of its ensemble changes,
some thousand."""

LEDGER_METADATA_ENDED_BYTES_MAX: Final = LEDGER_METADATA_BYTES_MAX + 16 * KIB
"""Of a ledger that is recovered or closed. An open one may fill its node, and what ends it writes
another state, an end and the bookies that a recovery put in place of others."""

METADATA_REQUEST_BYTES_MAX: Final = 1 * MIB - 16 * KIB
"""One metadata write or transaction. ZooKeeper drops the connection, without a reason, of a client
that sends more than its ``jute.maxbuffer`` (1 MiB less a byte), names and ACLs included."""

# -- messages --------------------------------------------------------------------------------------

APPEND_MESSAGE_BYTES_TARGET: Final = 4 * MIB
"""A sender puts what is queued into one message up to this, and into one run. Each message costs
client and bookie half a millisecond whatever its size: with 1 MiB a gigabyte took a sixth more of
their processors."""

FIRST_MESSAGE_BYTES_TARGET: Final = 1 * MIB
"""The same until a bookie has stored something: it hears strangers at a rate, but for messages up
to this size (``BOOKIE_STRANGER_BYTES_S``)."""

APPEND_MESSAGE_ADDS_MAX: Final = 4_096
"""Adds of one message: of many small ones, more would keep a bookie busy with one client."""

REQUEST_BYTES_MAX: Final = 64 * KIB
"""A request that carries no entries: some numbers and an access key. A bookie decodes no longer
one, whatever gRPC lets through."""

CONFIRMATIONS_PER_MESSAGE: Final = 200
"""Ledgers of one request that tells what was confirmed: some 15 KB, 10 ms of a bookie."""

MESSAGE_BYTES_MAX: Final = ENTRY_PAYLOAD_BYTES_MAX + 1 * MIB
"""gRPC message size both ways: the largest entry, its frame, and room for the fields around it."""

READ_CHUNK_BYTES_TARGET: Final = 4 * MIB
"""A bookie streams a range in chunks of up to this size (a single larger entry is one chunk): what
a writer sends at once. Each chunk costs a bookie half a millisecond whatever its size, and more if
it cuts a run."""

READ_REQUEST_BYTES_MAX: Final = 64 * MIB
"""A bookie ends one range read after this many bytes; the reader asks for the rest."""

LONG_POLL_S_MAX: Final = 30.0
"""A bookie holds a tail request at most this long."""
